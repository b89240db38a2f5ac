// Makes elements. The only way in which text becomes part of the page is a text node: there is no call in this program
// that takes markup, and the page's policy (Trusted Types) would refuse one.

type Tag = Exclude<
  keyof HTMLElementTagNameMap,
  "script" | "iframe" | "object" | "embed" | "base" | "link" | "meta" | "style" | "frame" | "frameset" | "form"
>;

export type Child = Node | string | number | null | undefined | false | readonly Child[];

type Listeners = { [Name in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[Name]) => void };

export interface Attributes {
  class?: string | undefined;
  id?: string;
  role?: string;
  title?: string | undefined;
  type?: string;
  name?: string;
  value?: string;
  placeholder?: string;
  for?: string;
  lang?: string;
  dir?: string;
  rows?: number;
  start?: number;
  colspan?: number;
  tabindex?: number;
  maxlength?: number;
  datetime?: string;
  autocomplete?: string;
  enterkeyhint?: string;
  list?: string;
  scope?: string;
  hidden?: boolean;
  checked?: boolean;
  disabled?: boolean;
  required?: boolean;
  open?: boolean;
  selected?: boolean;
  spellcheck?: "true" | "false";
  /** An address inside this page, such as `#/new`. Addresses that others wrote go through `outsideLink`. */
  route?: string;
  data?: Record<string, string>;
  aria?: Record<string, string | boolean | undefined>;
  on?: Listeners;
}

const GROUPS = new Set(["on", "data", "aria", "route"]);

export function h<K extends Tag>(tag: K, attributes: Attributes | null, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (GROUPS.has(name) || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  if (attributes?.route !== undefined) element.setAttribute("href", `#${attributes.route}`);
  for (const [name, value] of Object.entries(attributes?.data ?? {})) element.dataset[name] = value;
  for (const [name, value] of Object.entries(attributes?.aria ?? {})) {
    if (value !== undefined) element.setAttribute(`aria-${name}`, String(value));
  }
  for (const [name, listener] of Object.entries(attributes?.on ?? {})) {
    element.addEventListener(name, listener as EventListener);
  }
  append(element, children);
  return element;
}

export function append(parent: Node, children: readonly Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) parent.appendChild(child);
    else if (typeof child === "object") append(parent, child);
    else parent.appendChild(document.createTextNode(String(child)));
  }
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  append(parent, children);
}

/** A link to an address that somebody else wrote; null unless it is an absolute one on http or https. */
export function outsideLink(address: string, ...children: Child[]): HTMLAnchorElement | null {
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return null;
  const link = h("a", { title: url.href }, ...children);
  link.href = url.href;
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
  return link;
}

/** Makes the children of a list those of `items`, in order. An element that is there for a key already stays, and with
 * it the focus and what was typed into it. */
export function keyed<Item>(
  parent: Element,
  items: readonly Item[],
  key: (item: Item) => string,
  make: (item: Item, old: HTMLElement | undefined) => HTMLElement,
): void {
  const old = new Map<string, HTMLElement>();
  for (const child of parent.children) old.set((child as HTMLElement).dataset["key"] ?? "", child as HTMLElement);
  let place: Element | null = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const before = old.get(name);
    const element = make(item, before);
    element.dataset["key"] = name;
    old.delete(name);
    if (before !== undefined && before !== element) {
      if (place === before) place = before.nextElementSibling;
      before.remove();
    }
    if (place === element) place = element.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const left of old.values()) left.remove();
}

/** A button that says what it does. Without an action of its own it does nothing. */
export function button(label: Child, act: () => void, attributes: Attributes = {}): HTMLButtonElement {
  return h("button", { type: "button", ...attributes, on: { click: act, ...attributes.on } }, label);
}

let numbers = 0;

/** An id that no other element of the page has. */
export function freshId(prefix: string): string {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

const SVG = "http://www.w3.org/2000/svg";

/** An icon that is drawn by one path on a square of 24. */
export function icon(path: string): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.appendChild(line);
  return svg;
}
