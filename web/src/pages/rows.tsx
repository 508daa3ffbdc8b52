/** The rows of a dataset and its rejected samples: found by their texts, with why filters kept or rejected them. */
import { useDeferredValue, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { Conversation } from "../parts/conversation";
import { Chip, copy, Status, Waiting } from "../parts/basics";
import { useMarks, Wanted } from "../parts/found";
import { CHOICES, useRow, useRows, type Choice, type Chosen } from "../parts/rows";
import { Table, type Column } from "../parts/table";
import type { DatasetView, RowHead } from "../datatypes";
import { count } from "../format";
import { useKeys } from "../keys";
import { useGet } from "../load";
import { change, to, usePlace } from "../router";
import { signOfRuns } from "../shown";
import { isLive } from "../source";
import type { PageSpec } from ".";
import { DatasetBar, datasetAddress } from "./dataset";

const ANY: Record<Choice, string> = { status: "kept and rejected", kind: "any kind", tool: "any tool", filter: "any rejection", topic: "any topic" };
const spaced = (text: string): string => text.replaceAll("_", " ");

function verdictOf(head: RowHead): ReactNode {
  if (head.is_rejected) return <Chip tone="bad" title={(head.failed ?? []).join(", ")}>{head.failed?.[0] ?? "rejected"}</Chip>;
  if (head.weight !== undefined && head.weight !== 1) return <Chip tone="warn" title="A filter has lowered its weight.">weight {head.weight}</Chip>;
  if (head.is_verified) return <Chip tone="good" title="All calls were made again and gave the same results.">verified</Chip>;
  return <Chip>{head.tools?.length ? "not verified" : "no calls"}</Chip>;
}

const COLUMNS: Column<RowHead>[] = [
  { name: "Request", width: "minmax(160px, 4fr)", cell: (head) => <span title={head.text}>{head.text || <span className="soft">(no message of a user)</span>}</span> },
  { name: "Verdict", width: "112px", cell: verdictOf },
  { name: "Tools", width: "minmax(0, 1.5fr)", from: 1000, cell: (head) => <span className="soft" title={head.tools?.join(", ")}>{head.tools?.join(", ")}</span> },
  { name: "Topic", width: "minmax(0, 1.5fr)", from: 1000, cell: (head) => <span className="soft" title={head.topic}>{head.topic?.split(" › ").at(-1)}</span> },
  { name: "Kind", width: "minmax(0, 1fr)", cell: (head) => <span className="soft">{spaced(head.kind ?? "")}</span> },
  { name: "Row", width: "minmax(0, 1fr)", cell: (head) => <span className="soft mono" title={head.row_id}>{head.row_id}</span> },
];

/** Return the values that rows can be filtered by. */
function valuesOf(view: DatasetView): Record<Choice, string[]> {
  const { stats } = view;
  const topics = new Set<string>();
  for (const [path] of view.leaves) for (let depth = 1; depth <= Math.min(2, path.length); depth += 1) topics.add(path.slice(0, depth).join(" › "));
  return {
    status: stats.rejected ? ["kept", "rejected"] : [],
    kind: Object.keys(stats.kinds_planned),
    tool: Object.keys(stats.tools),
    filter: Object.keys(stats.rejections),
    topic: topics.size > 1 && topics.size <= 500 ? [...topics] : [],
  };
}

function Search({ words, onChange }: { words: string; onChange: (words: string) => void }): ReactNode {
  const [text, setText] = useState(words);
  useEffect(() => setText(words), [words]);
  useEffect(() => {
    if (text === words) return;
    const timer = setTimeout(() => onChange(text), 200);
    return () => clearTimeout(timer);
  }, [text, words, onChange]);
  return <input id="search" type="search" aria-label="Search all rows" placeholder="Search all rows" title="Their ids, messages, calls and reasons" value={text} onChange={(event) => setText(event.target.value)} />;
}

const setWords = (words: string): void => change({ words, row: "" });

function Rows(): ReactNode {
  const place = usePlace();
  const address = datasetAddress(place.path[1]);
  const { data: view, error } = useGet<DatasetView>(address);
  const words = place.query.get("words") ?? "";
  const chosen: Chosen = {};
  for (const name of CHOICES) {
    const value = place.query.get(name);
    if (value) chosen[name] = value;
  }
  const found = useRows(view, address, useDeferredValue(words), chosen);
  const values = useMemo(() => (view ? valuesOf(view) : null), [view]);
  const wanted = place.query.get("row");
  const opened = wanted === null ? null : found.heads.find((head) => keyOf(head) === wanted) ?? null;
  useKeys([
    { key: "x", about: "Clear the search and the filters", run: () => change(Object.fromEntries(["words", "row", ...CHOICES].map((name) => [name, ""]))) },
    { key: "q", about: "Close the row", run: () => change({ row: "" }) },
  ]);
  if (error || !view || !values) return <Waiting title="Rows" error={error} />;
  const query = Object.fromEntries(place.query);
  return (
    <main className="page">
      <DatasetBar view={view} number={place.path[1] ?? "0"} tab="rows" />
      <div className="bar" role="search">
        <Search words={words} onChange={setWords} />
        {CHOICES.map((name) => {
          const chosenValue = chosen[name] ?? "";
          const options = values[name].includes(chosenValue) || !chosenValue ? values[name] : [chosenValue, ...values[name]];
          return options.length > (chosenValue ? 0 : 1) && (
            <select key={name} id={`by-${name}`} aria-label={ANY[name]} value={chosenValue} onChange={(event) => change({ [name]: event.target.value, row: "" })}>
              <option value="">{ANY[name]}</option>
              {options.map((value) => <option key={value} value={value} title={value}>{value.length > 50 ? `${value.slice(0, 49)}…` : spaced(value)}</option>)}
            </select>
          );
        })}
        <span className="grow" />
        <span className="soft num" aria-live="polite">
          {found.isLoading ? "searching …" : found.found === found.total ? `all ${count(found.total)} rows` : `${count(found.found)} of ${count(found.total)} rows`}
        </span>
      </div>
      {found.error ? <Status error={found.error} /> : !found.heads.length && !found.isLoading ? <Status>{found.total ? "No row matches." : "The dataset has no rows."}</Status> : (
        <div className={`halves ${opened ? "two" : ""}`}>
          <Table label="rows" items={found.heads} columns={opened ? COLUMNS.slice(0, 2) : COLUMNS} idOf={keyOf} addressOf={(head) => to(place.path, { ...query, row: keyOf(head) })} onEnd={found.more} openedId={opened ? keyOf(opened) : ""} onFollow={(head) => change({ row: keyOf(head) })} />
          {opened && <Wanted value={words.toLowerCase().split(/\s+/).filter(Boolean)}><Opened view={view} address={address} head={opened} sign={isLive ? signOfRuns(Number(place.path[1] ?? 0)) : null} /></Wanted>}
        </div>
      )}
    </main>
  );
}

/** Return the name of a row in the address: rows of different files can have one id. */
const keyOf = (head: RowHead): string => `${head.is_rejected ? "r" : "k"}${head.number}`;

/** `sign`: what the ids of the runs of this dataset begin with; `null` if they cannot be opened. */
function Opened({ view, address, head, sign }: { view: DatasetView; address: string; head: RowHead; sign: string | null }): ReactNode {
  const { body, absent } = useRow(view, address, head);
  const box = useRef<HTMLElement>(null);
  useMarks(box, body ? keyOf(head) : "");
  return (
    <aside className="opened" ref={box} aria-label="the row" tabIndex={0} key={keyOf(head)}>
      <div className="row wrap">
        <h2 className="mono">{head.row_id}</h2>
        {verdictOf(head)}
        <span className="grow" />
        <button className="plain" onClick={() => void copy(head.row_id)}>Copy the id</button>
        <button className="plain" onClick={() => change({ row: "" })} title="Close the row (q)" aria-label="Close the row">✕</button>
      </div>
      {!body ? <Status>{absent || "Loading …"}</Status> : (
        <>
          <dl className="facts">
            {Object.entries(body.facts).map(([name, value]) => [<dt key={name}>{name}</dt>, <dd key={`${name} value`}>{name === "run" && sign !== null ? <a href={to(["run", `${sign}${value}`])}>{value}</a> : value}</dd>])}
          </dl>
          {body.verdicts.length > 0 && (
            <ul className="verdicts" aria-label="verdicts of filters">
              {[...body.verdicts].sort((one, two) => Number(one.is_passed) - Number(two.is_passed)).map((item) => (
                <li key={item.filter} className={item.is_passed ? "" : "told"}><span className={item.is_passed ? "good" : "bad"}>{item.is_passed ? "✓" : "✗"} {item.filter}</span> {item.reason && <span className="soft">{item.reason}</span>}</li>
              ))}
            </ul>
          )}
          <Conversation messages={body.messages} />
          {body.left_out > 0 && <p className="soft">{count(body.left_out)} more messages are not in this file.</p>}
        </>
      )}
    </aside>
  );
}

export const rowsPage: PageSpec = { name: "rows", title: "", key: "", hasOwnTitle: true, Page: Rows, isOffered: () => false };
