/** A table of any length: only the lines in view are drawn. j, k and Enter move and open. */
import { useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { useKept } from "../kept";
import { useKeys } from "../keys";
import { go } from "../router";
import { useVirtual } from "./virtual";

export interface Column<T> {
  name: string;
  /** The width as in `grid-template-columns`. */
  width: string;
  cell: (item: T) => ReactNode;
  isNumber?: boolean;
  /** Whether the name of the column is only read aloud. */
  isHidden?: boolean;
  /** The name of the order that a click on the head asks for; without it, the column sorts nothing. */
  order?: string;
  /** The width of the window, in pixels, from which the column is shown. Default: it is always shown. */
  from?: number;
}

/** Return the columns that are shown in a window of the present width. */
function useShown<T>(columns: readonly Column<T>[]): Column<T>[] {
  const [width, setWidth] = useState(window.innerWidth);
  useEffect(() => {
    const measure = (): void => setWidth(window.innerWidth);
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);
  return columns.filter((column) => width >= (column.from ?? 0));
}

interface Props<T> {
  label: string;
  items: readonly T[];
  columns: readonly Column<T>[];
  idOf: (item: T) => string;
  /** The address that a line opens. */
  addressOf: (item: T) => string;
  /** Called when the last lines are in view, to load more. */
  onEnd?: () => void;
  /** Further keys, which do something with the chosen line. */
  actions?: { key: string; about: string; run: (item: T) => void }[];
  /** What is shown below the last line. */
  end?: ReactNode;
  /** The line that is open beside the table. Then j and k call `onFollow` with the line that they reach. */
  openedId?: string;
  onFollow?: (item: T) => void;
  /** The order of the items, the name of a column's order with `-` before it if the largest item stands first. */
  order?: string;
  onOrder?: (order: string) => void;
}

const HEIGHT = 32;

export function Table<T>({ label, items, columns: all, idOf, addressOf, onEnd, actions, end, openedId, onFollow, order = "", onOrder }: Props<T>): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const columns = useShown(all);
  // An id and not a place, because lines that are new move the others.
  const [pickedId, setPickedId] = useKept(`line of ${label}`, "");
  const picked = useMemo(() => Math.max(0, pickedId ? items.findIndex((item) => idOf(item) === pickedId) : 0), [items, pickedId]);
  const pick = (item: T): void => setPickedId(idOf(item));
  const virtual = useVirtual(items.length, box, () => HEIGHT);
  const shown = virtual.lines;
  const last = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (items.length && last >= items.length - 20) onEnd?.();
  }, [last, items.length, onEnd]);
  const move = (by: number): void => {
    const next = Math.max(0, Math.min(items.length - 1, picked + by));
    const item = items[next];
    if (item === undefined) return;
    pick(item);
    virtual.scrollTo(next);
    if (openedId) onFollow?.(item);
  };
  useEffect(() => {
    const at = openedId ? items.findIndex((item) => idOf(item) === openedId) : -1;
    if (at >= 0) {
      pick(items[at] as T);
      virtual.scrollTo(at);
    }
  }, [openedId, items]);
  useEffect(() => {
    if (picked > 0) virtual.scrollTo(picked, "center");
  }, [items.length > 0]);
  useKeys([
    { key: "j", about: "Next line", run: () => move(1) },
    { key: "ArrowDown", about: "", run: () => move(1) },
    { key: "k", about: "Line before", run: () => move(-1) },
    { key: "ArrowUp", about: "", run: () => move(-1) },
    { key: "PageDown", about: "", run: () => move(20) },
    { key: "PageUp", about: "", run: () => move(-20) },
    { key: "g g", about: "First line", run: () => move(-items.length) },
    { key: "G", about: "Last line", run: () => move(items.length) },
    ...(actions ?? []).map((action) => ({ ...action, run: () => { const item = items[picked]; if (item !== undefined) action.run(item); } })),
    { key: "Enter", about: "Open the line", run: () => { const item = items[picked]; if (item !== undefined) go(addressOf(item)); } },
  ]);
  const sortings: Record<string, "ascending" | "descending"> = { [order]: "ascending", [order.slice(1)]: "descending" };
  const head = (column: Column<T>): ReactNode => {
    const name = column.order;
    const sorting = name && onOrder ? sortings[name] ?? "none" : undefined;
    return (
      <div key={column.name} role="columnheader" aria-sort={sorting} className={column.isNumber ? "num" : ""}>
        {sorting ? <button className="plain" onClick={() => onOrder?.(sorting === "descending" ? `${name}` : `-${name}`)}>{column.name}{sorting === "descending" ? " ↓" : sorting === "ascending" ? " ↑" : ""}</button> : column.isHidden ? <span className="hidden">{column.name}</span> : column.name}
      </div>
    );
  };
  const grid = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };
  return (
    <div className="table" role="table" aria-label={label} aria-rowcount={items.length}>
      <div role="rowgroup">
        <div className="heads" role="row" style={grid}>
          {columns.map(head)}
        </div>
      </div>
      <div className="lines" role="rowgroup" ref={box} tabIndex={0} aria-label={label}>
        <div role="presentation" style={{ height: virtual.total }} />
        {shown.map((line) => {
          const item = items[line.index] as T;
          return (
            <div
              key={idOf(item)} className="line" role="row" aria-rowindex={line.index + 1} aria-selected={line.index === picked}
              style={{ ...grid, transform: `translateY(${line.start}px)` }}
              onClick={(event) => {
                pick(item);
                // With one of these keys, the browser opens the link of the line elsewhere.
                if (event.ctrlKey || event.metaKey || event.shiftKey) return;
                event.preventDefault();
                go(addressOf(item));
              }}
            >
              {columns.map((column) => (
                <div key={column.name} role="cell" className={column.isNumber ? "num" : ""}>{column.cell(item)}</div>
              ))}
            </div>
          );
        })}
        {end}
      </div>
    </div>
  );
}
