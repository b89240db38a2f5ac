// `file:line` in a text as a link to that line, where the page can show files.

import { h, type Child } from "./dom";

/** The route of a line of a file; null if that file cannot be shown. */
export type FileRoute = (path: string, line: number) => string | null;

let routeOf: FileRoute | null = null;

/** From now on such places are links. Without it they stay text, as inside an MCP client. */
export function setFileRoute(route: FileRoute): void {
  routeOf = route;
}

/** A path with a name that has an ending, and a line. It begins only where a word does: a long text without spaces is
 * looked at once. */
const PLACE = /(?<![\w.\/\\@-])((?:[A-Za-z]:[\\/])?[\w.\/\\@-]{1,200}\.[A-Za-z]\w{0,9}):(\d{1,7})(?::\d{1,5})?(?![\w:]|\.\w)/g;
/** Without a directory, an ending such as that of a domain says nothing. */
const DOMAIN = /^[\w-]+\.(?:com|org|net|io|dev|app|ai|local|localhost|internal)$/i;

export function withFileLinks(text: string): Child {
  if (routeOf === null || !text.includes(":")) return text;
  const parts: Child[] = [];
  let end = 0;
  for (const found of text.matchAll(PLACE)) {
    const path = found[1] as string;
    const route = DOMAIN.test(path) || text.startsWith("//", found.index) ? null : routeOf(path, Number(found[2]));
    if (route === null) continue;
    parts.push(text.slice(end, found.index), h("a", { class: "file-link", route }, found[0]));
    end = found.index + found[0].length;
  }
  return end ? [...parts, text.slice(end)] : text;
}
