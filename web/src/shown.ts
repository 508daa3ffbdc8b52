/** What there is to show: a server says what it was started with, and a file holds the answers of some pages. */
import { get, has, isFiled, isLive, isOther, OTHER } from "./source";

export interface Shown {
  /** The pages that have data, by the first parts of their addresses. */
  pages: string[];
  /** The page that is shown first; empty in a file, which names its own. */
  start: string;
  /** The journals whose runs are shown, if they are two. */
  journals?: string[];
}

let shown: Shown = { pages: ["runs"], start: "" };
const ADDRESSES: Record<string, string> = {
  dataset: "/v1/view/datasets/0",
  datasets: "/v1/view/comparison",
  evaluation: "/v1/view/evaluation",
  rollouts: "/v1/view/rollouts",
  topics: "/v1/view/topics",
};

/** Ask the server what it shows. Servers that were started without data of their own show runs. */
export async function loadShown(): Promise<Shown> {
  if (isLive) {
    try {
      shown = await get<Shown>("/v1/view/pages");
    } catch {
      // Such a server has runs only, or wants a key first.
    }
  }
  return shown;
}

/** The names of the two journals; empty if there is only one. */
export const journals = (): readonly string[] => shown.journals ?? [];
/** The name of the journal that has a run; empty if the page shows only one, or the run is in a file. */
export const journalOf = (runId: string): string => (isFiled(runId) ? "" : journals()[isOther(runId) ? 1 : 0] ?? "");
/** What the ids of the runs of the first or the second dataset or evaluation begin with; `null` if a server has no such runs. */
export const signOfRuns = (place: number): string | null => (place === 0 ? "" : journals().length ? OTHER : null);
export const isShown = (page: string): boolean => (isLive ? shown.pages.includes(page) : has(ADDRESSES[page] ?? ""));
