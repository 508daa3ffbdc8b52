/** What a reader opened, picked and wrote here. The browser's tab keeps it over reloads; an address that is sent to somebody does not have it. */
import { useReducer } from "react";

const NAME = "treadle.kept";
const MOST = 500;

let written: string | null = null;
let kept = new Map<string, unknown>();
let isStored = true;

function read(): Map<string, unknown> {
  if (!isStored) return kept;
  try {
    const found = sessionStorage.getItem(NAME);
    if (found !== written) [written, kept] = [found, new Map(JSON.parse(found ?? "[]") as [string, unknown][])];
  } catch {
    // The browser stores nothing for this page, so only this load knows.
    isStored = false;
  }
  return kept;
}

/** Return what was kept under a key; `first` if nothing was. */
export function recall<T>(key: string, first: T): T {
  return (read().get(key) as T | undefined) ?? first;
}

/** Keep a value under a key, or nothing if it is `undefined`. What was kept longest ago is forgotten. */
export function keep(key: string, value: unknown): void {
  const entries = read();
  entries.delete(key);
  if (value !== undefined) entries.set(key, value);
  for (const old of [...entries.keys()].slice(0, -MOST)) entries.delete(old);
  written = JSON.stringify([...entries]);
  try {
    sessionStorage.setItem(NAME, written);
  } catch {
    isStored = false;
  }
}

/** The state of a component that its page has again after a reload. The name is unique on the page. */
export function useKept<T>(name: string, first: T): [T, (value: T) => void] {
  const key = `${location.hash.split("?", 1)[0]} ${name}`;
  const [, draw] = useReducer((count: number) => count + 1, 0);
  return [recall(key, first), (value) => { keep(key, value === first ? undefined : value); draw(); }];
}
