// The message that started a turn: its text, files and pictures.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { messageOf } from "./api";
import { splitFiles } from "./attachments";
import type { TurnActs } from "./turn";
import type { TurnState } from "./turn_state";
import type { Turn } from "./types";
import { count, size } from "./words";

export function Prompt({ state, acts }: { state: TurnState; acts: TurnActs }): VNode | null {
  const turn = state.turn.value;
  const sent = state.sent.value;
  const pictures = sent.filter((data) => data.startsWith("data:image/"));
  const { text, files } = splitFiles(turn.prompt ?? "");
  const images = Math.max(turn.images ?? 0, pictures.length);
  const documents = Math.max(turn.documents ?? 0, sent.length - pictures.length);
  // Omit the placeholder that a transcript has for a message of only pictures or documents.
  const words = (images && text === "[image]") || (documents && text === "[document]") ? "" : text;
  if (!words && !files.length && !images && !documents) return null;
  return (
    <div class="sent">
      {words && <p class="prompt" dir="auto">{words}</p>}
      <div class="prompt-more">
        {files.map((file, at) => <details key={at} class="attached"><summary>{`${file.name} · ${size(file.text.length)}`}</summary><pre>{file.text}</pre></details>)}
        {documents > 0 && <p class="hint">{`${count(documents, "PDF document")} attached`}</p>}
        {images > 0 && <Pictures turn={turn} images={images} sent={pictures} acts={acts} />}
        {acts.edit && <button type="button" class="quiet edit" aria-label="Edit this message and send it again" onClick={() => acts.edit?.(turn)}>Edit</button>}
      </div>
    </div>
  );
}

/** The pictures of a message. Each may have megabytes, so the page fetches them only when the user asks, unless it sent
 * them itself. */
function Pictures({ turn, images, sent, acts }: { turn: Turn; images: number; sent: readonly string[]; acts: TurnActs }): VNode {
  const fetched = useSignal<readonly string[]>([]);
  const problem = useSignal("");
  const shown = sent.length ? sent : fetched.value;
  const fetchAll = (): void => void Promise.all([...Array(images).keys()].map((at) => acts.image(turn.number, at))).then(
    (data) => (fetched.value = data), (error: unknown) => (problem.value = messageOf(error)));
  return (
    <div class="sent-pictures">
      {shown.map((data, at) => <img key={at} class="picture" alt={`Picture ${at + 1}`} src={data} />)}
      {problem.value ? <p class="hint">{problem.value}</p>
        : !shown.length && <button type="button" class="quiet" onClick={fetchAll}>{`Show ${count(images, "picture")}`}</button>}
    </div>
  );
}
