// A block of code that can be copied, and that gets its colours later where somebody can tell them.

import { button, h } from "./dom";

/** Brings colours to code that is on the page already. */
export type Highlighter = (element: HTMLElement, code: string, language: string) => void;

const LONGEST_SPOKEN = 40;
let highlight: Highlighter = () => undefined;

/** From now on blocks of code get colours. Without it they have none, as inside an MCP client. */
export function setHighlighter(highlighter: Highlighter): void {
  highlight = highlighter;
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
  if (shown === null && language) highlight(text, code, language);
  const spoken = label.slice(0, LONGEST_SPOKEN) || "code";
  const body = h("pre", { tabindex: 0, role: "group", aria: { label: spoken } }, text);
  return h("div", { class: "code" }, h("div", { class: "code-head" }, h("span", null, label), copy), body);
}
