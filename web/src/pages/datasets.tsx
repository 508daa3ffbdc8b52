/** Two datasets compared: what they are made of, and which rows one of them lacks. */
import type { ReactNode } from "react";
import { Block, Facts, Figure, Figures, FirstOf, Histogram, Section } from "../parts/charts";
import { Overview, Status } from "../parts/basics";
import { SPREADS, type ComparedRows, type Counts, type DatasetView } from "../datatypes";
import { count } from "../format";
import { useGet } from "../load";
import { useKeys } from "../keys";
import { SideLines, sidesOf } from "../parts/conversation";
import { useRow, useRows, type Chosen, type OpenedRow } from "../parts/rows";
import { change, to, usePlace } from "../router";
import { isShown } from "../shown";
import type { PageSpec } from ".";
import { datasetAddress, figuresOf, SPREAD_NAMES } from "./dataset";

const KEPT: Chosen = { status: "kept" };

/** The counts of both, as shares of the rows, with the difference. */
function Both({ title, unit, counts, rows }: { title: string; unit: string; counts: [Counts, Counts]; rows: [number, number] }): ReactNode {
  const names = [...new Set(counts.flatMap((item) => Object.keys(item)))].filter((name) => counts.some((item) => item[name]));
  if (!names.length) return null;
  const part = (name: string, index: 0 | 1): number => (rows[index] ? (counts[index][name] ?? 0) / rows[index] : 0);
  const most = Math.max(...names.flatMap((name) => [part(name, 0), part(name, 1)])) || 1;
  names.sort((one, two) => Math.max(part(two, 0), part(two, 1)) - Math.max(part(one, 0), part(one, 1)));
  const percent = (value: number): string => (most > 1 ? value.toFixed(2) : `${(100 * value).toFixed(1)}%`);
  return (
    <Block title={title} about={unit}>
      <FirstOf name={title} items={names} most={12} show={(listed) => (
        <ul className="bars both">
          {listed.map((name) => (
            <li key={name} title={`${name}: ${count(counts[0][name] ?? 0)} and ${count(counts[1][name] ?? 0)} ${unit}`}>
              <span className="name">{name}</span>
              <span className="two-tracks">
                {([0, 1] as const).map((index) => <span className="bar-track" key={index}><i className={index ? "second" : ""} style={{ width: `${(100 * part(name, index)) / most}%` }} /></span>)}
              </span>
              <span className="num">{percent(part(name, 0))} · {percent(part(name, 1))}</span>
            </li>
          ))}
        </ul>
      )} />
    </Block>
  );
}

function Ids({ title, ids, numbers }: { title: string; ids: string[]; numbers: number[] }): ReactNode {
  if (!ids.length) return null;
  return (
    <Block title={title} about={count(ids.length)}>
      <FirstOf name={title} items={ids} most={20} show={(listed) => (
        <ul className="ids">
          {listed.slice(0, 2000).map((id) => (
            <li key={id} className="row"><code className="cut">{id}</code>{numbers.length > 1 && <a href={to(["datasets"], { row: id })} aria-label={`${id} side by side`}>side by side</a>}{numbers.map((number) => <a key={number} href={to(["rows", String(number)], { words: id })} aria-label={`${id} in dataset ${number + 1}`}>{numbers.length > 1 ? (number ? "second" : "first") : "open"}</a>)}</li>
          ))}
        </ul>
      )} />
    </Block>
  );
}

/** A row that is in both datasets, side by side. */
function RowPair({ id, views }: { id: string; views: [DatasetView, DatasetView] }): ReactNode {
  const [one, two] = views;
  const sides = [useRowNamed(one, "0", id), useRowNamed(two, "1", id)];
  const names = namesOf(one, two);
  const isLoaded = sides.every((side) => side.body || side.absent);
  useKeys([{ key: "q", about: "Back to the comparison", run: () => change({ row: "" }) }]);
  return (
    <Overview label="rows side by side" className="rollout-sides">
      <div className="row wrap hiddenones"><button onClick={() => change({ row: "" })} title="Back to the comparison (q)">‹ Comparison</button><code className="cut">{id}</code></div>
      <div className="sidehead" style={sidesOf(2)}>
        {sides.map((side, number) => (
          <section key={number} aria-label={names[number]}>
            <b>{names[number]}</b>
            {Object.entries(side.body?.facts ?? {}).map(([name, value]) => <div key={name} className="soft">{name}: {value}</div>)}
            {side.absent && <p className="soft">{side.absent}</p>}
          </section>
        ))}
      </div>
      {isLoaded ? <SideLines conversations={sides.map((side) => side.body?.messages ?? [])} /> : <Status />}
    </Overview>
  );
}

/** Return the row of a dataset that has an id. */
function useRowNamed(view: DatasetView, number: string, id: string): OpenedRow {
  const found = useRows(view, datasetAddress(number), id, KEPT);
  const head = found.heads.find((item) => item.row_id === id) ?? null;
  const opened = useRow(view, datasetAddress(number), head);
  if (head || found.isLoading) return opened;
  return { body: null, absent: found.error?.message ?? "There is no such row." };
}

/** Return how both are called: by their folders if they have one name. */
const namesOf = (one: DatasetView | null, two: DatasetView | null): string[] =>
  [one, two].map((view) => (view === null ? "" : one?.name === two?.name ? view.folder : view.name));

function Compared({ rows, views }: { rows: ComparedRows; views: [DatasetView, DatasetView] }): ReactNode {
  const [one, two] = views;
  const names = namesOf(one, two);
  const sizes: [number, number] = [one.stats.rows, two.stats.rows];
  const left = figuresOf(one.stats);
  const right = figuresOf(two.stats);
  const labels = [...new Set([...left, ...right].map(([label]) => label.replace(/ \(.*/, "")))];
  const value = (found: typeof left, label: string): string => found.find(([name]) => name.replace(/ \(.*/, "") === label)?.[1] ?? "–";
  const both = (counts: (view: DatasetView) => Counts): [Counts, Counts] => [counts(one), counts(two)];
  const leaves = (view: DatasetView): string[] => view.leaves.map(([path]) => path.join(" › "));
  const lacks = (view: DatasetView, other: DatasetView): string[] => { const there = new Set(leaves(other)); return leaves(view).filter((path) => !there.has(path)); };
  return (
    <Overview label="comparison">
      <Figures>
        <Figure label="rows that are equal" value={count(rows.equal)} />
        <Figure label="rows that say something else" value={count(rows.changed.length)} />
        <Figure label="rows of the first one only" value={count(rows.only[0].length)} />
        <Figure label={`rows of the second one only${rows.moved ? `; ${count(rows.moved)} of them say the same as a row of the first one` : ""}`} value={count(rows.only[1].length)} />
      </Figures>
      <Section id="figures" title="Figures">
        <Facts title="Both in figures" heads={["figure", ...names]} numbers={[1, 2]} rows={labels.map((label) => [label, value(left, label), value(right, label)])} />
      </Section>
      <Section id="lengths" title="Lengths" lead="The share of the rows that have a length, in each of both.">
        {SPREADS.map((name) => <Histogram key={name} title={SPREAD_NAMES[name]} spreads={[one.stats.counts[name], two.stats.counts[name]]} unit="rows" names={names} />)}
      </Section>
      <Section id="content" title="Content" lead="Relative to the number of rows of each.">
        <Both title="Calls by tool, for each row" unit="calls" counts={both((view) => view.stats.tools)} rows={sizes} />
        <Both title="Kinds that were planned" unit="rows" counts={both((view) => view.stats.kinds_planned)} rows={sizes} />
        <Both title="Difficulties" unit="rows" counts={both((view) => view.stats.difficulties)} rows={sizes} />
        <Both title="How the conversations ended" unit="rows" counts={both((view) => view.stats.stop_reasons)} rows={sizes} />
        <Both title="Models" unit="rows" counts={both((view) => view.stats.models.agent ?? {})} rows={sizes} />
        <Both title="Rejected by, of all samples" unit="samples" counts={both((view) => view.stats.rejections)} rows={[one.stats.rows + one.stats.rejected, two.stats.rows + two.stats.rejected]} />
      </Section>
      <Section id="topics" title="Topics">
        <Facts title="Topics of the first one only" heads={["topic"]} rows={lacks(one, two).map((path) => [path])} />
        <Facts title="Topics of the second one only" heads={["topic"]} rows={lacks(two, one).map((path) => [path])} />
        {!lacks(one, two).length && !lacks(two, one).length && <p className="soft">Both have the same topics.</p>}
      </Section>
      <Section id="rows" title="Rows" lead="Rows with the same id are compared by what their messages say.">
        <Ids title="Rows that say something else" ids={rows.changed} numbers={[0, 1]} />
        <Ids title="Rows of the first one only" ids={rows.only[0]} numbers={[0]} />
        <Ids title="Rows of the second one only" ids={rows.only[1]} numbers={[1]} />
      </Section>
    </Overview>
  );
}

function Datasets(): ReactNode {
  const rows = useGet<ComparedRows>("/v1/view/comparison");
  const one = useGet<DatasetView>(datasetAddress("0"));
  const two = useGet<DatasetView>(datasetAddress("1"));
  const error = rows.error ?? one.error ?? two.error;
  const isReady = rows.data && one.data && two.data;
  const row = usePlace().query.get("row");
  return (
    <main className="page">
      <div className="bar">
        <h1 className="cut">{rows.data?.name ?? "Two datasets"}</h1>
        {isReady && <nav className="sections" aria-label="datasets"><a href={to(["dataset", "0"])}>{namesOf(one.data, two.data)[0]}</a><a href={to(["dataset", "1"])}>{namesOf(one.data, two.data)[1]}</a></nav>}
      </div>
      {error || !isReady ? <Status error={error}>Reading both datasets …</Status> : row ? <RowPair id={row} views={[one.data as DatasetView, two.data as DatasetView]} /> : <Compared rows={rows.data as ComparedRows} views={[one.data as DatasetView, two.data as DatasetView]} />}
    </main>
  );
}

export const datasetsPage: PageSpec = { name: "datasets", title: "Comparison", key: "b", Page: Datasets, isOffered: () => isShown("datasets") };
