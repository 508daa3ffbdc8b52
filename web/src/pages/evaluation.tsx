/** How well models do tasks: scores with intervals, differences, cost, the grid of tasks by models, and failures. */
import { useEffect, useMemo, useState, type ReactNode } from "react";
import { Lost, Overview, useTitle, Waiting } from "../parts/basics";
import { Block, Facts, Figure, Figures, number, Section, share } from "../parts/charts";
import { orderOf, RunLink, TaskGrid, type GridColumn } from "../parts/taskgrid";
import type { Evaluation, EvaluationView, FailureKind, MeanEstimate, ModelPair, ModelResult } from "../datatypes";
import { count, oneLine, usd } from "../format";
import { useGet } from "../load";
import { to } from "../router";
import { get, isLive } from "../source";
import { isShown, signOfRuns } from "../shown";
import type { PageSpec } from ".";

const RELOAD_SECONDS = 5;
const ADDRESS = "/v1/view/evaluation";
const MOST_RUNS = 12;
const fixed = (value: number | null): string => value?.toFixed(3) ?? "–";
const dollars = (value: number | null): string => (value === null ? "unknown" : usd(value));
const signed = (value: number | null): string => value === null ? "–" : `${value < 0 ? "−" : "+"}${fixed(Math.abs(value))}`;
const written = (item: MeanEstimate | null | undefined): string => (item ? `${fixed(item.mean)} [${fixed(item.low)}, ${fixed(item.high)}]` : "–");

/** A mean with its interval below it. */
function Estimate({ item }: { item: MeanEstimate | null | undefined }): ReactNode {
  return item ? <span className="estimate">{fixed(item.mean)}<span className="soft">[{fixed(item.low)}, {fixed(item.high)}]</span></span> : "–";
}

/** Return one column of the grid of tasks for each model. */
const columnsOf = (found: Evaluation, sign: string | null, prefix = ""): GridColumn[] =>
  found.models.map((item) => ({ name: `${prefix}${item.model}`, samples: found.samples.filter((sample) => sample.spec.model === item.model), sign }));

/** Return the evaluation, and look again from time to time while samples may be made. */
function useEvaluation(): { view: EvaluationView | null; error: Error | null } {
  const { data, error } = useGet<EvaluationView>(ADDRESS);
  const [lost, setLost] = useState<Error | null>(null);
  const [newer, setNewer] = useState<EvaluationView | null>(null);
  const isDone = (newer ?? data)?.evaluations.every((item) => item.samples.length >= item.planned) ?? false;
  useEffect(() => {
    if (!isLive || isDone) return;
    const look = async (): Promise<void> => {
      if (document.visibilityState !== "visible") return;
      setNewer(await get<EvaluationView>(ADDRESS));
      setLost(null);
    };
    const timer = setInterval(() => void look().catch(setLost), 1000 * RELOAD_SECONDS);
    return () => clearInterval(timer);
  }, [isDone]);
  return { view: newer ?? data, error: error ?? lost };
}

function EvaluationPage(): ReactNode {
  const { view, error } = useEvaluation();
  useTitle(view && `${[...new Set(view.evaluations.map((item) => item.name))].join(" and ")}: evaluation`);
  if (!view) return <Waiting title="Evaluation" error={error}>Reading the samples …</Waiting>;
  const isCompared = view.evaluations.length > 1;
  // Two evaluations that nobody named have the same name.
  const hasNames = new Set(view.evaluations.map((item) => item.name)).size === view.evaluations.length;
  const nameOf = (item: Evaluation): string => (hasNames ? item.name : item.path);
  const isPaired = (column: GridColumn): boolean => view.pairs.some((pair) => pair.one === column.name || pair.other === column.name);
  const signs = view.has_runs.map((has, index) => (has ? (isLive && signOfRuns(index)) || "" : null));
  const both = view.evaluations.flatMap((item, index) => columnsOf(item, signs[index] ?? null, `${nameOf(item)}: `)).filter(isPaired);
  return (
    <main className="page">
      <div className="bar">
        <h1 className="cut" title={view.evaluations.map((item) => item.path).join(", ")}>{view.evaluations.map(nameOf).join(" and ")}</h1>
        <span className="soft cut grow">{view.evaluations.map((item) => `${count(item.samples.length)} of ${count(item.planned)} samples`).join(", ")}</span>
      </div>
      <Lost error={error} />
      <Overview label="overview">
        {isCompared && (
          <Section id="compared" title="Two evaluations" lead="The second minus the first, over the tasks that both have.">
            {view.remarks?.map((text) => <p className="remark" key={text}>{text.slice(0, 1).toUpperCase() + text.slice(1)}.</p>)}
            <Pairs pairs={view.pairs} grid="both" />
            {view.pairs[0] && <TaskGrid id="both" title="Tasks of both" columns={both} pairs={view.pairs} first={orderOf(view.pairs[0])} />}
          </Section>
        )}
        {view.evaluations.map((item, index) => <One key={item.path} found={item} sign={signs[index] ?? null} prefix={isCompared ? `${nameOf(item)}: ` : ""} />)}
      </Overview>
    </main>
  );
}

function One({ found, sign, prefix }: { found: Evaluation; sign: string | null; prefix: string }): ReactNode {
  const lost = Object.entries(found.failed);
  const columns = useMemo(() => columnsOf(found, sign), [found, sign]);
  const grid = `${prefix}grid`;
  return (
    <>
      {sign === null && <p className="remark">Its runs are in a journal of their own. To open them: treadle view {found.path}</p>}
      <Figures>
        <Figure label="models" value={count(found.models.length)} />
        <Figure label="tasks" value={count(new Set(found.samples.map((item) => item.spec.task)).size)} />
        <Figure label="samples graded" value={share(found.samples.length, found.planned)} />
        <Figure label="samples without a grade" value={count(lost.length)} tone={lost.length ? "bad" : ""} />
      </Figures>
      <Section id={`${prefix}scores`} title={`${prefix}Scores`} lead="Means with intervals of 95 %. Tasks are the clusters: samples of one task are alike.">
        <Intervals title="Score" rows={found.models.map((item) => [item.model, item.score] as const)} />
        <Models models={found.models} prefix={prefix} />
        <Pairs pairs={found.pairs} prefix={prefix} grid={grid} />
        <CostScore models={found.models} />
      </Section>
      <Section id={`${prefix}tasks`} title={`${prefix}Tasks by models`} lead="The mean score of each task and family. A number is the mean over epochs; it opens the worst run.">
        <TaskGrid id={grid} title={`${prefix}Tasks`} columns={columns} pairs={found.pairs} />
        <Families found={found} prefix={prefix} />
      </Section>
      <Section id={`${prefix}failures`} title={`${prefix}Failures`} lead="Samples that are not solved, by the kind of their failure.">
        <Failures kinds={found.failures} models={found.models.map((item) => item.model)} sign={sign} prefix={prefix} />
        <Facts title={`${prefix}Samples without a grade`} heads={["run", "reason"]} rows={lost} />
      </Section>
    </>
  );
}

/** One line for each row, with its interval drawn from 0 to 1. */
function Intervals({ title, rows }: { title: string; rows: (readonly [string, MeanEstimate | null])[] }): ReactNode {
  const x = (value: number): number => 600 * Math.min(1, Math.max(0, value));
  return (
    <Block title={title} isWide>
      <table className="plain intervals">
        <tbody>
          {rows.map(([name, item]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td className="drawn">
                {item && (
                  <svg viewBox="0 0 600 16" preserveAspectRatio="none" role="img" aria-label={written(item)}>
                    <path className="rail" d="M0 8H600" />
                    <path className="reach" d={`M${x(item.low ?? 0)} 8H${x(item.high ?? 1)}`} />
                    <path className="mean" d={`M${x(item.mean)} 1V15`} />
                  </svg>
                )}
              </td>
              <td className="num">{written(item)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Block>
  );
}

function Models({ models, prefix }: { models: ModelResult[]; prefix: string }): ReactNode {
  const most = Math.max(1, ...models.flatMap((item) => Object.keys(item.pass_at).map(Number)));
  const scorers = [...new Set(models.flatMap((item) => Object.keys(item.scorers)))];
  const chances = most > 1 ? [`pass@${most}`, `pass^${most}`] : [];
  const named = scorers.length > 1 ? scorers : [];
  const checked = models.some((item) => item.bootstrap) ? ["score by bootstrap"] : [];
  const rows = models.map((item) => [
    item.model, count(item.samples),
    ...[...checked.map(() => item.bootstrap), item.pass_at["1"], ...(most > 1 ? [item.pass_at[most], item.pass_all[most]] : []), ...named.map((name) => item.scorers[name])]
      .map((estimate) => <Estimate item={estimate} />),
    ...(item.samples ? [item.steps.toFixed(1), count(Math.round(item.tokens)), dollars(item.cost_usd), item.seconds.toFixed(2)] : ["–", "–", "–", "–"]),
  ]);
  const heads = ["model", "samples", ...checked, "solved", ...chances, ...named, "steps", "tokens", "cost", "seconds"];
  return <Facts isWide title={`${prefix}Models`} heads={heads} rows={rows} numbers={[1, ...[4, 3, 2, 1].map((back) => heads.length - back)]} />;
}

/** The differences of models, each with a way to the tasks in which the two differ most: those of the grid with an id. */
function Pairs({ pairs, prefix = "", grid }: { pairs: ModelPair[]; prefix?: string; grid: string }): ReactNode {
  const rows = pairs.map((pair) => {
    const found = pair.difference;
    return [
      <a href={to(["evaluation"], { order: orderOf(pair) })} onClick={() => document.getElementById(grid)?.scrollIntoView()} title="the tasks in which they differ most">{orderOf(pair)}</a>,
      `${signed(found.mean)} [${signed(found.low)}, ${signed(found.high)}]`, found.p_value.toPrecision(2),
      count(found.tasks), found.p_value < 0.05 ? "they differ" : "no difference shown", found.needed_tasks === null ? "–" : count(found.needed_tasks),
    ];
  });
  return <Facts isWide title={`${prefix}Differences on the same tasks`} heads={["models", "difference", "p", "tasks", "verdict", "tasks that would show it"]} rows={rows} numbers={[1, 2, 3, 5]} />;
}

function CostScore({ models }: { models: ModelResult[] }): ReactNode {
  const known = models.filter((item) => item.score !== null);
  const hasCost = known.some((item) => item.cost_usd);
  const costOf = (item: ModelResult): number => (hasCost ? item.cost_usd ?? 0 : item.tokens);
  const most = Math.max(...known.map(costOf), 0);
  if (known.length < 2 || !most) return null;
  const unit = hasCost ? "US dollars per sample" : "tokens per sample";
  // One unit is about a pixel, so that the names have the size of other texts.
  const width = window.innerWidth < 700 ? 340 : 600;
  const least = Math.floor(10 * Math.min(0.9, ...known.map((item) => item.score?.low ?? item.score?.mean ?? 0))) / 10;
  const xOf = (item: ModelResult): number => 40 + ((width - 60) * costOf(item)) / most;
  const y = (value: number): number => 200 - (190 * (value - least)) / (1 - least);
  // A name stands beside its point, and moves only as far as it takes to be clear of the names before it.
  const labels: number[] = [];
  for (const item of known) {
    let place = y(item.score?.mean ?? 0) + 4;
    const isTaken = (other: number, index: number): boolean => Math.abs(other - place) < 14 && Math.abs(xOf(known[index] as ModelResult) - xOf(item)) < 120;
    while (labels.some(isTaken) && place < 196) place += 14;
    labels.push(Math.min(place, 196));
  }
  return (
    <Block title="Score against cost" about={`upwards the score, to the right ${unit}`} isWide>
      <svg className="scatter" viewBox={`0 0 ${width} 220`} style={{ maxWidth: width }} role="img" aria-label={known.map((item) => `${item.model}: ${fixed(item.score?.mean ?? 0)} for ${number(costOf(item))} ${unit}`).join("; ")}>
        <path className="rail" d={`M40 10V200H${width - 10}`} />
        <text x="4" y="16">1</text><text x="4" y="204">{number(least)}</text>
        <text x={width - 10} y="216" textAnchor="end">{hasCost ? dollars(most) : count(Math.round(most))}</text>
        {known.map((item, index) => {
          const x = xOf(item);
          const score = item.score as MeanEstimate;
          const isRight = x > 0.6 * width;
          return (
            <g key={item.model}>
              <path className="reach" d={`M${x} ${y(score.low ?? least)}V${y(score.high ?? 1)}`} />
              <circle cx={x} cy={y(score.mean)} r="4" />
              <text x={isRight ? x - 8 : x + 8} y={labels[index]} textAnchor={isRight ? "end" : "start"}>{item.model}</text>
            </g>
          );
        })}
      </svg>
    </Block>
  );
}

function Families({ found, prefix }: { found: Evaluation; prefix: string }): ReactNode {
  const names = found.models.map((item) => item.model);
  const rows = Object.entries(found.families).map(([family, of]) => [family, ...names.map((name) => written(of[name]))]);
  return <Facts title={`${prefix}Families`} heads={["family", ...names]} rows={rows} numbers={names.map((_, index) => index + 1)} />;
}

function Failures({ kinds, models, sign, prefix }: { kinds: FailureKind[]; models: string[]; sign: string | null; prefix: string }): ReactNode {
  if (!kinds.length) return <p className="remark">No graded sample failed.</p>;
  const rows = kinds.map((kind) => [
    <span className="kind">{kind.kind}{kind.kind.includes("…") && <span className="soft"> (such as: {oneLine(kind.example, 160)})</span>}</span>,
    ...models.map((name) => count(kind.models[name] ?? 0)),
    <span className="runs">{kind.run_ids.slice(0, MOST_RUNS).map((run) => <RunLink key={run} run={run} sign={sign}>{run} </RunLink>)}</span>,
  ]);
  return <Facts title={`${prefix}Kinds`} heads={["kind", ...models, "runs"]} rows={rows} numbers={models.map((_, index) => index + 1)} isWide />;
}

export const evaluationPage: PageSpec = { name: "evaluation", title: "Evaluation", key: "v", hasOwnTitle: true, Page: EvaluationPage, isOffered: () => isShown("evaluation") };
