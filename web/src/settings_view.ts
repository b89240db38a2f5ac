// Notifications, signed-in devices, a link for another device, signing out.

import { forget, get, messageOf, post, send } from "./api";
import { button, freshId, h, replace, type Child } from "./dom";
import { clearDrafts } from "./drafts";
import { viewHead } from "./new_view";
import { pushProblem, subscription, switchOff, switchOn } from "./push";
import { twice } from "./session_menu";
import type { Me } from "./types";
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

const EVENT_WORDS: Record<string, string> = { question: "Claude asks something", ended: "a turn ends", stalled: "a session goes silent",
  budget: "a budget is nearly used up" };

export function settingsView(me: Me, signedOut: () => void): HTMLElement {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const attempt = (act: () => Promise<unknown>, then: () => void): void => {
    problem.hidden = true;
    act().then(then, (error: unknown) => {
      problem.textContent = messageOf(error);
      problem.hidden = false;
    });
  };
  return h("div", { class: "page" }, viewHead("Settings"), h("div", { class: "page-body narrow" }, problem,
    me.push !== false && pushSection(me, attempt), deviceSection(attempt), linkSection(attempt),
    h("section", null, h("h2", null, "Sign out"),
      h("p", { class: "hint" }, `Signed in as ${me.principal}. Version ${me.version}.`),
      h("div", { class: "actions" },
        button("Sign out", () => attempt(() => leave(false), signedOut)),
        twice("Sign out everywhere", "Really everywhere?", () => attempt(() => leave(true), signedOut))))));
}

type Attempt = (act: () => Promise<unknown>, then: () => void) => void;

async function leave(everywhere: boolean): Promise<void> {
  const left = await post<{ provider?: string | null }>("/api/sign-out", { everywhere });
  forget();
  await clearDrafts();
  // Otherwise the next person at this browser would be signed in again with a click.
  if (left.provider) location.assign(left.provider);
}

function pushSection(me: Me, attempt: Attempt): HTMLElement {
  const body = h("div", null);
  const load = async (): Promise<void> => {
    const [settings, here] = await Promise.all([get<PushSettings>("/api/push"), subscription()]);
    replace(body, ...pushBody(me, settings, here, (act) => attempt(act, () => void load())));
  };
  attempt(load, () => undefined);
  return h("section", null, h("h2", null, "Notifications"), body);
}

function pushBody(me: Me, settings: PushSettings, here: PushSubscription | null, attempt: (act: () => Promise<unknown>) => void): Child[] {
  const key = settings.vapidPublicKey ?? me.vapidPublicKey;
  const why = pushProblem(key);
  const host = here ? new URL(here.endpoint).host : null;
  const own = settings.receivers.find((one) => one.kind === "webpush" && one.target === host) ?? null;
  const save = (change: Partial<PushSettings>): void =>
    attempt(() => send("PUT", "/api/push", { events: settings.events, quietHours: settings.quietHours ?? null, ...change }));
  return [
    why !== null && h("p", { class: "hint" }, why),
    why === null && h("div", { class: "actions" }, here
      ? button("Switch off on this device", () => attempt(() => switchOff(own?.id ?? null)))
      : button("Switch on for this device", () => attempt(() => switchOn(key as string)), { class: "allow" })),
    h("fieldset", { class: "choice" }, h("legend", null, "Notify me when"), ...Object.entries(EVENT_WORDS).map(([name, words]) => {
      const box = h("input", { type: "checkbox", id: freshId("event"), checked: settings.events.includes(name),
        on: { change: () => save({ events: Object.keys(EVENT_WORDS).filter((one) => (one === name ? box.checked : settings.events.includes(one))) }) } });
      return h("label", { class: "option", for: box.id }, box, words);
    })),
    quietHours(settings, save),
    receivers(settings.receivers, attempt),
    addReceiver(settings.kinds, attempt),
  ];
}

function quietHours(settings: PushSettings, save: (change: Partial<PushSettings>) => void): HTMLElement {
  const hours = settings.quietHours;
  const from = h("input", { type: "time", id: freshId("from"), value: hours?.from ?? "22:00" });
  const to = h("input", { type: "time", id: freshId("to"), value: hours?.to ?? "07:00" });
  const timezone = hours?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  return h("p", { class: "controls" }, h("label", { for: from.id }, "Quiet from "), from, h("label", { for: to.id }, " to "), to,
    button(hours ? "Change" : "Set", () => save({ quietHours: { from: from.value, to: to.value, timezone } })),
    hours && button("Never quiet", () => save({ quietHours: null }), { class: "quiet" }));
}

function receivers(list: readonly Receiver[], attempt: (act: () => Promise<unknown>) => void): HTMLElement {
  return h("ul", { class: "cards", role: "list" }, ...list.map((one) => {
    const path = `/api/push/receivers/${encodeURIComponent(one.id)}`;
    const name = one.device || one.target;
    return h("li", { class: "card" }, h("p", null, `${one.kind} · ${name}`), one.lastError && h("p", { class: "problem" }, one.lastError),
      h("div", { class: "actions" },
        button("Test", () => attempt(() => tested(path)), { aria: { label: `Test ${name}` } }),
        button("Remove", () => attempt(() => send("DELETE", path)), { class: "deny", aria: { label: `Remove ${name}` } })));
  }));
}

async function tested(path: string): Promise<void> {
  const { sent, error } = await post<{ sent: boolean; error?: string | null }>(`${path}/test`);
  if (!sent) throw new Error(error ?? "It could not be sent.");
}

function addReceiver(kinds: readonly string[], attempt: (act: () => Promise<unknown>) => void): HTMLElement {
  const kind = h("select", { id: freshId("kind"), aria: { label: "Kind of receiver" } }, ...kinds.map((name) => h("option", { value: name }, name)));
  const url = h("input", { type: "url", id: freshId("url"), placeholder: "https://…", autocomplete: "off", aria: { label: "Address of the receiver" } });
  const secret = h("p", { class: "hint", role: "status" });
  const add = async (): Promise<void> => {
    const made = await post<{ secret?: string | null }>("/api/push/receivers", { kind: kind.value, url: url.value.trim() });
    if (made.secret) alertSecret(secret, made.secret);
    if (made.secret) throw new Error("Copy the secret below before you leave: it is shown once.");
  };
  return h("details", null, h("summary", null, "Send them elsewhere too"), h("p", { class: "controls" }, kind, url, button("Add", () => attempt(add))), secret);
}

function alertSecret(place: HTMLElement, secret: string): void {
  replace(place, "The secret that signs its messages: ", h("code", null, secret));
}

function deviceSection(attempt: Attempt): HTMLElement {
  const list = h("ul", { class: "cards", role: "list" });
  const load = async (): Promise<void> => {
    const { signIns } = await get<{ signIns: SignIn[] }>("/api/sign-ins");
    replace(list, ...signIns.map((one) => h("li", { class: "card" },
      h("p", null, one.device || "a browser", one.current ? " (this one)" : "", ` · ${ago(moment(one.lastUsedAt))}`),
      !one.current && h("div", { class: "actions" }, button("Sign out", () => attempt(() => send("DELETE", `/api/sign-ins/${encodeURIComponent(one.id)}`), () => void load()),
        { class: "deny", aria: { label: `Sign out ${one.device ?? "that browser"}` } })))));
  };
  attempt(load, () => undefined);
  return h("section", null, h("h2", null, "Signed-in devices"), list);
}

function linkSection(attempt: Attempt): HTMLElement {
  const body = h("div", { aria: { live: "polite" } });
  const show = async (): Promise<void> => {
    const ticket = await post<{ url: string; expiresAt: string; qr?: string[] | null }>("/api/tickets");
    replace(body, ticket.qr && qrCode(ticket.qr), h("p", null, h("code", { class: "wrap" }, ticket.url)),
      h("p", { class: "hint" }, "Works once, and not for long."));
  };
  return h("section", null, h("h2", null, "Another device"), h("div", { class: "actions" },
    button("Show a sign-in code", () => attempt(show, () => undefined))), body);
}

const SVG = "http://www.w3.org/2000/svg";

function qrCode(rows: readonly string[]): Element {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "qr");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "The link as a code for a camera");
  svg.setAttribute("viewBox", `0 0 ${rows[0]?.length ?? 0} ${rows.length}`);
  const dark = document.createElementNS(SVG, "path");
  const squares = rows.flatMap((row, y) => [...row].map((cell, x) => (cell === "1" ? `M${x} ${y}h1v1h-1z` : "")));
  dark.setAttribute("d", squares.join(""));
  svg.append(dark);
  return svg;
}
