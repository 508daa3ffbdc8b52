/** A run as it is loaded and followed: its fold, which grows while the page is open. */
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { get, isFiled, isLive, listen, readJson, signOf } from "../source";
import type { Listing, RunInfo } from "../types";
import type { Piece, RunEvent } from "./events";
import { RunFold, type Item } from "./run";

/** How many events are asked for at first: more than any screen shows. Each request after it asks for more. */
const FIRST = 200;
const MOST = 10_000;
const GROWTH = 5;
const PAINT_SECONDS = 0.3;
const AGAIN_SECONDS = 3;
const LOOK_SECONDS = 2;
const AGAIN_FINISHED_SECONDS = 15;

export const eventsOf = (runId: string): string => `/v1/view/runs/${encodeURIComponent(runId)}/events`;
const wait = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, 1000 * seconds));
/** Wait until the page is painted; a page in the background is not. */
const painted = (): Promise<void> => Promise.race([new Promise<void>((done) => requestAnimationFrame(() => setTimeout(done))), wait(PAINT_SECONDS)]);

type RunListing = Listing<RunEvent> & { run: RunInfo };

export class FollowedRun {
  readonly fold: RunFold;
  error: Error | null = null;
  /** Whether all events that are stored were loaded. */
  isLoaded = false;
  /** The facts about the run as lists show them: who drives it, and its sums with those of its sub-agents. */
  info: RunInfo | null = null;
  private version = 0;
  private frame = 0;
  private readonly listeners = new Set<() => void>();
  private readonly stop = new AbortController();

  private readonly timer: number;

  /** Whether a server tells how the run goes on. */
  private readonly isLive: boolean;

  constructor(readonly runId: string) {
    this.isLive = isLive && !isFiled(runId);
    this.fold = new RunFold(runId);
    void this.follow();
    this.timer = this.isLive ? window.setInterval(() => void this.look().catch(() => null), 1000 * LOOK_SECONDS) : 0;
  }

  close(): void {
    this.stop.abort();
    clearInterval(this.timer);
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
    if (!this.isLive) {
      this.takeListing(await get<RunListing>(eventsOf(this.runId)));
      return;
    }
    for (let limit = this.fold.seq ? MOST : FIRST; ; limit = Math.min(MOST, GROWTH * limit)) {
      const { length } = await this.loadSome(limit);
      if (length < limit) return;
      // What comes next takes the processor and the server, which the first paint needs.
      await painted();
    }
  }

  /** Load at most `limit` events after those that are known, and whether the run is driven. */
  private async loadSome(limit: number): Promise<RunEvent[]> {
    const address = `${eventsOf(this.runId)}?after_seq=${this.fold.seq}&limit=${limit}`;
    const found = await get<RunListing>(address, this.stop.signal);
    this.takeListing(found);
    this.tell();
    return found.data;
  }

  private takeListing({ data, run }: RunListing): void {
    this.fold.take(data);
    this.info = run;
  }

  /** Whether a process drives the run. One that was killed has said nothing in the journal. */
  get isDriven(): boolean {
    return this.info?.is_driven ?? this.isLive;
  }

  private async follow(): Promise<void> {
    while (!this.stop.signal.aborted) {
      try {
        await this.load();
        this.isLoaded = true;
        this.error = null;
        this.tell();
        if (!this.isLive) return;
        const address = `/v1/runs/${encodeURIComponent(this.runId)}/events?stream=true`;
        this.fold.forgetPieces();
        for await (const items of listen(address, this.fold.seq, this.stop.signal)) {
          for (const item of items) this.takeItem(readJson<RunEvent | Piece>(item.data));
          this.tell();
        }
      } catch (error) {
        if (this.stop.signal.aborted) return;
        this.error = error as Error;
        this.tell();
        if (!this.isLive) return;
      }
      await wait(this.fold.state === "finished" && !this.error ? AGAIN_FINISHED_SECONDS : AGAIN_SECONDS);
    }
  }

  /** Look what no event tells of a run that is not over: whether it is driven, its sums, and its sub-agents. */
  private async look(): Promise<void> {
    if (!this.isLoaded || this.fold.state !== "running") return;
    await this.loadSome(1);
    await this.findChildren();
  }

  /** Find the sub-agents whose calls still run: a call names its sub-agent only once it has ended. */
  private async findChildren(): Promise<void> {
    const running = this.fold.items.slice(-200).filter((item) => item.kind === "call" && item.state === "running" && !item.child);
    if (!running.length) return;
    const address = `/v1/view/runs/${encodeURIComponent(this.runId)}/relatives`;
    const { children } = await get<{ children: { id: string; call_id: string }[] }>(address, this.stop.signal);
    for (const item of running) {
      const child = children.find((one) => one.call_id === item.callId);
      if (!child || item.child) continue;
      item.child = `${signOf(this.runId)}${child.id}`;
      item.version += 1;
      this.tell();
    }
  }

  private takeItem(item: RunEvent | Piece): void {
    if (item.seq === undefined) return this.fold.takePiece(item);
    this.fold.take([item as RunEvent]);
    // The sums of what has ended are asked for at once, and those of what runs from time to time.
    if (this.fold.state !== "running") void this.loadSome(1).catch(() => null);
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

/** Load and follow the runs of the sub-agents that are opened within another run. */
export function useChildren(runIds: ReadonlySet<string>): ReadonlyMap<string, FollowedRun> {
  const runs = useRef(new Map<string, FollowedRun>());
  const [, setVersion] = useState(0);
  useEffect(() => {
    for (const [runId, run] of runs.current) {
      if (runIds.has(runId)) continue;
      run.close();
      runs.current.delete(runId);
    }
    for (const runId of runIds) {
      if (runs.current.has(runId)) continue;
      const run = new FollowedRun(runId);
      run.subscribe(() => setVersion((version) => version + 1));
      runs.current.set(runId, run);
    }
    setVersion((version) => version + 1);
  }, [runIds]);
  useEffect(() => () => runs.current.forEach((run) => run.close()), []);
  return runs.current;
}

const moved = new WeakMap<Item, { item: Item; version: number; depth: number }>();

/** Return the items of a run, with those of opened sub-agents below the calls that started them. */
export function nest(items: readonly Item[], children: ReadonlyMap<string, FollowedRun>, depth = 0): Item[] {
  if (!children.size && !depth) return items as Item[];
  return items.flatMap((item) => {
    const child = item.child ? children.get(item.child) : undefined;
    const below = child && item.child !== item.runId ? nest(child.fold.items, children, depth + item.depth + 1) : [];
    return [move(item, depth), ...below];
  });
}

function move(item: Item, depth: number): Item {
  if (!depth) return item;
  const known = moved.get(item);
  if (known && known.version === item.version && known.depth === depth) return known.item;
  const made = { ...item, id: `${item.runId} ${item.id}`, depth: item.depth + depth };
  moved.set(item, { item: made, version: item.version, depth });
  return made;
}

const nothing = () => () => {};
const zero = (): number => 0;
