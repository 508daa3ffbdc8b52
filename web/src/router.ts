/** Addresses: the part after `#` names a page and its settings, as in `#/runs?status=paused`. It works from disk too. */
import { useMemo, useSyncExternalStore } from "react";
import { isOther, OTHER } from "./source";

export interface Place {
  /** The parts of the path, without empty ones. */
  path: string[];
  query: URLSearchParams;
}

const listeners = new Set<() => void>();
let current = read();

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Read the address again. */
export function update(): void {
  current = read();
  listeners.forEach((listener) => listener());
}

window.addEventListener("hashchange", update);

export function usePlace(): Place {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}

/** The pages of runs, whose paths have ids. */
const OF_RUNS = new Set(["run", "compare", "tokens", "export", "group"]);

/**
 * Return the address of a page; each part of the path is escaped, and empty settings are left out.
 *
 * A run of the second journal leads to others of that journal.
 */
export function to(path: string[], query: Record<string, string | number | null | undefined> = {}): string {
  const given = new URLSearchParams();
  const [page = "", ...ids] = path;
  if (current.path[0] !== "compare" && isOther(current.path[1])) {
    if (OF_RUNS.has(page)) path = [page, ...ids.map((id) => (isOther(id) ? id : `${OTHER}${id}`))];
    if (page === "runs") given.set("journal", "other");
  }
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") given.set(name, String(value));
  }
  const text = given.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(address: string): void {
  location.hash = address;
}

/** Change settings of the page that is open, without a new entry in the history. */
export function change(query: Record<string, string | number | null | undefined>): void {
  const given: Record<string, string | number | null | undefined> = Object.fromEntries(current.query);
  history.replaceState(null, "", to(current.path, { ...given, ...query }));
  update();
}

/** Return a choice that stands in the address, where a reload finds it, and a function that changes it. `first` is what holds without it. */
export function useSetting(name: string, first = ""): [string, (value: string) => void] {
  const value = usePlace().query.get(name) ?? first;
  return [value, (next) => change({ [name]: next === first ? "" : next })];
}

/** The same for a choice of yes or no. */
export function useSwitch(name: string, first = false): [boolean, (value: boolean) => void] {
  const [value, set] = useSetting(name, first ? "yes" : "no");
  return [value === "yes", (next) => set(next ? "yes" : "no")];
}

const idsIn = (text: string): Set<string> => new Set(text.split(" ").filter(Boolean));

/** The same for several ids. The function gets the ids of the moment, since two may change before the page is drawn. */
export function useIds(name: string): [ReadonlySet<string>, (next: (before: ReadonlySet<string>) => Iterable<string>) => void] {
  const value = usePlace().query.get(name) ?? "";
  const ids = useMemo(() => idsIn(value), [value]);
  return [ids, (next) => change({ [name]: [...next(idsIn(current.query.get(name) ?? ""))].join(" ") })];
}
