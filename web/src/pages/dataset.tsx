/** A dataset: topics, tools and their order, lengths, kinds, quality, time and cost. */
import { useMemo, type ReactNode } from "react";
import { Bars, barsOf, Facts, Figure, Figures, Histogram, Lines, Matrix, Section, share } from "../parts/charts";
import { Overview, Status, useTitle, Waiting } from "../parts/basics";
import { Treemap, type Leaf } from "../parts/treemap";
import { SPREADS, type DatasetStats, type DatasetView, type SpreadName } from "../datatypes";
import { clock, compact, count, seconds, usd } from "../format";
import { useKeys } from "../keys";
import { useGet } from "../load";
import { go, to, usePlace } from "../router";
import { isShown } from "../shown";
import type { PageSpec } from ".";

export const datasetAddress = (number: string | undefined): string => `/v1/view/datasets/${/^\d+$/.test(number ?? "") ? number : 0}`;
const [START, END, OTHERS] = ["(start)", "(answer)", "(other tools)"];
const MAX_TOOLS = 14;
const MAX_CELLS = 1200;
export const SPREAD_NAMES: Record<SpreadName, string> = {
  turns: "Turns of a row",
  steps: "Steps of a row",
  calls: "Tool calls of a row",
  messages: "Messages of a row",
  chars: "Characters of a row",
};

export function DatasetBar({ view, number, tab }: { view: DatasetView; number: string; tab: "dataset" | "rows" }): ReactNode {
  useKeys([
    { key: "o", about: "Overview of the dataset", run: () => go(to(["dataset", number])) },
    { key: "r", about: "Rows of the dataset", run: () => go(to(["rows", number])) },
  ]);
  useTitle(`${view.name}: ${tab}`);
  return (
    <div className="bar">
      <h1 className="cut" title={view.folder}>{view.name}</h1>
      <nav className="sections" aria-label="dataset">
        <a href={to(["dataset", number])} aria-current={tab === "dataset" ? "page" : undefined}>Overview</a>
        <a href={to(["rows", number])} aria-current={tab === "rows" ? "page" : undefined}>Rows</a>
      </nav>
      <span className="soft cut grow">{leadOf(view)}</span>
    </div>
  );
}

function leadOf({ about, stats }: DatasetView): string {
  const agents = Object.keys(stats.models.agent ?? {}).join(", ");
  return `Conversations${about ? ` about “${about}”` : ""}${agents ? `, written by ${agents}` : ""}.`;
}

function Dataset(): ReactNode {
  const place = usePlace();
  const number = place.path[1] ?? "0";
  const { data: view, error } = useGet<DatasetView>(datasetAddress(number));
  if (error || !view) return <Waiting title="A dataset" error={error}>Reading the rows …</Waiting>;
  const isEmpty = !view.stats.rows && !view.stats.rejected;
  if (isEmpty) return <main className="page"><DatasetBar view={view} number={number} tab="dataset" /><Status>The dataset has no rows.</Status></main>;
  return (
    <main className="page">
      <DatasetBar view={view} number={number} tab="dataset" />
      <Overview label="overview">
        <DatasetFigures stats={view.stats} />
        {view.notes.map((note) => <p key={note} className="remark">{note}</p>)}
        <Topics view={view} number={number} />
        <Tools stats={view.stats} number={number} />
        <Section id="lengths" title="Lengths" lead="How many rows have which length.">
          {SPREADS.map((name) => <Histogram key={name} title={SPREAD_NAMES[name]} spreads={[view.stats.counts[name]]} unit="rows" />)}
        </Section>
        <Kinds stats={view.stats} number={number} />
        <Quality stats={view.stats} number={number} />
        <Times view={view} />
      </Overview>
    </main>
  );
}

const cost = (known: number, unknown: number): string => (unknown && !known ? "unknown" : usd(known) + (unknown ? "+" : ""));

export function figuresOf(stats: DatasetStats): [string, string, ("" | "good" | "bad")?, string?][] {
  const tokens = stats.input_tokens + stats.output_tokens;
  const repaired = stats.repaired ? `; ${count(stats.repaired)} rows have an answer that was asked for again` : "";
  return [
    ["rows kept", count(stats.rows)],
    ["results verified, of rows with calls", share(stats.verified, stats.with_calls), stats.with_calls && stats.verified === stats.with_calls ? "good" : ""],
    ...(stats.statements ? [["statements grounded", share(stats.grounded, stats.statements), "", `${count(stats.grounded)} of ${count(stats.statements)} statements of the answers in rows${repaired}`] as [string, string, "", string]] : []),
    ...(stats.statements && stats.controls ? [["judge agrees with the rules", share(stats.agreed, stats.controls), "", `${count(stats.agreed)} of ${count(stats.controls)} statements that the rules are sure of`] as [string, string, "", string]] : []),
    [`samples rejected (${share(stats.rejected, stats.rows + stats.rejected)})`, count(stats.rejected)],
    ["duplicate rows left", count(stats.duplicates), stats.duplicates ? "bad" : ""],
    ["topics with rows", count(stats.topics_with_rows)],
    ["tool calls in rows", count(stats.calls.total)],
    ["tokens for the rows", compact(tokens), "", `${count(tokens)} input and output tokens`],
    ["cost of the rows", cost(stats.known_cost_usd, stats.rows_without_cost)],
  ];
}

function DatasetFigures({ stats }: { stats: DatasetStats }): ReactNode {
  return <Figures>{figuresOf(stats).map(([label, value, kind, about]) => <Figure key={label} label={label} value={value} tone={kind ?? ""} about={about ?? ""} />)}</Figures>;
}

/** Return the rectangles of the map. If there are too many topics, subtopics are drawn together. */
export function cellsOf(leaves: [string[], number][]): { items: Leaf[]; above: string[] } {
  let depth = Math.max(0, ...leaves.map(([path]) => path.length));
  const key = (path: string[]): string => path.slice(0, depth).join("\u001f");
  while (depth > 1 && new Set(leaves.map(([path]) => key(path))).size > MAX_CELLS) depth -= 1;
  const found = new Map<string, Leaf>();
  for (const [path, rows] of leaves) {
    const leaf = found.get(key(path)) ?? { path: path.slice(0, depth), value: 0, size: 0, notes: [] };
    leaf.value += rows;
    leaf.size += 1;
    found.set(key(path), leaf);
  }
  const items = [...found.values()];
  const root = items[0]?.path[0];
  const isCommon = items.every(({ path }) => path[0] === root && path.length > 1);
  const above = isCommon && root !== undefined ? [root] : [];
  return { items: items.map((item) => ({ ...item, path: item.path.slice(above.length) })), above };
}

function Topics({ view, number }: { view: DatasetView; number: string }): ReactNode {
  const { items, above } = useMemo(() => cellsOf(view.leaves), [view]);
  if (items.length < 2) return null;
  const lacking = view.leaves.filter(([, rows]) => !rows).length;
  const lead = `${count(view.leaves.length)} leaf topics, ${lacking ? `${count(lacking)} of them without rows` : "all with rows"}. ${
    items.length < view.leaves.length ? `They are drawn as ${count(items.length)}; the size of a rectangle is their number. ` : ""
  }The colour is the number of rows. Select a topic to see its rows.`;
  return (
    <Section id="topics" title="Topics" lead={lead}>
      <div className="chart wide"><Treemap items={items} unit="rows" above={above} addressOf={(path) => to(["rows", number], { topic: path.join(" › ") })} /></div>
    </Section>
  );
}

function Tools({ stats, number }: { stats: DatasetStats; number: string }): ReactNode {
  const names = Object.entries(stats.tools).sort((one, two) => two[1] - one[1]).map(([name]) => name);
  if (!names.length) return null;
  const failed = Object.values(stats.tool_errors).reduce((sum, value) => sum + value, 0);
  const unused = Object.keys(stats.offered).filter((name) => !(name in stats.tools)).sort();
  const lead = `${count(stats.calls.total)} calls; ${count(failed)} of them have an error as the result (red).${unused.length ? ` Never called: ${unused.join(", ")}.` : ""}`;
  const orders = stats.sequences.map(([order, times]) => [order.length ? order.join(" → ") : "no tool", count(times), share(times, stats.turns_in_all)]);
  const listed = names.slice(0, MAX_TOOLS);
  const more = names.length > MAX_TOOLS ? [OTHERS as string] : [];
  const rows = [START as string, ...listed, ...more];
  const columns = [...listed, ...more, END as string];
  const counts = rows.map(() => columns.map(() => 0));
  for (const [one, two, times] of stats.orders) {
    const line = counts[rows.includes(one) ? rows.indexOf(one) : rows.length - 1];
    const column = columns.includes(two) ? columns.indexOf(two) : columns.length - 2;
    if (line) line[column] = (line[column] ?? 0) + times;
  }
  return (
    <Section id="tools" title="Tool use" lead={lead}>
      <Bars title="Calls by tool" items={barsOf(stats.tools, stats.tool_errors)} unit="calls" part="with an error" hrefOf={(name) => to(["rows", number], { tool: name })} />
      <Facts title="Most frequent orders of tools" heads={["order in a turn", "turns", "share"]} rows={orders} numbers={[1, 2]} />
      <Matrix title="Which tool comes next" lead="Each line is a tool; its cells say how often another tool, the same one or the answer comes next." rows={rows} columns={columns} counts={counts} />
    </Section>
  );
}

function Kinds({ stats, number }: { stats: DatasetStats; number: string }): ReactNode {
  const kinds = Object.entries(stats.kinds_planned).map(([name, value]) => {
    const met = stats.kinds_met[name] ?? 0;
    const shown = stats.kinds_shown[name] ?? 0;
    return { name, value, part: met, note: shown > met ? `${count(shown)} rows show it in all` : "" };
  });
  const models = Object.entries(stats.models).flatMap(([role, names]) =>
    Object.entries(names).sort((one, two) => two[1] - one[1]).map(([model, rows]) => [role, model, count(rows)]));
  return (
    <Section id="kinds" title="Kinds, difficulties and models" lead="For each kind of tool use: how many rows were planned for it, and how many of them show it.">
      <Bars title="Kinds of tool use: shown, of planned" items={kinds} unit="rows" part="of" hrefOf={(kind) => to(["rows", number], { kind })} />
      <Bars title="Difficulties" items={barsOf(stats.difficulties)} unit="rows" />
      <Bars title="Conversations" items={barsOf(stats.conversations)} unit="rows" />
      <Facts title="Models" heads={["role", "model", "rows"]} rows={models} numbers={[2]} />
    </Section>
  );
}

function Quality({ stats, number }: { stats: DatasetStats; number: string }): ReactNode {
  const items = Object.entries(stats.rejections).map(([name, value]) => {
    const reasons = Object.entries(stats.reasons[name] ?? {}).filter(([why]) => why).sort((one, two) => two[1] - one[1]).slice(0, 3);
    return { name, value, note: reasons.map(([why, times]) => `${count(times)} × ${why}`).join("; ").slice(0, 400) };
  });
  const names = [...new Set([...Object.keys(stats.filters), ...Object.keys(stats.rejections)])];
  const filters = names.map((name) => [name, count(stats.filters[name] ?? 0), count(stats.rejections[name] ?? 0)]);
  const lead = `${count(stats.rows)} rows were kept and ${count(stats.rejected)} samples were rejected. A sample can be rejected for several reasons.${
    stats.duplicates ? ` ${count(stats.duplicates)} rows have the same messages as an earlier one.` : ""
  }`;
  return (
    <Section id="quality" title="Quality" lead={lead}>
      <Bars title="Rejected by" items={items} unit="samples" isBad hrefOf={(filter) => to(["rows", number], { filter })} />
      <Facts title="Filters" heads={["filter", "passed", "rejected"]} rows={filters} numbers={[1, 2]} />
      <Bars title="How the conversations ended" items={barsOf(stats.stop_reasons)} unit="rows" />
    </Section>
  );
}

function Times({ view }: { view: DatasetView }): ReactNode {
  const { stats, times } = view;
  const uses = [["rows", count(stats.input_tokens), count(stats.output_tokens), cost(stats.known_cost_usd, stats.rows_without_cost)]];
  if (stats.rejected) uses.push(["rejected samples", count(stats.rejected_input_tokens), count(stats.rejected_output_tokens), cost(stats.rejected_cost_usd, stats.rejected_without_cost)]);
  if (!times && !stats.input_tokens && !stats.rejected_input_tokens && !stats.rejected_output_tokens) return null;
  const last = (values: number[]): number => values.at(-1) ?? 0;
  const ends: [string, string] = times ? [clock(times.begin), `after ${seconds(times.seconds)}`] : ["", ""];
  const point = (index: number): string => (times ? seconds((times.seconds * (index + 1)) / times.kept.length) : "");
  return (
    <Section id="time" title="Time and cost">
      {times && (
        <>
          <Lines title="Rows over time" about={`${count(last(times.kept))} kept, ${count(last(times.rejected))} rejected`} ends={ends} point={point}
            series={[{ name: "rows kept", values: times.kept, kind: "area" }, ...(last(times.rejected) ? [{ name: "samples rejected", values: times.rejected, kind: "bad" as const }] : [])]} />
          <Lines title="Tokens over time" about={`${count(last(times.tokens))} in all`} ends={ends} point={point} format={compact} series={[{ name: "tokens", values: times.tokens, kind: "area" }]} />
          {last(times.cost_usd) > 0 && <Lines title="Cost over time" about={`${usd(last(times.cost_usd))} in all`} ends={ends} point={point} format={usd} series={[{ name: "cost", values: times.cost_usd, kind: "area" }]} />}
        </>
      )}
      <Facts title="Tokens and cost" heads={["spent on", "input tokens", "output tokens", "cost"]} rows={uses} numbers={[1, 2, 3]} />
    </Section>
  );
}

export const datasetPage: PageSpec = { name: "dataset", title: "Dataset", key: "d", hasOwnTitle: true, Page: Dataset, isOffered: () => isShown("dataset") };
