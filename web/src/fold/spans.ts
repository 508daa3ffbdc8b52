/** Where the time of a run went: spans of phases, their sums, and a scale that can squeeze what nobody works in. */
import type { Item, Phase, Span } from "./run";

export type Range = [from: number, to: number];

/** Return ranges without overlaps, in order. */
export function merge(ranges: Range[]): Range[] {
  const merged: Range[] = [];
  for (const [from, to] of [...ranges].sort((one, two) => one[0] - two[0])) {
    const last = merged.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else merged.push([from, to]);
  }
  return merged;
}

export interface Times {
  from: number;
  to: number;
  sums: Record<Phase, number>;
  busy: Range[];
}

export function measure(items: readonly Item[], now: number): Times {
  const all: Record<Phase, Range[]> = { model: [], tool: [], retry: [], wait: [], failed: [] };
  let [from, to] = [Infinity, -Infinity];
  for (const item of items) {
    from = Math.min(from, item.at);
    to = Math.max(to, item.end ?? item.at);
    for (const span of item.spans) {
      all[span.phase].push([span.from, span.to ?? now]);
      to = Math.max(to, span.to ?? now);
    }
  }
  const sum = (phase: Phase): number => merge(all[phase]).reduce((total, [start, end]) => total + end - start, 0);
  const sums = { model: sum("model"), tool: sum("tool"), retry: sum("retry"), wait: sum("wait"), failed: sum("failed") };
  const busy = merge([...all.model, ...all.tool, ...all.failed, ...all.retry]);
  return { from: Number.isFinite(from) ? from : now, to: Number.isFinite(to) ? to : now, sums, busy };
}

export interface Scale {
  /** Return the share of the width at which a time is. */
  scale: (at: number) => number;
  /** Return the time that is at a share of the width. */
  timeAt: (share: number) => number;
  /** The places at which time was squeezed. */
  gaps: { at: number; seconds: number }[];
}

type Point = [at: number, place: number];

/** Return the value on the line through points that belongs to a value of the other axis. Both grow along the line. */
function follow(points: Point[], value: number, given: 0 | 1): number {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((points[middle] as Point)[given] <= value) low = middle;
    else high = middle;
  }
  const [one, two] = [points[low] as Point, points[high] as Point];
  const wanted = given ? 0 : 1;
  const share = two[given] > one[given] ? Math.min(1, Math.max(0, (value - one[given]) / (two[given] - one[given]))) : 0;
  return one[wanted] + share * (two[wanted] - one[wanted]);
}

/** Return the scale of times, in which time that nobody works in may be squeezed. */
export function makeScale(times: Times, squeezes: boolean): Scale {
  const work = times.busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const most = squeezes && times.busy.length ? Math.max(1e-3, work) * 0.03 : Infinity;
  const points: Point[] = [[times.from, 0]];
  const gaps: { at: number; seconds: number }[] = [];
  let place = 0;
  const go = (until: number, isBusy: boolean): void => {
    const [before] = points.at(-1) as Point;
    const length = until - before;
    if (length <= 0) return;
    if (!isBusy && length > most) gaps.push({ at: place + most / 2, seconds: length });
    place += isBusy ? length : Math.min(length, most);
    points.push([until, place]);
  };
  for (const [from, to] of times.busy) {
    go(from, false);
    go(to, true);
  }
  go(Math.max(times.to, times.from + 1e-3), false);
  const end = Math.max(1e-9, place);
  return { scale: (at) => follow(points, at, 0) / end, timeAt: (share) => follow(points, share * end, 1), gaps: gaps.map((gap) => ({ ...gap, at: gap.at / end })) };
}

export const lengthOf = (span: Span, now: number): number => (span.to ?? now) - span.from;
