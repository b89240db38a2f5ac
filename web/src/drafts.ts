// What somebody has typed and not sent, by session, and what was sent and is not in the conversation yet. It is kept in
// this browser, for one person, until it is sent or they sign out.

const KEY = "claude-code-mcp.drafts";
const MOST = 40;
const LONGEST = 100_000;
const LONGEST_TOGETHER = 1_000_000;
const MOST_SENT = 10;

/** A message that the server has taken. */
export interface Sent {
  messageId: string;
  text: string;
}

interface Draft {
  text: string;
  /** Of a message that may have been sent or not: sent again with it, it counts once. */
  key?: string | undefined;
  sent?: Sent[];
  at: number;
}

interface Kept {
  principal: string;
  drafts: Record<string, Draft>;
}

let kept: Kept = { principal: "", drafts: {} };

/** Takes what this person has left here. What somebody else has left is removed. */
export function openDrafts(principal: string): void {
  kept = { principal, drafts: {} };
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "null") as Kept | null;
    if (found?.principal === principal && typeof found.drafts === "object") kept = found;
    else localStorage.removeItem(KEY);
  } catch {
    localStorage.removeItem(KEY);
  }
}

export function clearDrafts(): void {
  kept.drafts = {};
  localStorage.removeItem(KEY);
}

export function draftOf(scope: string): { text: string; key?: string | undefined } {
  return kept.drafts[scope] ?? { text: "" };
}

export function saveDraft(scope: string, text: string, key?: string): void {
  const sent = kept.drafts[scope]?.sent;
  put(scope, { text: text.slice(0, LONGEST), key, at: Date.now(), ...(sent ? { sent } : {}) });
}

export function sentOf(scope: string): readonly Sent[] {
  return kept.drafts[scope]?.sent ?? [];
}

export function noteSent(scope: string, message: Sent): void {
  const { text, key } = draftOf(scope);
  const others = sentOf(scope).filter((one) => one.messageId !== message.messageId);
  const sent = [...others, { ...message, text: message.text.slice(0, LONGEST) }].slice(-MOST_SENT);
  put(scope, { text, key, sent, at: Date.now() });
}

/** It is in the conversation, or its text is elsewhere on the page. */
export function forgetSent(scope: string, messageId: string): void {
  const draft = kept.drafts[scope];
  if (!draft?.sent?.some((one) => one.messageId === messageId)) return;
  put(scope, { ...draft, sent: draft.sent.filter((one) => one.messageId !== messageId) });
}

function put(scope: string, draft: Draft): void {
  delete kept.drafts[scope]; // the newest stand last
  if (draft.text || draft.sent?.length) kept.drafts[scope] = draft;
  const size = (): number => JSON.stringify(kept.drafts).length;
  let scopes = Object.keys(kept.drafts);
  while (scopes.length > MOST || (scopes.length > 1 && size() > LONGEST_TOGETHER)) {
    delete kept.drafts[scopes[0] as string];
    scopes = scopes.slice(1);
  }
  try {
    if (scopes.length) localStorage.setItem(KEY, JSON.stringify(kept));
    else localStorage.removeItem(KEY);
  } catch {
    // The browser keeps no more; what is on the page stays there.
  }
}

/** A key that no other message has. Not `randomUUID`: a page over plain HTTP has none. */
export function freshKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
