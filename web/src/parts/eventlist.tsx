/** All events of a run, as they are stored. */
import { useContext, useEffect, useMemo, useRef, type ReactNode } from "react";
import type { RunEvent } from "../fold/events";
import type { RunFold } from "../fold/run";
import { oneLine } from "../format";
import { useKeys } from "../keys";
import { eventsWith, useMarks, Wanted } from "./found";
import { Status } from "./basics";
import { useVirtual } from "./virtual";

const HIDDEN = new Set(["run_id", "seq", "type", "at"]);

function describe(event: RunEvent): string {
  const fields = Object.entries(event).filter(([name]) => !HIDDEN.has(name));
  return oneLine(fields.map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(", "), 400);
}

export function EventList({ fold, picked, onPick }: { fold: RunFold; picked: number; onPick: (seq: number) => void }): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const start = fold.events[0]?.at ?? 0;
  const [words = ""] = useContext(Wanted);
  const events = useMemo(() => eventsWith(fold.events, words), [fold.events, fold.events.length, words]);
  const virtual = useVirtual(events.length, box, () => 24);
  useMarks(box);
  const at = events.findLastIndex((event) => event.seq <= picked);
  useEffect(() => virtual.scrollTo(at), [at]);
  const move = (by: number): void => pick(Math.max(0, Math.min(events.length - 1, at + by)));
  const pick = (place: number): void => {
    const event = events[place];
    if (event) onPick(event.seq);
  };
  useKeys([
    { key: "j", about: "Next event", run: () => move(1) },
    { key: "ArrowDown", about: "", run: () => move(1) },
    { key: "k", about: "Event before", run: () => move(-1) },
    { key: "ArrowUp", about: "", run: () => move(-1) },
    { key: "g g", about: "First event", run: () => pick(0) },
    { key: "G", about: "Last event", run: () => pick(events.length - 1) },
  ]);
  if (!events.length) return <div className="lanes"><Status>No event has these words.</Status></div>;
  return (
    <div className="lanes" ref={box} tabIndex={0} role="list" aria-label="events">
      <div role="presentation" style={{ height: virtual.total, position: "relative" }}>
        {virtual.lines.map((line) => {
          const event = events[line.index] as RunEvent;
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
