// The open questions of a session, in the order in which they were asked.

import { signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { type VNode } from "preact";
import { moves, QuestionCard, type Asked, type SendAnswer } from "./question";
import type { Question } from "./types";

/** Milliseconds for which the page shows why a question was closed. */
const CLOSED_SHOWN_MS = 8000;

export class Questions {
  readonly shown: Signal<readonly Asked[]> = signal([]);

  /** The questions that are still open. */
  get open(): readonly Asked[] {
    return this.shown.value.filter((one) => one.closed.peek() === null);
  }

  find(id: string): Asked | undefined {
    return this.open.find((one) => one.question.questionId === id);
  }

  show(question: Question, wanted: boolean): void {
    this.shown.value = [...this.shown.value, { question, closed: signal(null), wanted: signal(wanted) }];
  }

  /** Closes a question that no longer needs an answer. Shows `why` for a while, unless it is empty. */
  drop(id: string, why: string): void {
    const asked = this.find(id);
    if (asked === undefined) return;
    asked.closed.value = why;
    const remove = (): void => {
      this.shown.value = this.shown.value.filter((one) => one !== asked);
      moves.value += 1;
    };
    if (why) setTimeout(remove, CLOSED_SHOWN_MS);
    else remove();
  }
}

export function QuestionList({ questions, directory, send, owner }: {
  questions: Questions; directory: () => string; send: SendAnswer; owner: ReadonlySignal<string | null>;
}): VNode {
  return (
    <>
      {questions.shown.value.map((asked) => <QuestionCard key={asked.question.questionId} asked={asked} directory={directory()} send={send} owner={owner} />)}
    </>
  );
}
