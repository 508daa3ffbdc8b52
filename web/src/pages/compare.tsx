/** Two runs side by side: what is equal is folded, and the first difference is shown. */
import { diffArrays } from "diff";
import { useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { useRun, type FollowedRun } from "../fold/follow";
import type { Item } from "../fold/run";
import { many } from "../format";
import { useKeys } from "../keys";
import { tell, useTitle, Waiting } from "../parts/basics";
import { Sums, writeRewards } from "../parts/runchip";
import { differing } from "../parts/worddiff";
import { Line } from "../parts/transcript";
import { useVirtual } from "../parts/virtual";
import { change, go, to, usePlace, useSwitch } from "../router";
import { journalOf } from "../shown";
import { bare, has, isFiled, openFile } from "../source";
import type { RunInfo } from "../types";
import type { PageSpec } from ".";
import { isCalled, Runs } from "./runs";

interface Pair { one: Item | null; two: Item | null; isEqual: boolean; hidden: number }

/** What must be the same so that two items count as equal: not their ids, times and costs. */
const signature = (item: Item): string =>
  [item.kind, item.depth, item.title, item.text, item.reasoning, item.arguments, item.result?.content ?? "", item.result?.error_kind ?? ""].join("\0");

/** Whether an item says what the run did, and not how it was driven or what people noted about it. */
const isWork = (item: Item): boolean => !(item.kind === "event" && /^(Paused|Resumed|Left open|Note|Not done)/.test(item.title));

/** Align the items of two runs. */
export function align(one: readonly Item[], two: readonly Item[]): Pair[] {
  const [left, right] = [one.map(signature), two.map(signature)];
  const parts = diffArrays(left, right, { timeout: 1500 });
  const pairs: Pair[] = [];
  let [i, j] = [0, 0];
  if (!parts) {
    // They differ too much: compare them place by place.
    for (let place = 0; place < Math.max(one.length, two.length); place += 1) {
      pairs.push({ one: one[place] ?? null, two: two[place] ?? null, isEqual: left[place] === right[place], hidden: 0 });
    }
    return pairs;
  }
  for (let place = 0; place < parts.length; place += 1) {
    const part = parts[place] as (typeof parts)[number];
    const size = part.value.length;
    if (!part.added && !part.removed) {
      for (let step = 0; step < size; step += 1) pairs.push({ one: one[i++] as Item, two: two[j++] as Item, isEqual: true, hidden: 0 });
      continue;
    }
    const next = parts[place + 1];
    const gone = part.removed ? size : next?.removed ? next.value.length : 0;
    const come = part.added ? size : next?.added ? next.value.length : 0;
    for (let step = 0; step < Math.max(gone, come); step += 1) {
      pairs.push({ one: step < gone ? one[i++] ?? null : null, two: step < come ? two[j++] ?? null : null, isEqual: false, hidden: 0 });
    }
    if (gone && come) place += 1;
  }
  return pairs;
}

const AROUND = 2;

/** Put one line in place of many equal ones. */
function fold(pairs: Pair[]): Pair[] {
  const folded: Pair[] = [];
  for (let place = 0; place < pairs.length; ) {
    let end = place;
    while (end < pairs.length && pairs[end]?.isEqual) end += 1;
    const hidden = end - place - 2 * AROUND;
    if (hidden > 1) {
      folded.push(...pairs.slice(place, place + AROUND), { one: null, two: null, isEqual: true, hidden }, ...pairs.slice(end - AROUND, end));
    } else folded.push(...pairs.slice(place, end));
    if (end < pairs.length) folded.push(pairs[end] as Pair);
    place = end + 1;
  }
  return folded;
}

function Side({ run }: { run: FollowedRun }): ReactNode {
  const fold = run.fold;
  return (
    <div className="side">
      <div className="cut" title={fold.title}>{fold.title}</div>
      {isFiled(run.runId) ? <span className="soft">in a file</span> : <a className="mono" href={to(["run", run.runId])}>{bare(run.runId).slice(0, 12)}</a>} <b>{fold.state === "finished" ? fold.stopReason : fold.state}</b>
      <span className="soft row wrap">{journalOf(run.runId) && <span>{journalOf(run.runId)}</span>}<span>{fold.model}</span><span>{many(run.info?.steps ?? 0, "step")}</span><Sums run={run} />{fold.rewards.size > 0 && <span>{writeRewards(fold)}</span>}</span>
    </div>
  );
}

/** Chooses a run of another journal, from a file. A file of several runs asks which. */
function FromFile({ first }: { first: string }): ReactNode {
  const box = useRef<HTMLInputElement>(null);
  const [runs, setRuns] = useState<RunInfo[]>([]);
  const open = (id: string): void => go(to(["compare", first, id]));
  const read = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    try {
      const found = (await openFile(file)).filter((run) => !isCalled(run));
      if (found.length === 1) open(found[0]!.id);
      else setRuns(found);
    } catch (error) {
      tell((error as Error).message);
    }
  };
  return (
    <>
      <button onClick={() => box.current?.click()} title="A run of another journal, in a file that `treadle report RUN --out FILE` wrote there">A run in a file …</button>
      <input ref={box} type="file" accept=".html" hidden onChange={(event) => { void read(event.target.files?.[0]); event.target.value = ""; }} />
      {runs.length > 0 && (
        <select aria-label="The run of the file" value="" onChange={(event) => open(event.target.value)}>
          <option value="">choose a run of the file</option>
          {runs.map((run) => <option key={run.id} value={run.id}>{run.title}</option>)}
        </select>
      )}
    </>
  );
}

function Compare(): ReactNode {
  const { path } = usePlace();
  useTitle(path[2] ? null : "Compare");
  return path[1] && path[2] ? <Sides left={path[1]} right={path[2]} /> : <Runs key={path[1] ?? ""} first={path[1] ?? ""} other={path[1] && <FromFile first={path[1]} />} />;
}

function Sides({ left, right }: { left: string; right: string }): ReactNode {
  const [one, two] = [useRun(left), useRun(right)];
  const [isWhole, setIsWhole] = useSwitch("equal");
  const given = usePlace().query.get("at");
  const picked = given === null ? -1 : Number(given);
  const setPicked = (pair: number): void => change({ at: pair });
  const box = useRef<HTMLDivElement>(null);
  const shown = useRef<number | null>(null);
  const isReady = Boolean(one?.isLoaded && two?.isLoaded);
  const all = useMemo(() => (one && two && isReady ? align(one.fold.items.filter(isWork), two.fold.items.filter(isWork)) : []), [isReady, one?.fold.version, two?.fold.version]);
  const pairs = useMemo(() => (isWhole ? all : fold(all)), [all, isWhole]);
  const first = pairs.findIndex((pair) => !pair.isEqual);
  const virtual = useVirtual(pairs.length, box, () => 80, 600);
  const jump = (by: number): void => {
    for (let place = picked + by; place >= 0 && place < pairs.length; place += by) {
      if (pairs[place]?.isEqual) continue;
      setPicked(place);
      virtual.scrollTo(place, "center");
      return;
    }
  };
  const open = (item: Item | null | undefined): void => {
    if (item && isFiled(item.runId)) tell("this run is in a file, which shows it whole when you open it");
    else if (item) go(to(["run", item.runId], { at: item.seqs[0] }));
  };
  useEffect(() => {
    if (first < 0) return;
    // A reload leads to the pair that was picked, and what is folded anew to the first difference.
    const start = shown.current === null && given !== null ? picked : first;
    shown.current = first;
    setPicked(start);
    virtual.scrollTo(start, "center");
  }, [first, isReady]);
  useKeys([
    { key: "n", about: "Next difference", run: () => jump(1) },
    { key: "N", about: "Difference before", run: () => jump(-1) },
    { key: "j", about: "", run: () => box.current?.scrollBy(0, 120) },
    { key: "k", about: "", run: () => box.current?.scrollBy(0, -120) },
    { key: "h", about: "Open the first run here", run: () => open(pairs[picked]?.one) },
    { key: "l", about: "Open the second run here", run: () => open(pairs[picked]?.two) },
    { key: "a", about: "Show or fold what is equal", run: () => setIsWhole(!isWhole) },
  ]);
  useEffect(() => {
    if (!("highlights" in CSS)) return;
    CSS.highlights.set("differs", new Highlight(...[...box.current?.querySelectorAll(".pair.differs") ?? []].flatMap(differing)));
  });
  useEffect(() => () => void CSS.highlights?.delete("differs"), []);
  const error = one?.error ?? two?.error;
  useTitle(isReady ? `${one?.fold.title} | ${two?.fold.title}` : null);
  if (error || !one || !two || !isReady) return <Waiting title="Two runs compared" error={error ?? null} />;
  const at = first < 0 ? null : pairs[first]?.one ?? pairs[first]?.two;
  const differ = all.filter((pair) => !pair.isEqual).length;
  return (
    <main className="page">
      <h1 className="hidden">Two runs compared</h1>
      <div className="bar">
        <span>{at ? <>The first difference is {at.turn ? <>in {at.step ? "step" : "turn"} <b>{at.step || at.turn}</b></> : "before the first turn"}{at.kind === "inference" ? "" : `, at “${at.title}”`}; {many(differ, "part")} differ.</> : "These runs are equal, apart from ids and times."}</span>
        <span className="grow" />
        <button onClick={() => jump(-1)} disabled={first < 0}>Difference before</button>
        <button onClick={() => jump(1)} disabled={first < 0}>Next difference</button>
        <label className="row"><input type="checkbox" checked={isWhole} onChange={() => setIsWhole(!isWhole)} /> show what is equal</label>
      </div>
      <div className="sides"><Side run={one} /><Side run={two} /></div>
      <div className="transcript pairs" ref={box} tabIndex={0} role="region" aria-label="the runs side by side">
        <div style={{ height: virtual.total, position: "relative" }}>
          {virtual.lines.map((line) => {
            const pair = pairs[line.index] as Pair;
            return (
              <div key={line.index} data-index={line.index} ref={virtual.measure} className={`place pair ${pair.isEqual ? "equal" : "differs"}`} style={{ transform: `translateY(${line.start}px)` }}>
                {pair.hidden ? <button className="plain soft" onClick={() => setIsWhole(true)}>{many(pair.hidden, "equal part")}</button>
                  : [pair.one, pair.two].map((item, side) => (
                    <div key={side}>{item && <Line item={item} version={item.version} isPicked={line.index === picked} isDriven={(side ? two : one).isDriven} onPick={open} />}</div>
                  ))}
              </div>
            );
          })}
        </div>
      </div>
    </main>
  );
}

export const comparePage: PageSpec = { name: "compare", title: "Compare runs", key: "c", hasOwnTitle: true, Page: Compare, isOffered: () => has("/v1/runs") };
