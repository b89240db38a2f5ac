// Formats numbers, times and paths for display.

export function dollars(amount: number | null | undefined): string {
  if (amount === null || amount === undefined || amount === 0) return "";
  return amount < 0.01 ? "<$0.01" : `$${amount.toFixed(2)}`;
}

/** The cost of a session. "≥" marks a lower bound. */
export function costOf(row: { costUsd?: number | null; estimatedCostUsd?: number | null }): string {
  const estimate = dollars(row.estimatedCostUsd);
  return estimate ? `≥ ${estimate}` : dollars(row.costUsd);
}

export function count(number: number, thing: string): string {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

/** A number of bytes with a unit. */
export function size(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / (1 << 20)).toFixed(1).replace(/\.0$/, "")} MB`;
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

/** A time in Unix milliseconds, from Unix seconds, Unix milliseconds or an ISO string; 0 if it is absent or invalid. */
export function moment(value: number | string | null | undefined): number {
  if (typeof value === "number") return value < 1e11 ? value * 1000 : value;
  return value ? Date.parse(value) || 0 : 0;
}

/** The last two parts of a path. */
export function place(path: string | null | undefined): string {
  const parts = (path ?? "").split(/[\\/]/).filter(Boolean);
  return parts.length <= 2 ? (path ?? "") : `…/${parts.slice(-2).join("/")}`;
}

/** The characters of emoji, and the letters of scripts that use joiners. */
const EMOJI = "[\\u00a9\\u00ae\\u203c\\u2049\\u2122\\u2139\\u2190-\\u27ff\\u2900-\\u2bff\\u3030\\u303d\\u3297\\u3299\\u{1f000}-\\u{1faff}]";
const JOINING = "[\\u0600-\\u08ff\\u0900-\\u0dff\\u1000-\\u109f\\u1780-\\u17b3\\u17b6-\\u180a\\u1820-\\u18af]";
/** The places where an invisible character belongs to a visible one and stays. */
const KEPT_INVISIBLE = [
  `(?<=${EMOJI}\\ufe0f?)\\u200d(?=${EMOJI})`, // joined emoji: a family, a profession
  `(?<=${JOINING})[\\u200c\\u200d](?=${JOINING})`, // as in Persian and Hindi
  `(?<=${EMOJI})\\ufe0f`, // a character shown as a color emoji
  "(?<=[0-9#*])\\ufe0f(?=\\u20e3)", // a keycap
  "(?<=\\u{1f3f4})[\\u{e0020}-\\u{e007e}]{1,8}\\u{e007f}", // the flag of a region of a country
].join("|");
const INVISIBLE =
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e" +
  "\\u2060-\\u206f\\u2800\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb]|[\\u{e0000}-\\u{e0fff}]";
const PERHAPS_HIDDEN = new RegExp(`${KEPT_INVISIBLE}|(?<hidden>${INVISIBLE})`, "gu");

/** The text with nothing hidden: control characters, marks that change the text direction and other invisible
 * characters are shown as codes, unless they belong to a visible character, as in emoji. */
export function visible(text: string): string {
  return text.replace(PERHAPS_HIDDEN, (found: string, hidden: string | undefined) =>
    hidden === undefined ? found : `⟨U+${(hidden.codePointAt(0) as number).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
