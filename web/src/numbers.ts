// Parses numbers as people write them.

/** Parses an amount of dollars: `5`, `5.50`, `5,50`, `$5`, `1,000.50`, `1.000,50`, `1 000`. Throws an Error that says what
 * to write if the text is not a positive amount or is ambiguous. */
export function dollarAmount(written: string): number {
  const text = written.replace(/[\s\u00a0\u202f]/g, "");
  const bare = /^(?:us\$|usd|\$)?([\d.,'’]+)(?:usd|\$)?$/i.exec(text)?.[1];
  if (bare === undefined) throw new Error(`“${written.trim()}” is not an amount in dollars. Write it like 5 or 5.50.`);
  const plain = decimal(bare.replace(/['’]/g, ""));
  if (plain === null) throw new Error(`“${written.trim()}” could be read in two ways. Write it like 1000 or 1.50.`);
  const amount = Number(plain);
  if (!Number.isFinite(amount) || !(amount > 0)) throw new Error("The budget must be more than 0. Write it like 5 or 5.50.");
  return amount;
}

/** Rewrites the number with a decimal point and no other mark; null if the marks are ambiguous or inconsistent. */
function decimal(text: string): string | null {
  const marks = [...text.replace(/\d/g, "")];
  if (!marks.length) return text;
  const last = marks[marks.length - 1] as string;
  const kinds = new Set(marks);
  const at = text.lastIndexOf(last);
  const [whole, fraction] = [text.slice(0, at), text.slice(at + 1)];
  if (kinds.size === 2) {
    // Both marks: the last one is the decimal mark, and the other must separate groups of three digits.
    const other = last === "," ? "." : ",";
    if (marks.filter((mark) => mark === last).length > 1 || !grouped(whole, other) || !fraction) return null;
    return `${whole.replaceAll(other, "")}.${fraction}`;
  }
  if (marks.length > 1) return grouped(text, last) ? text.replaceAll(last, "") : null;
  // One mark before three digits is ambiguous; after zero or nothing it is the decimal mark.
  if (!fraction || (fraction.length === 3 && !/^0*$/.test(whole))) return null;
  return `${whole || "0"}.${fraction}`;
}

function grouped(text: string, mark: string): boolean {
  const [first, ...rest] = text.split(mark);
  return /^\d{1,3}$/.test(first ?? "") && rest.every((part) => /^\d{3}$/.test(part));
}
