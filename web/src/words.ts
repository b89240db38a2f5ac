// Numbers, times and paths for people.

export function dollars(amount: number | null | undefined): string {
  if (amount === null || amount === undefined || amount === 0) return "";
  return amount < 0.01 ? "<$0.01" : `$${amount.toFixed(2)}`;
}

export function count(number: number, thing: string): string {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

export function duration(milliseconds: number): string {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** How long ago, in a few characters. */
export function ago(time: number, now = Date.now()): string {
  const seconds = Math.max(0, (now - time) / 1000);
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 7 * 86_400) return `${Math.floor(seconds / 86_400)} d`;
  return new Date(time).toLocaleDateString("en", { day: "numeric", month: "short" });
}

/** Milliseconds from whatever a time is given as: Unix seconds or ISO. */
export function moment(value: number | string | null | undefined): number {
  if (typeof value === "number") return value < 1e11 ? value * 1000 : value;
  return value ? Date.parse(value) || 0 : 0;
}

/** The last two parts of a path. */
export function place(path: string | null | undefined): string {
  const parts = (path ?? "").split(/[\\/]/).filter(Boolean);
  return parts.length <= 2 ? (path ?? "") : `…/${parts.slice(-2).join("/")}`;
}

const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** A text of which nothing is hidden: control and invisible characters are shown as codes. For what somebody decides
 * on. */
export function visible(text: string): string {
  return text.replace(INVISIBLE, (found) => `⟨U+${(found.codePointAt(0) as number).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
