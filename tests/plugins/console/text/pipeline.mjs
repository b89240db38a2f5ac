// The text pipeline of the page in Node: `node pipeline.mjs SOURCES MODULES`. Each line of
// standard input is a JSON list of [function, text], each line that it prints the list of results: what the page would draw, as [tag, attributes, children].
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [source, modules] = process.argv.slice(2).map((path) => resolve(path));
const ENTRY = `
export { h, render } from "preact";
export { colored } from "./code_block";
export { fileRoute } from "./links";
export { Markdown, WrittenMarkdown } from "./markdown";
export { terminalOutput } from "./terminal_output";
export { reportOf } from "./tool";
export { continued } from "./turn_state";
export { written } from "./whole_text";
export { visible } from "./words";
`;

/** As much of a document as Preact draws on. */
class Element {
  nodeType = 1;
  parentNode = null;
  firstChild = null;
  lastChild = null;
  previousSibling = null;
  nextSibling = null;
  constructor(tag) {
    Object.assign(this, { tag, attributes: {} });
  }
  get childNodes() {
    const nodes = [];
    for (let node = this.firstChild; node; node = node.nextSibling) nodes.push(node);
    return nodes;
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  addEventListener() {}
  removeEventListener() {}
  appendChild(child) {
    return this.insertBefore(child, null);
  }
  insertBefore(child, next) {
    child.remove();
    const previous = next ? next.previousSibling : this.lastChild;
    Object.assign(child, { parentNode: this, previousSibling: previous, nextSibling: next });
    if (previous) previous.nextSibling = child;
    else this.firstChild = child;
    if (next) next.previousSibling = child;
    else this.lastChild = child;
    return child;
  }
  removeChild(child) {
    child.remove();
    return child;
  }
  remove() {
    const { parentNode: parent, previousSibling: previous, nextSibling: next } = this;
    if (!parent) return;
    if (previous) previous.nextSibling = next;
    else parent.firstChild = next;
    if (next) next.previousSibling = previous;
    else parent.lastChild = previous;
    Object.assign(this, { parentNode: null, previousSibling: null, nextSibling: null });
  }
}
class Text extends Element {
  nodeType = 3;
  constructor(text) {
    super("#text");
    this.data = text;
  }
}
globalThis.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  createTextNode: (text) => new Text(text),
};
Object.defineProperty(globalThis, "navigator", { value: { clipboard: {} } });

/** What the page draws of a component. */
export function drawn(page, component) {
  const place = new Element("main");
  page.render(component, place);
  const nodes = place.childNodes;
  page.render(null, place); // what is drawn would otherwise follow the signals that it has read
  return nodes;
}

export function tree(node) {
  return node.tag === "#text" ? node.data : [node.tag, node.attributes, node.childNodes.map(tree)];
}

export async function load() {
  const { build } = createRequire(join(modules, "package.json"))("esbuild");
  const { outputFiles } = await build({
    stdin: { contents: ENTRY, resolveDir: source, loader: "ts" },
    bundle: true,
    write: false,
    format: "esm",
    target: "es2022",
    nodePaths: [join(modules, "node_modules")],
    tsconfigRaw: { compilerOptions: { target: "es2022", verbatimModuleSyntax: true, jsx: "react-jsx", jsxImportSource: "preact" } },
  });
  const place = await mkdtemp(join(tmpdir(), "pipeline-"));
  try {
    await writeFile(join(place, "pipeline.mjs"), outputFiles[0].text);
    return await import(pathToFileURL(join(place, "pipeline.mjs")));
  } finally {
    await rm(place, { recursive: true });
  }
}

/** Everything that is drawn, as counts: how many nodes, how deep, and the text without white space. */
export function measure(nodes) {
  let [count, deepest, text] = [0, 0, ""];
  const waiting = nodes.map((node) => [node, 1]);
  while (waiting.length) {
    const [node, depth] = waiting.pop();
    count += 1;
    deepest = Math.max(deepest, depth);
    if (node.tag === "#text") text = node.data + text; // the last comes first
    else if (!["button"].includes(node.tag)) for (const child of node.childNodes) waiting.push([child, depth + 1]);
  }
  return { count, deepest, letters: text.replace(/[^a-z]/g, "") };
}

export function markdown(page, text) {
  return drawn(page, page.h(page.Markdown, { text }))[0].childNodes;
}

export function output(page, text) {
  const found = page.terminalOutput(text);
  return found && drawn(page, page.colored(found.parts));
}

const FUNCTIONS = {
  markdown: (page, text) => markdown(page, text).map(tree),
  streamed: (page, text) => {
    const place = new Element("main");
    let writing = null;
    for (const character of text) {
      writing = page.continued(writing, character);
      page.render(page.h(page.WrittenMarkdown, writing), place);
    }
    return place.firstChild.childNodes.map(tree);
  },
  output: (page, text) => output(page, text)?.map(tree) ?? null,
  visible: (page, text) => page.visible(text),
};

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const page = await load();
  for await (const line of createInterface({ input: process.stdin })) {
    const drawn = JSON.parse(line).map(([name, text]) => FUNCTIONS[name](page, text));
    process.stdout.write(`${JSON.stringify(drawn)}\n`);
  }
}
