// The form for a new session: the task with its pictures and files, the directory, permissions, model and budget.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { post } from "./api";
import { started } from "./attachments";
import { Composer, ComposerBox } from "./composer";
import { DirectoryChooser } from "./directories";
import { dollarAmount } from "./numbers";
import { modeWords } from "./question";
import type { Live } from "./live";
import { MachineChooser, MachineSelect, takes } from "./machines";
import type { Me } from "./types";
import { ViewHead } from "./view_head";
import { useFreshId } from "./ui";

const LAST_DIRECTORY = "claude-code-mcp.directory";
/** The scope under which the draft of the task is stored. */
const SCOPE = "new";
const DELIVERY_UNKNOWN = "The server cannot be reached, so it is not known whether the session was started. Starting it again is safe: it is started only once.";

export function NewSession({ me, live, go }: { me: Me; live: Live; go(route: string): void }): VNode {
  const id = useFreshId();
  const directory = useSignal(localStorage.getItem(LAST_DIRECTORY) ?? me.directories[0] ?? "");
  const mode = useSignal(me.modes.includes("default") ? "default" : (me.modes[0] ?? ""));
  const model = useSignal("");
  const budget = useSignal("");
  const worktree = useSignal(false);
  const choosing = useSignal(false);
  const place = useRef<HTMLSpanElement>(null);
  const machine = useSignal("");
  const amount = useRef<HTMLInputElement>(null);
  const composer = useMemo(() => new Composer({
    scope: () => SCOPE,
    unsure: DELIVERY_UNKNOWN,
    // Completing files and commands of a directory needs one of the user's own sessions in it.
    completes: () => [...live.rows.values()].find((row) => row.directory === directory.peek().trim() && !row.sharedBy)?.sessionId ?? null,
    say: async ({ text, images, key }) => {
      const body: Record<string, unknown> = { prompt: text, messageKey: key };
      if (images.length) body["images"] = images;
      if (directory.peek().trim()) body["workingDirectory"] = directory.peek().trim();
      if (machine.peek()) body["machine"] = machine.peek();
      if (model.peek().trim()) body["model"] = model.peek().trim();
      if (mode.peek()) body["permissionMode"] = mode.peek();
      if (worktree.peek()) body["worktree"] = true;
      try {
        if (budget.peek().trim()) body["maxBudgetUsd"] = dollarAmount(budget.peek());
      } catch (error) {
        amount.current?.focus();
        throw error;
      }
      const made = await post<{ sessionId: string; messageId: string }>("/api/sessions", body);
      Object.assign(started, { messageId: made.messageId, data: images });
      localStorage.setItem(LAST_DIRECTORY, directory.peek().trim());
      composer.text.value = "";
      go(`/sessions/${made.sessionId}`);
    },
  }), []);
  useEffect(() => () => composer.close(), []);
  const machines = live.all() && live.machines;
  return (
    <div class="page">
      <ViewHead title="New session" live={live} />
      <div class="page-body narrow new-session">
        <ComposerBox composer={composer} label="Task" placeholder="What should Claude do?" send="Start" rows={4}>
          <div class="chips">
            {machines.length > 0 && <span class="chip"><label for={`${id}-machine`}>Machine</label>
              <MachineSelect id={`${id}-machine`} machines={machines} any="Any machine" value={machine.value} usable={takes} choose={(one) => (machine.value = one)} /></span>}
            <span class="chip wide" ref={place}><label for={`${id}-directory`}>Directory</label>
              <span class="chip-row">
                <input id={`${id}-directory`} type="text" list={`${id}-directories`} autocomplete="off" autocapitalize="off" spellcheck={false} value={directory.value} onInput={(event) => (directory.value = event.currentTarget.value)} />
                <button type="button" aria-expanded={choosing.value} onClick={() => (choosing.value = !choosing.value)}>Choose…</button>
              </span></span>
            {choosing.value && machines.length > 0 && !machine.value && <MachineChooser machines={machines} choose={(one) => (machine.value = one)} />}
            {choosing.value && (!machines.length || machine.value) && <DirectoryChooser key={machine.value} machine={machine.value} choose={(path) => {
              directory.value = path;
              choosing.value = false;
              place.current?.scrollIntoView({ block: "nearest" });
            }} />}
            <datalist id={`${id}-directories`}>{me.directories.map((path) => <option key={path} value={path} />)}</datalist>
            <span class="chip mode-chip"><label for={`${id}-mode`}>Permissions</label>
              <select id={`${id}-mode`} value={mode.value} onChange={(event) => (mode.value = event.currentTarget.value)}>
                {me.modes.map((name) => <option key={name} value={name}>{`${name}: ${modeWords(name)}`}</option>)}
              </select></span>
            <span class="chip"><label for={`${id}-model`}>Model</label>
              <input id={`${id}-model`} type="text" autocomplete="off" spellcheck={false} placeholder="default" list={`${id}-models`} value={model.value} onInput={(event) => (model.value = event.currentTarget.value)} /></span>
            <datalist id={`${id}-models`}>{["opus", "sonnet", "haiku"].map((name) => <option key={name} value={name} />)}</datalist>
            <span class="chip"><label for={`${id}-budget`}>Budget in dollars</label>
              <input id={`${id}-budget`} type="text" ref={amount} inputMode="decimal" autocomplete="off" placeholder="no limit" value={budget.value} onInput={(event) => (budget.value = event.currentTarget.value)} /></span>
            <label class="chip check-chip"><input type="checkbox" checked={worktree.value} onChange={(event) => (worktree.value = event.currentTarget.checked)} /> In a new worktree and branch</label>
          </div>
        </ComposerBox>
      </div>
    </div>
  );
}
