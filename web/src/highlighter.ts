// The worker that highlights code. The page loads it after itself, when it first has code to highlight. The worker can
// access neither the page nor the network; the page draws its answers only as text with classes.

import type { LanguageFn } from "highlight.js";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES: Record<string, LanguageFn> = {
  bash, cpp, csharp, css, diff, go, ini, java, javascript, json, kotlin, python, ruby, rust, sql, typescript, xml, yaml,
};
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
hljs.registerAliases(["console", "shell", "terminal"], { languageName: "bash" });
hljs.registerAliases(["c"], { languageName: "cpp" });

export interface HighlightRequest {
  id: number;
  code: string;
  language: string;
}

/** A part of the code with its classes; without a class it is plain. */
export type HighlightPart = [classes: string, text: string];

interface HighlightNode {
  scope?: string;
  children: (HighlightNode | string)[];
}

/** Collects the parts of the code in order; joined, they are the code. */
function parts(node: HighlightNode | string, classes: string, found: HighlightPart[]): void {
  if (typeof node === "string") return void found.push([classes, node]);
  // In a scope such as `title.function` the first word determines the class.
  const own = node.scope ? `hl-${node.scope.split(".", 1)[0]}` : "";
  for (const child of node.children) parts(child, own || classes, found);
}

onmessage = (event: MessageEvent<HighlightRequest>): void => {
  const { id, code, language } = event.data;
  const found: HighlightPart[] = [];
  if (hljs.getLanguage(language)) {
    const result = hljs.highlight(code, { language, ignoreIllegals: true });
    parts((result._emitter as unknown as { rootNode: HighlightNode }).rootNode, "", found);
  }
  postMessage({ id, parts: found });
};
