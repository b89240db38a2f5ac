// Whether somebody has seen all that they decide on: what allows something works only when the end of it was on screen,
// and until then says how much is left and leads there.

import { useSignal } from "@preact/signals";
import { type RefObject, type VNode } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Pixels of a line of code, by which is counted what is left. */
const LINE = 20;
/** The page in a frame does not know how much of it is on screen: only an observer does. */
const FRAMED = window !== window.parent;

const TOUCHES = ["pointerdown", "wheel", "touchmove", "keydown"] as const;

export interface Reading {
  /** Behind the last thing that is decided on. */
  end: RefObject<HTMLDivElement | null>;
  /** Lines that were not on screen yet; 0 once the end was. */
  left: number;
  /** Whether nobody has pressed or scrolled since it is shown. */
  untouched(): boolean;
  /** Shows what comes next. */
  goOn(): void;
}

/** Watches the end of what is shown. `parts` are what it is made of: something new has to be read again. */
export function useReading(parts: readonly unknown[]): Reading {
  const end = useRef<HTMLDivElement>(null);
  const left = useSignal(1);
  const intersects = useRef(false);
  const touched = useRef(false);
  const look = (): void => {
    const element = end.current;
    if (element === null || left.value === 0 || document.visibilityState === "hidden") return;
    const hidden = FRAMED && !intersects.current ? LINE : pixelsLeft(element);
    left.value = hidden <= 0 ? 0 : Math.max(1, Math.ceil(hidden / LINE));
  };
  useLayoutEffect(() => {
    const element = end.current;
    if (element === null) return;
    left.value = 1;
    let frame = 0;
    const touch = (): void => void (touched.current = true);
    for (const name of TOUCHES) addEventListener(name, touch, { capture: true, passive: true });
    const later = (): void => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        look();
      });
    };
    const seen = new IntersectionObserver((entries) => {
      intersects.current = entries[entries.length - 1]?.isIntersecting ?? false;
      later();
    });
    seen.observe(element);
    const sized = new ResizeObserver(later);
    sized.observe(element.parentElement ?? element);
    addEventListener("scroll", later, { capture: true, passive: true });
    addEventListener("resize", later);
    visualViewport?.addEventListener("scroll", later);
    visualViewport?.addEventListener("resize", later);
    document.addEventListener("visibilitychange", later);
    later();
    return () => {
      cancelAnimationFrame(frame);
      for (const name of TOUCHES) removeEventListener(name, touch, { capture: true });
      seen.disconnect();
      sized.disconnect();
      removeEventListener("scroll", later, { capture: true });
      removeEventListener("resize", later);
      visualViewport?.removeEventListener("scroll", later);
      visualViewport?.removeEventListener("resize", later);
      document.removeEventListener("visibilitychange", later);
    };
  }, parts);
  const goOn = (): void => {
    const element = end.current;
    if (element === null) return;
    if (FRAMED) return element.scrollIntoView({ block: "end" });
    const scroller = scrollerOf(element);
    const covered = (element.nextElementSibling?.clientHeight ?? 0) + 2 * LINE;
    // One screen at a time, with two lines of the last one: nothing is passed over.
    scroller.scrollBy({ top: Math.min(pixelsLeft(element) + 4, Math.max(scroller.clientHeight - covered, 2 * LINE)) });
  };
  return { end, left: left.value, untouched: () => !touched.current, goOn };
}

/** How far the element ends below what is on screen and not covered by the buttons, which follow it; more than nothing
 * while rows before it are still to be made. */
function pixelsLeft(element: Element): number {
  const scroller = scrollerOf(element);
  const view = visualViewport;
  const screen = view === null || view.scale <= 1 ? innerHeight : view.offsetTop + view.height;
  const box = scroller === document.documentElement ? screen : Math.min(scroller.getBoundingClientRect().bottom, screen);
  const buttons = element.nextElementSibling?.getBoundingClientRect().top ?? box;
  const unmade = element.parentElement?.querySelector("[data-unmade]") ? LINE : 0;
  return Math.max(unmade, element.getBoundingClientRect().bottom - Math.min(box, buttons));
}

function scrollerOf(element: Element): Element {
  return element.closest(".scroller") ?? document.documentElement;
}

/** In the place of what allows something: how much is left to be read, and the way there. */
export function LinesLeft({ reading }: { reading: Reading }): VNode {
  return (
    <button type="button" class="lines-left" onClick={reading.goOn}>
      <span aria-hidden="true">↓ </span>{reading.left === 1 ? "1 more line" : `${reading.left.toLocaleString("en")} more lines`}
    </button>
  );
}
