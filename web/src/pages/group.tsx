/** The rollouts of a group side by side: rewards, advantages, and messages in lines, with the first difference. */
import { useEffect, useMemo, useState, type ReactNode } from "react";
import { deviationOf, meanOf, number } from "../parts/charts";
import { Chip, Overview, Status, useTitle, Waiting } from "../parts/basics";
import { firstDifference, SideLines, sidesOf } from "../parts/conversation";
import type { GroupFacts, RolloutBody, RolloutFacts } from "../datatypes";
import { count } from "../format";
import { useKeys } from "../keys";
import { change, go, to, useIds, usePlace } from "../router";
import { bare, get, isLive, signOf } from "../source";
import { isShown } from "../shown";
import type { PageSpec } from ".";
import { Cells, useRollouts } from "./rollouts";
import { Branches } from "./tokens";

/** Load the messages and tokens of rollouts; those that a file does not hold are `null`. */
function useBodies(group: GroupFacts | undefined, sign: string): Record<string, RolloutBody | null> {
  const [bodies, setBodies] = useState<Record<string, RolloutBody | null>>({});
  const runs = group?.rollouts.map((item) => item.run_id).join("\n") ?? "";
  useEffect(() => {
    if (!runs) return;
    const stop = new AbortController();
    setBodies({});
    for (const run of runs.split("\n")) {
      get<RolloutBody>(`/v1/view/rollouts/${encodeURIComponent(`${sign}${group?.group_id ?? ""}`)}/${encodeURIComponent(run)}`, stop.signal)
        .then((body) => setBodies((before) => ({ ...before, [run]: body })))
        .catch(() => !stop.signal.aborted && setBodies((before) => ({ ...before, [run]: null })));
    }
    return () => stop.abort();
  }, [runs]);
  return bodies;
}

/** The ways to compare a reward with those of its group, besides that of the delivery. */
const METHODS: Record<string, (reward: number, all: number[]) => number> = {
  group: (reward, all) => {
    const deviation = deviationOf(all) * Math.sqrt(all.length / (all.length - 1 || 1));
    return deviation ? (reward - meanOf(all)) / deviation : 0;
  },
  group_mean: (reward, all) => reward - meanOf(all),
  leave_one_out: (reward, all) => (all.length > 1 ? (reward - meanOf(all)) * (all.length / (all.length - 1)) : 0),
  reward: (reward) => reward,
};

/** Return a group with the advantages that a method gives; as it was delivered if there is no such method. */
function withAdvantages(group: GroupFacts, method: string): GroupFacts {
  const compute = METHODS[method];
  if (!compute) return group;
  const all = group.rollouts.map((item) => item.reward).filter((value) => value !== null);
  return { ...group, rollouts: group.rollouts.map((item) => ({ ...item, advantage: item.reward === null ? null : compute(item.reward, all) })) };
}

/** The orders of rollouts side by side, besides that of the plan. */
const ORDERS: Record<string, (sorted: RolloutFacts[]) => RolloutFacts[]> = {
  "the best first": (sorted) => sorted,
  "the best and the worst": (sorted) => (sorted.length > 1 ? [sorted[0] as RolloutFacts, sorted.at(-1) as RolloutFacts] : sorted),
};

function inOrder(rollouts: RolloutFacts[], order: string): RolloutFacts[] {
  const graded = rollouts.filter((item) => item.reward !== null).sort((one, two) => (two.reward ?? 0) - (one.reward ?? 0));
  return ORDERS[order]?.(graded) ?? rollouts;
}

function Group(): ReactNode {
  const place = usePlace();
  const { view, error } = useRollouts(place.path[1]);
  const at = view?.groups.findIndex((item) => item.group_id === bare(place.path[1] ?? "")) ?? -1;
  const method = place.query.get("advantages") ?? "";
  const order = place.query.get("order") ?? "";
  const found = view?.groups[at];
  const group = useMemo(() => found && withAdvantages(found, method), [found, method]);
  const bodies = useBodies(group, signOf(place.path[1] ?? ""));
  const opened = group?.rollouts.find((item) => item.run_id === place.query.get("run"));
  const step = (by: number): void => {
    const next = view?.groups[at + by];
    if (next) go(to(["group", next.group_id], { advantages: method, order }));
  };
  const sideways = (by: number): void => {
    if (!group) return;
    const now = group.rollouts.findIndex((item) => item === opened);
    change({ run: group.rollouts[Math.max(0, Math.min(group.rollouts.length - 1, now + by))]?.run_id, branch: "", at: "" });
  };
  useKeys([
    { key: "N", about: "Next group", run: () => step(1) },
    { key: "P", about: "Group before", run: () => step(-1) },
    { key: ">", about: "Tokens of the next rollout", run: () => sideways(1) },
    { key: "<", about: "Tokens of the rollout before", run: () => sideways(-1) },
    { key: "q", about: "Close the tokens", run: () => change({ run: "", branch: "", at: "" }) },
    { key: "u", about: "All groups", run: () => go(to(["groups"])) },
  ]);
  useTitle(group ? `${count(group.number)} · ${group.task || group.group_id}` : null);
  if (!view || !group) return <Waiting title="A group" error={view ? null : error}>{view && view.groups.length >= view.delivered ? "No finished run is in this group." : "Reading the groups …"}</Waiting>;
  const rewards = group.rollouts.map((item) => item.reward).filter((value) => value !== null);
  return (
    <main className="page">
      <div className="bar">
        {isShown("rollouts") && <a href={to(["groups"])}>Groups</a>}
        <h1 className="cut">{count(group.number)} · {group.task || group.group_id}</h1>
        <Cells group={group} picked={opened?.run_id ?? ""} />
        <span className="soft">{rewards.length ? `mean ${meanOf(rewards).toFixed(2)} ± ${deviationOf(rewards).toFixed(2)}` : "no rewards"}</span>
        {rewards.length > 1 && !group.has_variance && <Chip tone="warn">all rewards are equal</Chip>}
        {group.weight_version && <span className="soft">weights {group.weight_version}</span>}
        <select aria-label="Advantages" value={method} onChange={(event) => change({ advantages: event.target.value })}>
          <option value="">advantages as delivered</option>
          {Object.keys(METHODS).map((name) => <option key={name}>{name}</option>)}
        </select>
        {!opened && rewards.length > 1 && (
          <select aria-label="Order of the rollouts" value={order} onChange={(event) => change({ order: event.target.value })}>
            <option value="">all, as planned</option>
            {Object.keys(ORDERS).map((name) => <option key={name}>{name}</option>)}
          </select>
        )}
        <span className="grow" />
        <button disabled={at <= 0} onClick={() => step(-1)} title="Group before (P)">‹</button>
        <button disabled={at + 1 >= view.groups.length} onClick={() => step(1)} title="Next group (N)">›</button>
      </div>
      {opened ? <OpenedRollout rollout={opened} body={bodies[opened.run_id]} /> : <SideBySide key={`${group.group_id} ${order}`} rollouts={inOrder(group.rollouts, order)} bodies={bodies} />}
    </main>
  );
}

/** The facts of a rollout, with a way to its tokens if it has some. */
function RolloutHead({ rollout, body, isOpened = false }: { rollout: RolloutFacts; body: RolloutBody | null | undefined; isOpened?: boolean }): ReactNode {
  const reasons = Object.keys(body?.reasons ?? {});
  // A single reward that nobody explains says nothing more than the sum.
  const parts = Object.entries(rollout.rewards).filter(([name, value], _, all) => value !== rollout.reward || all.length > 1 || reasons.includes(name));
  return (
    <>
      <div className="row wrap">
        {rollout.reward === null ? <Chip>no reward</Chip> : <b className={rollout.reward >= 1 ? "good" : ""}>reward {number(rollout.reward)}</b>}
        {rollout.advantage !== null && <span className={rollout.advantage > 0 ? "good" : rollout.advantage < 0 ? "bad" : "soft"}>advantage {rollout.advantage > 0 ? "+" : ""}{rollout.advantage.toFixed(3)}</span>}
        {rollout.is_trained === false && <Chip tone="warn">not trained on</Chip>}
      </div>
      {parts.map(([name, value]) => <div key={name} className="soft said">{name} {number(value)}{body?.reasons[name] && `: ${body.reasons[name]}`}</div>)}
      <div className="soft">{rollout.stop_reason} · {count(rollout.steps)} steps · {count(rollout.output_tokens)} output tokens</div>
      <div className="row wrap">
        {isLive ? <a href={to(["run", rollout.run_id])} className="mono cut">{rollout.run_id}</a> : <span className="mono cut soft">{rollout.run_id}</span>}
        {!isOpened && body?.branches.length ? <button onClick={() => change({ run: rollout.run_id })}>Tokens</button> : null}
      </div>
    </>
  );
}

function SideBySide({ rollouts, bodies }: { rollouts: RolloutFacts[]; bodies: Record<string, RolloutBody | null> }): ReactNode {
  const [hidden, setHidden] = useIds("hidden");
  const shown = rollouts.filter((item) => !hidden.has(item.run_id));
  const conversations = shown.map((item) => bodies[item.run_id]?.messages ?? []);
  const isLoaded = shown.every((item) => bodies[item.run_id] !== undefined);
  const differs = firstDifference(shown.filter((item) => bodies[item.run_id]).map((item) => bodies[item.run_id]?.messages ?? []));
  return (
    <Overview label="rollouts side by side" className="rollout-sides">
      {hidden.size > 0 && <div className="row wrap hiddenones"><span className="soft">{count(hidden.size)} hidden</span><button onClick={() => setHidden(() => [])}>Show all</button></div>}
      <div className="sidehead" style={sidesOf(shown.length)}>
        {shown.map((rollout) => (
          <section key={rollout.run_id} aria-label={rollout.run_id} data-run={rollout.run_id}>
            <button className="plain close" onClick={() => setHidden((before) => [...before, rollout.run_id])} aria-label={`Hide ${rollout.run_id}`} title="Hide this rollout">✕</button>
            <RolloutHead rollout={rollout} body={bodies[rollout.run_id]} />
            {bodies[rollout.run_id] === null && <p className="soft">Its messages are not in this file. Read them with: treadle show {rollout.run_id} --tokens</p>}
          </section>
        ))}
      </div>
      {differs > 0 && isLoaded && <p className="soft hiddenones">{differs === 1 ? "The first message is" : `The first ${count(differs)} messages are`} the same in all.</p>}
      {differs < 0 && isLoaded && shown.length > 1 && conversations[0]?.length ? <p className="soft hiddenones">All messages are the same in all.</p> : null}
      {!isLoaded && <Status />}
      {isLoaded && <SideLines conversations={conversations} />}
    </Overview>
  );
}

function OpenedRollout({ rollout, body }: { rollout: RolloutFacts; body: RolloutBody | null | undefined }): ReactNode {
  if (body === undefined) return <Status />;
  if (body === null) return <Status>The tokens of this rollout are not in this file. Read them with: treadle show {rollout.run_id} --tokens</Status>;
  return (
    <>
      <div className="branchhead row wrap">
        <button onClick={() => change({ run: "", branch: "", at: "" })} title="Back to the group (q)">‹ Side by side</button>
        <RolloutHead rollout={rollout} body={body} isOpened />
      </div>
      <Branches branches={body.branches} run={rollout.run_id} />
    </>
  );
}

export const groupPage: PageSpec = { name: "group", title: "", key: "", hasOwnTitle: true, Page: Group, isOffered: () => false };
