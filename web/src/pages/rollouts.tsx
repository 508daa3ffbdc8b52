/** Groups of rollouts with their rewards: how rewards went, how long rollouts are, and why branches begin. */
import { useEffect, useMemo, useState, type ReactNode } from "react";
import { Bars, barsOf, Block, deviationOf, Facts, Figure, Figures, Histogram, Lines, meanOf, number, onTone, Section, share, spreadOf, tone, type Series } from "../parts/charts";
import { Lost, Overview, Status, useTitle, Waiting } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import type { Counts, Drift, GroupFacts, HeldOutScore, RolloutFacts, RolloutsView } from "../datatypes";
import { count, many } from "../format";
import { useKeys } from "../keys";
import { change, go, to, usePlace } from "../router";
import { get, isLive } from "../source";
import { isShown } from "../shown";
import type { PageSpec } from ".";
import { DriftText } from "./tokens";

const WINDOW_SHARE = 20;
const MAX_POINTS = 2000;
const RELOAD_SECONDS = 5;
const ADDRESS = "/v1/view/rollouts";
/** How many groups are read at first, and then at once: their runs are read from the journal. */
const FIRST_READ = 12;
const MOST_READ = 60;
const known = (group: GroupFacts): number[] => group.rollouts.map((item) => item.reward).filter((value) => value !== null);
const isSolved = (group: GroupFacts): boolean => group.rollouts.some((item) => item.is_solved);

/** The rollouts as far as they were read, which stay while pages change. */
let kept: RolloutsView | null = null;

/** Return the rollouts as far as they are read, and look again while others may be made. A journal has groups only. */
export function useRollouts(group = ""): { view: RolloutsView | null; error: Error | null } {
  const hasAll = isShown("rollouts");
  const grows = isLive && hasAll;
  const [view, setView] = useState(grows ? kept : null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    const read = async (limit: number): Promise<boolean> => {
      if (!grows) {
        setView(await get<RolloutsView>(hasAll ? ADDRESS : `/v1/view/groups/${encodeURIComponent(group)}`, stop.signal));
        return true;
      }
      const before = kept?.groups ?? [];
      const found = await get<RolloutsView>(`${ADDRESS}?after=${before.length}&limit=${limit}`, stop.signal);
      if (!kept || found.groups.length || found.held_out.length !== kept.held_out.length) setView(kept = { ...found, groups: [...before, ...found.groups] });
      return kept.groups.length >= found.delivered;
    };
    const follow = async (): Promise<void> => {
      for (let limit = kept ? MOST_READ : FIRST_READ; !stop.signal.aborted; limit = MOST_READ) {
        let isRead = document.visibilityState !== "visible";
        try {
          isRead ||= await read(limit);
          setError(null);
        } catch (reason) {
          if (stop.signal.aborted) return;
          setError(reason as Error);
          isRead = true;
        }
        if (!grows) return;
        if (isRead) await new Promise((done) => setTimeout(done, 1000 * RELOAD_SECONDS));
      }
    };
    void follow();
    return () => stop.abort();
  }, [grows, hasAll, group]);
  return { view, error };
}

export function RolloutsBar({ view, error, tab }: { view: RolloutsView; error: Error | null; tab: "rollouts" | "groups" }): ReactNode {
  useKeys([
    { key: "o", about: "Overview of the rollouts", run: () => go(to(["rollouts"])) },
    { key: "e", about: "Groups", run: () => go(to(["groups"])) },
  ]);
  return (
    <>
      <div className="bar">
        <h1 className="cut" title={view.folder}>{view.name}</h1>
        <nav className="sections" aria-label="rollouts">
          <a href={to(["rollouts"])} aria-current={tab === "rollouts" ? "page" : undefined}>Overview</a>
          <a href={to(["groups"])} aria-current={tab === "groups" ? "page" : undefined}>Groups</a>
        </nav>
        <span className="soft cut grow">{view.groups.length < view.delivered ? `${count(view.groups.length)} of ${count(view.delivered)} groups are read …` : `Rollouts of ${many(new Set(view.groups.map((group) => group.task)).size, "task")}.`}</span>
      </div>
      <Lost error={error} />
    </>
  );
}

function Rollouts(): ReactNode {
  const { view, error } = useRollouts();
  useTitle(view && `${view.name}: rollouts`);
  if (!view) return <Waiting title="Rollouts" error={error}>Reading the groups …</Waiting>;
  const all = view.groups.flatMap((group) => group.rollouts);
  return (
    <main className="page">
      <RolloutsBar view={view} error={error} tab="rollouts" />
      <Overview label="overview">
        <RolloutFigures view={view} all={all} />
        {Object.entries(view.dropped).map(([reason, groups]) => <p key={reason} className="remark">{count(groups)} groups were dropped: {reason}.</p>)}
        <HeldOut scores={view.held_out} />
        <Rewards groups={view.groups} all={all} />
        <Lengths all={all} />
        <Tools all={all} />
        <Branches all={all} />
      </Overview>
    </main>
  );
}

function RolloutFigures({ view, all }: { view: RolloutsView; all: RolloutFacts[] }): ReactNode {
  const rewards = view.groups.flatMap(known);
  const solved = view.groups.filter(isSolved).length;
  const branches = all.flatMap((item) => item.branches);
  const exact = branches.filter((item) => item.grade === "token_exact").length;
  const dropped = Object.values(view.dropped).reduce((sum, value) => sum + value, 0);
  const sampled = branches.reduce((sum, item) => sum + (item.sampled_tokens ?? 0), 0);
  return (
    <Figures>
      <Figure label={`mean reward${rewards.length ? ` ± ${deviationOf(rewards).toFixed(3)}` : ""}`} value={rewards.length ? meanOf(rewards).toFixed(3) : "–"} />
      <Figure label="of groups solved at least once" value={share(solved, view.groups.length)} />
      <Figure label="groups" value={count(view.groups.length)} />
      <Figure label="groups without variance" value={count(view.groups.filter((group) => !group.has_variance).length)} />
      <Figure label="groups dropped" value={count(dropped)} tone={dropped ? "bad" : ""} />
      <Figure label="of branches with exact tokens" value={share(exact, branches.length)} tone={branches.length && exact === branches.length ? "good" : ""} />
      <Figure label="rollouts" value={count(all.length)} />
      <Figure label="sampled tokens" value={count(sampled)} />
    </Figures>
  );
}

/** Return the mean of the last values up to each one, for at most `MAX_POINTS` of them. */
function smooth(values: number[], size: number, every: number): number[] {
  const found: number[] = [];
  let sum = 0;
  values.forEach((value, index) => {
    sum += value - (index >= size ? values[index - size] ?? 0 : 0);
    if (index % every === 0) found.push(sum / Math.min(size, index + 1));
  });
  return found;
}

function Rewards({ groups, all }: { groups: GroupFacts[]; all: RolloutFacts[] }): ReactNode {
  const graded = groups.map(known).filter((rewards) => rewards.length);
  const named = new Map<string, number[]>();
  for (const item of all) for (const [name, value] of Object.entries(item.rewards)) named.set(name, [...(named.get(name) ?? []), value]);
  const rows = [...named].map(([name, values]) => [name, meanOf(values).toFixed(3), deviationOf(values).toFixed(3), number(Math.min(...values)), number(Math.max(...values))]);
  const means = graded.map(meanOf);
  const size = Math.max(1, Math.floor(means.length / WINDOW_SHARE));
  const every = Math.max(1, Math.floor(means.length / MAX_POINTS));
  const line = smooth(means, size, every);
  const around = smooth(graded.map(deviationOf), size, every);
  // No reward is outside of these, so the band is not drawn there.
  const [least, most] = graded.reduce<[number, number]>(([low, high], rewards) => [Math.min(low, ...rewards), Math.max(high, ...rewards)], [Infinity, -Infinity]);
  const series: Series[] = [
    { name: "deviation", values: line.map((mean, index) => Math.max(least, mean - (around[index] ?? 0))), upper: line.map((mean, index) => Math.min(most, mean + (around[index] ?? 0))), kind: "band" },
    ...(size > 1 ? [{ name: "one group", values: means.filter((_, index) => index % every === 0), kind: "dots" } satisfies Series] : []),
    { name: size > 1 ? `mean of ${count(size)} groups` : "mean of each group", values: line },
  ];
  return (
    <Section id="rewards" title="Rewards" lead="The mean reward of each group, in the order of delivery. The band is the deviation within a group.">
      {means.length > 1 && (
        <Lines title="Reward" about={`first ${line[0]?.toFixed(3)}, last ${line.at(-1)?.toFixed(3)}`} series={series} ends={["first group", `group ${count(means.length)}`]}
          point={(index) => `group ${count(index * every + 1)}`} high={1} isWide />
      )}
      <Facts title="Rewards by name" heads={["reward", "mean", "deviation", "least", "most"]} rows={rows} numbers={[1, 2, 3, 4]} />
    </Section>
  );
}

/** The scores of the held-out tasks, one line for each version of the weights. */
function HeldOut({ scores }: { scores: HeldOutScore[] }): ReactNode {
  if (!scores.length) return null;
  const found = scores.flatMap(({ version, score }) => (score ? [{ version: version ?? "unknown", score }] : []));
  const series: Series[] = [
    { name: "interval of 95 %", values: found.map(({ score }) => score.low ?? score.mean), upper: found.map(({ score }) => score.high ?? score.mean), kind: "band" },
    { name: "mean reward", values: found.map(({ score }) => score.mean) },
  ];
  const rows = scores.map((item) => [
    item.version ?? "unknown", count(item.groups), item.score ? `${item.score.mean.toFixed(3)} [${item.score.low?.toFixed(3) ?? "–"}, ${item.score.high?.toFixed(3) ?? "–"}]` : "–",
    item.score ? share(item.solved ?? 0, 1) : "–", count(item.score?.samples ?? 0), share(item.own_answers ?? 1, 1), count(item.left_out ?? 0), count(item.failed ?? 0),
  ]);
  return (
    <Section id="held-out" title="Held-out tasks" lead="The mean reward on tasks that are not trained on, with its interval of 95 %, for each version of the weights.">
      {found.length > 1 && (
        <Lines title="Held-out reward" about={`from ${found[0]?.score.mean.toFixed(3)} to ${found.at(-1)?.score.mean.toFixed(3)}`} series={series}
          ends={[`weights ${found[0]?.version}`, `weights ${found.at(-1)?.version}`]} point={(index) => `weights ${found[index]?.version}`} high={1} isWide />
      )}
      <Facts title="Versions of the weights" heads={["version", "groups before", "mean reward", "solved", "samples", "answers of the version", "left out", "failed"]} rows={rows} numbers={[1, 2, 3, 4, 5, 6, 7]} isWide />
    </Section>
  );
}

const callsOf = (item: RolloutFacts): number => Object.values(item.calls).reduce((sum, [made]) => sum + made, 0);

function tally(names: Iterable<string>): Counts {
  const found: Counts = {};
  for (const name of names) found[name] = (found[name] ?? 0) + 1;
  return found;
}

function Lengths({ all }: { all: RolloutFacts[] }): ReactNode {
  return (
    <Section id="lengths" title="Lengths" lead="How long the rollouts are, and how they ended.">
      <Histogram title="Output tokens of a rollout" spreads={[spreadOf(all.map((item) => item.output_tokens))]} unit="rollouts" />
      <Histogram title="Steps of a rollout" spreads={[spreadOf(all.map((item) => item.steps))]} unit="rollouts" />
      <Histogram title="Tool calls of a rollout" spreads={[spreadOf(all.map(callsOf))]} unit="rollouts" />
      <Bars title="Stop reasons" items={barsOf(tally(all.map((item) => item.stop_reason)))} unit="rollouts" />
    </Section>
  );
}

function Tools({ all }: { all: RolloutFacts[] }): ReactNode {
  const made: Counts = {};
  const failed: Counts = {};
  for (const item of all) for (const [name, [calls, errors]] of Object.entries(item.calls)) {
    made[name] = (made[name] ?? 0) + calls;
    failed[name] = (failed[name] ?? 0) + errors;
  }
  if (!Object.keys(made).length) return null;
  return (
    <Section id="tools" title="Tools" lead="The red part of a bar failed or was not run.">
      <Bars title="Calls by tool" items={barsOf(made, failed)} unit="calls" part="failed" />
    </Section>
  );
}

const policyOf = (isOfPolicy: boolean | null | undefined): string =>
  isOfPolicy === true ? "of the policy, as it samples" : isOfPolicy === false ? "of another distribution than the one sampled from" : "of a distribution that is not known";

function Branches({ all }: { all: RolloutFacts[] }): ReactNode {
  const branches = all.flatMap((item) => item.branches.map((branch) => ({ run: item.run_id, branch })));
  const examples = new Map<string, [string, Drift]>();
  const versions: Counts = {};
  for (const { run, branch } of branches) {
    if (branch.drift && !examples.has(branch.drift.kind)) examples.set(branch.drift.kind, [run, branch.drift]);
    for (const [name, tokens] of Object.entries(branch.versions ?? {})) versions[name] = (versions[name] ?? 0) + tokens;
  }
  const exact = branches.filter(({ branch }) => branch.grade === "token_exact");
  return (
    <Section id="drift" title="Drift" lead="A branch begins where a prompt does not extend the tokens of an earlier prompt and answer.">
      <Bars title="Branches by reason" items={barsOf(tally(branches.flatMap(({ branch }) => (branch.drift ? [branch.drift.kind] : []))))} unit="branches" />
      <Bars title="Trajectories by exactness" items={barsOf(tally(branches.map(({ branch }) => branch.grade)))} unit="trajectories" />
      <Bars title="Exact trajectories by their log probabilities" items={barsOf(tally(exact.map(({ branch }) => policyOf(branch.is_of_policy))))} unit="trajectories" />
      <Bars title="Sampled tokens by version of the weights" items={barsOf(versions)} unit="tokens" />
      {[...examples].map(([kind, [run, drift]]) => (
        <Block key={kind} title={`Example of ${kind}`} about={run}><DriftText drift={drift} /></Block>
      ))}
    </Section>
  );
}

/** One square for each rollout, with its reward as colour and number. */
export function Cells({ group, picked }: { group: GroupFacts; picked?: string }): ReactNode {
  return (
    <span className={`cells ${group.has_variance ? "" : "flat"}`} title={group.has_variance ? "" : "all rewards are equal"}>
      {group.rollouts.map(({ run_id: run, reward }) => (
        <span
          key={run} data-run={run} title={`${run}: ${reward ?? "no reward"}`} className={`${reward === null ? "none" : onTone(reward)} ${run === picked ? "picked" : ""}`}
          style={reward === null ? {} : { background: tone(reward) }}
        >{reward === null ? "" : String(Math.round(100 * reward) / 100).replace(/^0\./, ".")}</span>
      ))}
    </span>
  );
}

const spreadText = (group: GroupFacts): string => {
  const rewards = known(group);
  return rewards.length ? `${meanOf(rewards).toFixed(2)} ± ${deviationOf(rewards).toFixed(2)}` : "–";
};

/** What the groups can be sorted by. */
const ORDERS: Record<string, (group: GroupFacts) => number> = {
  number: (group) => group.number,
  mean: (group) => meanOf(known(group)),
  tokens: (group) => meanOf(group.rollouts.map((item) => item.output_tokens)),
};

const COLUMNS: Column<GroupFacts>[] = [
  { name: "No.", width: "56px", order: "number", isNumber: true, cell: (group) => count(group.number) },
  { name: "Task", width: "minmax(120px, 2fr)", cell: (group) => <span title={group.task}>{group.task || group.group_id}</span> },
  { name: "Rewards of the rollouts", width: "minmax(180px, 3fr)", cell: (group) => <Cells group={group} /> },
  { name: "Mean", width: "104px", order: "mean", isNumber: true, cell: spreadText },
  { name: "Output tokens", width: "112px", order: "tokens", isNumber: true, cell: (group) => count(Math.round(ORDERS.tokens?.(group) ?? 0)) },
];
const WEIGHTS: Column<GroupFacts> = { name: "Weights", width: "minmax(56px, 1fr)", cell: (group) => <span className="soft">{group.weight_version}</span> };

const SHOWN: Record<string, (group: GroupFacts) => boolean> = {
  "with variance": (group) => group.has_variance,
  "without variance": (group) => !group.has_variance,
  "solved at least once": isSolved,
  "never solved": (group) => !isSolved(group),
  "with a branch that drifted": (group) => group.rollouts.some((item) => item.branches.some((branch) => branch.drift)),
  "with a failed call": (group) => group.rollouts.some((item) => Object.values(item.calls).some(([, failed]) => failed)),
};

function Groups(): ReactNode {
  const place = usePlace();
  const { view, error } = useRollouts();
  const words = place.query.get("words") ?? "";
  const which = place.query.get("which") ?? "";
  const order = place.query.get("order") ?? "";
  const listed = useMemo(() => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const test = SHOWN[which] ?? (() => true);
    const by = ORDERS[order.replace("-", "")];
    const sign = order.startsWith("-") ? -1 : 1;
    const sorted = by ? [...view?.groups ?? []].sort((one, two) => sign * (by(one) - by(two))) : view?.groups ?? [];
    return sorted.filter((group) => {
      if (!test(group)) return false;
      if (!wanted.length) return true;
      const text = [group.task, group.group_id, ...group.rollouts.flatMap((item) => [item.run_id, item.stop_reason, ...Object.keys(item.calls)])].join("\n").toLowerCase();
      return wanted.every((word) => text.includes(word));
    });
  }, [view, words, which, order]);
  useKeys([{ key: "x", about: "Clear the search, the filter and the order", run: () => change({ words: "", which: "", order: "" }) }]);
  useTitle(view && `${view.name}: groups`);
  if (!view) return <Waiting title="Groups" error={error}>Reading the groups …</Waiting>;
  const columns = view.groups.some((group) => group.weight_version) ? [...COLUMNS, WEIGHTS] : COLUMNS;
  return (
    <main className="page">
      <RolloutsBar view={view} error={error} tab="groups" />
      <div className="bar" role="search">
        <input type="search" aria-label="Search groups" placeholder="Search: task, run, tool, stop reason" value={words} onChange={(event) => change({ words: event.target.value })} />
        <select aria-label="Which groups" value={which} onChange={(event) => change({ which: event.target.value })}>
          <option value="">all groups</option>
          {Object.keys(SHOWN).map((name) => <option key={name}>{name}</option>)}
        </select>
        <span className="grow" />
        <span className="soft num" aria-live="polite">{listed.length === view.groups.length ? `all ${count(listed.length)} groups` : `${count(listed.length)} of ${count(view.groups.length)} groups`}</span>
      </div>
      {listed.length ? <Table label="groups" items={listed} columns={columns} idOf={(group) => group.group_id} addressOf={(group) => to(["group", group.group_id])} order={order} onOrder={(chosen) => change({ order: chosen })} />
        : <Status>{view.groups.length ? "No group matches." : "No group was delivered yet."}</Status>}
    </main>
  );
}

export const rolloutsPage: PageSpec = { name: "rollouts", title: "Rollouts", key: "o", hasOwnTitle: true, Page: Rollouts, isOffered: () => isShown("rollouts") };
export const groupsPage: PageSpec = { name: "groups", title: "", key: "", hasOwnTitle: true, Page: Groups, isOffered: () => false };
