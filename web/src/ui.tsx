// What all components share: where they are mounted, and how nodes that are made elsewhere become part of them.

import { createElement, render, type ComponentChildren, type FunctionComponent, type VNode } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { freshId } from "./dom";

/** Draws a component inside an element that is not one itself; returns what takes it away again. */
export function mount<Props extends object>(component: FunctionComponent<Props>, props: Props, place: Element): () => void {
  render(createElement(component as FunctionComponent, props), place);
  return () => render(null, place);
}

/** Nodes that other code makes, such as Markdown and diffs. They are made again only when `from` changes. */
export function Nodes({ make, from, class: name }: { make: () => readonly (Node | string)[]; from: readonly unknown[]; class?: string | undefined }): VNode {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => place.current?.replaceChildren(...make()), from);
  return <div class={name} ref={place} />;
}

/** An id that no other element of the page has; the ids of Preact are those of one mounted tree. */
export function useFreshId(): string {
  return useState(() => freshId("id"))[0];
}

/** What went wrong, as it is read out at once. */
export function Problem({ children }: { children: ComponentChildren }): VNode | null {
  return children ? <p class="problem" role="alert">{children}</p> : null;
}

/** The names of classes, without those that do not apply. */
export function cx(...names: (string | false | null | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

/** A button that acts on the second press. */
export function Twice({ label, again, act }: { label: string; again: string; act(): void }): VNode {
  const sure = useSignal(false);
  useEffect(() => {
    if (!sure.value) return;
    const timer = setTimeout(() => (sure.value = false), 5000);
    return () => clearTimeout(timer);
  }, [sure.value]);
  return <button type="button" class="deny" onClick={() => (sure.value ? act() : (sure.value = true))}>{sure.value ? again : label}</button>;
}
