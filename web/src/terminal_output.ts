// A command's output as a terminal would show it: with colors, and with overwritten lines replaced. The time is linear
// in the text. All other terminal control sequences are dropped, and remaining invisible characters are shown as codes.

import type { HighlightPart } from "./highlighter";
import { visible } from "./words";

/** Control sequences: colors and erasing (applied), and everything else that begins with an escape (dropped). */
const SEQUENCE = /\u001b(?:\[([0-9:;<=>?]{0,64})[ -/]{0,8}([@-~])|\][^\u0007\u001b\n]{0,4096}(?:\u0007|\u001b\\)|[ -/]{0,8}[0-~])/y;
const COLORS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"] as const;
const PLAIN = "";

interface Style {
  bold: boolean;
  faint: boolean;
  italic: boolean;
  underline: boolean;
  color: string;
}

/** The parts of an output with the CSS classes of their styles, and its text; null if the output is plain text. */
export function terminalOutput(text: string): { parts: HighlightPart[]; text: string } | null {
  if (!/[\u001b\r\b]/.test(text)) return null;
  const screen = new Screen();
  screen.write(text);
  return screen.result();
}

/** The lines of the output. Each is a list of characters with their styles. */
class Screen {
  private readonly runs: [string, string][] = [];
  private line: string[] = [];
  private styles: string[] = [];
  private column = 0;
  private style = PLAIN;
  private readonly state: Style = { bold: false, faint: false, italic: false, underline: false, color: "" };

  write(text: string): void {
    let at = 0;
    while (at < text.length) {
      const code = text.charCodeAt(at);
      if (code === 0x1b) at = this.sequence(text, at);
      else if (code === 0x0a) {
        this.newLine();
        at += 1;
      } else if (code === 0x0d) {
        this.column = 0;
        at += 1;
      } else if (code === 0x08) {
        this.column = Math.max(0, this.column - 1);
        at += 1;
      } else {
        const character = String.fromCodePoint(text.codePointAt(at) as number);
        this.put(character);
        at += character.length;
      }
    }
  }

  result(): { parts: HighlightPart[]; text: string } {
    this.flush();
    const parts = this.runs.map(([style, text]): HighlightPart => [style, visible(text)]);
    return { parts, text: this.runs.map(([, text]) => text).join("") };
  }

  private put(character: string): void {
    this.line[this.column] = character;
    this.styles[this.column] = this.style;
    this.column += 1;
  }

  private newLine(): void {
    this.flush();
    this.append(PLAIN, "\n");
    this.line = [];
    this.styles = [];
    this.column = 0;
  }

  private flush(): void {
    for (const [at, character] of this.line.entries()) this.append(this.styles[at] as string, character);
  }

  private append(style: string, text: string): void {
    const last = this.runs[this.runs.length - 1];
    if (last !== undefined && last[0] === style) last[1] += text;
    else this.runs.push([style, text]);
  }

  /** Applies or drops the sequence at this position; returns the position after it. */
  private sequence(text: string, at: number): number {
    SEQUENCE.lastIndex = at;
    const found = SEQUENCE.exec(text);
    if (found === null) return at + 1; // ignore a lone escape
    const [whole, parameters = "", final] = found;
    if (final === "m") this.color(parameters);
    else if (final === "K") this.erase(parameters);
    return at + whole.length;
  }

  private erase(parameters: string): void {
    if (parameters === "2") this.column = 0;
    if (parameters === "1") return;
    this.line.length = Math.min(this.line.length, this.column);
    this.styles.length = this.line.length;
  }

  private color(parameters: string): void {
    const codes = parameters.split(/[;:]/).map(Number);
    const { state } = this;
    for (let at = 0; at < codes.length; at += 1) {
      const code = codes[at] as number;
      if (code === 0) Object.assign(state, { bold: false, faint: false, italic: false, underline: false, color: "" });
      else if (code === 1) state.bold = true;
      else if (code === 2) state.faint = true;
      else if (code === 3) state.italic = true;
      else if (code === 4) state.underline = true;
      else if (code === 22) state.bold = state.faint = false;
      else if (code === 23) state.italic = false;
      else if (code === 24) state.underline = false;
      else if (code === 39) state.color = "";
      else if (code >= 30 && code <= 37) state.color = COLORS[code - 30] as string;
      else if (code >= 90 && code <= 97) state.color = COLORS[code - 90] as string;
      else if (code === 38 || code === 48) {
        // One of 256 colors, of which the first sixteen have names, or an RGB color, which is not shown.
        const named = codes[at + 1] === 5 ? (codes[at + 2] ?? 16) : 16;
        if (code === 38) state.color = named < 16 ? (COLORS[named % 8] as string) : "";
        at += codes[at + 1] === 5 ? 2 : 4;
      }
    }
    const names = [state.bold && "bold", state.faint && "faint", state.italic && "italic", state.underline && "underline", state.color];
    this.style = names.filter(Boolean).map((name) => `ansi-${String(name)}`).join(" ");
  }
}
