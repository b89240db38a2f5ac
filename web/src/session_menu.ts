// What can be done to a session beside talking to it. What cannot be undone is asked twice.

import { messageOf, post, sessionPath } from "./api";
import type { Surroundings } from "./conversation_view";
import { button, freshId, h, replace } from "./dom";
import type { SessionRow } from "./types";

export class SessionMenu {
  readonly element: HTMLDetailsElement;
  private readonly body = h("div", { class: "menu-body" });
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });

  constructor(private readonly row: () => SessionRow, private readonly around: Surroundings) {
    this.element = h("details", { class: "menu", on: { toggle: () => this.draw(), keydown: (event) => this.key(event) } },
      h("summary", { aria: { label: "More actions" } }, "⋯"), this.body);
    document.addEventListener("click", (event) => {
      if (this.element.open && !this.element.contains(event.target as Node)) this.element.open = false;
    });
  }

  private key(event: KeyboardEvent): void {
    if (event.key !== "Escape" || !this.element.open) return;
    this.element.open = false;
    (this.element.firstElementChild as HTMLElement).focus();
    event.stopPropagation();
  }

  private draw(): void {
    if (!this.element.open) return;
    const row = this.row();
    this.problem.hidden = true;
    const name = h("input", { type: "text", id: freshId("name"), value: row.title ?? "", maxlength: 200 });
    replace(this.body,
      h("label", { for: name.id }, "Name"), name,
      button("Rename", () => this.manage("rename", { text: name.value.trim() }, { title: name.value.trim() })),
      button("Fork", () => void this.fork()),
      button(row.pinned ? "Unpin" : "Pin", () => this.manage(row.pinned ? "unpin" : "pin", {}, { pinned: !row.pinned })),
      button(row.archived ? "Take out of the archive" : "Archive", () =>
        this.manage(row.archived ? "unarchive" : "archive", {}, { archived: !row.archived })),
      twice("End for good", "Really end it?", () => void this.cancel()),
      twice("Delete", "Really delete everything?", () => this.manage("delete", { confirm: true }, null)),
      this.problem);
  }

  private async attempt(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.element.open = false;
    } catch (error) {
      this.problem.textContent = messageOf(error);
      this.problem.hidden = false;
    }
  }

  /** `change` is what the row shows afterwards; null if there is none any more. */
  private manage(action: string, more: object, change: Partial<SessionRow> | null): void {
    const id = this.row().sessionId;
    void this.attempt(async () => {
      await post(sessionPath(id, "manage"), { action, ...more });
      if (change === null) {
        this.around.live.forgetRow(id);
        this.around.go("/");
      } else {
        this.around.live.learn([{ sessionId: id, ...change }]);
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
