/** All runs of the journal, by default the newest first, with the filters and the order in the address. */
import { useCallback, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { eventsOf } from "../fold/follow";
import { ago, compact, count, many, seconds, usd } from "../format";
import { useKeys } from "../keys";
import { useGet } from "../load";
import { NewRunDialog } from "../parts/actions";
import { Status, tell } from "../parts/basics";
import { setListed } from "../parts/listed";
import { RunChip } from "../parts/runchip";
import { Table, type Column } from "../parts/table";
import { change, go, to, usePlace, useSetting } from "../router";
import { journals } from "../shown";
import { bare, get, has, isLive, OTHER, RequestFailed, says } from "../source";
import type { Listing, RunInfo } from "../types";
import type { PageSpec } from ".";

const PAGE = 200;
const RELOAD_SECONDS = 3;
/** A list that is sorted by a figure costs the server half a second if there are 100,000 runs. */
const SORTED_RELOAD_SECONDS = 20;
const STARTED = "-started";
const FILTERS = ["status", "since", "agent", "model", "label", "text"] as const;
/** What the filter for the status offers. Beside the statuses of runs, it has conditions on what they wait for or ended with. */
const STATUSES: Record<string, { name: string; asks: [string, string]; test: (run: RunInfo) => boolean }> = {
  ...Object.fromEntries(["running", "paused", "finished", "damaged"].map((status) => [status, { name: status, asks: ["status", status], test: (run: RunInfo) => run.status === status }])),
  waiting: { name: "waiting", asks: ["is_waiting", "true"], test: (run) => run.is_waiting },
  ...Object.fromEntries(["completed", "error", "max_steps", "max_cost", "deadline", "refused", "cancelled"].map((reason) => [reason, { name: `ended: ${reason}`, asks: ["stop_reason", reason], test: (run: RunInfo) => run.stop_reason === reason }])),
};
const HOURS: Record<string, [name: string, hours: number]> = { hour: ["last hour", 1], day: ["last 24 hours", 24], week: ["last 7 days", 168], month: ["last 30 days", 720] };
/** The time from which on a filter lets runs through. It moves in steps, so that a list is the same for a while. */
function startOf(since: string): number {
  const step = 60 * (HOURS[since]?.[1] ?? 1);
  return (Math.floor(Date.now() / 1000 / step) - 60) * step;
}

/** The time from the first event to the end of the newest turn, as the server sorts by it. */
const durationOf = (run: RunInfo): number => Math.max(0, (run.ended_at ?? run.updated_at) - run.created_at);

/** The labels that people gave, as they are read in the list. */
const labelsOf = (run: RunInfo): string => Object.entries(run.labels).filter(([name]) => !name.startsWith("treadle.") && !["title", "agent"].includes(name)).map(([name, value]) => `${name}: ${value}`).join(", ");
const agentOf = (run: RunInfo): string => run.labels["treadle.agent"] ?? run.labels.agent ?? "";
export const isCalled = (run: RunInfo): boolean => "treadle.caller" in run.labels;
const SIGNS: [(run: RunInfo) => boolean, string, string][] = [[isCalled, "↳ ", "A sub-agent’s run\n"], [(run) => run.parent_run_id !== null, "↱ ", "A fork\n"]];

function Name({ run }: { run: RunInfo }): ReactNode {
  const [, sign, about] = SIGNS.find(([test]) => test(run)) ?? [null, "", ""];
  return <a href={to(["run", run.id])} tabIndex={-1} title={`${about}${run.input ?? ""}`}>{sign}{run.title || "no message"}</a>;
}

const COLUMNS: Column<RunInfo>[] = [
  { name: "Run", width: "minmax(160px, 3fr)", cell: (run) => <Name run={run} /> },
  { name: "Status", width: "minmax(96px, 140px)", cell: (run) => <RunChip run={run} /> },
  { name: "Model", width: "minmax(72px, 1fr)", cell: (run) => <span className="soft" title={run.model ?? ""}>{run.model}</span> },
  { name: "Task, agent, labels", width: "minmax(72px, 1.5fr)", from: 1000, cell: (run) => { const text = [run.task_id ?? agentOf(run), labelsOf(run)].filter(Boolean).join(" · "); return <span className="soft" title={text}>{text}</span>; } },
  { name: "Steps", width: "48px", isNumber: true, cell: (run) => count(run.steps) },
  { name: "Tokens", width: "72px", isNumber: true, order: "tokens", cell: (run) => <span title={`${count(run.input_tokens)} in, ${count(run.cached_input_tokens)} of them cached, ${count(run.output_tokens)} out`}>{compact(run.input_tokens + run.output_tokens)}</span> },
  { name: "Cost", width: "72px", isNumber: true, order: "cost", cell: (run) => (run.cost_usd === null ? <span className="soft">unknown</span> : usd(run.cost_usd)) },
  { name: "Reward", width: "56px", isNumber: true, cell: (run) => (run.reward === null ? "" : run.reward.toFixed(2)) },
  { name: "Time", width: "80px", isNumber: true, from: 1000, order: "duration", cell: (run) => seconds(run.is_turn_open && run.is_driven && isLive ? Date.now() / 1000 - run.created_at : durationOf(run)) },
  { name: "Started", width: "80px", isNumber: true, order: "started", cell: (run) => <span className="soft" title={`${new Date(run.created_at * 1000).toLocaleString()}, newest event ${new Date(run.updated_at * 1000).toLocaleString()}`}>{ago(run.created_at)}</span> },
];

/** The figures that a page without a server sorts by, as the server does. */
const FIGURES: Record<string, (run: RunInfo) => number> = {
  started: (run) => run.created_at, duration: durationOf,
  tokens: (run) => run.input_tokens + run.output_tokens, cost: (run) => run.cost_usd ?? -1,
};

/** Return the parameter of the API for a filter. */
function asking([name = "", value = ""]: string[]): string[] {
  if (name === "status") return STATUSES[value]?.asks ?? [name, value];
  return name === "since" ? ["created_since", String(startOf(value))] : [name, value];
}

/** Return the parameters of the API for an order such as `-cost`. */
function sorting(order: string): string[][] {
  const name = order.replace(/^-/, "");
  return [...(name in FIGURES && name !== "started" ? [["order", name]] : []), ...(order === name ? [["is_ascending", "true"]] : [])];
}

/** Whether the filters let a run through, as the server decides it. */
function matches(run: RunInfo, filters: string[][]): boolean {
  return filters.every(([name, value = ""]) => {
    if (name === "text") return run.id.startsWith(value) || says(eventsOf(run.id), value);
    if (name === "label") return run.labels[value.split("=", 1)[0] ?? ""] === value.slice(value.indexOf("=") + 1);
    if (name === "status") return STATUSES[value]?.test(run) ?? false;
    if (name === "since") return run.created_at >= startOf(value);
    return value === (name === "agent" ? run.labels["treadle.agent"] : run.model);
  });
}

function sorted(runs: RunInfo[], order: string): RunInfo[] {
  const figure = FIGURES[order.replace(/^-/, "")] ?? FIGURES.started!;
  const sign = order.startsWith("-") ? -1 : 1;
  return [...runs].sort((one, other) => sign * (figure(one) - figure(other)));
}

/** The runs that were shown last, so that one comes back to as many. */
let shownLast = { runs: [] as RunInfo[], hasMore: false, query: "" };

/** Load pages of runs as they are asked for, and look for news of the first page. */
function useRuns(asked: string, sign: string): { runs: RunInfo[]; hasMore: boolean; error: Error | null; isLoading: boolean; more: () => void } {
  const query = `${sign}${asked}`;
  const [state, setState] = useState({ ...(shownLast.query === query ? shownLast : { runs: [], hasMore: false }), error: null as Error | null, isLoading: true, query });
  useEffect(() => {
    if (!state.isLoading && !state.error) shownLast = state;
  }, [state]);
  const busy = useRef(false);
  const load = useCallback(async (after?: string): Promise<Listing<RunInfo>> => {
    if (!isLive) return get("/v1/runs");
    const given = new URLSearchParams(asked);
    given.set("limit", String(PAGE));
    if (after) given.set("after", bare(after));
    const found = await get<Listing<RunInfo>>(`${sign && "/other"}/v1/runs?${given}`);
    return { ...found, data: found.data.map((run) => ({ ...run, id: `${sign}${run.id}` })) };
  }, [asked, sign]);
  useEffect(() => {
    let isGone = false;
    const loadFirst = async (): Promise<void> => {
      try {
        const found = await load();
        if (isGone) return;
        setState((before) => {
          const fresh = new Set(found.data.map((run) => run.id));
          const kept = before.query === query && before.runs.length > found.data.length ? before.runs.filter((run) => !fresh.has(run.id)) : [];
          return { runs: [...found.data, ...kept], hasMore: kept.length ? before.hasMore : found.has_more, error: null, isLoading: false, query };
        });
      } catch (error) {
        // What was loaded stays in view while the server does not answer.
        if (!isGone) setState((before) => ({ ...before, ...(before.query === query ? {} : { runs: [], hasMore: false }), error: error as Error, isLoading: false, query }));
      }
    };
    setState((before) => ({ ...before, isLoading: true }));
    void loadFirst();
    const timer = isLive ? setInterval(() => document.visibilityState === "visible" && void loadFirst(), 1000 * (query.includes("order=") ? SORTED_RELOAD_SECONDS : RELOAD_SECONDS)) : 0;
    return () => {
      isGone = true;
      clearInterval(timer);
    };
  }, [load, query]);
  const more = useCallback(() => {
    const last = state.runs.at(-1);
    if (busy.current || !state.hasMore || !last) return;
    busy.current = true;
    load(last.id)
      .then((found) => setState((before) => ({ ...before, runs: [...before.runs, ...found.data], hasMore: found.has_more })))
      .catch((error: Error) => setState((before) => ({ ...before, error })))
      .finally(() => (busy.current = false));
  }, [state.runs, state.hasMore, load]);
  return { ...state, more };
}

/** Whether a value says nothing yet, like the name of a label while its value is to come. */
const isUnfinished = (name: string, value: string): boolean => name === "label" && value !== "" && !/^[^=]+=/.test(value);

function Filter({ name, placeholder, width, title, offered = [] }: { name: string; placeholder: string; width: number; title?: string; offered?: readonly string[] }): ReactNode {
  const place = usePlace();
  const given = place.query.get(name) ?? "";
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  useEffect(() => {
    if (text === given) return;
    const timer = setTimeout(() => change({ [name]: text }), 250);
    return () => clearTimeout(timer);
  }, [text, given, name]);
  const kind = name === "text" ? "search" : "text";
  return (
    <>
      <input type={kind} list={offered.length ? `offered-${name}` : undefined} aria-invalid={isUnfinished(name, text)} aria-label={placeholder} placeholder={placeholder} title={title} value={text} style={{ width }} onChange={(event) => setText(event.target.value)} />
      {offered.length > 0 && <datalist id={`offered-${name}`}>{offered.map((one) => <option key={one} value={one} />)}</datalist>}
    </>
  );
}

const MOST_OFFERED = 200;

/** Return what the filters offer: what the runs that were seen so far have. */
function useOffered(runs: readonly RunInfo[]): Record<"model" | "agent" | "label", string[]> {
  const [seen] = useState({ model: new Set<string>(), agent: new Set<string>(), label: new Set<string>() });
  return useMemo(() => {
    for (const run of runs) {
      if (run.model) seen.model.add(run.model);
      if (run.labels["treadle.agent"]) seen.agent.add(run.labels["treadle.agent"]);
      for (const [name, value] of Object.entries(run.labels)) if (seen.label.size < MOST_OFFERED && !name.startsWith("treadle.") && name !== "title") seen.label.add(`${name}=${value}`);
    }
    return { model: [...seen.model].sort(), agent: [...seen.agent].sort(), label: [...seen.label].sort() };
  }, [runs]);
}

/** The filters of the list. `hasCalled`: runs of sub-agents may be left out of it. `clear` is `null` if no filter is set. */
function Filters({ runs, hasCalled, clear }: { runs: readonly RunInfo[]; hasCalled: boolean; clear: (() => void) | null }): ReactNode {
  const place = usePlace();
  const offered = useOffered(runs);
  return (
    <>
      {journals().length > 0 && (
        <select aria-label="Journal" title="The journal whose runs are listed" style={{ maxWidth: 200 }} value={place.query.get("journal") ?? ""} onChange={(event) => change({ journal: event.target.value })}>
          {journals().map((name, number) => <option key={name} value={number ? "other" : ""}>{name}</option>)}
        </select>
      )}
      <Filter name="text" placeholder="Text, or a run’s id" title="What users and models wrote, and the results of tools; or the beginning of a run’s id" width={240} />
      <select aria-label="Status" style={{ maxWidth: 130 }} value={place.query.get("status") ?? ""} onChange={(event) => change({ status: event.target.value })}>
        <option value="">any status</option>
        {Object.entries(STATUSES).map(([value, { name }]) => <option key={value} value={value}>{name}</option>)}
      </select>
      <select aria-label="Started" value={place.query.get("since") ?? ""} onChange={(event) => change({ since: event.target.value })}>
        <option value="">any time</option>
        {Object.entries(HOURS).map(([value, [name]]) => <option key={value} value={value}>{name}</option>)}
      </select>
      <Filter name="model" placeholder="Model" width={140} offered={offered.model} />
      <Filter name="agent" placeholder="Agent" width={110} offered={offered.agent} />
      <Filter name="label" placeholder="Label: name=value" width={170} offered={offered.label} />
      {(hasCalled || place.query.has("subagents")) && <label className="row" title="Also list the runs that were called by other runs"><input type="checkbox" checked={place.query.has("subagents")} onChange={(event) => change({ subagents: event.target.checked ? "yes" : "" })} /> sub-agents</label>}
      {clear && <button className="plain" onClick={clear} title="Clear the filters (x)">Clear</button>}
    </>
  );
}

/** The list of runs. `first` chooses two runs to compare: it is the first of them, or empty as long as none is chosen. `other` offers more. */
export function Runs({ first, other }: { first?: string; other?: ReactNode }): ReactNode {
  const place = usePlace();
  const wanted = place.query.get("order") ?? "";
  /** What the ids of the runs begin with if they are those of the second of two journals. */
  const sign = journals().length && place.query.get("journal") ? OTHER : "";
  const order = wanted.replace(/^-/, "") in FIGURES ? wanted : STARTED;
  const filters = FILTERS.flatMap((name) => place.query.getAll(name).filter((value) => value && !isUnfinished(name, value)).map((value) => [name, value]));
  // Who looks for a text or a label finds it in the runs of sub-agents too.
  const showsCalled = place.query.has("subagents") || filters.some(([name]) => name === "text" || name === "label");
  const { runs: found, hasMore, error, isLoading, more } = useRuns(new URLSearchParams([...filters.map(asking), ...sorting(order), ...(showsCalled ? [] : [["is_called", "false"]])]).toString(), sign);
  const matching = isLive ? found : sorted(found.filter((run) => matches(run, filters)), order);
  const runs = useMemo(() => (showsCalled ? matching : matching.filter((run) => !isCalled(run))).filter((run) => run.id !== first), [found, order, showsCalled, filters.join(), first]);
  /** Whether runs of sub-agents are left out; a server does not say whether it has any. */
  const hidden = isLive || (!showsCalled && matching.some(isCalled));
  useEffect(() => {
    if (first === undefined) setListed(location.hash, runs.map((run) => run.id));
  });
  const [isNew, setIsNew] = useState(false);
  const [chosen, setChosen] = useSetting("mark");
  const models = useGet<{ data: { id: string }[] }>(isLive ? "/v1/models" : null);
  const names = models.data?.data.map((model) => model.id) ?? [];
  const compare = (run: RunInfo): void => {
    if (chosen && chosen !== run.id) go(to(["compare", chosen, run.id]));
    else if (chosen) setChosen("");
    else {
      setChosen(run.id);
      tell("choose a second run to compare the two (v)");
    }
  };
  const words = place.query.get("text") ?? "";
  const addressOf = (run: RunInfo): string => (first === undefined ? to(["run", run.id], { find: bare(run.id).startsWith(words) ? "" : words }) : to(["compare", ...(first ? [first] : []), run.id]));
  const choice: Column<RunInfo> = {
    name: "Compare", isHidden: true, width: "16px", from: 1000,
    cell: (run) => <input type="checkbox" tabIndex={-1} aria-label="Compare this run" title="Compare this run with a second one (v)" checked={chosen === run.id} onClick={(event) => event.stopPropagation()} onChange={() => compare(run)} />,
  };
  const clear = (): void => change(Object.fromEntries(FILTERS.map((name) => [name, ""])));
  useKeys([...(names.length ? [{ key: "c", about: "Talk to an agent", run: () => setIsNew(true) }] : []), { key: "x", about: "Clear the filters", run: clear }]);
  return (
    <main className="page">
      {first === undefined ? <h1 className="hidden">Runs</h1> : <div className="bar"><h1 className="cut">{first ? <>Compare <a href={to(["run", first])} title={first}>{found.find((run) => run.id === first)?.title ?? bare(first)}</a> with …</> : "Compare two runs: choose the first one"}</h1><span className="grow" />{other}</div>}
      {(isLive || found.length > 1) && (
        <div className="bar" role="search">
          <Filters runs={found} hasCalled={hidden} clear={filters.length ? clear : null} />
          <span className="grow" />
          {isLive && models.data && first === undefined && <button className="main" disabled={!names.length} title={names.length ? "" : "There is no agent and no model in treadle.toml."} onClick={() => setIsNew(true)}>Talk to an agent</button>}
          {error && runs.length > 0 && <span className="bad" role="alert">{error.message}</span>}
          <span className="soft num" aria-live="polite">{isLoading ? "" : hasMore ? `${count(runs.length)}+ runs` : many(runs.length, "run")}</span>
        </div>
      )}
      {error && (!runs.length || (error instanceof RequestFailed && error.status === 401)) ? <Status error={error} /> : isLoading && !runs.length ? <Status />
        : !runs.length ? <Status>{hidden && !isLive ? "Only runs of sub-agents match, which are not listed." : filters.length ? "No run matches these filters." : "There are no runs yet. Start one with `treadle run` or `treadle chat`."}</Status>
        : <Table label="runs" items={runs} columns={first === undefined ? [choice, ...COLUMNS] : COLUMNS} idOf={(run) => run.id} addressOf={addressOf} onEnd={more} order={order} onOrder={(chosen) => change({ order: chosen === STARTED ? "" : chosen })}
            actions={[{ key: "v", about: "Compare this run with a second one", run: compare }]} />}
      {isNew && <NewRunDialog names={names} sign={sign} onClose={() => setIsNew(false)} />}
    </main>
  );
}

export const runsPage: PageSpec = { name: "runs", title: "Runs", key: "r", Page: Runs, isOffered: () => has("/v1/runs") };
