// A block of code that can be copied, and that gets its colours later where somebody can tell them.

import { button, h } from "./dom";
import type { HighlightPart } from "./highlighter";

/** Finds the parts of a code that get colours, and hands them over when they are known; put together they are the code. */
export type Highlighter = (code: string, language: string, done: (parts: readonly HighlightPart[]) => void) => void;

const MAX_SPOKEN = 40;
let highlight: Highlighter = () => undefined;

/** From now on blocks of code get colours. Without it they have none, as inside an MCP client. */
export function setHighlighter(highlighter: Highlighter): void {
  highlight = highlighter;
}

export function findParts(code: string, language: string, done: (parts: readonly HighlightPart[]) => void): void {
  highlight(code, language, done);
}

/** Parts with their colours. */
export function coloured(parts: readonly HighlightPart[]): (Node | string)[] {
  return parts.map(([classes, text]) => (classes ? h("span", { class: classes }, text) : text));
}

/** The label begins with the name of the language, if it has one. `shown` is drawn in place of the code, which is what
 * is copied. */
export function codeBlock(code: string, label = "", shown: readonly (Node | string)[] | null = null): HTMLElement {
  const copy = button("Copy", () => {
    void navigator.clipboard?.writeText(code).then(() => {
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
  }, { class: "copy" });
  const [language = ""] = label.split(/\s/, 1);
  const text = h("code", null, ...(shown ?? [code]));
  if (shown === null && language) {
    highlight(code, language, (parts) => {
      if (text.textContent === code) text.replaceChildren(...coloured(parts));
    });
  }
  const spoken = label.slice(0, MAX_SPOKEN) || "code";
  const body = h("pre", { tabindex: 0, role: "group", aria: { label: spoken } }, text);
  return h("div", { class: "code" }, h("div", { class: "code-head" }, h("span", null, label), copy), body);
}
