// Helpers that all components share.

import { type ComponentChildren, type VNode } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

let ids = 0;

/** An id that is unique on the page. Preact's own ids are unique only within one mounted tree. */
export function useFreshId(): string {
  return useState(() => `id-${(ids += 1)}`)[0];
}

/** An error message, which screen readers announce at once. */
export function Problem({ children }: { children: ComponentChildren }): VNode | null {
  return children ? <p class="problem" role="alert">{children}</p> : null;
}

/** Joins class names and skips those that do not apply. */
export function cx(...names: (string | false | null | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

/** A button that copies a text. Renders nothing if the browser does not allow pages to copy, as over plain HTTP. */
export function CopyButton({ text, label = "Copy", class: name }: { text: () => string; label?: string; class: string }): VNode | null {
  const done = useSignal("");
  useEffect(() => {
    if (!done.value) return;
    const timer = setTimeout(() => (done.value = ""), 2000);
    return () => clearTimeout(timer);
  }, [done.value]);
  // The types do not say that the clipboard may be absent.
  if (!(navigator.clipboard as Clipboard | undefined)) return null;
  const copy = (): void => void navigator.clipboard.writeText(text()).then(() => (done.value = "Copied"), () => (done.value = "Not allowed here"));
  return <button type="button" class={name} onClick={copy}>{done.value || label}</button>;
}

/** A button that acts on the second press. */
export function ConfirmButton({ label, again, act }: { label: string; again: string; act(): void }): VNode {
  const confirming = useSignal(false);
  useEffect(() => {
    if (!confirming.value) return;
    const timer = setTimeout(() => (confirming.value = false), 5000);
    return () => clearTimeout(timer);
  }, [confirming.value]);
  return <button type="button" class="deny" onClick={() => (confirming.value ? act() : (confirming.value = true))}>{confirming.value ? again : label}</button>;
}
