// Links in texts that the page does not control: to the web, and from `file:line` to that line if the page can show
// files.

import { signal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";

/** The URL of an address in such a text; null unless it is an absolute http or https URL. */
export function outsideAddress(address: string): string | null {
  const url = URL.canParse(address) ? new URL(address) : null;
  return url?.protocol === "http:" || url?.protocol === "https:" ? url.href : null;
}

/** A link to an address that `outsideAddress` has returned. */
export function OutsideLink({ address, children }: { address: string; children?: ComponentChildren }): VNode {
  return <a href={address} title={address} rel="noopener noreferrer nofollow" target="_blank">{children}</a>;
}

/** Returns the route to a line of a file; null if the page cannot show that file. */
export type FileRoute = (path: string, line: number) => string | null;

/** Null where the page cannot show files, as inside an MCP client: `file:line` stays plain text there. */
export const fileRoute = signal<FileRoute | null>(null);

/** A path whose file name has an extension, and a line number. A match starts only at the start of a word, so a long
 * text without spaces is scanned once. */
const PLACE = /(?<![\w.\/\\@-])((?:[A-Za-z]:[\\/])?[\w.\/\\@-]{1,200}\.[A-Za-z]\w{0,9}):(\d{1,7})(?::\d{1,5})?(?![\w:]|\.\w)/g;
/** A name without a directory whose extension is a domain ending: it may be a host with a port. */
const DOMAIN = /^[\w-]+\.(?:com|org|net|io|dev|app|ai|local|localhost|internal)$/i;

/** Turns each `file:line` in the text into a link. */
export function withFileLinks(text: string): ComponentChildren {
  const routeOf = fileRoute.value;
  if (routeOf === null || !text.includes(":")) return text;
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const found of text.matchAll(PLACE)) {
    const path = found[1] as string;
    const route = DOMAIN.test(path) || text.startsWith("//", found.index) ? null : routeOf(path, Number(found[2]));
    if (route === null) continue;
    parts.push(text.slice(end, found.index), <a class="file-link" href={`#${route}`}>{found[0]}</a>);
    end = found.index + found[0].length;
  }
  return end ? [...parts, text.slice(end)] : text;
}
