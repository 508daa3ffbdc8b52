/** A map of topics: rectangles in groups, whose size is a number of topics and whose colour is a number of rows. */
import { useEffect, useRef, useState, type ReactNode } from "react";
import { count } from "../format";
import { go } from "../router";
import { onTone, tone } from "./charts";

export interface Leaf {
  path: string[];
  value: number;
  size: number;
  notes: string[];
}

type Box = [number, number, number, number];

/**
 * Return rectangles with areas in proportion to weights, none of them very narrow.
 * Source: Bruls, Huizing and van Wijk, Squarified Treemaps, 2000.
 */
export function squarify(weights: number[], x: number, y: number, width: number, height: number): Box[] {
  const total = weights.reduce((sum, value) => sum + value, 0);
  const areas = weights.map((value) => (value * width * height) / total);
  const boxes: Box[] = [];
  const worst = (strip: number[], sum: number, side: number): number =>
    Math.max((side * side * (strip[0] ?? 0)) / sum ** 2, sum ** 2 / (side * side * (strip.at(-1) ?? 1)));
  for (let start = 0; start < areas.length; ) {
    const side = Math.min(width, height);
    const strip = [areas[start] ?? 0];
    let sum = strip[0] ?? 0;
    while (start + strip.length < areas.length) {
      const next = areas[start + strip.length] ?? 0;
      if (worst([...strip, next], sum + next, side) > worst(strip, sum, side)) break;
      strip.push(next);
      sum += next;
    }
    const depth = side ? sum / side : 0;
    const isUpright = width >= height;
    let at = isUpright ? y : x;
    for (const area of strip) {
      const length = depth ? area / depth : 0;
      boxes.push(isUpright ? [x, at, depth, length] : [at, y, length, depth]);
      at += length;
    }
    if (isUpright) {
      x += depth;
      width = Math.max(0, width - depth);
    } else {
      y += depth;
      height = Math.max(0, height - depth);
    }
    start += strip.length;
  }
  return boxes;
}

const pen = document.createElement("canvas").getContext("2d");

/** Return how many lines a text has in a width; infinity if a word is wider. A label that would be cut is left out. */
function linesOf(text: string, width: number, weight = 400): number {
  if (!pen) return Infinity;
  pen.font = `${weight} 12px ${getComputedStyle(document.body).fontFamily}`;
  let lines = 1;
  let used = 0;
  for (const word of text.split(" ")) {
    const wide = pen.measureText(`${word} `).width;
    if (wide > width) return Infinity;
    if (used + wide > width) {
      lines += 1;
      used = 0;
    }
    used += wide;
  }
  return lines;
}

const fits = (text: string, width: number, height: number): boolean => linesOf(text, width) * 15 <= height;
const weigh = (items: Leaf[]): number => items.reduce((sum, item) => sum + item.size, 0);

interface Props {
  items: Leaf[];
  unit: string;
  /** The beginning that all paths have in common, which is left out of them. */
  above: string[];
  /** The address that a rectangle opens. */
  addressOf?: (path: string[]) => string;
}

export function Treemap({ items, unit, above, addressOf }: Props): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const [[width, height], setSize] = useState<[number, number]>([0, 0]);
  useEffect(() => {
    const node = box.current;
    if (!node) return;
    const observer = new ResizeObserver(() => setSize([node.clientWidth, node.clientHeight]));
    observer.observe(node);
    return () => observer.disconnect();
  }, []);
  const most = Math.max(1, ...items.map((item) => item.value));
  return (
    <div>
      <div className="map" ref={box}>{width > 0 && draw(items, unit, above, width, height, most, addressOf)}</div>
      {most > 1 && <div className="legend soft"><span>0 {unit}</span><i className="scale" /><span className="num">{count(most)} {unit}</span></div>}
    </div>
  );
}

function draw(items: Leaf[], unit: string, above: string[], width: number, height: number, most: number, addressOf?: (path: string[]) => string): ReactNode[] {
  const groups = new Map<string, Leaf[]>();
  for (const item of items) {
    const name = item.path.length > 1 ? item.path[0] ?? "" : "";
    groups.set(name, [...(groups.get(name) ?? []), item]);
  }
  const order = [...groups].sort((one, two) => weigh(two[1]) - weigh(one[1]));
  const shown: ReactNode[] = [];
  squarify(order.map(([, group]) => weigh(group)), 0, 0, width, height).forEach(([x, y, wide, high], index) => {
    const [name, group] = order[index] as [string, Leaf[]];
    const sum = group.reduce((all, item) => all + item.value, 0);
    const lines = name ? linesOf(name, wide - 14, 600) : Infinity;
    let top = 0;
    if (lines * 16 + 6 < high / 3) {
      top = 16 * lines + 6;
      shown.push(<div key={`${index} head`} title={`${name}: ${count(sum)} ${unit}, ${count(weigh(group))} topics`} style={{ left: x, top: y, width: wide }}>{name}</div>);
    }
    const sorted = [...group].sort((one, two) => two.size - one.size);
    squarify(sorted.map((item) => item.size), x, y + top, wide, Math.max(1, high - top)).forEach(([left, up, w, h], place) => {
      const item = sorted[place] as Leaf;
      const part = item.value ? 0.14 + (0.86 * item.value) / most : 0;
      const label = item.path.slice(name ? 1 : 0).join(" › ");
      const about = [`${item.path.join(" › ")}: ${count(item.value)} ${unit}`, ...item.notes].join("\n");
      const text = fits(label, w - 14, h - 8) ? label : fits(count(item.value), w - 14, h - 8) ? count(item.value) : "";
      const path = [...above, ...item.path];
      shown.push(
        <button
          key={`${index} ${place}`} className={item.value ? onTone(part) : "missing"} title={about} aria-label={about} data-topic={path.join(" › ")}
          onClick={() => addressOf && go(addressOf(path))}
          style={{ left, top: up, width: w, height: h, background: tone(part) }}
        >{text}</button>,
      );
    });
  });
  return shown;
}
