// What somebody has typed, or attached, and not sent, by session, what was sent and is not in the conversation yet, and
// which changes they have viewed. It is kept in this browser, for one person, until it is sent or they sign out.

import type { Attachment } from "./attachments";

const KEY = "claude-code-mcp.drafts";
const MAX_DRAFTS = 40;
const MAX_LENGTH = 100_000;
const MAX_TOTAL_LENGTH = 1_000_000;
const MAX_SENT = 10;
const MAX_REVIEWS = 40;
const MAX_VIEWED = 500;

/** A message that the server has taken. */
export interface Sent {
  messageId: string;
  text: string;
}

interface Draft {
  text: string;
  /** Of a message that may have been sent or not: sent again with it, it counts once. */
  key?: string | undefined;
  /** How many files go with it; they are kept elsewhere. */
  attached?: number;
  sent?: Sent[];
  at: number;
}

interface Kept {
  principal: string;
  drafts: Record<string, Draft>;
  /** Digests of the changes that were viewed, by session. */
  viewed?: Record<string, string[]>;
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
  void removeFiles(principal);
}

/** Everything is removed from this browser; resolves when it is. */
export function clearDrafts(): Promise<void> {
  kept = { principal: "", drafts: {} }; // before anything is awaited: what is still being read is not kept after this
  localStorage.removeItem(KEY);
  return removeFiles("");
}

export function draftOf(scope: string): { text: string; key?: string | undefined; attached?: number } {
  return kept.drafts[scope] ?? { text: "" };
}

export function saveDraft(scope: string, text: string, key?: string, attached = 0): void {
  const sent = kept.drafts[scope]?.sent;
  put(scope, { text: text.slice(0, MAX_LENGTH), key, at: Date.now(), ...(attached ? { attached } : {}), ...(sent ? { sent } : {}) });
}

export function sentOf(scope: string): readonly Sent[] {
  return kept.drafts[scope]?.sent ?? [];
}

export function noteSent(scope: string, message: Sent): void {
  const { text, key, attached = 0 } = draftOf(scope);
  const others = sentOf(scope).filter((one) => one.messageId !== message.messageId);
  const sent = [...others, { ...message, text: message.text.slice(0, MAX_LENGTH) }].slice(-MAX_SENT);
  put(scope, { text, key, sent, at: Date.now(), ...(attached ? { attached } : {}) });
}

/** It is in the conversation, or its text is elsewhere on the page. */
export function forgetSent(scope: string, messageId: string): void {
  const draft = kept.drafts[scope];
  if (!draft?.sent?.some((one) => one.messageId === messageId)) return;
  put(scope, { ...draft, sent: draft.sent.filter((one) => one.messageId !== messageId) });
}

function put(scope: string, draft: Draft): void {
  delete kept.drafts[scope]; // the newest stand last
  if (draft.text || draft.attached || draft.sent?.length) kept.drafts[scope] = draft;
  const size = (): number => JSON.stringify(kept.drafts).length;
  let scopes = Object.keys(kept.drafts);
  while (scopes.length > MAX_DRAFTS || (scopes.length > 1 && size() > MAX_TOTAL_LENGTH)) {
    delete kept.drafts[scopes[0] as string];
    scopes = scopes.slice(1);
  }
  store();
}

function store(): void {
  try {
    if (Object.keys(kept.drafts).length || Object.keys(kept.viewed ?? {}).length) localStorage.setItem(KEY, JSON.stringify(kept));
    else localStorage.removeItem(KEY);
  } catch {
    // The browser keeps no more; what is on the page stays there.
  }
}

export function viewedOf(session: string): ReadonlySet<string> {
  return new Set(kept.viewed?.[session]);
}

/** Keeps which changes of a session were viewed; the sessions that were reviewed longest ago lose theirs. */
export function saveViewed(session: string, digests: ReadonlySet<string>): void {
  const { [session]: _, ...others } = kept.viewed ?? {};
  const all = Object.entries({ ...others, ...(digests.size ? { [session]: [...digests].slice(-MAX_VIEWED) } : {}) });
  kept.viewed = Object.fromEntries(all.slice(-MAX_REVIEWS));
  store();
}

/** A key that no other message has. Not `randomUUID`: a page over plain HTTP has none. */
export function freshKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// -- attachments of drafts ----------------------------------------------------------------------------------------------

const STORE = "attachments";
const MAX_SCOPES = 10;
const MAX_TOTAL_BYTES = 60 << 20;

interface KeptFiles {
  scope: string;
  principal: string;
  attachments: readonly Attachment[];
  bytes: number;
  at: number;
}

let database: Promise<IDBDatabase> | null = null;

/** One transaction, with all rows; resolves once it is on the disk. Files are too large for `localStorage`. What is done here
 * is done in the order in which it was asked for: every act waits for the same opening, and transactions on one store follow
 * each other. */
async function act(mode: IDBTransactionMode, work: (store: IDBObjectStore, rows: KeptFiles[]) => void): Promise<void> {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(KEY, 1);
    request.onupgradeneeded = () => void request.result.createObjectStore(STORE, { keyPath: "scope" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => {
      database = null; // the next act tries again
      reject(request.error);
    };
  });
  const transaction = (await database).transaction(STORE, mode);
  await new Promise<void>((resolve, reject) => {
    const store = transaction.objectStore(STORE);
    const rows = store.getAll() as IDBRequest<KeptFiles[]>;
    rows.onsuccess = () => work(store, rows.result);
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Keeps the files of a draft, none too, instead of those that were kept; the drafts that are left longest lose theirs if it
 * becomes too much. Rejects where the browser keeps none. */
export async function saveAttachments(scope: string, attachments: readonly Attachment[]): Promise<void> {
  const { principal } = kept;
  if (!principal) return; // signed out meanwhile
  await act("readwrite", (store, rows) => {
    store.delete(scope);
    if (!attachments.length) return;
    let bytes = attachments.reduce((sum, one) => sum + one.bytes, 0);
    store.put({ scope, principal, attachments, bytes, at: Date.now() } satisfies KeptFiles);
    rows.filter((row) => row.scope !== scope).sort((one, other) => other.at - one.at).forEach((row, at) => {
      bytes += row.bytes;
      if (at + 1 >= MAX_SCOPES || bytes > MAX_TOTAL_BYTES) store.delete(row.scope);
    });
  });
}

/** The files that were kept; none where they cannot be read. */
export async function attachmentsOf(scope: string): Promise<readonly Attachment[]> {
  let found: readonly Attachment[] = [];
  await act("readonly", (_, rows) => {
    found = rows.find((row) => row.scope === scope && row.principal === kept.principal)?.attachments ?? [];
  }).catch(() => undefined);
  return found;
}

/** Removes the files of everybody but one person. */
function removeFiles(principal: string): Promise<void> {
  return act("readwrite", (store, rows) => {
    for (const row of rows) if (row.principal !== principal) store.delete(row.scope);
  }).catch(() => undefined); // a browser that keeps nothing says so when there is something to keep
}
