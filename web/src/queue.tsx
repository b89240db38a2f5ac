// Messages queued behind the running turn, and messages that were sent but lost before Claude read them.

import { signal, useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { messageOf } from "./api";
import { splitFiles } from "./attachments";
import { count } from "./words";

export interface QueuedMessage {
  messageId: string;
  text: string;
  images?: number;
  /** The server accepted the message but stopped before Claude read it, so it will not run. */
  lost?: boolean;
}

export interface QueueActs {
  /** Takes a message back; resolves to false if it is too late. */
  withdraw(message: QueuedMessage): Promise<boolean>;
  edit(message: QueuedMessage): void;
  resend(message: QueuedMessage): void;
  /** Drops a lost message that the user no longer wants. */
  discard(message: QueuedMessage): void;
}

export class Queue {
  readonly messages = signal<readonly QueuedMessage[]>([]);

  has(messageId: string): boolean {
    return this.messages.peek().some((one) => one.messageId === messageId);
  }

  set(messages: readonly QueuedMessage[]): void {
    this.messages.value = [...messages];
  }

  add(message: QueuedMessage): void {
    if (!this.has(message.messageId)) this.set([...this.messages.peek(), message]);
  }

  remove(messageId: string): void {
    if (this.has(messageId)) this.set(this.messages.peek().filter((one) => one.messageId !== messageId));
  }
}

export function QueueList({ queue, acts }: { queue: Queue; acts: QueueActs }): VNode {
  return (
    <ul class="queue" role="list" aria-label="Queued messages">
      {queue.messages.value.map((one) => <Queued key={`${one.messageId}${one.lost ? ":lost" : ""}`} message={one} acts={acts} />)}
    </ul>
  );
}

function Queued({ message, acts }: { message: QueuedMessage; acts: QueueActs }): VNode {
  const problem = useSignal("");
  const { text, files } = splitFiles(message.text);
  const more = [message.images ? count(message.images, "picture") : "", files.length ? count(files.length, "file") : ""].filter(Boolean);
  const back = (then: () => void): void => void acts.withdraw(message).then((done) => {
    if (done) then();
    else problem.value = "Claude has already read it.";
  }, (error: unknown) => (problem.value = messageOf(error)));
  const act = (label: string, run: () => void): VNode => <button type="button" class="quiet" onClick={run}>{label}</button>;
  return (
    <li class="queued">
      <p class="prompt" dir="auto">{text || more.join(", ")}</p>
      <p class="queued-foot">
        <span class="hint">{message.lost ? "Not delivered: the server stopped first" : "Queued"}{text && more.length ? ` · ${more.join(", ")}` : ""}</span>
        {message.lost
          ? <>{act("Send again", () => acts.resend(message))}{act("Edit", () => acts.edit(message))}{act("Discard", () => acts.discard(message))}</>
          : <>{act("Edit", () => back(() => acts.edit(message)))}{act("Remove", () => back(() => undefined))}</>}
        <span class="hint" role="status">{problem.value}</span>
      </p>
    </li>
  );
}
