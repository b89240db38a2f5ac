// The machines of a fleet, where the page is that of a gateway: which there are, and a session that goes on at another.

import { post, sessionPath } from "./api";
import { button, freshId, h, type Child } from "./dom";
import type { MachineRow, SessionRow } from "./types";

export const GONE = "MACHINE_GONE";

interface Moved {
  sessionId: string;
  message: string;
  machine: string;
  machineId: string;
  /** What was lost with the machine before. */
  notices?: string[] | null;
}

export function moveSession(id: string, machine: string, more: { wait?: boolean; confirm?: boolean } = {}): Promise<Moved> {
  return post<Moved>(sessionPath(id, "manage"), { action: "move", machine, ...more });
}

/** What a machine is called, with why it is not to be used, if so. */
function machineWords(machine: MachineRow): string {
  if (!machine.there) return `${machine.name} (gone)`;
  if (machine.draining) return `${machine.name} (drained)`;
  return machine.capacity === undefined ? machine.name : `${machine.name} (${machine.sessions ?? 0} of ${machine.capacity} at work)`;
}

/** A choice of machines; the first one is `any`, whose value is empty. */
export function machineSelect(machines: readonly MachineRow[], any: string, usable: (machine: MachineRow) => boolean): HTMLSelectElement {
  return h("select", { id: freshId("machine") }, h("option", { value: "" }, any),
    ...machines.map((machine) => h("option", { value: machine.id, disabled: !usable(machine) }, machineWords(machine))));
}

/** That a machine takes sessions just now. */
export function takes(machine: MachineRow): boolean {
  return machine.there && !machine.draining;
}

/** The part of a session's menu that has it go on at another machine; nothing where there is no other one. */
export function movePart(row: SessionRow, machines: readonly MachineRow[], moved: (to: Moved) => void, fail: (error: unknown) => void): Child {
  const others = machines.filter((machine) => machine.id !== row.machineId);
  if (!others.some((machine) => machine.there)) return null;
  const goal = machineSelect(others, "Choose a machine", takes);
  const busy = row.status === "running" || row.status === "waiting_for_input";
  const without = button("Move it without its files", () => void move({ confirm: true }), { class: "deny", hidden: true });
  const move = async (more: { confirm?: boolean }): Promise<void> => {
    if (!goal.value) return goal.focus();
    go.disabled = without.disabled = true;
    try {
      moved(await moveSession(row.sessionId, goal.value, { ...(busy ? { wait: true } : {}), ...more }));
    } catch (error) {
      without.hidden = false;
      fail(error);
    }
    go.disabled = without.disabled = false;
  };
  const go = button(busy ? "Move after this turn" : "Move", () => void move({}));
  return h("div", null, h("label", { for: goal.id }, row.machine ? `On ${row.machine}; move to` : "Move to"), goal, go, without);
}

/** What is shown in place of a session whose machine is gone. `moved` is called when another one has it. */
export function goneNotice(id: string, lost: string, machines: readonly MachineRow[], moved: (to: Moved) => void, fail: (error: unknown) => void): HTMLElement {
  const goOn = (machine: MachineRow): HTMLButtonElement => {
    const element = button(`Go on at ${machine.name}`, () => {
      element.disabled = true;
      moveSession(id, machine.id).then(moved, (error: unknown) => {
        element.disabled = false;
        fail(error);
      });
    }, { class: "allow" });
    return element;
  };
  const there = machines.filter(takes);
  return h("section", { class: "question gone", aria: { label: "The machine is gone" } },
    h("div", { class: "question-head" }, h("span", { class: "eyebrow" }, "Machine gone")),
    h("h2", null, `${machines.find((machine) => machine.id === lost)?.name ?? "The machine of this session"} is gone`),
    h("p", { class: "why" }, there.length
      ? "The next message goes on with it at another machine, with its history and its files as they were last saved. Or choose where:"
      : "No other machine is there now. It comes back with its machine."),
    h("div", { class: "actions" }, ...there.map(goOn)));
}
