// Links in texts that others wrote: to the web, and from `file:line` to that line where the page can show files.

import { signal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";

/** An address that somebody else wrote; null unless it is an absolute one on http or https. */
export function outsideAddress(address: string): string | null {
  const url = URL.canParse(address) ? new URL(address) : null;
  return url?.protocol === "http:" || url?.protocol === "https:" ? url.href : null;
}

/** A link to an address that `outsideAddress` has returned. */
export function OutsideLink({ address, children }: { address: string; children?: ComponentChildren }): VNode {
  return <a href={address} title={address} rel="noopener noreferrer nofollow" target="_blank">{children}</a>;
}

/** The route of a line of a file; null if that file cannot be shown. */
export type FileRoute = (path: string, line: number) => string | null;

/** Without it such places stay text, as inside an MCP client. */
export const fileRoute = signal<FileRoute | null>(null);

/** A path with a name that has an ending, and a line. It begins only where a word does: a long text without spaces is
 * looked at once. */
const PLACE = /(?<![\w.\/\\@-])((?:[A-Za-z]:[\\/])?[\w.\/\\@-]{1,200}\.[A-Za-z]\w{0,9}):(\d{1,7})(?::\d{1,5})?(?![\w:]|\.\w)/g;
/** Without a directory, an ending such as that of a domain says nothing. */
const DOMAIN = /^[\w-]+\.(?:com|org|net|io|dev|app|ai|local|localhost|internal)$/i;

/** The text with links to lines of files. */
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
