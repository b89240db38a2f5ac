// Whether the user has seen everything that the decision covers. The buttons that allow something work only after every
// part of it was on screen. Until then a button in their place says how much is left and scrolls there.

import { useSignal } from "@preact/signals";
import { type RefObject, type VNode } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** The height of a line of code in pixels, used to count the unread lines. */
const LINE = 20;
/** The number of columns that are tracked separately: a page zoomed by pinching shows only some of the width. */
const COLUMNS = 8;
/** A page in a frame does not know how much of it is on screen. Only an observer does; it is asked at this interval. */
const FRAMED = window !== window.parent;
const ASK_AGAIN = 250;

const USER_EVENTS = ["pointerdown", "wheel", "touchmove", "keydown"] as const;

interface Area {
  top: number;
  bottom: number;
  left: number;
  right: number;
}

/** The parts that were on screen: start and end in pixels below the start of the section, in order. */
type Spans = readonly (readonly [number, number])[];

export interface Reading {
  /** The element after the content that the user decides on. */
  end: RefObject<HTMLDivElement | null>;
  /** How many lines were not on screen yet; 0 when all of them were. */
  left: number;
  /** Where the first of these lines are. */
  where: "below" | "above" | "beside";
  /** Whether the user has not pressed or scrolled since the content appeared. */
  untouched(): boolean;
  /** Scrolls to the next unread part. */
  scrollToUnread(): void;
}

/** Tracks which parts of the section that contains `end` were on screen. `parts` is the content: after a change, the
 * user must read it again. `form` names the layout: after a change, the user must read it again unless all of it was
 * read. */
export function useReading(parts: readonly unknown[], form = ""): Reading {
  const end = useRef<HTMLDivElement>(null);
  const left = useSignal(1);
  const where = useSignal<Reading["where"]>("below");
  const touched = useRef(false);
  const seen = useRef({ layoutKey: "", columns: [] as Spans[] });
  /** The visible part of the section in the frame, as the observer last reported it. */
  const inFrame = useRef<Area | null>(null);
  const look = (): void => {
    const element = end.current;
    if (element === null || left.value === 0 || document.visibilityState === "hidden") return;
    const area = FRAMED ? inFrame.current : visibleArea(element);
    if (area === null) return;
    const section = sectionOf(element).getBoundingClientRect();
    const layoutKey = `${section.width} ${form}`;
    if (seen.current.layoutKey !== layoutKey) seen.current = { layoutKey, columns: Array.from({ length: COLUMNS }, () => []) };
    const [from, to] = [area.top - section.top, Math.min(area.bottom, buttonsTop(element)) - section.top];
    const column = section.width / COLUMNS;
    seen.current.columns = seen.current.columns.map((spans, at) => {
      const isShown = section.left + at * column >= area.left - 1 && section.left + (at + 1) * column <= area.right + 1;
      return isShown && to > from ? withSpan(spans, from, to) : spans;
    });
    const whole = element.getBoundingClientRect().bottom - section.top;
    const gaps = seen.current.columns.map((spans) => gapsOf(spans, whole));
    const pixels = Math.max(...gaps.map((all) => all.reduce((sum, gap) => sum + gap[1] - gap[0], 0)), isUnrendered(element) ? LINE : 0);
    const first = Math.min(...gaps.flatMap((all) => all.map((gap) => gap[0])));
    where.value = first < from - 1 ? "above" : first < to - 1 ? "beside" : "below";
    left.value = Math.ceil(pixels / LINE);
  };
  useLayoutEffect(() => {
    left.value = 1;
    seen.current = { layoutKey: "", columns: [] };
  }, parts);
  useLayoutEffect(() => {
    const element = end.current;
    if (element === null) return;
    let frame = 0;
    const touch = (): void => void (touched.current = true);
    for (const name of USER_EVENTS) addEventListener(name, touch, { capture: true, passive: true });
    const later = (): void => {
      if (FRAMED) return; // the observer reports it instead
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        look();
      });
    };
    const section = sectionOf(element);
    const observer = new IntersectionObserver((entries) => {
      const entry = entries[entries.length - 1];
      inFrame.current = entry?.isIntersecting ? entry.intersectionRect : null;
      look();
    });
    // The observer reports nothing while the visible share stays the same, so observe the section again.
    const ask = FRAMED ? setInterval(() => {
      if (left.peek() === 0) return;
      observer.unobserve(section);
      observer.observe(section);
    }, ASK_AGAIN) : undefined;
    const sized = new ResizeObserver(later);
    sized.observe(section);
    addEventListener("scroll", later, { capture: true, passive: true });
    addEventListener("resize", later);
    visualViewport?.addEventListener("scroll", later);
    visualViewport?.addEventListener("resize", later);
    document.addEventListener("visibilitychange", later);
    later();
    return () => {
      cancelAnimationFrame(frame);
      clearInterval(ask);
      for (const name of USER_EVENTS) removeEventListener(name, touch, { capture: true });
      observer.disconnect();
      sized.disconnect();
      removeEventListener("scroll", later, { capture: true });
      removeEventListener("resize", later);
      visualViewport?.removeEventListener("scroll", later);
      visualViewport?.removeEventListener("resize", later);
      document.removeEventListener("visibilitychange", later);
    };
  }, [...parts, form]);
  const scrollToUnread = (): void => {
    const element = end.current;
    if (element === null) return;
    const section = sectionOf(element);
    const { top } = section.getBoundingClientRect();
    const whole = element.getBoundingClientRect().bottom - top;
    const next = Math.min(whole, ...seen.current.columns.flatMap((spans) => gapsOf(spans, whole).map((gap) => gap[0])));
    if (FRAMED) return scrollFrameTo(section, next);
    const area = visibleArea(element);
    const bottom = Math.min(area.bottom, buttonsTop(element));
    // One screen at a time, with an overlap of two lines, so that nothing is skipped.
    const step = top + next - area.top - Math.min(2 * LINE, (bottom - area.top) / 3);
    scrollerOf(element).scrollBy({ top: Math.min(step, Math.max(top + whole + 4 - bottom, LINE)) });
  };
  return { end, left: left.value, where: where.value, untouched: () => !touched.current, scrollToUnread };
}

/** Adds a span and joins it with those that it touches. */
function withSpan(spans: Spans, from: number, to: number): Spans {
  const apart = spans.filter(([start, end]) => end < from - 1 || start > to + 1);
  const joined = spans.filter((span) => !apart.includes(span));
  const span = [Math.min(from, ...joined.map(([start]) => start)), Math.max(to, ...joined.map(([, end]) => end))] as const;
  return [...apart, span].sort(([one], [other]) => one - other);
}

/** The gaps in the spans from 0 to `whole` pixels. */
function gapsOf(spans: Spans, whole: number): [number, number][] {
  const gaps: [number, number][] = [];
  let at = 0;
  for (const [start, end] of spans) {
    if (start > at + 1 && at < whole) gaps.push([at, Math.min(start, whole)]);
    at = Math.max(at, end);
  }
  if (at < whole - 1) gaps.push([at, whole]);
  return gaps;
}

/** The part of the element's scroll container that is on screen. */
function visibleArea(element: Element): Area {
  const scroller = scrollerOf(element);
  const view = visualViewport;
  const screen = view === null || view.scale <= 1 ? { top: 0, bottom: innerHeight, left: 0, right: innerWidth }
    : { top: view.offsetTop, bottom: view.offsetTop + view.height, left: view.offsetLeft, right: view.offsetLeft + view.width };
  if (scroller === document.documentElement) return screen;
  const { top, bottom } = scroller.getBoundingClientRect();
  return { ...screen, top: Math.max(top, screen.top), bottom: Math.min(bottom, screen.bottom) };
}

/** The top edge of the buttons, which cover the content below it. */
function buttonsTop(element: Element): number {
  return element.nextElementSibling?.getBoundingClientRect().top ?? Infinity;
}

/** Whether rows before the end are not rendered yet. */
function isUnrendered(element: Element): boolean {
  return sectionOf(element).querySelector("[data-unmade]") !== null;
}

function sectionOf(element: Element): Element {
  return element.closest("section") ?? document.documentElement;
}

function scrollerOf(element: Element): Element {
  return element.closest(".scroller") ?? document.documentElement;
}

/** Scrolls the page around the frame. Only `scrollIntoView` of an element can do this. */
function scrollFrameTo(section: Element, pixels: number): void {
  const mark = document.createElement("div");
  mark.className = "reading-mark";
  mark.style.top = `${Math.max(0, pixels - 2 * LINE)}px`;
  section.append(mark);
  mark.scrollIntoView({ block: "start" });
  mark.remove();
}

const ARROWS = { below: "↓ ", above: "↑ ", beside: "" } as const;

/** Replaces the buttons that allow something: says how much is left to read and scrolls there. */
export function LinesLeft({ reading }: { reading: Reading }): VNode {
  return (
    <button type="button" class="lines-left" onClick={reading.scrollToUnread}>
      <span aria-hidden="true">{ARROWS[reading.where]}</span>
      {reading.left === 1 ? "1 more line" : `${reading.left.toLocaleString("en")} more lines`}{reading.where === "beside" && ", to the left or right"}
    </button>
  );
}
