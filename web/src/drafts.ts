// Unsent text and attachments by session, sent messages that are not in the conversation yet, and the changes that the user
// has viewed. This browser stores them for one user, until they are sent or the user signs out.

import type { Attachment } from "./attachments";

const KEY = "claude-code-mcp.drafts";
const MAX_DRAFTS = 40;
const MAX_LENGTH = 100_000;
const MAX_TOTAL_LENGTH = 1_000_000;
const MAX_SENT = 10;
const MAX_REVIEWS = 40;
const MAX_VIEWED = 500;

/** A message that the server has accepted. */
export interface Sent {
  messageId: string;
  text: string;
}

interface Draft {
  text: string;
  /** The key of a message that may already have been sent: sent again with the same key, it counts only once. */
  key?: string | undefined;
  /** The number of attached files, which are stored separately. */
  attached?: number;
  sent?: Sent[];
  at: number;
}

interface Kept {
  principal: string;
  drafts: Record<string, Draft>;
  /** Digests of the viewed changes, by session. */
  viewed?: Record<string, string[]>;
}

let kept: Kept = { principal: "", drafts: {} };

/** Loads what this browser has stored for this user, and removes what it has stored for any other user. */
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

/** Removes everything from this browser; resolves when that is done. */
export function clearDrafts(): Promise<void> {
  kept = { principal: "", drafts: {} }; // before any await: attachments that are still being read are not stored after this
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

/** Forgets a sent message that is in the conversation, or whose text is elsewhere on the page. */
export function forgetSent(scope: string, messageId: string): void {
  const draft = kept.drafts[scope];
  if (!draft?.sent?.some((one) => one.messageId === messageId)) return;
  put(scope, { ...draft, sent: draft.sent.filter((one) => one.messageId !== messageId) });
}

function put(scope: string, draft: Draft): void {
  delete kept.drafts[scope]; // so that the newest draft is last
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
    // The browser stores no more; the text on the page stays there.
  }
}

export function viewedOf(session: string): ReadonlySet<string> {
  return new Set(kept.viewed?.[session]);
}

/** Stores which changes of a session the user has viewed, and drops those of the sessions reviewed longest ago. */
export function saveViewed(session: string, digests: ReadonlySet<string>): void {
  const { [session]: _, ...others } = kept.viewed ?? {};
  const all = Object.entries({ ...others, ...(digests.size ? { [session]: [...digests].slice(-MAX_VIEWED) } : {}) });
  kept.viewed = Object.fromEntries(all.slice(-MAX_REVIEWS));
  store();
}

/** A unique key for a message. Not `randomUUID`, which a page over plain HTTP does not have. */
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

/** Runs one transaction, with all rows; resolves once it is on disk. Files are too large for `localStorage`. Calls take
 * effect in the order in which they are made: every call waits for the same database to open, and transactions on one store
 * run one after another. */
async function act(mode: IDBTransactionMode, work: (store: IDBObjectStore, rows: KeptFiles[]) => void): Promise<void> {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(KEY, 1);
    request.onupgradeneeded = () => void request.result.createObjectStore(STORE, { keyPath: "scope" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => {
      database = null; // the next call tries again
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

/** Replaces the stored files of a draft; an empty list removes them. If there is too much in total, the oldest drafts lose
 * their files. Rejects if the browser cannot store files. */
export async function saveAttachments(scope: string, attachments: readonly Attachment[]): Promise<void> {
  const { principal } = kept;
  if (!principal) return; // the user has signed out in the meantime
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

/** The stored files of a draft; none if they cannot be read. */
export async function attachmentsOf(scope: string): Promise<readonly Attachment[]> {
  let found: readonly Attachment[] = [];
  await act("readonly", (_, rows) => {
    found = rows.find((row) => row.scope === scope && row.principal === kept.principal)?.attachments ?? [];
  }).catch(() => undefined);
  return found;
}

/** Removes the files of all users except this one. */
function removeFiles(principal: string): Promise<void> {
  return act("readwrite", (store, rows) => {
    for (const row of rows) if (row.principal !== principal) store.delete(row.scope);
  }).catch(() => undefined); // a browser that cannot store files reports it when there is something to store
}
