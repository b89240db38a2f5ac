// A form that an MCP server asks the user to fill in, field by field, or an address that it asks the user to open.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Choice, Field, Form } from "./types";
import { visible } from "./words";
import { useFreshId } from "./ui";

/** A longer list of options is a menu. */
const MAX_RADIOS = 8;
const INPUT_TYPES: Record<string, "email" | "url" | "date"> = { email: "email", uri: "url", date: "date" };

/** The user's entry in one part of a question, and whether it can be sent. */
export interface Part {
  /** Empty if the user entered nothing. */
  value(): string | string[];
  /** Why the entry cannot be sent; empty if it can. */
  problem(): string;
  focus(): void;
}

/** The width of a menu's arrow, in pixels. */
const ARROW = 24;

type Control = HTMLInputElement | HTMLSelectElement;

/** A form field. Passes the `Part` that reads it to `register`. */
export function FormField({ choice, field, register }: { choice: Choice; field: Field; register: (part: Part) => void }): VNode {
  const id = useFreshId();
  const place = useRef<HTMLElement>(null);
  const help = hints(field);
  const described = help ? `${id}-hint` : undefined;
  register(partOf(() => [...(place.current?.querySelectorAll<Control>("input, select") ?? [])], choice, field));
  const label = <><span class="label">{visible(field.title)}</span>{!field.required && <span class="tag">optional</span>}</>;
  const hint = help && <p class="hint" id={described}>{visible(help)}</p>;
  if (choice.options.length && (choice.several || choice.options.length <= MAX_RADIOS)) {
    return (
      <fieldset class="choice" aria-describedby={described} ref={place as never}>
        <legend>{label}</legend>
        {hint}
        {choice.options.map((option, at) => (
          <label class="option" key={at}>
            <input type={choice.several ? "checkbox" : "radio"} name={id} value={option.label} defaultChecked={isDefault(field, option.label)} />
            <span class="label">{visible(option.label)}</span>
          </label>
        ))}
      </fieldset>
    );
  }
  return (
    <div class="field" ref={place as never}>
      <label for={id}>{label}</label>
      {hint}
      {choice.options.length ? <Menu id={id} choice={choice} field={field} described={described} /> : <Entry id={id} field={field} described={described} />}
      <WholeValue of={id} />
    </div>
  );
}

function Menu({ id, choice, field, described }: { id: string; choice: Choice; field: Field; described: string | undefined }): VNode {
  return (
    <select id={id} required={field.required} aria-describedby={described}>
      <option value="">Choose…</option>
      {choice.options.map(({ label }) => <option key={label} value={label} selected={isDefault(field, label)}>{visible(label)}</option>)}
    </select>
  );
}

function Entry({ id, field, described }: { id: string; field: Field; described: string | undefined }): VNode {
  const number = field.type === "integer" || field.type === "number";
  const type = number ? "number" : (INPUT_TYPES[field.format ?? ""] ?? "text");
  return (
    <input id={id} type={type as "text"} autocomplete="off" required={field.required}
      defaultValue={typeof field.default === "string" ? field.default : ""} step={number ? (field.type === "integer" ? "1" : "any") : undefined}
      min={field.minimum} max={field.maximum} aria-describedby={described} dir="auto" />
  );
}

/** The full value of a field or menu that is too narrow to show it. */
export function WholeValue({ of }: { of: string }): VNode | null {
  const whole = useSignal("");
  useEffect(() => {
    const control = document.getElementById(of) as Control | null;
    if (control === null) return;
    const look = (): void => void (whole.value = isCutOff(control) ? shownBy(control) : "");
    const sized = new ResizeObserver(look);
    sized.observe(control);
    control.addEventListener("input", look);
    look();
    return () => {
      sized.disconnect();
      control.removeEventListener("input", look);
    };
  }, [of]);
  return whole.value ? <span class="whole-value" dir="auto">{visible(whole.value)}</span> : null;
}

function shownBy(control: Control): string {
  return control instanceof HTMLSelectElement ? (control.selectedOptions[0]?.label ?? "") : control.value;
}

function isCutOff(control: Control): boolean {
  // Invisible characters take no space in a field.
  if (visible(shownBy(control)) !== shownBy(control)) return true;
  if (!(control instanceof HTMLSelectElement)) return control.scrollWidth > control.clientWidth;
  const context = document.createElement("canvas").getContext("2d");
  if (context === null) return true;
  const { font, paddingLeft, paddingRight } = getComputedStyle(control);
  context.font = font;
  const room = control.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight) - ARROW;
  return context.measureText(shownBy(control)).width > room;
}

function partOf(controls: () => Control[], choice: Choice, field: Field): Part {
  const name = visible(field.title);
  const value = (): string | string[] => {
    const all = controls();
    const [first] = all;
    if (!(first instanceof HTMLInputElement) || !["checkbox", "radio"].includes(first.type)) return first?.value.trim() ?? "";
    const chosen = all.filter((box) => (box as HTMLInputElement).checked).map((box) => box.value);
    return choice.several ? chosen : (chosen[0] ?? "");
  };
  return {
    value,
    problem: () => {
      const invalid = controls().find((control) => !control.validity.valid && !control.validity.valueMissing);
      if (invalid !== undefined) return `${name}: ${invalid.validationMessage}`;
      return field.required && !value().length ? `Please fill in: ${name}` : "";
    },
    focus: () => controls()[0]?.focus(),
  };
}

function isDefault(field: Field, label: string): boolean {
  const chosen = field.default;
  return Array.isArray(chosen) ? chosen.includes(label) : chosen === label;
}

function hints(field: Field): string {
  const range = (least: number | undefined, most: number | undefined, unit: string): string => {
    if (least === undefined && most === undefined) return "";
    const words = least === undefined ? `at most ${most}` : most === undefined ? `at least ${least}` : `${least} to ${most}`;
    return `(${words}${unit})`;
  };
  return [
    field.description,
    range(field.minimum, field.maximum, ""),
    range(field.minLength, field.maxLength, " characters"),
    range(field.minItems, field.maxItems, " of them"),
    field.format === "date-time" ? "(such as 2026-11-01T09:30:00Z)" : "",
  ].filter(Boolean).join(" ");
}

/** The address that a server asks the user to open: in full, its host separately, and as a link only if it is a web
 * address. */
export function FormAddress({ form }: { form: Form }): VNode {
  const shown = <p><code class="address">{visible(form.url ?? "")}</code></p>;
  const url = webAddress(form.url ?? "");
  if (url === null) return <>{shown}<p class="hint">This is not a web address and cannot be opened here.</p></>;
  return (
    <>
      <p class="hint">It asks you to open an address at <strong>{visible(url.host)}</strong>:</p>
      {shown}
      <p><a class="button" href={url.href} title={url.href} target="_blank" rel="noopener noreferrer nofollow">Open this address</a></p>
    </>
  );
}

/** The address as a URL; null unless it is an absolute http or https URL. */
export function webAddress(address: string): URL | null {
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url : null;
  } catch {
    return null;
  }
}
