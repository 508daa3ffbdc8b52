/** The times of a run: one line for each step, call and wait, and what the whole run spent its time with. */
import { useEffect, useMemo, useRef, type ReactNode } from "react";
import { lengthOf, makeScale, measure } from "../fold/spans";
import type { Item, Phase } from "../fold/run";
import { seconds } from "../format";
import { useKeys } from "../keys";
import { useSwitch } from "../router";
import { isLive } from "../source";
import { lineOf } from "./outline";
import { useVirtual } from "./virtual";

const PHASES: [Phase, string][] = [["model", "model"], ["tool", "tools"], ["retry", "waiting to retry"], ["failed", "failed attempts"], ["wait", "waiting for somebody"]];

/** The shares of the width at which the time is told. */
const TICKS = [0, 0.2, 0.4, 0.6, 0.8];

export function Timeline({ items, version, picked, onPick }: { items: readonly Item[]; version: number; picked: number; onPick: (index: number) => void }): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const [squeezes, setSqueezes] = useSwitch("squeezed", true);
  const now = isLive && items.some((item) => item.spans.at(-1)?.to === null) ? Date.now() / 1000 : items.reduce((last, item) => Math.max(last, item.end ?? item.at), 0);
  const rows = useMemo(() => items.flatMap((item, index) => (item.spans.length || item.kind === "turn" ? [index] : [])), [items, version]);
  const times = useMemo(() => measure(items, now), [items, version]);
  const { scale, timeAt, gaps } = useMemo(() => makeScale(times, squeezes), [times, squeezes]);
  const virtual = useVirtual(rows.length, box, () => 24);
  useEffect(() => {
    virtual.scrollTo(rows.indexOf(picked));
  }, [picked]);
  const move = (by: number): void => {
    const next = rows.findIndex((index) => index >= picked);
    const place = by < 0 ? (next < 0 ? rows.length : next) - 1 : rows[next] === picked ? next + 1 : next;
    if (rows[place] !== undefined) onPick(rows[place]);
  };
  useKeys([
    { key: "j", about: "Next line of the timeline", run: () => move(1) },
    { key: "ArrowDown", about: "", run: () => move(1) },
    { key: "k", about: "Line before", run: () => move(-1) },
    { key: "ArrowUp", about: "", run: () => move(-1) },
    { key: "w", about: "Squeeze or show the waits of the timeline", run: () => setSqueezes(!squeezes) },
  ]);
  const percent = (share: number): string => `${(100 * share).toFixed(3)}%`;
  return (
    <div className="timeline">
      <div className="bar">
        {PHASES.map(([phase, name]) => times.sums[phase] > 0 && (
          <span key={phase} className="row"><i className={`swatch ${phase}`} /> {name} <b>{seconds(times.sums[phase])}</b></span>
        ))}
        <span className="soft">of {seconds(times.to - times.from)}</span>
        <span className="grow" />
        <label className="row"><input type="checkbox" checked={squeezes} onChange={() => setSqueezes(!squeezes)} /> squeeze waits</label>
      </div>
      <div className="ruler-line soft" aria-hidden="true">
        <span>since the start</span>
        <span className="track">{TICKS.map((share) => <span key={share} style={{ left: percent(share) }}>{seconds(timeAt(share) - times.from)}</span>)}</span>
      </div>
      <div className="lanes" ref={box} tabIndex={0} aria-label="timeline" role="list">
        <div role="presentation" style={{ height: virtual.total, position: "relative" }}>
          {virtual.lines.map((line) => {
            const index = rows[line.index] as number;
            const item = items[index] as Item;
            const [name, about] = lineOf(item);
            return (
              <div key={item.id} role="listitem" className={`lane ${item.kind}${index === picked ? " picked" : ""}`} style={{ transform: `translateY(${line.start}px)` }} onClick={() => onPick(index)}>
                <span className="cut label" style={{ paddingLeft: 12 * Math.min(8, item.depth) }}><b>{name}</b> <span className="soft">{item.kind === "turn" ? "" : about}</span></span>
                <span className="track">
                  {TICKS.map((share) => <i key={share} className="tick" style={{ left: percent(share) }} />)}
                  {gaps.map((gap) => <i key={gap.at} className="gap" style={{ left: percent(gap.at) }} title={`${seconds(gap.seconds)} in which nothing ran`} />)}
                  {item.kind === "turn" && <i className="turnspan" style={{ left: percent(scale(item.at)), width: percent(scale(item.end ?? now) - scale(item.at)) }} />}
                  {item.spans.map((span, number) => {
                    const [left, right] = [scale(span.from), scale(span.to ?? now)];
                    return <i key={number} className={`span ${span.phase}`} style={{ left: percent(left), width: percent(right - left) }} title={`${span.phase}: ${seconds(lengthOf(span, now))}`} />;
                  })}
                </span>
                <span className="num soft">{item.seconds !== null ? seconds(item.seconds) : item.spans.length ? seconds(item.spans.reduce((sum, span) => sum + lengthOf(span, now), 0)) : ""}</span>
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
