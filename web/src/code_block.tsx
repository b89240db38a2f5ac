// A code block with a copy button. It gets its colors later, if a highlighter is set.

import { useSignal } from "@preact/signals";
import { createElement, type ComponentChildren, type VNode } from "preact";
import { useEffect } from "preact/hooks";
import type { HighlightPart } from "./highlighter";
import { CopyButton } from "./ui";

/** Splits code into parts with colors and passes them to `done` when they are known. Joined, the parts are the code. */
export type Highlighter = (code: string, language: string, done: (parts: readonly HighlightPart[]) => void) => void;

const MAX_SPOKEN = 40;
let highlight: Highlighter = () => undefined;

/** Sets the highlighter of all code blocks. Without one they have no colors, as inside an MCP client. */
export function setHighlighter(highlighter: Highlighter): void {
  highlight = highlighter;
}

export function findParts(code: string, language: string, done: (parts: readonly HighlightPart[]) => void): void {
  highlight(code, language, done);
}

/** Renders parts with their colors. */
export function colored(parts: readonly HighlightPart[]): ComponentChildren {
  return parts.map(([classes, text]) => (classes ? createElement("span", { class: classes }, text) : text));
}

/** `label` begins with the name of the language, if there is one. `parts` replaces the code on the screen; the copy button
 * still copies `code`. */
export function CodeBlock({ code, label = "", parts }: { code: string; label?: string; parts?: readonly HighlightPart[] | undefined }): VNode {
  const [language = ""] = label.split(/\s/, 1);
  const found = useSignal<{ code: string; parts: readonly HighlightPart[] }>({ code: "", parts: [] });
  useEffect(() => {
    if (parts !== undefined || !language) return;
    let current = true;
    findParts(code, language, (colored) => {
      if (current) found.value = { code, parts: colored };
    });
    return () => void (current = false);
  }, [code, language, parts]);
  const known = found.value;
  // While the code is streamed, the beginning that has colors keeps them until all of the code has colors.
  const shown = parts ?? (known.code && code.startsWith(known.code) ? [...known.parts, ["", code.slice(known.code.length)] as const] : null);
  return (
    <div class="code" dir="ltr">
      <div class="code-head"><span>{label}</span><CopyButton text={() => code} class="copy" /></div>
      <pre tabIndex={0} role="group" aria-label={label.slice(0, MAX_SPOKEN) || "code"}><code>{shown === null ? code : colored(shown)}</code></pre>
    </div>
  );
}
