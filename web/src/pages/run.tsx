/** One run: its tree, its transcript and what is known about each part of it, as it happens. */
import { useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { nest, useChildren, useRun, type FollowedRun } from "../fold/follow";
import type { Item } from "../fold/run";
import { clock, many, oneLine, seconds } from "../format";
import { useKeys } from "../keys";
import { cancel, ForkDialog, NoteDialog, Reply, resume, TryAgain } from "../parts/actions";
import { Chip, copy, Lost, useTitle, Waiting } from "../parts/basics";
import { EventList } from "../parts/eventlist";
import { Family } from "../parts/family";
import { Files } from "../parts/files";
import { eventsWith, FindBox, placesOf, Wanted } from "../parts/found";
import { beside, listAddress } from "../parts/listed";
import { Inspector } from "../parts/inspector";
import { useMarkdown } from "../parts/markdown";
import { Outline } from "../parts/outline";
import { describeRun, Grades, Sums, writeRewards } from "../parts/runchip";
import { Timeline } from "../parts/timeline";
import { Transcript } from "../parts/transcript";
import { change, go, to, useIds, usePlace, useSwitch } from "../router";
import { journalOf } from "../shown";
import { bare, has, isLive } from "../source";
import type { PageSpec } from ".";
import { tokensOf } from "./tokens";

const VIEWS = ["transcript", "timeline", "files", "events", "forks"] as const;
type View = (typeof VIEWS)[number];

function stateOf({ fold, isDriven }: FollowedRun): ReturnType<typeof describeRun> {
  return describeRun({
    status: fold.state === "open" ? "running" : fold.state, stop_reason: fold.state === "paused" ? fold.pausedFor : fold.stopReason,
    is_driven: isDriven, is_turn_open: fold.state === "running", is_session: true, error: fold.failure?.error ?? null,
  });
}

type Asked = "note" | "fork" | null;

/** The reasons of pauses after which a run goes on by what is said to it, and needs no button. */
const ANSWERED = new Set(["closed", "question", "approval", "result"]);

function Head({ run, onAsk, showsGrades, onGrades }: { run: FollowedRun; onAsk: (asked: Asked) => void; showsGrades: boolean; onGrades: () => void }): ReactNode {
  const { fold } = run;
  const started = fold.started;
  const [text, tone, moves] = stateOf(run);
  const title = fold.title || bare(run.runId);
  useTitle(["", "good"].includes(tone) ? title : `${text}: ${title}`);
  const first = fold.events[0]?.at ?? 0;
  return (
    <header className="runhead">
      <div className="row">
        {[["‹", "Run before in the list", -1] as const, ["›", "Next run in the list", 1] as const].map(([sign, name, by]) => {
          const other = beside(run.runId, by);
          return other && <a key={sign} className="step" href={to(["run", other])} aria-label={name} title={`${name} (${by < 0 ? "[" : "]"})`}>{sign}</a>;
        })}
        <h1 className="cut" title={title}>{title}</h1>
        <Chip tone={tone} moves={moves && isLive} dot={tone !== ""} title={moves && !isLive ? "when this file was written" : ""}>{text}</Chip>
        <span className="grow" />
        {isLive && (
          <>
            {fold.state === "running" && <button onClick={() => void cancel(run.runId)}>Cancel</button>}
            {(fold.state === "paused" ? !ANSWERED.has(fold.pausedFor) : fold.state === "running" && !run.isDriven) && <button onClick={() => void resume(run.runId)}>Resume</button>}
            <TryAgain fold={fold} />
            <button onClick={() => onAsk("fork")} title="A new run that begins like this one (f)">Fork</button>
            <button onClick={() => onAsk("note")} title="A label, or a note (l)">Label</button>
          </>
        )}
      </div>
      <div className="row wrap soft facts-line">
        <button className="plain mono id" onClick={() => void copy(bare(run.runId))} title="Copy the id">{bare(run.runId)}</button>
        {journalOf(run.runId) && <span title="journal">{journalOf(run.runId)}</span>}
        <span>{fold.model}</span>
        <span>{many(fold.turn, "turn")}, {many(run.info?.steps ?? 0, "step")}</span>
        <Sums run={run} />
        {fold.rewards.size > 0 && <button className="plain" aria-expanded={showsGrades} title="Show or hide what each scorer said (s)" onClick={onGrades}>{showsGrades ? "▾" : "▸"} {writeRewards(fold)}</button>}
        <span>{seconds(Math.max(0, (moves && isLive ? Date.now() / 1000 : fold.lastAt) - first))}</span>
        <span title="start">{first ? clock(first) : ""}</span>
        {started?.parent && <a href={to(["run", started.parent.run_id], { at: started.parent.seq })}>forked from {started.parent.run_id.slice(0, 8)} at event {started.parent.seq}</a>}
        {started?.caller && <a href={to(["run", started.caller.run_id])}>called by {started.caller.run_id.slice(0, 8)}</a>}
        {fold.hasTokens && has(tokensOf(run.runId)) && <a href={to(["tokens", run.runId])}>tokens</a>}
        {isLive && <a href={to(["export", run.runId])}>export</a>}
        <a href={to(["compare", run.runId])}>compare</a>
        {isLive && fold.labels.has("group") && <a href={to(["group", fold.labels.get("group") ?? ""])}>its group</a>}
        {[...fold.labels].filter(([name]) => !name.startsWith("treadle.") && name !== "title").map(([name, value]) => <a key={name} className="chip" href={to(["runs"], { label: `${name}=${value}` })} title="The runs with this label">{name}: {value}</a>)}
      </div>
      <Lost error={run.error} />
      {showsGrades && fold.rewards.size > 0 && <Grades runId={run.runId} fold={fold} />}
      {fold.failure && (
        <p className="why bad">
          <a className="bad" href={to(["run", run.runId], { at: fold.failure.seq })} title={fold.failure.error}>{oneLine(fold.failure.error ?? "")}</a>
          {fold.failure.fault && <span className="soft"> · fault of the {fold.failure.fault}</span>}
        </p>
      )}
    </header>
  );
}

/** Return the places of the items that j and k stop at. */
function near(items: readonly Item[], from: number, by: number, test: (item: Item) => boolean = () => true): number {
  for (let place = from + by; place >= 0 && place < items.length; place += Math.sign(by)) {
    if (test(items[place] as Item)) return place;
  }
  return from;
}

function Run(): ReactNode {
  const place = usePlace();
  const runId = place.path[1] ?? "";
  const run = useRun(runId);
  const [picked, setPicked] = useState(-1);
  const [showsInspector, setShowsInspector] = useSwitch("inspector", window.innerWidth >= 1100);
  const [showsOutline, setShowsOutline] = useSwitch("tree", window.innerWidth >= 800);
  const [showsGrades, setShowsGrades] = useSwitch("grades");
  const view = VIEWS.find((name) => name === place.query.get("view")) ?? "transcript";
  const [asked, setAsked] = useState<Asked>(null);
  const [opened, setOpened] = useIds("open");
  const children = useChildren(opened);
  const items = nest(run?.fold.items ?? [], children);
  const toggle = (child: string | null): void => {
    if (child) setOpened((before) => (before.has(child) ? [...before].filter((one) => one !== child) : [...before, child]));
  };
  const at = Number(place.query.get("at") ?? 0);
  /** The run that the event `at` belongs to: this one, or an opened one of a sub-agent. */
  const within = place.query.get("in") ?? runId;
  const pickedAt = useRef("");
  /** Whether the run went on while it was shown: then its end stays in view, also that of its last event. */
  const hasGrown = useRef(false);
  useEffect(() => {
    // Several items may begin with one event: what was picked here stays picked.
    if (!at || !run?.isLoaded || pickedAt.current === `${within} ${at}`) return;
    const found = items.findLastIndex((item) => item.runId === within && (item.seqs[0] ?? Infinity) <= at);
    if (found < 0) return;
    pickedAt.current = within === runId || children.get(within)?.isLoaded ? `${within} ${at}` : "";
    setPicked(found);
  }, [at, within, run?.isLoaded, run, within === runId ? 0 : items.length]);
  const pick = (index: number): void => {
    setPicked(index);
    const item = items[index];
    if (!item?.seqs[0]) return;
    pickedAt.current = `${item.runId} ${item.seqs[0]}`;
    change({ at: item.seqs[0], in: item.runId === runId ? "" : item.runId });
  };
  const move = (by: number, test?: (item: Item) => boolean): void => pick(near(items, picked, by, test));
  const given = place.query.get("find") ?? "";
  const words = given.trim().toLowerCase();
  const wanted = useMemo(() => (words ? [words] : []), [words]);
  const version = items.reduce((sum, item) => sum + (item.runId === runId ? 0 : item.version), run?.fold.version ?? 0);
  const seqs = useMemo(() => (view === "events" && words ? eventsWith(run?.fold.events ?? [], words).map((event) => event.seq) : []), [view, words, version]);
  const places = useMemo(() => placesOf(items, words), [words, version, items.length]);
  const found = useMemo(() => new Set(places), [places]);
  const ownAt = within === runId ? at : 0;
  const [all, now] = view === "events" ? [seqs, ownAt] : [places, picked];
  const jump = (by: number): void => {
    if (!all.length) return;
    const next = by > 0 ? all.find((one) => one > now) ?? all[0] as number : all.findLast((one) => one < now) ?? all.at(-1) as number;
    if (view === "events") change({ at: next, in: "" });
    else pick(next);
  };
  const [opening] = useState(at ? words : "");
  useEffect(() => {
    // An address with words and a place leads to that place.
    if (words && words !== opening && run?.isLoaded && !all.includes(now)) jump(1);
  }, [words, run?.isLoaded]);
  const step = (by: number): void => {
    const other = beside(runId, by);
    if (other) go(to(["run", other]));
  };
  const [, switchMarkdown] = useMarkdown();
  useKeys([
    { key: "j", about: "Next part", run: () => move(1) },
    { key: "ArrowDown", about: "", run: () => move(1) },
    { key: "k", about: "Part before", run: () => move(-1) },
    { key: "ArrowUp", about: "", run: () => move(-1) },
    { key: "J", about: "Next turn", run: () => move(1, (item) => item.kind === "turn") },
    { key: "K", about: "Turn before", run: () => move(-1, (item) => item.kind === "turn") },
    { key: "n", about: words ? "Next place with the words" : "Next problem", run: () => (words ? jump(1) : move(1, (item) => item.state === "bad" || item.failures.length > 0)) },
    { key: "N", about: words ? "Place before with the words" : "Problem before", run: () => (words ? jump(-1) : move(-1, (item) => item.state === "bad" || item.failures.length > 0)) },
    { key: "g g", about: "Begin", run: () => pick(0) },
    { key: "G", about: "End", run: () => pick(items.length - 1) },
    { key: "i", about: "Show or hide the inspector", run: () => setShowsInspector(!showsInspector) },
    { key: "o", about: "Show or hide the tree", run: () => setShowsOutline(!showsOutline) },
    { key: "Enter", about: "Inspect", run: () => setShowsInspector(true) },
    { key: "e", about: "Show or hide the run of a sub-agent", run: () => toggle(items[picked]?.child ?? null) },
    { key: "s", about: "Show or hide what each scorer said", run: () => setShowsGrades(!showsGrades) },
    { key: "u", about: "Back to the runs", run: () => go(listAddress()) },
    { key: "]", about: "Next run in the list", run: () => step(1) },
    { key: "[", about: "Run before in the list", run: () => step(-1) },
    { key: "M", about: "Lay out the Markdown of answers, or show it as it is written", run: switchMarkdown },
    ...VIEWS.map((name, number) => ({ key: String(number + 1), about: `Show the ${name}`, run: () => change({ view: number ? name : "" }) })),
    ...(isLive ? [
      { key: "f", about: "Fork at this part", run: () => setAsked("fork") },
      { key: "l", about: "Label or note the run", run: () => setAsked("note") },
      { key: "m", about: "Write a message", run: () => document.querySelector<HTMLElement>("[data-focus=message]")?.focus() },
      { key: "r", about: "Reply to what the run waits for", run: () => document.querySelector<HTMLElement>("[data-focus=reply]")?.focus() },
    ] : []),
    { key: "y", about: "Copy the run’s id", run: () => void copy(bare(runId)) },
  ]);
  if (!run?.fold.events.length) return <Waiting title="A run" error={run?.error ?? null} />;
  // Until a line is picked, the inspector shows what the run began with.
  const inspected = items[picked] ?? items[0] ?? null;
  if (run.isLoaded && run.fold.state !== "finished") hasGrown.current = true;
  const isDriven = (item: Item): boolean => children.get(item.runId)?.isDriven ?? run.isDriven;
  return (
    <Wanted value={wanted}>
      <main className="page run" data-loaded={run.isLoaded} data-driven={run.isDriven}>
        <Head run={run} onAsk={setAsked} showsGrades={showsGrades} onGrades={() => setShowsGrades(!showsGrades)} />
        <Tabs view={view} isInspected={showsInspector} onInspect={() => setShowsInspector(!showsInspector)}>
          {view !== "files" && view !== "forks" && <FindBox given={given} found={all.length} at={all.indexOf(now)} onJump={jump} />}
        </Tabs>
        <div className="panes">
          {view === "transcript" && showsOutline && <Outline items={items} picked={picked} onPick={pick} found={found} />}
          {view === "transcript" && <Transcript onOpen={toggle} opened={opened} items={items} version={run.fold.version + items.length} picked={picked} onPick={pick} sticks={isLive && run.isLoaded && hasGrown.current && picked < 0} isDriven={isDriven} />}
          {view === "timeline" && <Timeline items={items} version={run.fold.version} picked={picked} onPick={pick} />}
          {view === "files" && <Files runId={runId} fold={run.fold} />}
          {view === "events" && <EventList fold={run.fold} picked={ownAt} onPick={(seq) => change({ at: seq, in: "" })} />}
          {view === "forks" && <Family runId={runId} version={run.fold.seq} />}
          {showsInspector && view !== "files" && view !== "forks" && <Inspector item={inspected} fold={(inspected && children.get(inspected.runId)?.fold) ?? run.fold} runId={inspected?.runId ?? runId} onClose={() => setShowsInspector(false)} />}
        </div>
        {isLive && <Reply runId={runId} fold={run.fold} />}
        {asked === "note" && <NoteDialog runId={runId} onClose={() => setAsked(null)} />}
        {asked === "fork" && <ForkDialog runId={runId} events={run.fold.events} seq={ownAt || run.fold.seq} onClose={() => setAsked(null)} />}
      </main>
    </Wanted>
  );
}

function Tabs({ view, onInspect, isInspected, children }: { view: View; onInspect: () => void; isInspected: boolean; children: ReactNode }): ReactNode {
  const [laysOut, switchMarkdown] = useMarkdown();
  return (
    <div className="tabs">
      <div role="tablist" aria-label="views">
        {VIEWS.map((name) => (
          <button key={name} role="tab" aria-selected={view === name} onClick={() => change({ view: name === "transcript" ? "" : name })}>
            {name[0]?.toUpperCase()}{name.slice(1)}
          </button>
        ))}
      </div>
      {children}
      {view === "transcript" && <button className="wide" onClick={switchMarkdown} aria-pressed={laysOut} title="Lay out the Markdown of answers, or show it as it is written (M)">Markdown</button>}
      <button onClick={onInspect} aria-pressed={isInspected} title="Show or hide the inspector (i)">Inspector</button>
    </div>
  );
}

export const runPage: PageSpec = { name: "run", title: "", key: "", hasOwnTitle: true, Page: Run, isOffered: () => false };
