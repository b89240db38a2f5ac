// An item of a turn: Claude's text or thinking, a tool call, a message or a note.

import { type VNode } from "preact";
import { useEffect } from "preact/hooks";
import { Markdown } from "./markdown";
import { ToolCall } from "./tool";
import type { TurnActs } from "./turn";
import type { ItemState, TurnState } from "./turn_state";
import { cx } from "./ui";

export interface ItemProps {
  state: ItemState;
  turn: TurnState;
  acts: TurnActs;
}

export function ItemView(props: ItemProps): VNode {
  const { id, kind, text } = props.state.item.value;
  const found = props.state.found.value && "found";
  switch (kind) {
    case "tool":
      return <ToolCall {...props} />;
    case "text":
      return <AssistantText {...props} />;
    case "thinking":
      return <details class={cx("thinking", found)} hidden={!text} data-item={id}><summary>Thinking</summary><Markdown text={text ?? ""} /></details>;
    default:
      return <p class={cx(kind === "message" ? "prompt" : "note", found)} dir="auto" data-item={id}>{text}</p>;
  }
}

function AssistantText({ state, turn, acts }: ItemProps): VNode {
  const item = state.item.value;
  useEffect(() => {
    if (item.cut) void acts.whole(turn, state);
  }, [item.cut]);
  return <div class={cx("said", state.found.value && "found")} data-item={item.id}><Markdown text={item.text ?? ""} /></div>;
}
