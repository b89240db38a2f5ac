// HTML character references in Markdown. The table has the names that people and models write; a reference with another
// name stays as written.

const NAMED: Record<string, string> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—",
  ndash: "–", lsquo: "‘", rsquo: "’", sbquo: "‚", ldquo: "“", rdquo: "”", bdquo: "„", laquo: "«", raquo: "»", bull: "•",
  middot: "·", times: "×", divide: "÷", plusmn: "±", minus: "−", deg: "°", micro: "µ", para: "¶", sect: "§", cent: "¢",
  pound: "£", yen: "¥", euro: "€", curren: "¤", frac12: "½", frac14: "¼", frac34: "¾", sup1: "¹", sup2: "²", sup3: "³",
  larr: "←", uarr: "↑", rarr: "→", darr: "↓", harr: "↔", lArr: "⇐", rArr: "⇒", hArr: "⇔", infin: "∞", ne: "≠", le: "≤",
  ge: "≥", asymp: "≈", equiv: "≡", sum: "∑", prod: "∏", radic: "√", isin: "∈", notin: "∉", cap: "∩", cup: "∪", sub: "⊂",
  sup: "⊃", and: "∧", or: "∨", not: "¬", forall: "∀", exist: "∃", part: "∂", nabla: "∇", int: "∫", empty: "∅",
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", lambda: "λ", mu: "μ", pi: "π", sigma: "σ", tau: "τ",
  phi: "φ", omega: "ω", Delta: "Δ", Omega: "Ω", Sigma: "Σ", check: "✓", cross: "✗", star: "☆", hearts: "♥", auml: "ä",
  ouml: "ö", uuml: "ü", Auml: "Ä", Ouml: "Ö", Uuml: "Ü", szlig: "ß", eacute: "é", egrave: "è", agrave: "à", ccedil: "ç",
  ntilde: "ñ", aring: "å", oslash: "ø", aelig: "æ", lbrace: "{", rbrace: "}", lbrack: "[", rbrack: "]", lpar: "(",
  rpar: ")", ast: "*", lowbar: "_", grave: "`", vert: "|", verbar: "|", bsol: "\\", sol: "/", num: "#", excl: "!",
  dollar: "$", percnt: "%", colon: ":", semi: ";", comma: ",", period: ".", quest: "?", commat: "@", Hat: "^", plus: "+",
  equals: "=", Tab: "\t", NewLine: "\n", zwnj: "\u200c", zwj: "\u200d",
};
const REFERENCE = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z][A-Za-z0-9]{1,30}));/g;
const REPLACEMENT = "\ufffd";

/** Resolves the character references in a text. */
export function withoutEntities(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(REFERENCE, (whole: string, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return Object.hasOwn(NAMED, name) ? (NAMED[name] as string) : whole;
    return character(decimal === undefined ? parseInt(hex as string, 16) : parseInt(decimal, 10));
  });
}

function character(code: number): string {
  if (code === 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return REPLACEMENT;
  return String.fromCodePoint(code);
}
