// Texts that make readers of Markdown slow: `node fuzz.mjs SOURCES MODULES counts|times SEED`. Prints one JSON list, for
// each text what was counted: nodes, depth and lost letters, or the CPU time at three sizes.
import { load, markdown, measure, output } from "./pipeline.mjs";

const [mode, seed] = process.argv.slice(4);
const UNITS = [
  "*", "**", "***", "*a **b ", "**a *b ", "_", "_a __b ", "_*a", "a_", "a*", "a**b", "*_", "*a_ ", "`", "` ", "`a", "``` ",
  "~", "~~a ", "~~~", "[", "[a](", "[a][", "![", "![[]()", "]", "](", "[a]", "[a](b", "<", "<a ", "<!--", "<!-- a", "<?",
  "<![CDATA[", "</", "\\", "\\*", "&", "&a", "&#", "|", "|a", "| a ", "a|b\n", "|-", "|\n|-\n", "|a\n|-\n|", "|a|b|\n",
  "> ", ">", ">\n", "> a\n", ">a\n\n", "- ", "- a\n", " - a\n", "-\n", "1. ", "1) a\n", "* a\n\n", "- [ ] a\n", "#", "# a\n",
  "=\n", "a\n=\n", "\n", " ", "\t", " \n", "    a\n", "a  \n", "```\n", "~~~\n", "[a]:\n", "www.", "http://", "http://a.",
  "a@", "a@b.", "!", "((", "[](<", "[a](<b", "[`", "*`", "[*", "**[", "a\\\n", "<div>\n", "<div>\n\n", "<b>", "[^a]", "\r",
  "---\n", "a  a  ", "x", "x ", "x\n", "\u{1f600}\u200d", "\u200b", "\u202e", "\u001b[31m", "\u001b[", "\u001b]0;", "a\rb",
  "a.b:1", "a.b:1 ", "a.b:", "a/", "a.", "/a.b:1\n", "-.a:",
];
const PREFIXES = ["", "x ", "|a|b|\n|-|-|\n", "- "];

function random(number) {
  let state = number >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const dice = random(Number(seed ?? 1));
const pick = (list) => list[Math.floor(dice() * list.length)];

/** Texts by their size: repeated units, and units in a random order. */
const MAKERS = [
  ...PREFIXES.flatMap((prefix) => UNITS.map((unit) => [prefix + unit, (size) => (prefix + unit.repeat(Math.ceil(size / unit.length))).slice(0, size)])),
  ...Array.from({ length: 60 }, () => {
    const parts = Array.from({ length: 4 }, () => pick(UNITS));
    const unit = parts.join("");
    return [unit, (size) => unit.repeat(Math.ceil(size / unit.length)).slice(0, size)];
  }),
];

const page = await load();
page.fileRoute.value = (path, line) => `/file/${path.length}/${line}`;
const draw = (text) => ({ markdown: measure(markdown(page, text)), output: { count: output(page, text)?.length ?? 0 } });

function counts([name, make], size) {
  const text = make(size);
  const found = draw(text);
  const written = text.replace(/[^a-z]/g, "").length;
  const { count: nodes, deepest, letters } = found.markdown;
  return { name, size: text.length, written, nodes, deepest, letters: letters.length, output: found.output.count };
}

function time(text) {
  const before = process.cpuUsage();
  draw(text);
  page.written(text);
  page.reportOf(text);
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

function times([name, make]) {
  const texts = [10_000, 40_000, 160_000].map(make);
  const used = texts.map(time);
  // What looks as if it grew too fast is measured again: collecting garbage and compiling count as CPU time too, and
  // fall on whichever text is being read. What is slow is slow each time.
  for (let round = 0; round < 4 && used[2] > 8 * Math.max(used[1], 25); round += 1) {
    texts.forEach((text, at) => (used[at] = Math.min(used[at], time(text))));
  }
  return { name, used };
}

const results = MAKERS.map((maker) => (mode === "times" ? times(maker) : counts(maker, 3_000)));
process.stdout.write(JSON.stringify(results));
