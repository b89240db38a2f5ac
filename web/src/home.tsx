// The overview before the user selects a session: open questions with their buttons, sessions that need attention,
// working sessions and since when, sessions that finished today, and the cost of the last days.

import { signal, useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { ApiError, get, messageOf, post, sessionPath } from "./api";
import { CostBars, lastDays, type CostBar } from "./charts";
import { Amount } from "./file_tree";
import { useMinutes } from "./list";
import type { Live } from "./live";
import { Questions } from "./questions";
import { QuestionCard } from "./question";
import { needsYourAnswer, isWatched, isWorking, needsYou, routeOf, statusWord, titleOf } from "./sessions";
import type { Answer, Question, SessionRow } from "./types";
import { ago, costOf, dollars, moment, place } from "./words";

const DAYS = 14;
const NO_OWNER = signal<string | null>(null);

export function Home({ live }: { live: Live }): VNode {
  useMinutes();
  const rows = live.all();
  const asking = rows.filter(needsYourAnswer);
  const working = rows.filter((row) => isWorking(row) && !needsYourAnswer(row));
  const needingAttention = rows.filter((row) => needsYou(row) && !needsYourAnswer(row));
  const midnight = new Date().setHours(0, 0, 0, 0);
  const finished = rows.filter((row) => row.inMemory && row.status === "completed" && !row.archived && moment(row.lastUsed) >= midnight);
  return (
    <div class="scroller home">
      <div class="home-head">
        <h1 tabIndex={-1}>{asking.length ? `${asking.length === 1 ? "1 session needs" : `${asking.length} sessions need`} you` : "Sessions"}</h1>
        <a class="button" href="#/new">New session</a>
      </div>
      <Waiting live={live} />
      <Lines title="Needs attention" rows={needingAttention} />
      <Lines title="Working" rows={working} since />
      <Lines title="Finished today" rows={finished} />
      {!rows.length && <p class="hint">No session yet. <a href="#/new">Start one</a>, or start Claude Code in a terminal: its sessions appear here.</p>}
      <Spent />
    </div>
  );
}

function Lines({ title, rows, since = false }: { title: string; rows: readonly SessionRow[]; since?: boolean }): VNode | null {
  if (!rows.length) return null;
  return (
    <section class="home-part">
      <h2>{title}</h2>
      <ul class="lines" role="list">
        {rows.map((row) => (
          <li key={row.sessionId}>
            <a href={`#${routeOf(row.sessionId)}`} dir="auto">{titleOf(row)}</a>
            <span class="hint">{[since ? (row.retrying || row.queued || `working, ${ago(moment(row.lastUsed))}`) : `${statusWord(row)}, ${ago(moment(row.lastUsed))}`,
              row.machine, place(row.directory), costOf(row)].filter(Boolean).join(" · ")}</span>
            {!since && row.status === "completed" && <ChangesLink row={row} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

interface ChangedLines {
  added: number;
  removed: number;
  /** Whether there are more changes than counted. */
  cut: boolean;
}

/** Milliseconds after the end of a turn until Claude Code has written its transcript. */
const WRITTEN = 2000;
/** Narrower viewports show the session list instead of this page. */
const WIDE_VIEWPORT = "(min-width: 56rem)";
/** The changed lines by session and its time of last use. The page requests one at a time. */
const amounts = new Map<string, ChangedLines>();
let asked: Promise<unknown> = Promise.resolve();

/** A link to the changes of a session, with the number of lines once it is known. */
function ChangesLink({ row }: { row: SessionRow }): VNode {
  const key = `${row.sessionId} ${row.lastUsed}`;
  const amount = useSignal(amounts.get(key));
  useEffect(() => {
    if (amounts.has(key) || !matchMedia(WIDE_VIEWPORT).matches) return;
    let current = true;
    const ask = async (): Promise<void> => {
      if (!current) return;
      const found = await get<ChangedLines>(sessionPath(row.sessionId, "changes", "amount"));
      amounts.set(key, found);
      if (current) amount.value = found;
    };
    // If the request fails, the link stays without the number.
    const timer = setTimeout(() => (asked = asked.then(ask).catch(() => undefined)), Math.min(moment(row.lastUsed) + WRITTEN - Date.now(), WRITTEN));
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key]);
  const { added = 0, removed = 0, cut = false } = amount.value ?? {};
  return (
    <a class="hint" href={`#${routeOf(row.sessionId)}/changes`}>
      Changes{added + removed > 0 && <> <Amount added={added} gone={removed} />{cut && " and more"}</>}
    </a>
  );
}

/** The open questions of all sessions. */
function Waiting({ live }: { live: Live }): VNode | null {
  const questions = useMemo(() => new Questions(), []);
  const problem = useSignal("");
  const asked = live.all().filter((row) => !isWatched(row)).flatMap((row) => (row.asks ?? []).map((ask) => ask.questionId)).sort().join(" ");
  useEffect(() => {
    let current = true;
    const open = new Set(asked.split(" ").filter(Boolean));
    for (const { question } of questions.open) if (!open.has(question.questionId)) questions.drop(question.questionId, "");
    if ([...open].some((id) => !questions.find(id))) {
      void get<{ questions: Question[] }>("/api/questions").then(({ questions: all }) => {
        if (!current) return;
        for (const question of all) if (open.has(question.questionId) && !questions.find(question.questionId)) questions.show(question, false);
        problem.value = "";
      }, (error: unknown) => (problem.value = messageOf(error)));
    }
    return () => void (current = false);
  }, [asked]);
  const send = async (question: Question, answer: Answer): Promise<void> => {
    try {
      await post(sessionPath(question.sessionId, "questions", encodeURIComponent(question.questionId)), answer);
      questions.drop(question.questionId, "");
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "QUESTION_CLOSED")) throw error;
      questions.drop(question.questionId, error.message);
    }
  };
  return (
    <section class="home-part" aria-label="Questions">
      {problem.value && <p class="problem" role="alert">{problem.value}</p>}
      {questions.shown.value.map((one) => {
        const row = live.rows.get(one.question.sessionId) ?? { sessionId: one.question.sessionId };
        return (
          <div key={one.question.questionId} class="home-asks">
            <p class="home-of"><a href={`#${routeOf(row.sessionId)}`} dir="auto">{titleOf(row)}</a> <span class="hint">{place(row.directory)}</span></p>
            <QuestionCard asked={one} directory={row.directory ?? ""} send={send} owner={NO_OWNER} />
          </div>
        );
      })}
    </section>
  );
}

function Spent(): VNode | null {
  const days = useSignal<readonly CostBar[]>([]);
  useEffect(() => {
    const since = new Date(Date.now() - (DAYS - 1) * 86_400_000).toISOString().slice(0, 10);
    // If the costs cannot be read, this page omits them; the costs page says why.
    void get<{ lines: CostBar[] }>(`/api/costs?by=day&since=${since}`).then((report) => (days.value = report.lines), () => undefined);
  }, []);
  if (!days.value.some((day) => day.usd > 0)) return null;
  const together = days.value.reduce((sum, day) => sum + day.usd, 0);
  return (
    <section class="home-part">
      <h2>The last {DAYS} days <span class="hint">{dollars(together)} · <a href="#/costs">Costs</a></span></h2>
      <CostBars lines={days.value} names={lastDays(DAYS)} per="day" />
    </section>
  );
}
