// Builds the pages into the Python package: `node build.mjs PACKAGE MODULES`, where the latter is the directory in which
// npm has installed what package.json names. The same sources give the same bytes everywhere.
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const source = join(here, "src");
const [target, modules] = process.argv.slice(2);
if (!target || !modules) throw new Error("usage: node build.mjs PACKAGE MODULES");
const { build } = createRequire(resolve(modules, "package.json"))("esbuild");
const output = join(target, "web", "static");
const app = join(target, "server", "app.html");

async function bundle(entry) {
  const { outputFiles } = await build({
    absWorkingDir: source,
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

/** Puts code where its mark is. No `$` of the code has a meaning, and nothing in it may end its element. */
function inserted(page, mark, code) {
  if (/<\/(script|style)|<!--/i.test(code)) throw new Error(`the code for ${mark} would end its element`);
  const [before, after] = page.split(mark);
  return before + code + after;
}

async function page(template, script, styles) {
  const text = await readFile(join(source, template), "utf8");
  return inserted(inserted(text, "/*STYLE*/", await bundle(styles)), "/*SCRIPT*/", await bundle(script));
}

await mkdir(output, { recursive: true });
await mkdir(dirname(app), { recursive: true });
await writeFile(app, await page("app.html", "app.ts", "app.css"));
await writeFile(join(output, "index.html"), await page("index.html", "main.ts", "styles.css"));
for (const name of ["sw.js", "manifest.webmanifest", "icon.svg", "icon-192.png", "icon-512.png"]) {
  await copyFile(join(source, name), join(output, name));
}
