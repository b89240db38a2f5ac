// The inline part of Markdown: code, emphasis, links. Time is linear in the text, and nesting is bounded.

import { h, outsideLink, type Child } from "./dom";

const DEEPEST = 12;
const LONGEST_ADDRESS = 2000;
const SPECIAL = /[\\`*_~[\]<h]/g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BARE_ADDRESS = /https?:\/\/[^\s<>"'`|]{1,2000}/y;
const TRAILING = ".,;:!?)]}'*_~";
const WORD = /[\p{L}\p{N}]/u;

interface Opening {
  marker: string;
  /** How many nodes there were when it opened. */
  at: number;
}

/** The nodes of one run of text. */
export function inline(text: string): Child[] {
  return new Reader(text).read();
}

class Reader {
  private readonly nodes: Child[] = [];
  private readonly openings: Opening[] = [];
  private readonly open = new Map<string, number>();
  private readonly ticks: Map<number, number[]>;
  private readonly ahead = new Map<string, number>();
  private plain = 0;
  private at = 0;

  constructor(private readonly text: string) {
    this.ticks = tickRuns(text);
  }

  read(): Child[] {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      if (found === null) break;
      this.at = found.index;
      if (!this.special(found[0])) this.at += 1;
    }
    this.at = text.length;
    this.flush();
    return this.nodes;
  }

  /** Takes what begins here; false if it is plain text. */
  private special(character: string): boolean {
    switch (character) {
      case "\\":
        return this.escape();
      case "`":
        return this.code();
      case "[":
        this.openAt("[", 1);
        return true;
      case "]":
        return this.link();
      case "<":
        return this.bracketed();
      case "h":
        return this.address();
      default:
        return this.emphasis(character);
    }
  }

  /** Where this character comes next, -1 if it does not. Every place is looked for once. */
  private next(character: string): number {
    let place = this.ahead.get(character);
    if (place === undefined || (place >= 0 && place < this.at)) {
      place = this.text.indexOf(character, this.at);
      this.ahead.set(character, place);
    }
    return place;
  }

  /** What was passed over since the last node becomes text, up to here. */
  private flush(): void {
    if (this.at > this.plain) this.nodes.push(this.text.slice(this.plain, this.at));
    this.plain = this.at;
  }

  private take(node: Child, length: number): true {
    this.flush();
    this.nodes.push(node);
    this.at += length;
    this.plain = this.at;
    return true;
  }

  private escape(): boolean {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.take(h("br", null), 2);
    return next !== undefined && ESCAPABLE.test(next) && this.take(next, 2);
  }

  private code(): boolean {
    const length = runAt(this.text, this.at, "`");
    const places = this.ticks.get(length) ?? [];
    while (places.length && (places[places.length - 1] as number) <= this.at) places.pop();
    const end = places[places.length - 1];
    if (end === undefined) {
      this.at += length;
      return true;
    }
    let inside = this.text.slice(this.at + length, end).replace(/\n/g, " ");
    if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim()) inside = inside.slice(1, -1);
    return this.take(h("code", null, inside), end + length - this.at);
  }

  private openAt(marker: string, length: number): void {
    this.flush();
    this.openings.push({ marker, at: this.nodes.length });
    this.open.set(marker, (this.open.get(marker) ?? 0) + 1);
    // The marker itself is text until it is closed.
    this.nodes.push(this.text.slice(this.at, this.at + length));
    this.at += length;
    this.plain = this.at;
  }

  /** Takes the newest opening of this marker off, with those above it, whose markers stay text. */
  private closing(marker: string): Opening | undefined {
    if (!this.open.get(marker)) return undefined;
    for (;;) {
      const last = this.openings.pop() as Opening;
      this.open.set(last.marker, (this.open.get(last.marker) as number) - 1);
      if (last.marker === marker) return last;
    }
  }

  private emphasis(character: string): boolean {
    const { text, at } = this;
    const run = Math.min(runAt(text, at, character), character === "~" ? 2 : 3);
    if (character === "~" && run < 2) return false;
    const before = text[at - 1] ?? " ";
    const after = text[at + run] ?? " ";
    const inWord = character === "_" && WORD.test(before) && WORD.test(after);
    const opens = !/\s/.test(after) && !inWord;
    const closes = !/\s/.test(before) && !inWord;
    const marker = character.repeat(run);
    if (closes && this.open.get(marker)) {
      this.flush();
      const opening = this.closing(marker) as Opening;
      const inside = this.nodes.splice(opening.at).slice(1);
      this.nodes.push(...wrapped(run, character, inside));
      this.at += run;
      this.plain = this.at;
      return true;
    }
    if (opens && this.openings.length < DEEPEST) this.openAt(marker, run);
    else this.at += run;
    return true;
  }

  private link(): boolean {
    if (this.text[this.at + 1] !== "(" || !this.open.get("[")) return false;
    const end = this.next(")");
    if (end < 0 || end - this.at > LONGEST_ADDRESS) return false;
    const address = (this.text.slice(this.at + 2, end).trim().split(/\s/, 1)[0] ?? "").replace(/^<|>$/g, "");
    this.flush();
    const opening = this.closing("[") as Opening;
    const inside = this.nodes.splice(opening.at).slice(1);
    // An address that is no link on the web stays visible beside its text.
    const node = outsideLink(address, inside) ?? h("span", null, inside, ` (${address})`);
    this.nodes.push(node);
    this.at = end + 1;
    this.plain = this.at;
    return true;
  }

  private bracketed(): boolean {
    const end = this.next(">");
    if (end < 0 || end - this.at > LONGEST_ADDRESS) return false;
    const address = this.text.slice(this.at + 1, end);
    const link = /^https?:\/\/\S+$/.test(address) ? outsideLink(address, address) : null;
    return link !== null && this.take(link, end + 1 - this.at);
  }

  private address(): boolean {
    if (this.at > 0 && WORD.test(this.text[this.at - 1] as string)) return false;
    BARE_ADDRESS.lastIndex = this.at;
    let found = BARE_ADDRESS.exec(this.text)?.[0];
    if (found === undefined || this.open.get("[")) return false;
    let end = found.length;
    while (end > 0 && TRAILING.includes(found[end - 1] as string)) end -= 1;
    found = found.slice(0, end);
    const link = outsideLink(found, found);
    return link !== null && this.take(link, found.length);
  }
}

function wrapped(run: number, character: string, inside: Child[]): Child[] {
  if (character === "~") return [h("del", null, inside)];
  if (run === 1) return [h("em", null, inside)];
  if (run === 2) return [h("strong", null, inside)];
  return [h("strong", null, h("em", null, inside))];
}

function runAt(text: string, at: number, character: string): number {
  let end = at;
  while (text[end] === character) end += 1;
  return end - at;
}

/** Where the runs of backticks begin, by their length, the last first. */
function tickRuns(text: string): Map<number, number[]> {
  const runs = new Map<number, number[]>();
  for (const found of text.matchAll(/`+/g)) {
    const places = runs.get(found[0].length);
    if (places === undefined) runs.set(found[0].length, [found.index]);
    else places.push(found.index);
  }
  for (const places of runs.values()) places.reverse();
  return runs;
}
