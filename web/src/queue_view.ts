// Messages that wait behind the running turn, and those that were sent and that nobody has read.

import { messageOf } from "./api";
import { splitFiles } from "./attachments";
import { button, h, keyed } from "./dom";
import { count } from "./words";

export interface QueuedMessage {
  messageId: string;
  text: string;
  images?: number;
  /** It was accepted and will not run: the server ended before Claude had read it. */
  lost?: boolean;
}

export interface QueueActs {
  /** Takes a message back; resolves to whether it was not too late. */
  withdraw(message: QueuedMessage): Promise<boolean>;
  edit(message: QueuedMessage): void;
  resend(message: QueuedMessage): void;
  /** A message that is lost is not wanted any more. */
  discard(message: QueuedMessage): void;
}

export class QueueView {
  readonly element = h("ul", { class: "queue", role: "list", aria: { label: "Messages that wait" } });
  private messages: QueuedMessage[] = [];

  constructor(private readonly acts: QueueActs) {}

  has(messageId: string): boolean {
    return this.messages.some((one) => one.messageId === messageId);
  }

  set(messages: readonly QueuedMessage[]): void {
    this.messages = [...messages];
    this.draw();
  }

  add(message: QueuedMessage): void {
    if (!this.has(message.messageId)) this.set([...this.messages, message]);
  }

  remove(messageId: string): void {
    if (this.has(messageId)) this.set(this.messages.filter((one) => one.messageId !== messageId));
  }

  private draw(): void {
    keyed(this.element, this.messages, (one) => `${one.messageId}${one.lost ? ":lost" : ""}`, (one, old) => old ?? this.row(one));
  }

  private row(message: QueuedMessage): HTMLElement {
    const { text, files } = splitFiles(message.text);
    const more = [message.images ? count(message.images, "picture") : "", files.length ? count(files.length, "file") : ""].filter(Boolean);
    const problem = h("span", { class: "hint", role: "status" });
    const back = (then: () => void): void => void this.acts.withdraw(message).then((done) => {
      if (done) then();
      else problem.textContent = "Claude has already read it.";
    }, (error: unknown) => {
      problem.textContent = messageOf(error);
    });
    const acts = message.lost
      ? [button("Send again", () => this.acts.resend(message), { class: "quiet" }), button("Edit", () => this.acts.edit(message), { class: "quiet" }),
        button("Discard", () => this.acts.discard(message), { class: "quiet" })]
      : [button("Edit", () => back(() => this.acts.edit(message)), { class: "quiet" }), button("Remove", () => back(() => undefined), { class: "quiet" })];
    return h("li", { class: "queued" }, h("p", { class: "prompt", dir: "auto" }, text || more.join(", ")),
      h("p", { class: "queued-foot" }, h("span", { class: "hint" }, message.lost ? "Not read: the server ended before" : "Queued",
        text && more.length ? ` · ${more.join(", ")}` : ""), ...acts, problem));
  }
}
