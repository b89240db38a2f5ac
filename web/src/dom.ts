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

/** An address that somebody else wrote; null unless it is an absolute one on http or https. */
export function outsideAddress(address: string): string | null {
  const url = URL.canParse(address) ? new URL(address) : null;
  return url?.protocol === "http:" || url?.protocol === "https:" ? url.href : null;
}

/** A link to such an address; null if it is none. */
export function outsideLink(address: string, ...children: Child[]): HTMLAnchorElement | null {
  const href = outsideAddress(address);
  if (href === null) return null;
  const link = h("a", { title: href }, ...children);
  link.href = href;
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
  return link;
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
