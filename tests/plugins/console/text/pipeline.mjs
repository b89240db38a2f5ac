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
export { markdown, inlineMarkdown, StreamingMarkdown } from "./markdown";
export { terminalOutput } from "./terminal_output";
export { visible } from "./words";
export { h } from "./dom";
export { setFileRoute } from "./file_links";
export { lineDiff } from "./diff";
`;

/** As much of a document as elements are made with. */
class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, dataset: {}, childNodes: [], classList: { add() {}, toggle() {} } });
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener() {}
  appendChild(child) {
    child.parent = this;
    this.childNodes.push(child);
    return child;
  }
  get lastChild() {
    return this.childNodes.at(-1);
  }
  remove() {
    const { childNodes } = this.parent;
    childNodes.splice(childNodes.lastIndexOf(this), 1);
  }
}
class Text extends Element {
  constructor(text) {
    super("#text");
    this.text = text;
  }
}
globalThis.Node = Element;
globalThis.document = { createElement: (tag) => new Element(tag), createTextNode: (text) => new Text(text) };

export function tree(node) {
  if (typeof node === "string") return node;
  if (node.tag === "#text") return node.text;
  const attributes = { ...node.attributes };
  if (node.href !== undefined) attributes.href = node.href;
  return [node.tag, attributes, node.childNodes.map(tree)];
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
    tsconfigRaw: { compilerOptions: { target: "es2022", verbatimModuleSyntax: true } },
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
    if (node.tag === "#text") text = node.text + text; // the last comes first
    else if (!["button"].includes(node.tag)) for (const child of node.childNodes) waiting.push([child, depth + 1]);
  }
  return { count, deepest, letters: text.replace(/[^a-z]/g, "") };
}

const FUNCTIONS = {
  markdown: (page, text) => page.markdown(text).map(tree),
  streamed: (page, text) => {
    const view = new page.StreamingMarkdown();
    for (const character of text) view.add(character);
    return view.element.childNodes.map(tree);
  },
  output: (page, text) => page.terminalOutput(text)?.nodes.map(tree) ?? null,
  visible: (page, text) => page.visible(text),
};

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const page = await load();
  for await (const line of createInterface({ input: process.stdin })) {
    const drawn = JSON.parse(line).map(([name, text]) => FUNCTIONS[name](page, text));
    process.stdout.write(`${JSON.stringify(drawn)}\n`);
  }
}
