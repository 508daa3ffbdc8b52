/** The state of a run as a chip. */
import type { ReactNode } from "react";
import type { FollowedRun } from "../fold/follow";
import { metricsOf, type RunFold } from "../fold/run";
import { count, usd } from "../format";
import { to } from "../router";
import type { RunInfo } from "../types";
import { Chip, type Tone } from "./basics";
import { number } from "./charts";

const WAITS: Record<string, string> = { question: "asks", approval: "approval", result: "waits for results", cancelled: "cancelled", interrupted: "interrupted", set_aside: "set aside" };

export function describeRun(run: Pick<RunInfo, "status" | "stop_reason" | "is_driven" | "is_turn_open" | "is_session" | "error">): [string, Tone, boolean] {
  if (run.status === "damaged") return ["damaged", "bad", false];
  if (run.status === "finished") {
    if (run.stop_reason === "completed") return ["completed", "good", false];
    return [run.stop_reason ?? "finished", run.stop_reason === "error" ? "bad" : "warn", false];
  }
  // A session that nobody has opened waits for nothing.
  if (run.status === "paused" && (run.stop_reason === "closed" || run.stop_reason === null)) return ["open", "", false];
  if (run.status === "paused") return [WAITS[run.stop_reason ?? ""] ?? "paused", "warn", false];
  if (run.is_turn_open) return run.is_driven ? ["running", "accent", true] : ["interrupted", "warn", false];
  if (run.error) return ["error", "bad", false];
  return [run.is_session ? "open" : "running", "", false];
}

export function RunChip({ run }: { run: RunInfo }): ReactNode {
  const [text, tone, moves] = describeRun(run);
  return <Chip tone={tone} title={run.error ?? ""} moves={moves} dot={tone !== ""}>{text}</Chip>;
}

/** Return the grades of a run in short, with the names of the scorers if there are several. */
export function writeRewards({ rewards }: RunFold): string {
  const all = [...rewards].map(([name, { reward = 0 }]) => (rewards.size > 1 ? `${name} ${number(reward)}` : number(reward)));
  return `reward${all.length > 1 ? "s" : ""} ${all.join(" · ")}`;
}

/** What each scorer said about a run. */
export function Grades({ runId, fold }: { runId: string; fold: RunFold }): ReactNode {
  return (
    <div className="grades" tabIndex={0} role="region" aria-label="grades">
      <table className="plain">
        <thead><tr>{["scorer", "reward", "reason", "metrics"].map((head) => <th key={head} scope="col" className={head === "reward" ? "num" : ""}>{head}</th>)}</tr></thead>
        <tbody>
          {[...fold.rewards].map(([name, event]) => (
            <tr key={name}>
              <td><a href={to(["run", runId], { at: event.seq })} title={event.scorer?.settings ? JSON.stringify(event.scorer.settings) : ""}>{name}</a></td>
              <td className="num">{number(event.reward ?? 0)}</td>
              <td>{event.detail}</td>
              <td className="soft">{metricsOf(event).join(", ")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What a run and its sub-agents used, as in the list of runs. */
export function Sums({ run: { info } }: { run: FollowedRun }): ReactNode {
  if (!info) return null;
  return (
    <>
      <span title={`with its sub-agents; ${count(info.cached_input_tokens)} of the input tokens were cached`}>{count(info.input_tokens)} → {count(info.output_tokens)} tokens</span>
      <span title="with its sub-agents">{usd(info.cost_usd)}</span>
    </>
  );
}
