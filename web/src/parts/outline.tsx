/** The tree of a run: turns, steps, calls, and what else happened, one line each. */
import { useEffect, useRef, type ReactNode } from "react";
import type { Item } from "../fold/run";
import { oneLine, seconds } from "../format";
import { useVirtual } from "./virtual";

/** Longer arguments are shown as they are, because to read them takes too long. */
const MOST = 2_000;
const MARKS: Record<Item["kind"], string> = { system: "", turn: "", message: "", inference: "◇", call: "→", question: "?", event: "·" };

/** Return what a call was given, in short: its values, each with its name if there are several. */
function brief(given: string): string {
  try {
    const entries = Object.entries(JSON.parse(given) as object).map(([name, value]): [string, string] => [name, typeof value === "string" ? value : JSON.stringify(value)]);
    return entries.map(([name, value]) => (entries.length > 1 ? `${name}: ${value}` : value)).join(", ");
  } catch {
    return given;
  }
}

/** Return the beginning of an answer without the most common signs of Markdown. */
const plain = (text: string): string => oneLine(text.slice(0, 400).replace(/^#+\s+|\*\*|`/gm, ""), 80);

/** Return the line of an item in a tree: its name, and the beginning of what it says. */
export function lineOf(item: Item): [string, string] {
  if (item.kind === "call") return [item.title, oneLine(item.arguments.length > MOST ? item.arguments : brief(item.arguments), 80)];
  if (item.kind === "inference") return [item.title, item.failures.length && !item.completion ? item.failures.at(-1)?.error_type ?? "" : plain(item.text)];
  return [item.title, oneLine(item.text, 80)];
}

interface Props { items: readonly Item[]; picked: number; onPick: (index: number) => void; found: ReadonlySet<number> }

export function Outline({ items, picked, onPick, found }: Props): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtual(items.length, box, () => 24);
  useEffect(() => {
    virtual.scrollTo(picked);
  }, [picked]);
  return (
    <div className="outline" ref={box} tabIndex={0} role="tree" aria-label="turns, steps and calls" aria-activedescendant={picked >= 0 ? `line-${picked}` : undefined}>
      <div role="presentation" style={{ height: virtual.total, position: "relative" }}>
        {virtual.lines.map((line) => {
          const item = items[line.index] as Item;
          const [name, about] = lineOf(item);
          return (
            <div
              key={item.id} id={`line-${line.index}`} role="treeitem" aria-level={item.depth + 1} aria-selected={line.index === picked}
              className={`leaf ${item.kind} is-${item.state}${found.has(line.index) ? " found" : ""}`} style={{ transform: `translateY(${line.start}px)`, paddingLeft: 8 + 12 * Math.min(8, item.depth) }}
              onClick={() => onPick(line.index)}
            >
              <span className="mark" aria-hidden="true">{item.state === "running" ? "●" : MARKS[item.kind]}</span>
              <span className="cut"><b>{name}</b> <span className="soft">{about}</span></span>
              {item.seconds !== null && item.seconds >= 0.1 && <span className="soft num">{seconds(item.seconds)}</span>}
            </div>
          );
        })}
      </div>
    </div>
  );
}
