/** A run as it is loaded and followed: its fold, which grows while the page is open. */
import { useEffect, useState, useSyncExternalStore } from "react";
import { get, isLive, listen } from "../source";
import type { Listing } from "../types";
import type { Piece, RunEvent } from "./events";
import { RunFold } from "./run";

const FIRST = 400;
const CHUNK = 4_000;
const AGAIN_SECONDS = 3;
const AGAIN_FINISHED_SECONDS = 15;

export const eventsOf = (runId: string): string => `/v1/view/runs/${encodeURIComponent(runId)}/events`;
const wait = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, 1000 * seconds));

export class FollowedRun {
  fold = new RunFold();
  error: Error | null = null;
  /** Whether all events that are stored were loaded. */
  isLoaded = false;
  private version = 0;
  private frame = 0;
  private readonly listeners = new Set<() => void>();
  private readonly stop = new AbortController();

  constructor(readonly runId: string) {
    void this.follow();
  }

  close(): void {
    this.stop.abort();
    cancelAnimationFrame(this.frame);
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  snapshot = (): number => this.version;

  /** Tell the page about changes, at most once for each frame. */
  private tell(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.version += 1;
      this.listeners.forEach((listener) => listener());
    });
  }

  private async load(): Promise<void> {
    if (!isLive) {
      this.fold.take((await get<Listing<RunEvent>>(eventsOf(this.runId))).data);
      return;
    }
    for (let limit = this.fold.seq ? CHUNK : FIRST; ; limit = CHUNK) {
      const { data } = await get<Listing<RunEvent>>(`${eventsOf(this.runId)}?after_seq=${this.fold.seq}&limit=${limit}`, this.stop.signal);
      this.fold.take(data);
      this.tell();
      if (data.length < limit) return;
    }
  }

  private async follow(): Promise<void> {
    while (!this.stop.signal.aborted) {
      try {
        await this.load();
        this.isLoaded = true;
        this.error = null;
        this.tell();
        if (!isLive) return;
        const address = `/v1/runs/${encodeURIComponent(this.runId)}/events?stream=true`;
        for await (const items of listen(address, this.fold.seq, this.stop.signal)) {
          for (const item of items) this.takeItem(JSON.parse(item.data) as RunEvent | Piece);
          this.tell();
        }
      } catch (error) {
        if (this.stop.signal.aborted) return;
        this.error = error as Error;
        this.tell();
        if (!isLive) return;
      }
      await wait(this.fold.state === "finished" ? AGAIN_FINISHED_SECONDS : AGAIN_SECONDS);
    }
  }

  private takeItem(item: RunEvent | Piece): void {
    if (item.seq === undefined) this.fold.takePiece(item);
    else this.fold.take([item as RunEvent]);
  }
}

/** Load and follow a run as long as the component is shown; `null` follows none. */
export function useRun(runId: string | null): FollowedRun | null {
  const [run, setRun] = useState<FollowedRun | null>(null);
  useEffect(() => {
    if (runId === null) return setRun(null);
    const followed = new FollowedRun(runId);
    setRun(followed);
    return () => followed.close();
  }, [runId]);
  useSyncExternalStore(run?.subscribe ?? nothing, run?.snapshot ?? zero);
  return run?.runId === runId ? run : null;
}

const nothing = () => () => {};
const zero = (): number => 0;
