// What can be done to a session beside talking to it. What cannot be undone is asked twice.

import { get, messageOf, post, send, sessionPath } from "./api";
import type { Surroundings } from "./conversation_view";
import { button, freshId, h, replace } from "./dom";
import { modeWords } from "./question";
import { MovePart } from "./machines";
import { mount } from "./ui";
import type { SessionRow } from "./types";
import { visible } from "./words";

interface Share {
  with: string;
  access: "watch" | "answer";
}

const MODELS_ID = freshId("models");
const MODELS = ["default", "opus", "sonnet", "haiku"];

export class SessionMenu {
  readonly element: HTMLDetailsElement;
  private readonly body = h("div", { class: "menu-body" });
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });

  /** `moved` is called when the session is at another machine, with what there is to say of it. `lifetime` ends with the
   * view that the menu is in: the listener on the page would keep all of it. */
  constructor(private readonly row: () => SessionRow, private readonly around: Surroundings,
    private readonly moved: (id: string, words: string) => void, lifetime: AbortSignal) {
    this.element = h("details", { class: "menu", on: { toggle: () => this.draw(), keydown: (event) => this.key(event) } },
      h("summary", { aria: { label: "More actions" } }, "⋯"), this.body);
    document.addEventListener("click", (event) => {
      if (this.element.open && !this.element.contains(event.target as Node)) this.element.open = false;
    }, { signal: lifetime });
  }

  private key(event: KeyboardEvent): void {
    if (event.key !== "Escape" || !this.element.open) return;
    this.element.open = false;
    (this.element.firstElementChild as HTMLElement).focus();
    event.stopPropagation();
  }

  private draw(): void {
    // What is shown at the next opening is drawn then: until that nobody may type into what is about to go.
    if (!this.element.open) return replace(this.body);
    const row = this.row();
    this.problem.hidden = true;
    if (row.sharedBy) {
      const may = row.access === "answer" ? "to answer and write" : "to watch";
      replace(this.body, h("p", { class: "hint" }, `${row.sharedBy} has shared this session with you ${may}. Only they can change its settings.`), this.problem);
      return;
    }
    const name = h("input", { type: "text", id: freshId("name"), value: row.title ?? "", maxlength: 200 });
    const model = h("input", { type: "text", id: freshId("model"), value: row.model ?? "", autocomplete: "off", spellcheck: "false", placeholder: "as configured",
      list: MODELS_ID, on: { change: () => this.manage("model", { text: model.value.trim() }, { model: model.value.trim() || null }, "model") } });
    const current = row.permissionMode ?? "default";
    const mode = h("select", { id: freshId("mode"), on: { change: () => this.manage("mode", { text: mode.value }, { permissionMode: mode.value }, "mode") } },
      ...[...new Set([...this.around.modes, current])].map((one) => h("option", { value: one, selected: one === current }, `${one}: ${modeWords(one)}`)));
    const place = h("div", { class: "place" });
    mount(MovePart, { row, machines: this.around.live.machines, moved: ({ sessionId, message, machine, machineId, notices }) => {
      this.element.open = false;
      this.around.live.learn([{ sessionId, machine, machineId }]);
      this.around.announce(message);
      this.moved(sessionId, [message, ...(notices ?? [])].join(" "));
    }, fail: (error) => this.fail(error) }, place);
    replace(this.body,
      h("label", { for: mode.id }, "Permissions"), mode,
      h("label", { for: model.id }, "Model"), model, h("datalist", { id: MODELS_ID }, ...MODELS.map((value) => h("option", { value }))),
      h("label", { for: name.id }, "Name"), name,
      button("Rename", () => this.manage("rename", { text: name.value.trim() }, { title: name.value.trim() })),
      button("Fork", () => void this.fork()),
      button(row.pinned ? "Unpin" : "Pin", () => this.manage(row.pinned ? "unpin" : "pin", {}, { pinned: !row.pinned })),
      button(row.archived ? "Unarchive" : "Archive", () =>
        this.manage(row.archived ? "unarchive" : "archive", {}, { archived: !row.archived })),
      this.sharing(row.sessionId),
      place,
      twice("End for good", "Really end it?", () => void this.cancel()),
      twice("Delete", "Really delete everything?", () => this.manage("delete", { confirm: true }, null)),
      this.problem);
  }

  /** With whom it is shared, read when the menu is opened, and what changes that. */
  private sharing(id: string): HTMLElement {
    const person = h("input", { type: "text", id: freshId("person"), maxlength: 200, autocomplete: "off", spellcheck: "false", placeholder: "a name, or group:NAME" });
    const access = h("select", { aria: { label: "What they may do" } },
      h("option", { value: "watch" }, "may watch"), h("option", { value: "answer" }, "may answer and write"));
    const list = h("ul", { class: "shares", role: "list" });
    const show = ({ shares }: { shares: Share[] }): void => replace(list, ...shares.map((share) => h("li", null,
      h("span", null, `${visible(share.with)} may ${share.access === "answer" ? "answer and write" : "watch"}`),
      button("Stop sharing", () => change("DELETE", share.with), { class: "quiet", aria: { label: `Stop sharing with ${share.with}` } }))));
    let changed = false;
    const change = (method: string, name: string): void => void send<{ shares: Share[] }>(method, sessionPath(id, "shares", encodeURIComponent(name)),
      method === "PUT" ? { access: access.value } : {}).then((shares) => {
        if (person.value.trim() === name) person.value = "";
        changed = true;
        show(shares);
      }, (error: unknown) => this.fail(error));
    // What was read before a change may come after its answer.
    void get<{ shares: Share[] }>(sessionPath(id, "shares")).then((shares) => changed || show(shares), (error: unknown) => this.fail(error));
    return h("div", null, h("label", { for: person.id }, "Share with"), person, access,
      button("Share", () => person.value.trim() && change("PUT", person.value.trim())), list);
  }

  private fail(error: unknown): void {
    this.problem.textContent = messageOf(error);
    this.problem.hidden = false;
  }

  private async attempt(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.element.open = false;
    } catch (error) {
      this.fail(error);
    }
  }

  /** `change` is what the row shows afterwards; null if there is none any more. `told` is what has changed at once. */
  private manage(action: string, more: object, change: Partial<SessionRow> | null, told = ""): void {
    const id = this.row().sessionId;
    void this.attempt(async () => {
      await post(sessionPath(id, "manage"), { action, ...more });
      if (change === null) {
        this.around.live.forgetRow(id);
        this.around.go("/");
      } else {
        this.around.live.learn([{ sessionId: id, ...change }]);
        if (told) this.around.announce(`The ${told} was changed.`);
      }
    });
  }

  private fork(): Promise<void> {
    return this.attempt(async () => {
      const fork = await post<{ sessionId: string }>(sessionPath(this.row().sessionId, "fork"));
      this.around.go(`/sessions/${fork.sessionId}`);
    });
  }

  private cancel(): Promise<void> {
    return this.attempt(async () => {
      await post(sessionPath(this.row().sessionId, "cancel"));
    });
  }
}

/** A button that acts on the second press. */
export function twice(label: string, again: string, act: () => void): HTMLButtonElement {
  const element = button(label, () => {
    if (element.dataset["sure"]) return act();
    element.dataset["sure"] = "yes";
    element.textContent = again;
    setTimeout(() => {
      delete element.dataset["sure"];
      element.textContent = label;
    }, 5000);
  }, { class: "deny" });
  return element;
}
