/** Words that are looked for in a run: the parts that have them, the marks in what is drawn, and the field for them. */
import { createContext, useContext, useEffect, useRef, useState, type KeyboardEvent, type ReactNode, type RefObject } from "react";
import type { RunEvent } from "../fold/events";
import type { Item } from "../fold/run";
import { change } from "../router";

/** The texts that are looked for, in small letters. */
export const Wanted = createContext<readonly string[]>([]);

/** Whether a text has one of the texts that are looked for behind its first `from` characters only. */
export function useIsBehind(text: string, from: number): boolean {
  const wanted = useContext(Wanted);
  if (!wanted.length || text.length <= from) return false;
  const small = text.toLowerCase();
  return wanted.some((words) => small.includes(words)) && !wanted.some((words) => small.slice(0, from).includes(words));
}

const known = new WeakMap<object, { version: number; text: string }>();

function remember(key: object, version: number, write: () => string): string {
  const found = known.get(key);
  if (found?.version === version) return found.text;
  const text = write().toLowerCase();
  known.set(key, { version, text });
  return text;
}

/** Return the texts of an item that its block shows. */
const write = (item: Item): string => [
  item.title, item.text, item.reasoning, item.arguments, item.result?.content ?? "", ...item.notes, ...item.options.map((option) => option.label),
  ...item.failures.map((failure) => `${failure.error_type} ${failure.error ?? ""}`), ...(item.files ? Object.keys(item.files.changed) : []),
].join("\n");

/** Return the places of the items that have the words, which are in small letters. */
export function placesOf(items: readonly Item[], words: string): number[] {
  return words ? items.flatMap((item, place) => (remember(item, item.version, () => write(item)).includes(words) ? [place] : [])) : [];
}

/** Return the events that have the words as they are stored; all if there are no words. */
export function eventsWith(events: readonly RunEvent[], words: string): readonly RunEvent[] {
  return words ? events.filter((event) => remember(event, 0, () => JSON.stringify(event)).includes(words)) : events;
}

/** Return the ranges of an element's text that are one of the texts, in the order of the page for each node. */
function rangesIn(element: Element, wanted: readonly string[]): Range[] {
  const ranges: Range[] = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = (node.textContent ?? "").toLowerCase();
    for (const words of wanted) for (let at = text.indexOf(words); at >= 0; at = text.indexOf(words, at + words.length)) {
      const range = new Range();
      // Small letters may be longer than capital ones.
      const most = node.textContent?.length ?? 0;
      range.setStart(node, Math.min(at, most));
      range.setEnd(node, Math.min(at + words.length, most));
      ranges.push(range);
    }
  }
  return ranges;
}

/**
 * Mark what is looked for in what an element draws, again after each time that the component is drawn. `subject` says
 * what is shown: when it changes, the first mark is scrolled to.
 */
export function useMarks(box: RefObject<HTMLElement | null>, subject = ""): void {
  const wanted = useContext(Wanted);
  const shown = useRef("");
  useEffect(() => {
    if (!("highlights" in CSS)) return;
    const ranges = wanted.length && box.current ? rangesIn(box.current, wanted) : [];
    CSS.highlights.set("found", new Highlight(...ranges));
    if (!subject || shown.current === subject) return;
    shown.current = subject;
    ranges[0]?.startContainer.parentElement?.scrollIntoView({ block: "center" });
  });
  useEffect(() => () => void CSS.highlights?.delete("found"), []);
}

/** Return how far below the top of an element its first mark is; `null` if it has none. */
export function markIn(element: Element | null, wanted: readonly string[]): number | null {
  const range = element && wanted.length ? rangesIn(element, wanted)[0] : undefined;
  return range && element ? range.getBoundingClientRect().top - element.getBoundingClientRect().top : null;
}

/** The field for the words, which stand in the address, and where one is among what was found. */
export function FindBox({ given, at, found, onJump }: { given: string; at: number; found: number; onJump: (by: number) => void }): ReactNode {
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  useEffect(() => {
    if (text === given) return;
    const timer = setTimeout(() => change({ find: text }), 200);
    return () => clearTimeout(timer);
  }, [text, given]);
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.nativeEvent.isComposing) return;
    event.preventDefault();
    if (text === given) onJump(event.shiftKey ? -1 : 1);
    else change({ find: text });
  };
  return (
    <div className="row find" role="search">
      <input type="search" aria-label="Find in this run" placeholder="Find in this run (/)" title="Enter: next place; Shift+Enter: the one before" value={text} onChange={(event) => setText(event.target.value)} onKeyDown={onKeyDown} />
      {given.trim() && <span className="soft num" aria-live="polite">{found ? (at >= 0 ? `${at + 1} of ${found}` : `${found} found`) : "not found"}</span>}
      {found > 1 && <><button className="plain" aria-label="Place before" title="Place before (N)" onClick={() => onJump(-1)}>↑</button><button className="plain" aria-label="Next place" title="Next place (n)" onClick={() => onJump(1)}>↓</button></>}
    </div>
  );
}
