// The machines of a fleet, on the page of a gateway: selecting a machine, and moving a session to another one.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useRef } from "preact/hooks";
import { post, sessionPath } from "./api";
import { isWorking } from "./sessions";
import type { MachineRow, SessionRow } from "./types";
import { useFreshId } from "./ui";

export const GONE = "MACHINE_GONE";

export interface Moved {
  sessionId: string;
  message: string;
  machine: string;
  machineId: string;
  /** What was lost with the previous machine. */
  notices?: string[] | null;
}

function moveSession(id: string, machine: string, more: { wait?: boolean; confirm?: boolean } = {}): Promise<Moved> {
  return post<Moved>(sessionPath(id, "manage"), { action: "move", machine, ...more });
}

/** The name of a machine, with why it cannot be used, or its load if known. */
function machineWords(machine: MachineRow): string {
  if (!machine.there) return `${machine.name} (gone)`;
  if (machine.draining) return `${machine.name} (drained)`;
  return machine.capacity === undefined ? machine.name : `${machine.name} (${machine.sessions ?? 0} of ${machine.capacity} busy)`;
}

/** A menu of machines. The first option is `any`, with an empty value. */
export function MachineSelect({ id, label, machines, any, value, usable, choose }: {
  id?: string; label?: string; machines: readonly MachineRow[]; any: string; value: string; usable: (machine: MachineRow) => boolean; choose(id: string): void;
}): VNode {
  return (
    <select id={id} aria-label={label} value={value} onChange={(event) => choose(event.currentTarget.value)}>
      <option value="">{any}</option>
      {machines.map((machine) => <option key={machine.id} value={machine.id} disabled={!usable(machine)}>{machineWords(machine)}</option>)}
    </select>
  );
}

/** Whether a machine accepts sessions now. */
export function takes(machine: MachineRow): boolean {
  return machine.there && !machine.draining;
}

/** Chooses the machine whose directories are offered: each machine has its own. */
export function MachineChooser({ machines, choose }: { machines: readonly MachineRow[]; choose(id: string): void }): VNode {
  const id = useFreshId();
  return (
    <div class="directories" role="group" aria-labelledby={id}>
      <h2 id={id}>On which machine?</h2>
      <ul role="list">
        {machines.filter(takes).map((machine) => <li key={machine.id}><button type="button" onClick={() => choose(machine.id)}>{machineWords(machine)}</button></li>)}
      </ul>
    </div>
  );
}

/** The part of a session's menu that moves it to another machine; null if no other machine is online. */
export function MovePart({ row, machines, moved, fail }: {
  row: SessionRow; machines: readonly MachineRow[]; moved(to: Moved): void; fail(error: unknown): void;
}): VNode | null {
  const id = useFreshId();
  const place = useRef<HTMLDivElement>(null);
  const target = useSignal("");
  const busy = useSignal(false);
  const failed = useSignal(false);
  const others = machines.filter((machine) => machine.id !== row.machineId);
  if (!others.some((machine) => machine.there)) return null;
  const move = async (more: { confirm?: boolean }): Promise<void> => {
    if (!target.value) return place.current?.querySelector("select")?.focus();
    busy.value = true;
    try {
      moved(await moveSession(row.sessionId, target.value, { ...(isWorking(row) ? { wait: true } : {}), ...more }));
    } catch (error) {
      failed.value = true;
      fail(error);
    }
    busy.value = false;
  };
  return (
    <div ref={place}>
      <label for={id}>{row.machine ? `On ${row.machine}; move to` : "Move to"}</label>
      <MachineSelect id={id} machines={others} any="Choose a machine" value={target.value} usable={takes} choose={(one) => (target.value = one)} />
      <button type="button" disabled={busy.value} onClick={() => void move({})}>{isWorking(row) ? "Move after this turn" : "Move"}</button>
      {failed.value && <button type="button" class="deny" disabled={busy.value} onClick={() => void move({ confirm: true })}>Move it without its files</button>}
    </div>
  );
}

/** Shown in place of a session whose machine is gone. Calls `moved` after the session has moved to another machine. */
export function MachineGoneNotice({ id, lost, machines, moved, fail }: {
  id: string; lost: string; machines: readonly MachineRow[]; moved(to: Moved): void; fail(error: unknown): void;
}): VNode {
  const going = useSignal("");
  const there = machines.filter(takes);
  const continueOn = (machine: MachineRow): void => {
    going.value = machine.id;
    moveSession(id, machine.id).then(moved, (error: unknown) => {
      going.value = "";
      fail(error);
    });
  };
  return (
    <section class="question gone" aria-label="The machine is offline">
      <div class="question-head"><span class="eyebrow">Machine offline</span></div>
      <h2>{machines.find((machine) => machine.id === lost)?.name ?? "The machine of this session"} is offline</h2>
      <p class="why">{there.length
        ? "The next message continues it on another machine, with its history and the last saved files. Or choose a machine:"
        : "No other machine is available. The session continues when its machine is back."}</p>
      <div class="actions">
        {there.map((machine) => <button key={machine.id} type="button" class="allow" disabled={going.value === machine.id} onClick={() => continueOn(machine)}>Continue on {machine.name}</button>)}
      </div>
    </section>
  );
}
