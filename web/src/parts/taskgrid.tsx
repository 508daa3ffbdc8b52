/** The scores of tasks by models. For two of the models, the tasks in which they differ most stand first. */
import { useMemo, type ReactNode } from "react";
import type { ModelPair, Sample } from "../datatypes";
import { eventsOf } from "../fold/follow";
import { many } from "../format";
import { change, to, usePlace } from "../router";
import { has, isLive } from "../source";
import { Block, FirstOf, meanOf, onTone, tone } from "./charts";

export interface GridColumn {
  name: string;
  samples: readonly Sample[];
  /** What the ids of the samples' runs begin with in the page; `null` if it has no such runs. */
  sign: string | null;
}

interface GridLine {
  task: string;
  /** The graded samples of each column. */
  graded: Sample[][];
  /** How much higher the score of the first of two models is; `null` if one of them has no grade. */
  difference: number | null;
  /** The samples of the two with the same seed whose scores differ most. */
  apart: [Sample, Sample] | null;
}

const WORST = "worst";
const scoreOf = (sample: Sample): number => sample.details.score ?? 0;
const lowest = (samples: readonly Sample[]): Sample | undefined => [...samples].sort((one, two) => scoreOf(one) - scoreOf(two))[0];
const brief = (score: number): string => String(Math.round(100 * score) / 100).replace(/^(-?)0\./, "$1.");

/** The name of the order of tasks by how much two models differ. */
export const orderOf = (pair: ModelPair): string => `${pair.one} − ${pair.other}`;

/** A link to a run, if this page has it. */
export function RunLink({ run, sign, children }: { run: string; sign: string | null; children: ReactNode }): ReactNode {
  const isThere = sign !== null && (isLive || has(eventsOf(run)));
  const why = sign !== null ? "this file does not have the run" : "the run is in the journal of the other evaluation";
  return isThere ? <a href={to(["run", `${sign}${run}`])}>{children}</a> : <span title={why}>{children}</span>;
}

function pairUp(one: readonly Sample[], other: readonly Sample[]): [Sample, Sample] | null {
  const pairs = one.flatMap((sample) => other.filter((item) => item.spec.epoch === sample.spec.epoch).map((item): [Sample, Sample] => [sample, item]));
  const by = ([first, second]: [Sample, Sample]): number => Math.abs(scoreOf(first) - scoreOf(second));
  return pairs.sort((first, second) => by(second) - by(first))[0] ?? null;
}

function linesOf(columns: readonly GridColumn[], order: string, pair: ModelPair | undefined): GridLine[] {
  const places = new Map<string, Sample[][]>();
  columns.forEach((column, index) => {
    for (const sample of column.samples) {
      const graded = places.get(sample.spec.task) ?? columns.map(() => []);
      places.set(sample.spec.task, graded);
      if (sample.details.score !== null) graded[index]?.push(sample);
    }
  });
  const [first, second] = [pair?.one, pair?.other].map((name) => columns.findIndex((column) => column.name === name)) as [number, number];
  const lines = [...places].map(([task, graded]): GridLine => {
    const [one = [], other = []] = [graded[first], graded[second]];
    const isPaired = one.length > 0 && other.length > 0;
    return { task, graded, difference: isPaired ? meanOf(one.map(scoreOf)) - meanOf(other.map(scoreOf)) : null, apart: isPaired ? pairUp(one, other) : null };
  });
  const least = (line: GridLine): number => Math.min(...line.graded.filter((samples) => samples.length).map((samples) => meanOf(samples.map(scoreOf))));
  if (pair) return lines.sort((one, two) => Math.abs(two.difference ?? 0) - Math.abs(one.difference ?? 0));
  return order === WORST ? lines.sort((one, two) => least(one) - least(two)) : lines;
}

export function TaskGrid({ id, title, columns, pairs, first = "" }: { id: string; title: string; columns: readonly GridColumn[]; pairs: readonly ModelPair[]; first?: string }): ReactNode {
  const asked = usePlace().query.get("order") ?? first;
  const pair = pairs.find((item) => orderOf(item) === asked);
  const order = pair || asked === WORST ? asked : "";
  const lines = useMemo(() => linesOf(columns, order, pair), [columns, order, pair]);
  const signs = [pair?.one, pair?.other].map((name) => columns.find((column) => column.name === name)?.sign ?? null);
  return (
    <div id={id} className="chart wide">
      <Block title={title} isWide>
        <p>
          <select aria-label={`${title}: order`} value={order} onChange={(event) => change({ order: event.target.value || (first && "plan") })}>
            <option value="">in the order of the plan</option>
            <option value={WORST}>the lowest scores first</option>
            {pairs.map((item) => <option key={orderOf(item)} value={orderOf(item)}>by the difference {orderOf(item)}</option>)}
          </select>
        </p>
        <FirstOf name={title} items={lines} most={60} show={(listed) => (
          <div className="scroll" tabIndex={0} role="region" aria-label={`${title}: each task`}>
            <table className="matrix">
              <thead>
                <tr>
                  <td />{columns.map((column) => <th key={column.name} scope="col"><span>{column.name}</span></th>)}
                  {pair && <th scope="col"><span>difference</span></th>}
                </tr>
              </thead>
              <tbody>
                {listed.map((line) => (
                  <tr key={line.task}>
                    <th scope="row" title={line.task}>{line.task}</th>
                    {line.graded.map((samples, index) => <Cell key={columns[index]?.name} samples={samples} sign={columns[index]?.sign ?? null} />)}
                    {pair && <Apart line={line} signs={signs} />}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )} />
      </Block>
    </div>
  );
}

function Cell({ samples, sign }: { samples: readonly Sample[]; sign: string | null }): ReactNode {
  const worst = lowest(samples);
  if (!worst) return <td className="none" title="no grade" />;
  const mean = meanOf(samples.map(scoreOf));
  const about = `${many(samples.length, "sample")}, ${worst.details.kind ?? "all solved"}`;
  return (
    <td className={onTone(mean)} style={{ background: tone(mean) }} title={about}>
      <RunLink run={worst.run_id} sign={sign}>{brief(mean)}</RunLink>
    </td>
  );
}

/** By how much two models differ in a task, and a way to the two runs that differ most. */
function Apart({ line: { difference, apart }, signs }: { line: GridLine; signs: readonly (string | null)[] }): ReactNode {
  if (difference === null || !apart) return <td className="none" title="one of the two has no grade" />;
  const isThere = !signs.includes(null) && apart.every((sample) => isLive || has(eventsOf(sample.run_id)));
  const sign = difference > 0 ? "+" : "";
  return (
    <>
      <td>{sign}{brief(difference)}</td>
      {isThere && <td className="side"><a href={to(["compare", ...apart.map((sample, side) => `${signs[side]}${sample.run_id}`)])}>side by side</a></td>}
    </>
  );
}
