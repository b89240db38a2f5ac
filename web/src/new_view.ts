// A new session: the task, where to work, and how much to ask.

import { messageOf, post } from "./api";
import { isUnknown } from "./composer";
import { button, freshId, h } from "./dom";
import { draftOf, freshKey, saveDraft } from "./drafts";
import { dollarAmount } from "./numbers";
import { modeWords } from "./question_view";
import { machineSelect, takes } from "./machines";
import type { MachineRow, Me } from "./types";

const LAST_DIRECTORY = "claude-code-mcp.directory";
/** Under which the draft of the task is kept. */
const SCOPE = "new";
const UNSURE = "The server cannot be reached, so it is not known whether the session was started. To start it again is safe: it is started once.";

export function newView(me: Me, machines: readonly MachineRow[], go: (route: string) => void): HTMLElement {
  const prompt = h("textarea", { id: freshId("prompt"), rows: 6, required: true, placeholder: "What should Claude do?",
    on: { input: () => saveDraft(SCOPE, prompt.value), keydown: (event) => void (event.key === "Enter" && (event.ctrlKey || event.metaKey) && start()) } });
  const list = freshId("directories");
  const directory = h("input", { type: "text", id: freshId("directory"), list, autocomplete: "off", spellcheck: "false",
    value: localStorage.getItem(LAST_DIRECTORY) ?? me.directories[0] ?? "" });
  const mode = h("select", { id: freshId("mode") }, ...me.modes.map((name) =>
    h("option", { value: name, selected: name === "default" }, `${name}: ${modeWords(name)}`)));
  const model = h("input", { type: "text", id: freshId("model"), autocomplete: "off", spellcheck: "false", placeholder: "as configured" });
  const budget = h("input", { type: "text", id: freshId("budget"), autocomplete: "off", placeholder: "no limit of its own" });
  budget.inputMode = "decimal";
  const machine = machineSelect(machines, "Any machine", takes);
  const problem = h("p", { class: "problem", role: "alert", hidden: true });

  prompt.value = draftOf(SCOPE).text;
  let unsure: { key: string; body: string } | null = null;

  const complain = (why: string): void => {
    problem.textContent = why;
    problem.hidden = false;
    submit.disabled = false;
  };
  const start = (): void => {
    problem.hidden = true;
    if (!prompt.value.trim()) return complain("Say what Claude should do.");
    const body: Record<string, unknown> = { prompt: prompt.value.trim() };
    if (directory.value.trim()) body["workingDirectory"] = directory.value.trim();
    if (machine.value) body["machine"] = machine.value;
    if (model.value.trim()) body["model"] = model.value.trim();
    if (mode.value) body["permissionMode"] = mode.value;
    try {
      if (budget.value.trim()) body["maxBudgetUsd"] = dollarAmount(budget.value);
    } catch (error) {
      budget.focus();
      return complain(messageOf(error));
    }
    const whole = JSON.stringify(body);
    const key = unsure?.body === whole ? unsure.key : freshKey();
    submit.disabled = true;
    post<{ sessionId: string }>("/api/sessions", { ...body, messageKey: key }).then((made) => {
      localStorage.setItem(LAST_DIRECTORY, directory.value.trim());
      saveDraft(SCOPE, "");
      go(`/sessions/${made.sessionId}`);
    }, (error: unknown) => {
      unsure = isUnknown(error) ? { key, body: whole } : null;
      complain(unsure === null ? messageOf(error) : UNSURE);
    });
  };
  const submit = button("Start", start, { class: "allow" });
  const row = (label: string, control: HTMLElement): HTMLElement =>
    h("p", { class: "control" }, h("label", { for: control.id }, label), control);
  return h("div", { class: "page" },
    viewHead("New session"),
    h("div", { class: "page-body narrow" },
      row("Task", prompt),
      machines.length > 0 && row("Machine", machine),
      row("Directory", directory),
      h("datalist", { id: list }, ...me.directories.map((path) => h("option", { value: path }))),
      row("Permissions", mode),
      h("details", null, h("summary", null, "More"), row("Model", model), row("Budget in dollars", budget)),
      problem, h("div", { class: "actions" }, submit)));
}

export function viewHead(title: string): HTMLElement {
  return h("header", { class: "view-head" }, h("a", { class: "back", route: "/", aria: { label: "All sessions" } }, "‹"),
    h("div", { class: "heading" }, h("h1", { tabindex: -1 }, title)));
}
