// The things that happen in a turn, each as an element that can be brought up to date.

import { h, replace } from "./dom";
import { markdown } from "./markdown";
import { ToolView, type ItemActs } from "./tool_view";
import type { Item } from "./types";

export interface ItemView {
  readonly element: HTMLElement;
  /** Where the steps of a subagent go; only a tool call has one. */
  readonly steps?: HTMLElement;
  setAsked?(asked: boolean): void;
  setDecided?(words: string): void;
  update(item: Item, running: boolean): void;
}

export function itemView(item: Item, directory: string, acts: ItemActs): ItemView {
  switch (item.kind) {
    case "tool":
      return new ToolView(item, directory, acts);
    case "text":
      return new TextView(item, acts);
    case "thinking":
      return new ThinkingView(item);
    default:
      return new PlainView(item);
  }
}

class TextView implements ItemView {
  readonly element = h("div", { class: "said" });
  private shown = "";

  constructor(item: Item, private readonly acts: ItemActs) {
    this.update(item);
  }

  update(item: Item): void {
    const text = item.text ?? "";
    if (text === this.shown && this.element.childNodes.length) return;
    this.shown = text;
    this.element.replaceChildren(h("div", { class: "markdown", dir: "auto" }, markdown(text)));
    if (item.cut) void this.acts.whole(item).then((all) => this.update({ ...all, cut: false }), () => undefined);
  }
}

class ThinkingView implements ItemView {
  readonly element: HTMLElement;
  private readonly body = h("div", { class: "markdown", dir: "auto" });

  constructor(item: Item) {
    this.element = h("details", { class: "thinking" }, h("summary", null, "Thinking"), this.body);
    this.update(item);
  }

  update(item: Item): void {
    this.element.hidden = !item.text;
    replace(this.body, markdown(item.text ?? ""));
  }
}

class PlainView implements ItemView {
  readonly element: HTMLElement;

  constructor(item: Item) {
    this.element = h("p", { class: item.kind === "message" ? "prompt" : "note", dir: "auto" });
    this.update(item);
  }

  update(item: Item): void {
    this.element.textContent = item.text ?? "";
  }
}
