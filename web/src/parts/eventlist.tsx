/** All events of a run, as they are stored. */
import { useEffect, useRef, type ReactNode } from "react";
import type { RunEvent } from "../fold/events";
import type { RunFold } from "../fold/run";
import { oneLine } from "../format";
import { useKeys } from "../keys";
import { useVirtual } from "./virtual";

const HIDDEN = new Set(["run_id", "seq", "type", "at"]);

function describe(event: RunEvent): string {
  const fields = Object.entries(event).filter(([name]) => !HIDDEN.has(name));
  return oneLine(fields.map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(", "), 400);
}

export function EventList({ fold, picked, onPick }: { fold: RunFold; picked: number; onPick: (seq: number) => void }): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const start = fold.events[0]?.at ?? 0;
  const virtual = useVirtual(fold.events.length, box, () => 24);
  useEffect(() => virtual.scrollTo(picked - 1), [picked]);
  const move = (by: number): void => onPick(Math.max(1, Math.min(fold.events.length, picked + by)));
  useKeys([
    { key: "j", about: "Next event", run: () => move(1) },
    { key: "ArrowDown", about: "", run: () => move(1) },
    { key: "k", about: "Event before", run: () => move(-1) },
    { key: "ArrowUp", about: "", run: () => move(-1) },
    { key: "g g", about: "First event", run: () => onPick(1) },
    { key: "G", about: "Last event", run: () => onPick(fold.events.length) },
  ]);
  return (
    <div className="lanes" ref={box} tabIndex={0} role="list" aria-label="events">
      <div role="presentation" style={{ height: virtual.total, position: "relative" }}>
        {virtual.lines.map((line) => {
          const event = fold.events[line.index] as RunEvent;
          return (
            <div key={event.seq} role="listitem" className={`eventline${event.seq === picked ? " picked" : ""}`} style={{ transform: `translateY(${line.start}px)` }} onClick={() => onPick(event.seq)}>
              <span className="num soft">{event.seq}</span>
              <span className="num soft">{(event.at - start).toFixed(3)} s</span>
              <span>{event.type}</span>
              <span className="cut soft mono">{describe(event)}</span>
            </div>
          );
        })}
      </div>
    </div>
  );
}
