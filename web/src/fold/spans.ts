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

/** Return the function that maps a time to a share of the width, and the places at which time was squeezed. */
export function makeScale(times: Times, squeezes: boolean): { scale: (at: number) => number; gaps: { at: number; seconds: number }[] } {
  const total = Math.max(1e-3, times.to - times.from);
  const work = times.busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const most = Math.max(1e-3, work) * 0.03;
  if (!squeezes || !times.busy.length) return { scale: (at) => (at - times.from) / total, gaps: [] };
  const points: [number, number][] = [[times.from, 0]];
  const gaps: { at: number; seconds: number }[] = [];
  let place = 0;
  const go = (until: number, isBusy: boolean): void => {
    const [before] = points.at(-1) as [number, number];
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
  go(times.to, false);
  const end = Math.max(1e-9, place);
  const scale = (at: number): number => {
    let [low, high] = [0, points.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((points[middle] as [number, number])[0] <= at) low = middle;
      else high = middle;
    }
    const [one, onePlace] = points[low] as [number, number];
    const [two, twoPlace] = points[high] as [number, number];
    const share = two > one ? Math.min(1, Math.max(0, (at - one) / (two - one))) : 0;
    return (onePlace + share * (twoPlace - onePlace)) / end;
  };
  return { scale, gaps: gaps.map((gap) => ({ ...gap, at: gap.at / end })) };
}

export const lengthOf = (span: Span, now: number): number => (span.to ?? now) - span.from;
