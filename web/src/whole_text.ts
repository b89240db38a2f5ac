// Checks whether rendered Markdown shows all of its source. Link definitions, image titles and cells outside a table's
// columns are not rendered, and nothing that the user decides on may be hidden in them.

import { visible } from "./words";

/** Source text that is rendered as a symbol instead of letters: list numbers, checkboxes of lists, line breaks. */
const SIGNS = /^[ \t>]*(?:\d+[.)](?=\s)|[-*+][ \t]+\[[ x]\](?=\s))|<br\s*\/?>/gim;

/** Whether every letter and digit of the text is in the rendered element, in the same order. */
export function showsAll(text: string, drawn: Element): boolean {
  const shown = letters(drawnText(drawn));
  let at = 0;
  for (const letter of written(text)) {
    at = shown.indexOf(letter, at) + 1;
    if (at === 0) return false;
  }
  return true;
}

/** The letters and digits of the source that the rendered text must have. */
export function written(text: string): string[] {
  return letters(visible(text).replace(SIGNS, " "));
}

function letters(text: string): string[] {
  return text.match(/[\p{L}\p{N}]/gu) ?? [];
}

/** The rendered text without the labels of buttons. In a plan, the address follows each link. */
function drawnText(node: Node): string {
  if (!(node instanceof Element)) return node.textContent ?? "";
  if (node.tagName === "BUTTON") return "";
  const text = [...node.childNodes].map(drawnText).join("");
  const address = node.tagName === "A" ? (node.getAttribute("title") ?? "") : "";
  return text.includes(address) ? text : text + address; // the address appears once
}
