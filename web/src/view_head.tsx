// The header of a page: the title, the link back, and the number of sessions that wait for an answer.

import { type VNode } from "preact";
import type { Live } from "./live";
import { NeedsPill } from "./list";

export function ViewHead({ title, live }: { title: string; live?: Live }): VNode {
  return (
    <header class="view-head">
      <a class="back" href="#/" aria-label="All sessions">‹</a>
      <div class="heading"><h1 tabIndex={-1}>{title}</h1></div>
      {live !== undefined && <NeedsPill live={live} />}
    </header>
  );
}
