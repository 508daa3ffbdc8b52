/**
 * Lists of any length, of which only the lines in view are drawn.
 *
 * The heights are in a tree of sums, so that a line that turns out higher than estimated costs as little in a list of
 * a million lines as in one of ten.
 */
import { useEffect, useLayoutEffect, useReducer, useRef, useState, type RefObject } from "react";
import { flushSync } from "react-dom";

const GOAL_MS = 600;

/** The heights of lines, as a Fenwick tree. */
export class Heights {
  count = 0;
  private values = new Float64Array(64);
  private sums = new Float64Array(65);

  /** Set the number of lines. New ones get an estimated height. */
  resize(count: number, estimate: (index: number) => number): void {
    if (count < this.count) {
      this.count = count;
      this.rebuild(this.values.length);
      return;
    }
    if (count > this.values.length) {
      const start = this.count;
      this.count = count;
      const grown = new Float64Array(2 * count);
      grown.set(this.values.subarray(0, start));
      for (let index = start; index < count; index += 1) grown[index] = estimate(index);
      this.values = grown;
      this.rebuild(grown.length);
      return;
    }
    for (let index = this.count; index < count; index += 1) {
      this.values[index] = 0;
      this.count = index + 1;
      this.set(index, estimate(index));
    }
  }

  private rebuild(capacity: number): void {
    this.values.fill(0, this.count);
    this.sums = new Float64Array(capacity + 1);
    for (let place = 1; place <= capacity; place += 1) {
      this.sums[place] = (this.sums[place] ?? 0) + (this.values[place - 1] ?? 0);
      const above = place + (place & -place);
      if (above <= capacity) this.sums[above] = (this.sums[above] ?? 0) + (this.sums[place] ?? 0);
    }
  }

  get(index: number): number {
    return this.values[index] ?? 0;
  }

  set(index: number, height: number): void {
    const change = height - this.get(index);
    this.values[index] = height;
    for (let place = index + 1; place < this.sums.length; place += place & -place) this.sums[place] = (this.sums[place] ?? 0) + change;
  }

  /** Return the sum of the heights before a line. */
  startOf(index: number): number {
    let sum = 0;
    for (let place = index; place > 0; place -= place & -place) sum += this.sums[place] ?? 0;
    return sum;
  }

  /** Return the line at an offset from the top. */
  at(offset: number): number {
    let place = 0;
    let left = offset;
    for (let step = 2 ** Math.floor(Math.log2(this.sums.length - 1)); step >= 1; step /= 2) {
      const next = place + step;
      if (next < this.sums.length && (this.sums[next] ?? 0) <= left) {
        place = next;
        left -= this.sums[next] ?? 0;
      }
    }
    return Math.max(0, Math.min(place, this.count - 1));
  }
}

/** Where a line is scrolled to; `auto`: only as far as it takes to see it. */
export type Align = "auto" | "start" | "center" | "end";

export interface VirtualLine {
  index: number;
  start: number;
}

export interface Virtual {
  /** The height of all lines together. */
  total: number;
  lines: VirtualLine[];
  /** Given to each line that is drawn as `ref`, together with `data-index`, if heights differ from the estimates. */
  measure: (line: HTMLElement | null) => void;
  /** `below` is how far below the top of the line that is which is scrolled to, for lines higher than the window. */
  scrollTo: (index: number, align?: Align, below?: number) => void;
}

/** Draw the lines of a list that are in view of the scrolling element `box`, and `beyond` pixels around it. */
export function useVirtual(count: number, box: RefObject<HTMLElement | null>, estimate: (index: number) => number, beyond = 400): Virtual {
  const [heights] = useState(() => new Heights());
  const [, redraw] = useReducer((version: number) => version + 1, 0);
  const view = useRef({ top: 0, height: 900, first: 0, last: -1 });
  const drawn = useRef(new Set<HTMLElement>());
  if (count !== heights.count) heights.resize(count, estimate);

  const find = (): [first: number, last: number] => {
    const { top, height } = view.current;
    return count ? [heights.at(Math.max(0, top - beyond)), heights.at(top + height + beyond)] : [0, -1];
  };

  /** Take in the heights of drawn lines, keep what is in view in its place, and return whether anything changed. */
  const take = (): boolean => {
    let moved = 0;
    let hasChanged = false;
    for (const line of drawn.current) {
      const index = Number(line.dataset.index);
      const height = line.offsetHeight;
      if (!line.isConnected || index >= heights.count || heights.get(index) === height) continue;
      if (heights.startOf(index) < view.current.top) moved += height - heights.get(index);
      heights.set(index, height);
      hasChanged = true;
    }
    if (moved && box.current) {
      box.current.scrollTop += moved;
      view.current.top = box.current.scrollTop;
    }
    return hasChanged;
  };
  const [observer] = useState(() => new ResizeObserver(() => { if (latest.current()) flushSync(redraw); }));
  const latest = useRef(take);
  latest.current = take;
  const [measure] = useState(() => (line: HTMLElement | null) => {
    if (!line) return undefined;
    drawn.current.add(line);
    observer.observe(line);
    return () => {
      drawn.current.delete(line);
      observer.unobserve(line);
    };
  });

  /** Where to scroll to. It is tried again while lines around it turn out to have other heights than estimated. */
  const goal = useRef<{ index: number; align: Align; below: number; until: number } | null>(null);
  const aim = (): boolean => {
    const element = box.current;
    if (!element || !goal.current || goal.current.index >= count) return false;
    if (performance.now() > goal.current.until) {
      goal.current = null;
      return false;
    }
    const { index, align, below } = goal.current;
    const { scrollTop, clientHeight } = element;
    // Of a line that is too high to be seen whole, the place that is wanted is shown.
    const cut = Math.max(0, Math.min(below - 48, heights.get(index) - clientHeight));
    const [start, height] = [heights.startOf(index) + cut, heights.get(index) - cut];
    const end = start + height - clientHeight + 24;
    let top = scrollTop;
    if (align === "center") top = start - Math.max(0, (clientHeight - height) / 2);
    else if (align === "start") top = start;
    else if (align === "end") top = end;
    else if (start < scrollTop) top = start;
    else if (start + height > scrollTop + clientHeight) top = Math.min(start, end);
    if (Math.abs(top - scrollTop) < 1) return false;
    element.scrollTop = top;
    view.current.top = element.scrollTop;
    return Math.abs(element.scrollTop - scrollTop) >= 1;
  };
  useLayoutEffect(() => {
    const hasChanged = drawn.current.size > 0 && take();
    if (aim() || hasChanged) redraw();
  });
  const [attached] = useState(() => ({ element: null as HTMLElement | null, detach: () => {} }));
  useEffect(() => {
    const element = box.current;
    // The element may come later than this hook, when there is something to show.
    if (element === attached.element) return;
    attached.detach();
    Object.assign(attached, { element, detach: () => {} });
    if (!element) return;
    const look = (): void => {
      view.current.top = element.scrollTop;
      view.current.height = element.clientHeight;
      const [first, last] = latestFind.current();
      if (first !== view.current.first || last !== view.current.last) flushSync(redraw);
    };
    const free = (): void => { goal.current = null; };
    const stop = new AbortController();
    const options = { passive: true, signal: stop.signal };
    element.addEventListener("scroll", look, options);
    for (const name of ["wheel", "pointerdown", "touchstart", "keydown"]) element.addEventListener(name, free, options);
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    attached.detach = () => {
      stop.abort();
      sizes.disconnect();
    };
  });
  useEffect(() => () => {
    attached.detach();
    attached.element = null;
  }, []);
  const latestFind = useRef(find);
  latestFind.current = find;

  const [first, last] = find();
  Object.assign(view.current, { first, last });
  const lines: VirtualLine[] = [];
  for (let index = first, start = heights.startOf(first); index <= last; index += 1) {
    lines.push({ index, start });
    start += heights.get(index);
  }
  const scrollTo: Virtual["scrollTo"] = (index, align = "auto", below = 0) => {
    if (index < 0 || index >= count) return;
    goal.current = { index, align, below, until: performance.now() + GOAL_MS };
    if (aim()) redraw();
  };
  return { total: heights.startOf(count), lines, measure, scrollTo };
}
