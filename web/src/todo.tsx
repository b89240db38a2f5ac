// Claude's task list, as last reported, and how much of the model's context is used.

import { signal, type ReadonlySignal } from "@preact/signals";
import { type VNode } from "preact";
import { Ring } from "./charts";
import type { Item, SessionRow } from "./types";
import { visible } from "./words";

interface Todo {
  text: string;
  status: string;
}

const MARKS: Record<string, string> = { completed: "✓", in_progress: "▸", pending: "○" };

export class TodoList {
  readonly shown = signal<readonly Todo[]>([]);
  private tasks = new Map<string, Todo>();

  /** Applies a call that changes the list, either the whole list or one task. Ignores other items. */
  take(item: Item): void {
    if (item.kind !== "tool" || typeof item.input !== "object" || item.input === null) return;
    const input = item.input as Record<string, unknown>;
    if (item.name === "TodoWrite" && Array.isArray(input["todos"])) {
      this.tasks = new Map(input["todos"].map((todo: Record<string, unknown>, at) => [String(at), { text: String(todo["content"] ?? ""), status: String(todo["status"] ?? "") }]));
    } else if (item.name === "TaskCreate" && typeof input["subject"] === "string") {
      const id = /#(\d+)/.exec(item.result ?? "")?.[1];
      if (id === undefined || this.tasks.has(id)) return; // the task gets its number when the call ends
      this.tasks.set(id, { text: input["subject"], status: "pending" });
    } else if (item.name === "TaskUpdate" && item.status === "ok") {
      const task = this.tasks.get(String(input["taskId"]));
      if (task === undefined) return;
      if (typeof input["subject"] === "string") task.text = input["subject"];
      if (input["status"] === "deleted") this.tasks.delete(String(input["taskId"]));
      else if (typeof input["status"] === "string") task.status = input["status"];
    } else {
      return;
    }
    this.shown.value = [...this.tasks.values()].map((task) => ({ ...task }));
  }

}

export function Todos({ list }: { list: TodoList }): VNode | null {
  const tasks = list.shown.value;
  const done = tasks.filter((task) => task.status === "completed").length;
  const now = tasks.find((task) => task.status === "in_progress");
  if (!tasks.length || done === tasks.length) return null;
  return (
    <details class="todo">
      <summary>{`${done} of ${tasks.length} done${now ? ` · ${visible(now.text)}` : ""}`}</summary>
      <ol class="todo-list" role="list">
        {tasks.map((task, at) => (
          <li key={at} data-status={task.status}>
            <span class="mark" aria-hidden="true">{MARKS[task.status] ?? "○"}</span>{` ${visible(task.text)}`}<span class="spoken">{`: ${task.status.replace("_", " ")}`}</span>
          </li>
        ))}
      </ol>
    </details>
  );
}

/** How much of the context is used: as a ring if the size of the context is known, otherwise in words. */
export function ContextRing({ row }: { row: ReadonlySignal<SessionRow> }): VNode | null {
  const [tokens, window] = row.value.context ?? [0, 0];
  if (!tokens) return null;
  const used = tokens < 1000 ? String(tokens) : `${Math.round(tokens / 1000)}k`;
  if (!window) return <span>{`context ${used} · `}</span>;
  const share = Math.min(100, Math.round((100 * tokens) / window));
  return <><Ring part={tokens / window} words={`context ${share || "<1"} %, ${used} tokens`} />{" "}</>;
}
