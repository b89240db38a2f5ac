// Builds the pages into the Python package: `node build.mjs PACKAGE MODULES`. MODULES is the directory in which npm
// installed the dependencies of package.json. The same sources produce the same bytes everywhere.
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const source = join(here, "src");
const [target, modules] = process.argv.slice(2);
if (!target || !modules) throw new Error("usage: node build.mjs PACKAGE MODULES");
const { build, transform } = createRequire(resolve(modules, "package.json"))("esbuild");
const output = join(target, "plugins", "console", "static");
const app = join(target, "server", "app.html");

/** Removes Preact's only way to turn text into markup. The pages never use it, and their policy would refuse it. The test
 * of the built page checks that the word does not occur. */
const withoutMarkup = {
  name: "without-markup",
  setup({ onLoad }) {
    onLoad({ filter: /[\\/]preact[\\/]dist[\\/]preact\.mjs$/ }, async ({ path }) => {
      const code = await readFile(path, "utf8");
      const parts = code.split(".innerHTML");
      if (parts.length !== 3) throw new Error("Preact sets markup in other places than are known");
      return { contents: parts.join(".textContent"), loader: "js" };
    });
  },
};

async function bundle(entry) {
  const { outputFiles } = await build({
    absWorkingDir: source,
    nodePaths: [join(resolve(modules), "node_modules")],
    // Not tsconfig.json: its paths are for the compiler, which does not know which of a package's files a browser loads.
    tsconfigRaw: { compilerOptions: { target: "es2022", verbatimModuleSyntax: true, jsx: "react-jsx", jsxImportSource: "preact" } },
    plugins: [withoutMarkup],
    entryPoints: [entry],
    bundle: true,
    write: false,
    minify: true,
    format: entry.endsWith(".css") ? undefined : "iife",
    target: ["es2022", "chrome123", "firefox121", "safari17.5"],
    charset: "utf8",
    legalComments: "none",
    logLevel: "warning",
  });
  return outputFiles[0].text.trim();
}

/** The same code without anything that the browser would parse as a tag. In strings and regular expressions `\x3c` means
 * `<`. Anywhere else it is a syntax error, and the build fails. */
async function withoutTags(code) {
  const escaped = code.replace(/<(?=\/(?:script|style)|!--|script)/gi, "\\x3c");
  await transform(escaped);
  return escaped;
}

/** Replaces a mark with code. `$` has no special meaning in the code. Throws if the code would end its element. */
function inserted(page, mark, code) {
  if (/<\/(script|style)|<!--/i.test(code)) throw new Error(`the code for ${mark} would end its element`);
  const [before, after] = page.split(mark);
  return before + code + after;
}

async function page(template, script, styles) {
  const text = await readFile(join(source, template), "utf8");
  return inserted(inserted(text, "/*STYLE*/", await bundle(styles)), "/*SCRIPT*/", await withoutTags(await bundle(script)));
}

/** The licenses of the packages that are built into the pages. They ship with the pages. */
async function licenses() {
  const packages = [["marked", "LICENSE"], ["highlight.js", "LICENSE"], ["diff", "LICENSE"], ["preact", "LICENSE"],
    ["@preact/signals", "LICENSE"], ["@preact/signals-core", "LICENSE"]];
  const texts = packages.map(async ([name, file]) => {
    const text = await readFile(join(resolve(modules), "node_modules", name, file), "utf8");
    return `${name}\n\n${text.replace(/\r\n/g, "\n").trim()}\n`;
  });
  return (await Promise.all(texts)).join("\n\n");
}

await mkdir(output, { recursive: true });
await mkdir(dirname(app), { recursive: true });
await writeFile(app, await page("app.html", "app.tsx", "app.css"));
await writeFile(join(output, "index.html"), await page("index.html", "main.tsx", "styles.css"));
await writeFile(join(output, "highlighter.js"), await bundle("highlighter.ts"));
await writeFile(join(output, "licenses.txt"), await licenses());
for (const name of ["sw.js", "manifest.webmanifest", "icon.svg", "icon-192.png", "icon-512.png"]) {
  await copyFile(join(source, name), join(output, name));
}
