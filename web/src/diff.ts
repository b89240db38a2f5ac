// Differences between two texts by lines. Nothing is left out: where the comparison would take too long, all lines go
// and all lines come.

export interface Row {
  kind: "same" | "gone" | "new" | "gap";
  text: string;
  /** Line numbers, where they are known. */
  before?: number;
  after?: number;
}

const MOST_STEPS = 600;

/** The rows of a change from one text to another. */
export function lineDiff(before: string, after: string): Row[] {
  const old = linesOf(before);
  const now = linesOf(after);
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let endOld = old.length;
  let endNow = now.length;
  while (endOld > start && endNow > start && old[endOld - 1] === now[endNow - 1]) {
    endOld -= 1;
    endNow -= 1;
  }
  const rows: Row[] = [];
  let [a, b] = [0, 0];
  const same = (): void => void rows.push({ kind: "same", text: old[a] as string, before: (a += 1), after: (b += 1) });
  while (a < start) same();
  for (const step of steps(old.slice(start, endOld), now.slice(start, endNow))) {
    if (step === 0) same();
    else if (step < 0) rows.push({ kind: "gone", text: old[a] as string, before: (a += 1) });
    else rows.push({ kind: "new", text: now[b] as string, after: (b += 1) });
  }
  while (a < old.length) same();
  return rows;
}

function linesOf(text: string): string[] {
  if (!text) return [];
  const lines = text.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/** The shortest way from one list to another: -1 a line goes, 1 one comes, 0 one stays (Myers, bounded). */
function steps(old: readonly string[], now: readonly string[]): number[] {
  const all = [...old.map(() => -1), ...now.map(() => 1)];
  if (!old.length || !now.length) return all;
  const furthest = new Map<number, number>([[1, 0]]);
  const trace: Map<number, number>[] = [];
  const most = Math.min(old.length + now.length, MOST_STEPS);
  let work = 4_000_000;
  for (let d = 0; d <= most && work > 0; d += 1) {
    trace.push(new Map(furthest));
    work -= d;
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (furthest.get(k - 1) ?? -1) < (furthest.get(k + 1) ?? -1));
      let x = down ? (furthest.get(k + 1) ?? 0) : (furthest.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < old.length && y < now.length && old[x] === now[y]) {
        x += 1;
        y += 1;
        work -= 1;
      }
      furthest.set(k, x);
      if (x >= old.length && y >= now.length) return backwards(trace, old.length, now.length);
    }
  }
  return all;
}

function backwards(trace: readonly Map<number, number>[], endX: number, endY: number): number[] {
  const found: number[] = [];
  let [x, y] = [endX, endY];
  for (let d = trace.length - 1; d >= 0; d -= 1) {
    const furthest = trace[d] as Map<number, number>;
    const k = x - y;
    const down = k === -d || (k !== d && (furthest.get(k - 1) ?? -1) < (furthest.get(k + 1) ?? -1));
    const fromX = d === 0 ? 0 : (furthest.get(down ? k + 1 : k - 1) ?? 0);
    const fromY = d === 0 ? 0 : fromX - (down ? k + 1 : k - 1);
    while (x > fromX && y > fromY) {
      found.push(0);
      x -= 1;
      y -= 1;
    }
    if (d > 0) found.push(down ? 1 : -1);
    [x, y] = [fromX, fromY];
  }
  return found.reverse();
}

/** The rows of a unified diff as Claude Code notes it. */
export function unifiedDiff(text: string): Row[] {
  const rows: Row[] = [];
  let [before, after] = [1, 1];
  for (const line of text.split("\n")) {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(line);
    if (hunk !== null) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      if (rows.length) rows.push({ kind: "gap", text: "" });
    } else if (line.startsWith("+")) rows.push({ kind: "new", text: line.slice(1), after: after++ });
    else if (line.startsWith("-")) rows.push({ kind: "gone", text: line.slice(1), before: before++ });
    else if (line.startsWith(" ")) rows.push({ kind: "same", text: line.slice(1), before: before++, after: after++ });
  }
  return rows;
}

/** Where two lines begin and end to differ: [start, end in the first, end in the second]. */
export function changedPart(before: string, after: string): [number, number, number] {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let [a, b] = [before.length, after.length];
  while (a > start && b > start && before[a - 1] === after[b - 1]) {
    a -= 1;
    b -= 1;
  }
  return [start, a, b];
}
