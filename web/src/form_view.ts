// A form that an MCP server wants to have filled in, field by field, or an address that it wants to have opened.

import { freshId, h, outsideLink, type Attributes, type Child } from "./dom";
import type { Choice, Field, Form } from "./types";
import { visible } from "./words";

/** Longer lists are a menu. */
const MOST_RADIOS = 8;
const INPUT_TYPES: Record<string, string> = { email: "email", uri: "url", date: "date" };

export class FieldView {
  readonly element: HTMLElement;
  private readonly controls: (HTMLInputElement | HTMLSelectElement)[];

  constructor(private readonly choice: Choice, private readonly field: Field) {
    const ids = { label: freshId("field"), hint: freshId("hint") };
    const hint = hints(field);
    const described = hint ? { describedby: ids.hint } : {};
    const label: Child[] = [h("span", { class: "label" }, visible(field.title)), field.required ? null : h("span", { class: "tag" }, "optional")];
    const help = hint ? h("p", { class: "hint", id: ids.hint }, visible(hint)) : null;
    if (choice.options.length && (choice.several || choice.options.length <= MOST_RADIOS)) {
      this.controls = this.boxes();
      this.element = h("fieldset", { class: "choice", aria: described }, h("legend", null, ...label), help,
        ...this.controls.map((box, at) => h("label", { class: "option", for: box.id }, box,
          h("span", { class: "label" }, visible(choice.options[at]?.label ?? "")))));
    } else {
      const control = choice.options.length ? this.menu(described) : this.input(described);
      control.id = ids.label;
      this.controls = [control];
      this.element = h("div", { class: "field" }, h("label", { for: ids.label }, ...label), help, control);
    }
  }

  private isDefault(label: string): boolean {
    const chosen = this.field.default;
    return Array.isArray(chosen) ? chosen.includes(label) : chosen === label;
  }

  private boxes(): HTMLInputElement[] {
    const name = freshId("choice");
    const type = this.choice.several ? "checkbox" : "radio";
    return this.choice.options.map(({ label }) => h("input", { type, name, value: label, id: freshId("option"), checked: this.isDefault(label) }));
  }

  private menu(aria: Record<string, string>): HTMLSelectElement {
    return h("select", { required: this.field.required, aria }, h("option", { value: "" }, "Choose…"),
      ...this.choice.options.map(({ label }) => h("option", { value: label, selected: this.isDefault(label) }, visible(label))));
  }

  private input(aria: Record<string, string>): HTMLInputElement {
    const { field } = this;
    const number = field.type === "integer" || field.type === "number";
    const attributes: Attributes = { type: number ? "number" : (INPUT_TYPES[field.format ?? ""] ?? "text"), autocomplete: "off", aria,
      required: field.required, value: typeof field.default === "string" ? field.default : "" };
    const input = h("input", attributes);
    if (number) input.step = field.type === "integer" ? "1" : "any";
    if (field.minimum !== undefined) input.min = String(field.minimum);
    if (field.maximum !== undefined) input.max = String(field.maximum);
    return input;
  }

  focus(): void {
    this.controls[0]?.focus();
  }

  get name(): string {
    return visible(this.field.title);
  }

  /** What was entered; empty if nothing was. */
  get value(): string | string[] {
    const [first] = this.controls;
    if (!(first instanceof HTMLInputElement) || !["checkbox", "radio"].includes(first.type)) return first?.value.trim() ?? "";
    const chosen = this.controls.filter((box) => (box as HTMLInputElement).checked).map((box) => box.value);
    return this.choice.several ? chosen : (chosen[0] ?? "");
  }

  /** Why this cannot be sent; empty if it can. What the server alone can tell, it tells. */
  get problem(): string {
    const invalid = this.controls.find((control) => !control.validity.valid && !control.validity.valueMissing);
    if (invalid !== undefined) return `${this.name}: ${invalid.validationMessage}`;
    return this.field.required && !this.value.length ? `Please fill in: ${this.name}` : "";
  }
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

/** The address that a server wants to have opened: all of it to be read, its host by itself, and a link only if it is
 * one to the web. */
export function addressView(form: Form): Child[] {
  const address = form.url ?? "";
  const shown = h("code", { class: "address" }, visible(address));
  const link = outsideLink(address, "Open this address");
  if (link === null) return [h("p", null, shown), h("p", { class: "hint" }, "This is no address of the web, and is not opened from here.")];
  link.classList.add("button");
  return [h("p", { class: "hint" }, "It wants you to open an address at ", h("strong", null, visible(new URL(address).host)), ":"),
    h("p", null, shown), h("p", null, link)];
}
