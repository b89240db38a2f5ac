// The settings page: notifications, signed-in devices, a sign-in link for another device, sign-out.

import { useSignal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { forget, get, messageOf, post, send } from "./api";
import { clearDrafts } from "./drafts";
import type { Live } from "./live";
import { pushProblem, subscription, switchOff, switchOn } from "./push";
import type { Me } from "./types";
import { Problem, ConfirmButton, useFreshId } from "./ui";
import { ViewHead } from "./view_head";
import { ago, moment } from "./words";

interface Receiver {
  id: string;
  kind: string;
  target: string;
  device?: string | null;
  lastError?: string | null;
}

interface PushSettings {
  events: string[];
  quietHours?: { from: string; to: string; timezone: string } | null;
  kinds: string[];
  receivers: Receiver[];
  vapidPublicKey?: string | null;
}

interface SignIn {
  id: string;
  device?: string | null;
  lastUsedAt?: string | null;
  current: boolean;
}

const EVENT_WORDS: Record<string, string> = { question: "Claude asks a question", ended: "a turn ends", stalled: "a session has no output",
  budget: "a budget is nearly used up" };


type Attempt = (act: () => Promise<unknown>, then?: () => void) => void;

export function Settings({ me, live, signedOut }: { me: Me; live: Live; signedOut(): void }): VNode {
  const problem = useSignal("");
  const attempt: Attempt = (act, then) => {
    problem.value = "";
    act().then(then, (error: unknown) => (problem.value = messageOf(error)));
  };
  return (
    <div class="page">
      <ViewHead title="Settings" live={live} />
      <div class="page-body narrow">
        <Problem>{problem.value}</Problem>
        {me.push !== false && <PushSection me={me} attempt={attempt} />}
        <DeviceSection attempt={attempt} />
        <LinkSection attempt={attempt} />
        <section>
          <h2>Sign out</h2>
          <p class="hint">Signed in as {me.principal}. Version {me.version}.</p>
          <div class="actions">
            <button type="button" onClick={() => attempt(() => leave(false), signedOut)}>Sign out</button>
            <ConfirmButton label="Sign out everywhere" again="Yes, sign out everywhere" act={() => attempt(() => leave(true), signedOut)} />
          </div>
        </section>
      </div>
    </div>
  );
}

async function leave(everywhere: boolean): Promise<void> {
  const left = await post<{ provider?: string | null }>("/api/sign-out", { everywhere });
  forget();
  await clearDrafts();
  // Otherwise the next user of this browser could sign in again with one click.
  if (left.provider) location.assign(left.provider);
}

interface PushState {
  settings: PushSettings;
  here: PushSubscription | null;
}

function PushSection({ me, attempt }: { me: Me; attempt: Attempt }): VNode {
  const state = useSignal<PushState | null>(null);
  const busy = useSignal("");
  const load = async (): Promise<void> => {
    const [settings, here] = await Promise.all([get<PushSettings>("/api/push"), subscription()]);
    state.value = { settings, here };
  };
  useEffect(() => attempt(load), []);
  /** Shows that a slow action is in progress: a browser may need seconds for its push service. */
  const doing = (words: string, act: () => Promise<unknown>): void => attempt(async () => {
    busy.value = words;
    try {
      await act();
    } finally {
      busy.value = "";
      await load();
    }
  });
  return (
    <section>
      <h2>Notifications</h2>
      {state.value !== null && <PushBody me={me} {...state.value} busy={busy.value} doing={doing} />}
    </section>
  );
}

type DoAct = (words: string, act: () => Promise<unknown>) => void;

function PushBody({ me, settings, here, busy, doing }: PushState & { me: Me; busy: string; doing: DoAct }): VNode {
  const key = settings.vapidPublicKey ?? me.vapidPublicKey;
  const why = pushProblem(key);
  const host = here ? new URL(here.endpoint).host : null;
  const own = settings.receivers.find((one) => one.kind === "webpush" && one.target === host) ?? null;
  const save = (change: Partial<PushSettings>): void =>
    doing("", () => send("PUT", "/api/push", { events: settings.events, quietHours: settings.quietHours ?? null, ...change }));
  const toggle = (name: string, on: boolean): void =>
    save({ events: Object.keys(EVENT_WORDS).filter((one) => (one === name ? on : settings.events.includes(one))) });
  return (
    <div>
      {why !== null ? <p class="hint">{why}</p> : (
        <div class="actions">
          {here ? <button type="button" disabled={busy !== ""} onClick={() => doing("Switching off…", () => switchOff(own?.id ?? null))}>Switch off on this device</button>
            : <button type="button" class="allow" disabled={busy !== ""} onClick={() => doing("Asking the browser…", () => switchOn(key as string))}>Switch on for this device</button>}
          <span class="hint" role="status">{busy}</span>
        </div>
      )}
      <fieldset class="choice">
        <legend>Notify me when</legend>
        {Object.entries(EVENT_WORDS).map(([name, words]) => (
          <label class="option" key={name}>
            <input type="checkbox" checked={settings.events.includes(name)} onChange={(event) => toggle(name, event.currentTarget.checked)} />{words}
          </label>
        ))}
      </fieldset>
      <QuietHours settings={settings} save={save} />
      <Receivers list={settings.receivers} doing={doing} />
      <AddReceiver kinds={settings.kinds} doing={doing} />
    </div>
  );
}

function QuietHours({ settings, save }: { settings: PushSettings; save(change: Partial<PushSettings>): void }): VNode {
  const id = useFreshId();
  const from = useRef<HTMLInputElement>(null);
  const to = useRef<HTMLInputElement>(null);
  const hours = settings.quietHours;
  const timezone = hours?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  return (
    <p class="controls">
      <label for={`${id}-from`}>Quiet from </label><input type="time" id={`${id}-from`} ref={from} defaultValue={hours?.from ?? "22:00"} />
      <label for={`${id}-to`}> to </label><input type="time" id={`${id}-to`} ref={to} defaultValue={hours?.to ?? "07:00"} />
      <button type="button" onClick={() => save({ quietHours: { from: from.current?.value ?? "", to: to.current?.value ?? "", timezone } })}>{hours ? "Change" : "Set"}</button>
      {hours && <button type="button" class="quiet" onClick={() => save({ quietHours: null })}>No quiet hours</button>}
    </p>
  );
}

function Receivers({ list, doing }: { list: readonly Receiver[]; doing: DoAct }): VNode {
  return (
    <ul class="cards" role="list">
      {list.map((one) => {
        const path = `/api/push/receivers/${encodeURIComponent(one.id)}`;
        const name = one.device || one.target;
        return (
          <li class="card" key={one.id}>
            <p>{one.kind} · {name}</p>
            {one.lastError && <p class="problem">{one.lastError}</p>}
            <div class="actions">
              <button type="button" aria-label={`Test ${name}`} onClick={() => doing("Sending…", () => tested(path))}>Test</button>
              <button type="button" class="deny" aria-label={`Remove ${name}`} onClick={() => doing("", () => send("DELETE", path))}>Remove</button>
            </div>
          </li>
        );
      })}
    </ul>
  );
}

async function tested(path: string): Promise<void> {
  const { sent, error } = await post<{ sent: boolean; error?: string | null }>(`${path}/test`);
  if (!sent) throw new Error(error ?? "It could not be sent.");
}

function AddReceiver({ kinds, doing }: { kinds: readonly string[]; doing: DoAct }): VNode {
  const kind = useRef<HTMLSelectElement>(null);
  const url = useRef<HTMLInputElement>(null);
  const secret = useSignal("");
  const add = async (): Promise<void> => {
    const made = await post<{ secret?: string | null }>("/api/push/receivers", { kind: kind.current?.value, url: url.current?.value.trim() });
    secret.value = made.secret ?? "";
    if (made.secret) throw new Error("Copy the secret below before you leave: it is shown once.");
  };
  return (
    <details>
      <summary>Send notifications elsewhere too</summary>
      <p class="controls">
        <select ref={kind} aria-label="Kind of receiver">{kinds.map((name) => <option key={name} value={name}>{name}</option>)}</select>
        <input type="url" ref={url} placeholder="https://…" autocomplete="off" aria-label="Address of the receiver" />
        <button type="button" onClick={() => doing("", add)}>Add</button>
      </p>
      <p class="hint" role="status">{secret.value && <>The secret that signs its messages: <code>{secret.value}</code></>}</p>
    </details>
  );
}

function DeviceSection({ attempt }: { attempt: Attempt }): VNode {
  const list = useSignal<readonly SignIn[]>([]);
  const load = async (): Promise<void> => {
    list.value = (await get<{ signIns: SignIn[] }>("/api/sign-ins")).signIns;
  };
  useEffect(() => attempt(load), []);
  return (
    <section>
      <h2>Signed-in devices</h2>
      <ul class="cards" role="list">
        {list.value.map((one) => (
          <li class="card" key={one.id}>
            <p>{one.device || "a browser"}{one.current ? " (this one)" : ""} · {ago(moment(one.lastUsedAt))}</p>
            {!one.current && (
              <div class="actions">
                <button type="button" class="deny" aria-label={`Sign out ${one.device ?? "that browser"}`}
                  onClick={() => attempt(() => send("DELETE", `/api/sign-ins/${encodeURIComponent(one.id)}`).then(load))}>Sign out</button>
              </div>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

interface Ticket {
  url: string;
  expiresAt: string;
  qr?: string[] | null;
}

function LinkSection({ attempt }: { attempt: Attempt }): VNode {
  const ticket = useSignal<Ticket | null>(null);
  const show = async (): Promise<void> => {
    ticket.value = await post<Ticket>("/api/tickets");
  };
  return (
    <section>
      <h2>Another device</h2>
      <div class="actions"><button type="button" onClick={() => attempt(show)}>Show a sign-in code</button></div>
      <div aria-live="polite">
        {ticket.value !== null && (
          <>
            {ticket.value.qr && <QrCode rows={ticket.value.qr} />}
            <p><code class="wrap">{ticket.value.url}</code></p>
            <p class="hint">Works once and expires soon.</p>
          </>
        )}
      </div>
    </section>
  );
}

function QrCode({ rows }: { rows: readonly string[] }): ComponentChildren {
  const squares = rows.flatMap((row, y) => [...row].map((cell, x) => (cell === "1" ? `M${x} ${y}h1v1h-1z` : "")));
  return <svg class="qr" role="img" aria-label="The link as a QR code" viewBox={`0 0 ${rows[0]?.length ?? 0} ${rows.length}`}><path d={squares.join("")} /></svg>;
}
