/** Topics: a map of the leaves, and an outline of all. */
import { useMemo, useRef, type ReactNode } from "react";
import { Figure, Figures, tone } from "../parts/charts";
import { Chip, Waiting } from "../parts/basics";
import { Treemap, type Leaf } from "../parts/treemap";
import type { TopicLine, TopicsView } from "../datatypes";
import { count } from "../format";
import { useKeys } from "../keys";
import { useGet } from "../load";
import { useSetting } from "../router";
import { isShown } from "../shown";
import type { PageSpec } from ".";
import { useVirtual } from "../parts/virtual";

interface Folded {
  line: TopicLine;
  path: string[];
  /** The number of the main branch; -1 for the root. */
  branch: number;
  /** The sums over the topic and all below it. */
  rows: number;
  leaves: number;
  notes: string[];
}

/** Return the topics with their paths and sums. The lines below a topic follow it. */
function fold(lines: TopicLine[]): Folded[] {
  const path: string[] = [];
  let branch = -1;
  const found = lines.map((line) => {
    path.length = line.depth;
    path.push(line.text);
    if (line.depth === 1) branch += 1;
    const isLeaf = !line.children && !line.error;
    const notes = [
      line.links?.length ? `also below: ${line.links.join(", ")}` : "",
      line.missing && !line.error ? `missing subtopics: ${count(line.missing)}` : "",
      line.error ? `failed: ${line.error}` : "",
    ].filter(Boolean);
    return { line, path: [...path], branch: line.depth ? branch : -1, rows: line.rows ?? 0, leaves: isLeaf ? 1 : 0, notes };
  });
  const above: Folded[] = [];
  const close = (depth: number): void => {
    while (above.length > depth) {
      const item = above.pop() as Folded;
      const parent = above.at(-1);
      if (parent) {
        parent.rows += item.rows;
        parent.leaves += item.leaves;
      }
    }
  };
  for (const item of found) {
    close(item.line.depth);
    above.push(item);
  }
  close(0);
  return found;
}

const branchColour = (branch: number, depth: number): string =>
  branch < 0 ? "var(--soft)" : `color-mix(in oklab, hsl(${(branch * 137.508 + 210) % 360} 55% 50%) ${Math.max(30, 92 - 17 * depth)}%, var(--card))`;

function Outline({ items, isCounted }: { items: Folded[]; isCounted: boolean }): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtual(items.length, box, () => 24);
  const most = Math.max(1, ...items.map((item) => (item.line.children ? 0 : item.rows)));
  return (
    <div className="topiclines" ref={box} tabIndex={0} role="region" aria-label="outline">
      <ul style={{ height: virtual.total }}>
        {virtual.lines.map(({ index, start }) => {
          const { line, branch, rows, path, notes } = items[index] as Folded;
          const fill = !isCounted ? branchColour(branch, line.depth) : line.children ? "transparent" : tone(rows ? 0.14 + (0.86 * rows) / most : 0);
          return (
            <li key={index} style={{ transform: `translateY(${start}px)`, paddingLeft: 12 + 16 * line.depth }} title={[path.join(" › "), ...notes].join("\n")}>
              <i className={isCounted && !rows ? "missing" : ""} style={{ background: fill }} />
              <span className={`cut ${line.error ? "bad" : ""} ${line.depth < 2 && line.children ? "strong" : ""}`}>{line.text}</span>
              {line.links?.length ? <span className="soft cut">↗ also below {line.links.join(", ")}</span> : null}
              {line.missing ? <Chip tone="warn">{count(line.missing)} missing</Chip> : null}
              {line.error && <Chip tone="bad" title={line.error}>failed</Chip>}
              {isCounted && <span className="num soft">{count(rows)}</span>}
            </li>
          );
        })}
      </ul>
    </div>
  );
}

function Topics(): ReactNode {
  const { data: view, error } = useGet<TopicsView>("/v1/view/topics");
  const [words, setWords] = useSetting("words");
  const items = useMemo(() => (view ? fold(view.lines) : []), [view]);
  useKeys([{ key: "x", about: "Clear the search", run: () => setWords("") }]);
  if (error || !view) return <Waiting title="Topics" error={error} />;
  const root = items[0];
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = wanted.length ? items.filter((item) => { const text = item.path.join(" ").toLowerCase(); return wanted.every((word) => text.includes(word)); }) : items;
  const cells: Leaf[] = items.filter((item) => !item.line.children && item.line.depth).map((item) => ({ path: item.path.slice(1), value: view.is_counted ? item.rows : item.leaves, size: 1, notes: item.notes }));
  const failed = items.filter((item) => item.line.error).length;
  const links = items.reduce((sum, item) => sum + (item.line.links?.length ?? 0), 0);
  return (
    <main className="page">
      <div className="bar">
        <h1 className="cut">{view.name}</h1>
        <input type="search" aria-label="Search topics" placeholder="Search topics" value={words} onChange={(event) => setWords(event.target.value)} />
        <span className="soft num" aria-live="polite">{found.length === items.length ? "" : `${count(found.length)} of ${count(items.length)} topics`}</span>
      </div>
      <div className="overview fixed">
        <Figures>
          <Figure label="topics" value={count(items.length)} />
          <Figure label="leaves" value={count(root?.leaves ?? 0)} />
          <Figure label="cross-links" value={count(links)} />
          <Figure label="failed" value={count(failed)} tone={failed ? "bad" : ""} />
          {view.is_counted && <Figure label="rows" value={count(root?.rows ?? 0)} />}
        </Figures>
        {cells.length > 1 && cells.length <= 2000 && <Treemap items={cells} unit={view.is_counted ? "rows" : "leaves"} above={[view.name]} />}
        <Outline items={found} isCounted={view.is_counted} />
      </div>
    </main>
  );
}

export const topicsPage: PageSpec = { name: "topics", title: "Topics", key: "t", Page: Topics, isOffered: () => isShown("topics") };
