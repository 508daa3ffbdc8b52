/** The runs that were forked from each other, drawn as branches, and the sub-agents of a run. */
import type { ReactNode } from "react";
import { count } from "../format";
import { useGet } from "../load";
import { to } from "../router";
import { bare } from "../source";
import type { RunInfo } from "../types";
import { Status } from "./basics";
import { RunChip } from "./runchip";

export interface Relative extends RunInfo {
  /** How many events of its parent it begins with; `null` for the run that all others come from. */
  forked_at: number | null;
}

export interface Relatives {
  family: Relative[];
  children: (RunInfo & { call_id: string })[];
}

/** The width of the branches. On a narrow screen, the names beside them are in view, too. */
const WIDTH = innerWidth < 800 ? 96 : 360;
const ROW = 40;

export function Family({ runId: shown, version }: { runId: string; version: number }): ReactNode {
  const runId = bare(shown);
  const { data, error } = useGet<Relatives>(`/v1/view/runs/${encodeURIComponent(shown)}/relatives`, version);
  if (error) return <Status error={error} />;
  if (!data) return <Status />;
  const most = Math.max(1, ...data.family.map((run) => run.events));
  const places = new Map(data.family.map((run, index) => [run.id, index]));
  const x = (events: number): number => 8 + (WIDTH - 16) * (events / most);
  const y = (index: number): number => ROW * index + ROW / 2;
  return (
    <div className="page scrolls family" tabIndex={0} aria-label="forks and sub-agents" role="region">
      <h2>Forks</h2>
      {data.family.length < 2 ? <p className="soft">No run was forked from this one. Fork it at any event with f.</p> : (
        <div className="branches">
          <svg width={WIDTH} height={ROW * data.family.length} role="img" aria-label="the forks as branches">
            {data.family.map((run, index) => {
              const parent = places.get(run.parent_run_id ?? "");
              const from = x(run.forked_at ?? 0);
              const kind = run.id === runId ? "own" : "";
              return (
                <g key={run.id} className={kind}>
                  {parent !== undefined && <path d={`M${from} ${y(parent)}V${y(index)}`} />}
                  <path d={`M${from} ${y(index)}H${x(run.events)}`} />
                  <circle cx={x(run.events)} cy={y(index)} r="4" />
                </g>
              );
            })}
          </svg>
          <ul>
            {data.family.map((run) => (
              <li key={run.id} className={run.id === runId ? "own" : ""} style={{ height: ROW }}>
                <a className="cut" href={to(["run", run.id])}>{run.title || run.id}</a> <RunChip run={run} />
                <span className="soft cut">{run.forked_at === null ? "" : `at event ${count(run.forked_at)}, `}{count(run.steps)} steps{run.reward === null ? "" : `, reward ${run.reward}`}</span>
                {run.id !== runId && <a href={to(["compare", runId, run.id])}>compare</a>}
              </li>
            ))}
          </ul>
        </div>
      )}
      <h2>Sub-agents</h2>
      {!data.children.length ? <p className="soft">This run has called no sub-agents.</p> : (
        <ul>
          {data.children.map((run) => (
            <li key={run.id}><a className="cut" href={to(["run", run.id])}>{run.title || run.id}</a> <RunChip run={run} /> <span className="soft">{count(run.steps)} steps</span></li>
          ))}
        </ul>
      )}
    </div>
  );
}
