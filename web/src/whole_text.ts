// Whether Markdown that was drawn shows all that was written. Definitions of links, titles of pictures and cells beside a
// table are not drawn, and what is decided on must not be hidden in them.

import { visible } from "./words";

/** What is drawn as a sign and not as a letter: numbers and boxes of lists, breaks of lines. */
const SIGNS = /^[\s>]*(?:\d+[.)](?=\s)|[-*+]\s+\[[ x]\](?=\s))|<br\s*\/?>/gim;

/** Whether every letter of the text is in what was drawn of it, in the same order. */
export function showsAll(text: string, drawn: Element): boolean {
  const shown = letters(drawnText(drawn));
  let at = 0;
  for (const letter of letters(visible(text).replace(SIGNS, " "))) {
    at = shown.indexOf(letter, at) + 1;
    if (at === 0) return false;
  }
  return true;
}

function letters(text: string): string[] {
  return text.match(/[\p{L}\p{N}]/gu) ?? [];
}

/** The text, without what is written on buttons. Links of a plan are followed by their address. */
function drawnText(node: Node): string {
  if (!(node instanceof Element)) return node.textContent ?? "";
  if (node.tagName === "BUTTON") return "";
  const text = [...node.childNodes].map(drawnText).join("");
  const address = node.tagName === "A" ? (node.getAttribute("title") ?? "") : "";
  return text.includes(address) ? text : text + address; // written once
}
