// A block of code that can be copied, and that gets its colours later where somebody can tell them.

import { useSignal } from "@preact/signals";
import { createElement, type ComponentChildren, type VNode } from "preact";
import { useEffect } from "preact/hooks";
import type { HighlightPart } from "./highlighter";
import { CopyButton } from "./ui";

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
export function coloured(parts: readonly HighlightPart[]): ComponentChildren {
  return parts.map(([classes, text]) => (classes ? createElement("span", { class: classes }, text) : text));
}

/** The label begins with the name of the language, if it has one. `parts` are drawn in place of the code, which is what
 * is copied. */
export function CodeBlock({ code, label = "", parts }: { code: string; label?: string; parts?: readonly HighlightPart[] | undefined }): VNode {
  const [language = ""] = label.split(/\s/, 1);
  const found = useSignal<{ code: string; parts: readonly HighlightPart[] }>({ code: "", parts: [] });
  useEffect(() => {
    if (parts !== undefined || !language) return;
    let current = true;
    findParts(code, language, (coloured) => {
      if (current) found.value = { code, parts: coloured };
    });
    return () => void (current = false);
  }, [code, language, parts]);
  const known = found.value;
  // While a code is being written, what was coloured of it stays so until all of it is.
  const shown = parts ?? (known.code && code.startsWith(known.code) ? [...known.parts, ["", code.slice(known.code.length)] as const] : null);
  return (
    <div class="code">
      <div class="code-head"><span>{label}</span><CopyButton text={() => code} class="copy" /></div>
      <pre tabIndex={0} role="group" aria-label={label.slice(0, MAX_SPOKEN) || "code"}><code>{shown === null ? code : coloured(shown)}</code></pre>
    </div>
  );
}
