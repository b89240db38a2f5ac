// The design system on one page: type, colors, controls and states. Tests take screenshots of it in both color schemes.

import { signal } from "@preact/signals";
import { type VNode } from "preact";
import { CostBars, lastDays, Ring } from "./charts";
import { QuestionCard, type Asked } from "./question";
import type { Question } from "./types";
import { ViewHead } from "./view_head";

const SERIES = ["opus", "sonnet", "haiku", "fourth", "fifth", "other"];
const TYPE = ["xs", "s", "m", "l", "body", "title", "section", "page"];
/** Backgrounds, each with the color of the text on it. */
const COLORS: readonly (readonly [string, string])[] = [
  ["page", "text"], ["surface", "text"], ["surface", "muted"], ["sunken", "text"], ["accent", "on-accent"], ["accent-soft", "accent"],
  ["ask-soft", "ask"], ["bad-soft", "bad"], ["good-soft", "good"], ["gone", "text"], ["new", "text"],
];
const STATES = ["running", "question", "unanswered", "limit", "stalled", "error", "completed"];
const QUESTION: Question = {
  questionId: "design", sessionId: "design", kind: "permission", toolName: "Bash", description: "Run: npm test",
  toolInput: { command: "npm test -- --watch=false", description: "Run the tests" }, canAllowForSession: true, sessionRules: ["Bash(npm test:*)"],
};
const ASKED: Asked = { question: QUESTION, closed: signal(null), wanted: signal(false) };
const NO_OWNER = signal<string | null>(null);

export function Design(): VNode {
  return (
    <div class="page">
      <ViewHead title="Design" />
      <div class="page-body scroller design">
        <section>
          <h2>Type</h2>
          {TYPE.map((size) => <p key={size} style={{ fontSize: `var(--type-${size})` }}>{size}: Claude asks before it acts</p>)}
          <p><code>monospace: git status --short</code></p>
        </section>
        <section>
          <h2>Colors</h2>
          <div class="swatches">
            {COLORS.map(([back, text]) => <div key={back + text} class="swatch" style={{ background: `var(--${back})`, color: `var(--${text})` }}>{text} on {back}</div>)}
          </div>
        </section>
        <section>
          <h2>Controls</h2>
          <div class="specimen">
            <button type="button" class="allow">Allow once</button><button type="button">Allow for this session</button><button type="button" class="deny">Deny</button>
            <button type="button" class="quiet">Edit</button><button type="button" disabled>Disabled</button><a class="needs-pill" href="#/design">2 need you</a>
          </div>
          <div class="specimen">
            <input type="text" aria-label="A text" placeholder="A text" /><select aria-label="A choice"><option>A choice</option></select>
            <label class="check-chip"><input type="checkbox" defaultChecked /> A check</label>
          </div>
        </section>
        <section>
          <h2>States</h2>
          <div class="specimen">{STATES.map((state) => <span key={state} class="badge" data-status={state}>{state}</span>)}</div>
          <p class="problem">What went wrong, and what to do about it.</p>
          <p class="hint">Additional information.</p>
          <div class="activity" data-state="working"><span class="doing">Run the tests</span><span class="facts">1 min 20 s · 12.4k tokens</span></div>
          <div class="activity" data-state="offline"><span class="doing">Offline: reconnecting. What you write is kept here.</span></div>
        </section>
        <section>
          <h2>A question</h2>
          <QuestionCard asked={ASKED} directory="" send={() => Promise.resolve()} owner={NO_OWNER} />
        </section>
        <section>
          <h2>Charts</h2>
          <CostBars names={lastDays(14)} per="day" split="model" limit={{ of: () => 12, words: "Budget for a day" }}
            lines={lastDays(14).map((name, at) => ({ name, usd: (at * 7) % 10, parts: Object.fromEntries(SERIES.map((part) => [part, ((at * 7) % 10) / SERIES.length])) }))} />
          <p><Ring part={0.3} words="context 30 %" /> <Ring part={0.9} words="context 90 %" /></p>
        </section>
      </div>
    </div>
  );
}
