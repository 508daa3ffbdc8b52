/** Figures, bars, distributions, lines and matrices. */
import { useState, type ReactNode } from "react";
import { useKept } from "../kept";
import { compact, count, many } from "../format";
import type { Counts } from "../datatypes";
import "../data.css";

/** Shares above this have so much of the accent that the text on them has the other colour. */
const STRONG = 0.6;

/** Return a colour between that of an empty place and the accent, without those in the middle, on which no text is readable. */
export function tone(share: number): string {
  const part = Math.min(1, Math.max(0, share));
  const mixed = part > STRONG ? 85 + (15 * (part - STRONG)) / (1 - STRONG) : 80 * part;
  return `color-mix(in oklab, var(--accent) ${Math.round(mixed)}%, var(--faint))`;
}

/** Return the class of a text on the tone of a share. */
export const onTone = (share: number): string => (share > STRONG ? "strong" : "");
export const share = (part: number, whole: number): string => (whole ? `${((100 * part) / whole).toFixed(1)}%` : "–");
export const number = (value: number): string => value.toLocaleString("en", { maximumFractionDigits: 3 });

export function Figures({ children }: { children: ReactNode }): ReactNode {
  return <dl className="figures">{children}</dl>;
}

export function Figure({ value, label, tone: kind = "", about }: { value: string; label: string; tone?: "" | "good" | "bad"; about?: string }): ReactNode {
  return (
    <div className={`figure ${kind}`} title={about}>
      <dt>{label}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export function Section({ id, title, lead, children }: { id: string; title: string; lead?: ReactNode; children: ReactNode }): ReactNode {
  return (
    <section id={id} className="section" aria-label={title}>
      <h2>{title}</h2>
      {lead && <p className="soft lead">{lead}</p>}
      <div className="blocks">{children}</div>
    </section>
  );
}

export function Block({ title, about, isWide = false, children }: { title: string; about?: string; isWide?: boolean; children: ReactNode }): ReactNode {
  return (
    <figure className={`chart ${isWide ? "wide" : ""}`} aria-label={title}>
      <figcaption><h3>{title}</h3>{about && <span className="soft">{about}</span>}</figcaption>
      {children}
    </figure>
  );
}

/** The first items, and the others when they are asked for. */
export function FirstOf<T>({ name, items, most, show }: { name: string; items: readonly T[]; most: number; show: (items: readonly T[]) => ReactNode }): ReactNode {
  const [isAll, setIsAll] = useKept(`all of ${name}`, false);
  return (
    <>
      {show(isAll ? items : items.slice(0, most))}
      {items.length > most && <button className="showall" onClick={() => setIsAll(!isAll)}>{isAll ? "Show fewer" : `Show all ${count(items.length)}`}</button>}
    </>
  );
}

export interface BarItem {
  name: string;
  value: number;
  part?: number;
  note?: string;
}

interface BarProps {
  title: string;
  items: BarItem[];
  unit: string;
  /** The name of the part of a value, such as `failed`; `of` if the part is compared with the whole value. */
  part?: string;
  isBad?: boolean;
  hrefOf?: (name: string) => string;
}

export function Bars({ title, items, unit, part = "", isBad = false, hrefOf }: BarProps): ReactNode {
  const shown = items.filter((item) => item.value);
  if (!shown.length) return null;
  shown.sort((one, two) => two.value - one.value || one.name.localeCompare(two.name));
  const most = shown[0]?.value ?? 1;
  const wide = (value: number): { width: string } => ({ width: `${(100 * value) / most}%` });
  const isOf = part === "of";
  const said = (item: BarItem): string =>
    isOf ? `${count(item.part ?? 0)} of ${count(item.value)}` : count(item.value) + (item.part ? ` (${count(item.part)} ${part})` : "");
  return (
    <Block title={title} about={unit}>
      <FirstOf name={title} items={shown} most={12} show={(listed) => (
        <ul className="bars">
          {listed.map((item) => (
            <li key={item.name} title={`${item.name}: ${said(item)} ${unit}`}>
              <span className="name">{hrefOf ? <a href={hrefOf(item.name)}>{item.name}</a> : item.name}</span>
              <span className="bar-track">
                <i className={isOf ? "pale" : isBad ? "bad" : ""} style={wide(item.value)} />
                {item.part ? <i className={isOf ? "" : "bad"} style={wide(item.part)} /> : null}
              </span>
              <span className="num">{said(item)}</span>
              {item.note && <span className="why soft">{item.note}</span>}
            </li>
          ))}
        </ul>
      )} />
    </Block>
  );
}

export const barsOf = (counts: Counts, parts: Counts = {}): BarItem[] =>
  Object.entries(counts).map(([name, value]) => ({ name, value, part: parts[name] ?? 0 }));

export interface Bin {
  low: number;
  high: number;
  counts: number[];
}

/** Return how often values lie in ranges of one size, for each of several distributions. The highest 1% share a range. */
export function binsOf(spreads: readonly (readonly [number, number][])[], most = 40): Bin[] {
  const all = spreads.flat();
  if (!all.length) return [];
  let least = Infinity;
  let top = -Infinity;
  for (const [value] of all) {
    least = Math.min(least, value);
    top = Math.max(top, value);
  }
  const near = quantile(all, 0.99);
  const end = Math.max(least + 1, Math.min(top, near + Math.max(1, Math.floor((near - least) / 10))));
  const size = Math.max(1, Math.ceil((end - least + 1) / most));
  const bins: Bin[] = [];
  for (let low = least; low <= end; low += size) bins.push({ low, high: low + size - 1, counts: spreads.map(() => 0) });
  spreads.forEach((spread, index) => {
    for (const [value, times] of spread) {
      const bin = bins[Math.min(Math.floor((value - least) / size), bins.length - 1)];
      if (bin) bin.counts[index] = (bin.counts[index] ?? 0) + times;
    }
  });
  const last = bins.at(-1);
  if (last) last.high = Math.max(last.low, top);
  return bins;
}

/** Return the smallest value that at least a share of the values does not exceed. */
export function quantile(spread: readonly (readonly [number, number])[], part: number): number {
  const sorted = [...spread].sort((one, two) => one[0] - two[0]);
  const wanted = part * sorted.reduce((sum, [, times]) => sum + times, 0);
  let passed = 0;
  for (const [value, times] of sorted) {
    passed += times;
    if (passed >= wanted) return value;
  }
  return 0;
}

export const meanOf = (values: readonly number[]): number => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);
export function deviationOf(values: readonly number[]): number {
  const mean = meanOf(values);
  return Math.sqrt(meanOf(values.map((value) => (value - mean) ** 2)));
}

/** Return the counts of values. */
export function spreadOf(values: Iterable<number>): [number, number][] {
  const counts = new Map<number, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((one, two) => one[0] - two[0]);
}

/** A distribution, or several over the same ranges, each with its share of its own values. */
export function Histogram({ title, spreads, unit, names = [] }: { title: string; spreads: [number, number][][]; unit: string; names?: string[] }): ReactNode {
  if (!spreads.some((spread) => spread.some(([value]) => value))) return null;
  const bins = binsOf(spreads);
  const totals = spreads.map((spread) => spread.reduce((sum, [, times]) => sum + times, 0) || 1);
  const isShare = spreads.length > 1;
  const height = (bin: Bin, index: number): number => (bin.counts[index] ?? 0) / (isShare ? totals[index] ?? 1 : 1);
  const most = Math.max(...bins.flatMap((bin) => spreads.map((_, index) => height(bin, index))));
  const range = (bin: Bin): string => (bin.low === bin.high ? count(bin.low) : `${count(bin.low)} to ${count(bin.high)}`);
  const told = (bin: Bin): string => spreads.map((_, index) => `${names[index] ? `${names[index]}: ` : ""}${many2(bin.counts[index] ?? 0, unit)}`).join(", ");
  const about = spreads.map((spread, index) => {
    const mean = spread.reduce((sum, [value, times]) => sum + value * times, 0) / (totals[index] ?? 1);
    return `median ${count(quantile(spread, 0.5))}, mean ${number(Math.round(mean * 10) / 10)}`;
  }).join(" · ");
  const narrow = { maxWidth: `${44 * bins.length}px` };
  return (
    <Block title={title} about={about}>
      <div className="plot">
        <div className="y soft num"><span>{isShare ? share(most, 1) : `${compact(most)} ${unit}`}</span><span>0</span></div>
        <div className="spread" style={narrow} role="img" aria-label={`${title}: ${about}`}>
          {bins.map((bin) => (
            <span key={bin.low} title={`${range(bin)}: ${told(bin)}`}>
              {spreads.map((_, index) => {
                const value = height(bin, index);
                return <i key={index} className={index ? "second" : ""} style={{ height: value ? `${Math.max(2, (100 * value) / most)}%` : 0 }} />;
              })}
            </span>
          ))}
        </div>
        <div className="axis soft num" style={narrow}><span>{count(bins[0]?.low ?? 0)}</span><span>{count(bins.at(-1)?.high ?? 0)}</span></div>
      </div>
      {names.length > 1 && <Legend items={names.map((name, index) => [index ? "second" : "", name])} />}
    </Block>
  );
}

const many2 = (value: number, unit: string): string => (unit.endsWith("s") && value === 1 ? many(value, unit.slice(0, -1)) : `${count(value)} ${unit}`);

export function Legend({ items, children }: { items: (readonly [string, string])[]; children?: ReactNode }): ReactNode {
  return (
    <div className="legend soft">
      {items.map(([kind, name]) => <span key={name}><i className={kind} />{name}</span>)}
      {children}
    </div>
  );
}

export interface Series {
  name: string;
  values: number[];
  kind?: "area" | "band" | "dots" | "bad";
  /** The upper end of a band. */
  upper?: number[];
}

interface LineProps {
  title: string;
  about?: string;
  series: Series[];
  ends: [string, string];
  point: (index: number) => string;
  format?: (value: number) => string;
  high?: number;
  isWide?: boolean;
}

export function Lines({ title, about, series, ends, point, format = number, high: atLeast = 0, isWide = false }: LineProps): ReactNode {
  const [at, setAt] = useState<number | null>(null);
  let low = 0;
  let high = atLeast;
  for (const item of series) for (const value of [...item.values, ...(item.upper ?? [])]) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  high = high || 1;
  const size = series[0]?.values.length ?? 0;
  const x = (index: number): string => ((600 * index) / Math.max(1, size - 1)).toFixed(1);
  const y = (value: number): string => (100 - (100 * (value - low)) / (high - low)).toFixed(2);
  const path = (values: number[]): string[] => values.map((value, index) => `${x(index)} ${y(value)}`);
  const shape = (item: Series): string => {
    const line = path(item.values);
    if (item.kind === "dots") return line.map((one) => `M${one}h0`).join("");
    if (item.kind === "band") return `M${line.join("L")}L${path(item.upper ?? []).reverse().join("L")}Z`;
    return `M${line.join("L")}${item.kind === "area" ? "V100H0Z" : ""}`;
  };
  const read = at === null ? "" : `${point(at)}: ${series.filter((item) => item.kind !== "band").map((item) => `${item.name} ${format(item.values[at] ?? 0)}`).join(", ")}`;
  return (
    <Block title={title} about={about} isWide={isWide}>
      <div className="plot">
        <div className="y soft num"><span>{format(high)}</span><span>{format(low)}</span></div>
        <svg
          viewBox="0 0 600 100" preserveAspectRatio="none" role="img" aria-label={`${title}${about ? `: ${about}` : ""}`} onPointerLeave={() => setAt(null)}
          onPointerMove={(event) => {
            const box = event.currentTarget.getBoundingClientRect();
            setAt(Math.max(0, Math.min(size - 1, Math.round(((size - 1) * (event.clientX - box.left)) / box.width))));
          }}
        >
          {series.map((item) => <path key={item.name} className={`series ${item.kind ?? ""}`} d={shape(item)} />)}
          {at !== null && <path className="series mark" d={`M${x(at)} 0V100`} />}
        </svg>
        <div className="axis soft num"><span>{ends[0]}</span><span>{ends[1]}</span></div>
      </div>
      <Legend items={series.length > 1 ? series.map((item) => [item.kind ?? "", item.name] as const) : []}>
        <span className="num read">{read}</span>
      </Legend>
    </Block>
  );
}

export function Matrix({ title, lead, rows, columns, counts }: { title: string; lead: string; rows: string[]; columns: string[]; counts: number[][] }): ReactNode {
  return (
    <Block title={title} about={lead} isWide>
      <div className="scroll" tabIndex={0} role="region" aria-label={title}>
        <table className="matrix">
          <thead>
            <tr><td />{columns.map((name) => <th key={name} scope="col"><span>{name}</span></th>)}</tr>
          </thead>
          <tbody>
            {rows.map((name, line) => {
              const total = counts[line]?.reduce((sum, value) => sum + value, 0) ?? 0;
              return (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  {columns.map((column, index) => {
                    const value = counts[line]?.[index] ?? 0;
                    const part = total ? value / total : 0;
                    return (
                      <td key={column} className={value ? onTone(0.1 + 0.9 * part) : ""} style={value ? { background: tone(0.1 + 0.9 * part) } : {}} title={`${count(value)} times ${column} after ${name}, of ${count(total)}`}>
                        {value ? (part < 0.005 ? "<1%" : `${Math.round(100 * part)}%`) : ""}
                      </td>
                    );
                  })}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </Block>
  );
}

export function Facts({ title, heads, rows, numbers = [], isWide = false }: { title: string; heads: string[]; rows: ReactNode[][]; numbers?: number[]; isWide?: boolean }): ReactNode {
  if (!rows.length) return null;
  const kind = (index: number): string => (numbers.includes(index) ? "num" : "");
  return (
    <Block title={title} isWide={isWide}>
      <FirstOf name={title} items={rows} most={40} show={(listed) => (
        <div className="scroll" tabIndex={0} role="region" aria-label={title}>
          <table className="plain">
            <thead><tr>{heads.map((text, index) => <th key={text} scope="col" className={kind(index)}>{text}</th>)}</tr></thead>
            <tbody>{listed.map((row, line) => <tr key={line}>{row.map((cell, index) => <td key={index} className={kind(index)}>{cell}</td>)}</tr>)}</tbody>
          </table>
        </div>
      )} />
    </Block>
  );
}
