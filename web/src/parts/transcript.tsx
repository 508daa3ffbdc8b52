/** The transcript of a run: a list of blocks, of which only those in view are drawn. */
import { createContext, memo, useContext, useEffect, useLayoutEffect, useReducer, useRef, useState, type ReactNode } from "react";
import { useKept } from "../kept";
import type { Artifact, Usage } from "../fold/events";
import type { Item } from "../fold/run";
import { bytes, clock, compact, count, many, oneLine, pretty, seconds, usd } from "../format";
import { useGet } from "../load";
import { to } from "../router";
import { isLive } from "../source";
import { Chip, Dialog, Status, type Tone } from "./basics";
import { contentOf, type Content } from "./files";
import { markIn, useIsBehind, useMarks, Wanted } from "./found";
import { Markdown, useMarkdown } from "./markdown";
import { useVirtual } from "./virtual";

const SHORT = 80;
const LONG = 1_600;
const MOST = 200_000;

/** The id of the part whose texts are shown. */
export const Owner = createContext("");

/** A text that is cut if it is long, until somebody asks for the rest or looks for words that stand there. */
export function Text({ text, name, className = "", most = LONG, isMarkdown = false }: { text: string; name: string; className?: string; most?: number; isMarkdown?: boolean }): ReactNode {
  const [chosen, setIsWhole] = useKept<boolean | null>(`text ${useContext(Owner)} ${name}`, null);
  const isWhole = useIsBehind(text, most) ? chosen ?? true : chosen ?? false;
  const [laysOut] = useMarkdown();
  const limit = isWhole ? MOST : most;
  const shown = text.length > limit ? `${text.slice(0, limit)} …` : text;
  return (
    <>
      {isMarkdown && laysOut ? <Markdown className={className} text={shown} /> : <pre className={className}>{shown}</pre>}
      {text.length > most && (
        <button className="plain more" onClick={(event) => { event.stopPropagation(); setIsWhole(!isWhole); }}>
          {isWhole ? "Show less" : text.length > MOST ? `Show ${count(MOST)} of ${count(text.length)} characters` : `Show all ${count(text.length)} characters`}
        </button>
      )}
    </>
  );
}

export function describeUsage(usage: Usage | undefined): string {
  if (!usage) return "";
  const input = usage.input_tokens ?? 0;
  const cached = usage.cached_input_tokens ? `, ${count(usage.cached_input_tokens)} cached` : "";
  const thought = usage.reasoning_tokens ? `, ${count(usage.reasoning_tokens)} to think` : "";
  return `${count(input)} tokens in${cached}, ${count(usage.output_tokens ?? 0)} out${thought}`;
}

/** An image that is kept beside the events. */
function Picture({ runId, part, digest }: { runId: string; part: Artifact; digest: string }): ReactNode {
  const { data } = useGet<Content>(contentOf(runId, digest));
  const name = part.name ?? "attached image";
  return data?.base64 === undefined ? <Chip>{name}</Chip> : <img src={`data:${part.mime_type};base64,${data.base64}`} alt={name} />;
}

const nameOf = (part: Artifact): string => `${part.name ?? part.kind}${part.size_bytes ? `, ${bytes(part.size_bytes)}` : ""}`;

/** A content that is kept beside the events, such as the whole of a cut result, which is shown when it is asked for. */
function Kept({ runId, part, digest }: { runId: string; part: Artifact; digest: string }): ReactNode {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <span onClick={(event) => event.stopPropagation()}>
      <button className="chip" title="Show it" onClick={() => setIsOpen(true)}>{nameOf(part)}</button>
      {isOpen && <KeptDialog runId={runId} part={part} digest={digest} onClose={() => setIsOpen(false)} />}
    </span>
  );
}

function KeptDialog({ runId, part, digest, onClose }: { runId: string; part: Artifact; digest: string; onClose: () => void }): ReactNode {
  const { data, error } = useGet<Content>(contentOf(runId, digest));
  const [address, setAddress] = useState("");
  useEffect(() => {
    if (!data) return;
    const content = data.base64 === undefined ? data.text ?? "" : Uint8Array.from(atob(data.base64), (letter) => letter.charCodeAt(0));
    const made = URL.createObjectURL(new Blob([content]));
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [data]);
  return (
    <Dialog title={nameOf(part)} onClose={onClose}>
      {error || !data ? <Status error={error} /> : data.text === undefined ? <p className="soft">This content is not text.</p> : <Text name={digest} className="kept" text={data.text} most={20_000} />}
      <div className="ends">{address && <a href={address} download={part.name ?? `${digest.slice(0, 12)}${data?.text === undefined ? "" : ".txt"}`}>Save as a file</a>}<button onClick={onClose}>Close</button></div>
    </Dialog>
  );
}

function Parts({ runId, parts }: { runId: string; parts: Artifact[] }): ReactNode {
  return (
    <div className="row wrap parts">
      {parts.map((part, number) => (
        part.data && part.mime_type?.startsWith("image/")
          ? <img key={number} src={`data:${part.mime_type};base64,${part.data}`} alt={part.name ?? "attached image"} />
          : part.digest && part.mime_type?.startsWith("image/")
            ? <Picture key={number} runId={runId} part={part} digest={part.digest} />
            : part.digest ? <Kept key={number} runId={runId} part={part} digest={part.digest} />
            : <Chip key={number} title={part.uri ?? ""}>{nameOf(part)}</Chip>
      ))}
    </div>
  );
}

const TONES: Record<Item["state"], Tone> = { "": "", good: "", bad: "bad", warn: "warn", running: "accent" };

function Head({ item, children }: { item: Item; children?: ReactNode }): ReactNode {
  return (
    <div className="head">
      <b className={TONES[item.state]}>{item.title}</b>
      {children}
      {item.notes.map((note, number) => <span key={number} className="soft cut note" title={note}>{note}</span>)}
      <span className="grow" />
      {item.seconds !== null && item.seconds > 0 && <span className="soft">{seconds(item.seconds)}</span>}
    </div>
  );
}

/** Says that an item is under way, or that nobody drives its run any more. */
function Running({ item, isDriven, what }: { item: Item; isDriven: boolean; what: string }): ReactNode {
  const [, tick] = useReducer((count: number) => count + 1, 0);
  const isRunning = item.state === "running";
  useEffect(() => {
    if (!isRunning || !isDriven || !isLive) return;
    const timer = setInterval(tick, 1000);
    return () => clearInterval(timer);
  }, [isRunning, isDriven]);
  if (!isRunning) return null;
  const passed = Math.floor(Date.now() / 1000 - item.at);
  return isDriven ? <Chip tone="accent" moves={isLive} dot title={isLive ? "" : "when this file was written"}>{what}{isLive && passed > 1 && ` for ${passed < 60 ? `${passed} s` : seconds(passed)}`}</Chip> : <Chip tone="warn" title="the process that drove the run has ended">interrupted</Chip>;
}

/** Return what an item says; an answer that must fit a schema is laid out, also while it comes. */
export const textOf = (item: Item): string => (item.isStructured ? pretty(item.text, true, item.state === "running") : item.text);

function Inference({ item, isDriven }: { item: Item; isDriven: boolean }): ReactNode {
  const usage = item.completion?.usage;
  return (
    <>
      <Head item={item}>
        <span className="soft cut">{item.model}</span>
        <Running item={item} isDriven={isDriven} what={item.failures.length ? "retrying" : "answering"} />
        {usage && <span className="soft" title={describeUsage(usage)}>{compact(usage.input_tokens ?? 0)} → {compact(usage.output_tokens ?? 0)}</span>}
        {item.completion?.cost_usd ? <span className="soft">{usd(item.completion.cost_usd)}</span> : null}
        {item.completion?.is_cached && <Chip>from the cache</Chip>}
        {["length", "content_filter"].includes(item.completion?.finish_reason ?? "") && <Chip tone="warn">{item.completion?.finish_reason}</Chip>}
      </Head>
      {item.failures.map((failure) => (
        <p key={failure.seq} className="failure bad">
          <b>{failure.error_type}</b> {failure.error !== failure.error_type?.toLowerCase() && oneLine(failure.error ?? "", 400)}
          <span className="soft"> · {failure.fault}{failure.retry_in_seconds !== undefined && `, again in ${seconds(failure.retry_in_seconds)}`}{failure.next_tier && `, then tier ${failure.next_tier}`}</span>
        </p>
      ))}
      {item.reasoning && <Text name="thought" className="thought" text={item.reasoning} most={600} />}
      {item.text && <Text name="said" className={item.isStructured ? "arguments" : "said"} text={textOf(item)} isMarkdown={!item.isStructured} />}
      {item.parts.length > 0 && <Parts runId={item.runId} parts={item.parts} />}
    </>
  );
}

interface Opening {
  /** Whether a process drives the run of the item. */
  isDriven: boolean;
  /** Shows or hides the run of a sub-agent below its call. */
  onOpen?: (child: string | null) => void;
  isOpened?: boolean;
}

function Call({ item, onOpen, isOpened, isDriven }: { item: Item } & Opening): ReactNode {
  const result = item.result;
  const files = item.files ? [...Object.keys(item.files.changed), ...item.files.deleted] : [];
  return (
    <>
      <Head item={item}>
        {item.effect === "once" && <Chip title="running it again could do harm">once</Chip>}
        {item.effect === "server" && <Chip title="the model's server made this call">server</Chip>}
        <Running item={item} isDriven={isDriven} what={item.seqs.length ? "running" : "being written"} />
        {item.isOpen && <Chip tone="warn" dot>waits for approval</Chip>}
        {result?.error_kind && <Chip tone={TONES[item.state]}>{result.error_kind.replaceAll("_", " ")}</Chip>}
        {result?.is_simulated && <Chip title="a mock or a model made this result up">simulated</Chip>}
        {files.length > 0 && <a className="chip" href={to(["run", item.runId], { view: "files", at: item.seqs.at(-1) })} title={`${files.join("\n")}\nShow the differences`} onClick={(event) => event.stopPropagation()}>{many(files.length, "file")} changed</a>}
        {item.child && (
          <>
            {onOpen && <button className="plain more" aria-expanded={isOpened} onClick={(event) => { event.stopPropagation(); onOpen(item.child); }}>{isOpened ? "▾" : "▸"} sub-agent</button>}
            <a href={to(["run", item.child])} onClick={(event) => event.stopPropagation()}>its run</a>
          </>
        )}
      </Head>
      <Text name="arguments" className="arguments" text={item.arguments.length <= SHORT && !item.arguments.includes("\\n") ? item.arguments : pretty(item.arguments, true, item.state === "running")} most={900} />
      {result && <Text name="result" className={`result${result.is_error ? " bad" : ""}`} text={result.content || "(empty)"} most={900} />}
      {result?.artifacts && result.artifacts.length > 0 && <Parts runId={item.runId} parts={result.artifacts} />}
    </>
  );
}

function Block({ item, ...opening }: { item: Item } & Opening): ReactNode {
  switch (item.kind) {
    case "turn":
      return <Head item={item}><span className="soft">{clock(item.at)}</span></Head>;
    case "inference":
      return <Inference item={item} isDriven={opening.isDriven} />;
    case "call":
      return <Call item={item} {...opening} />;
    case "question":
      return (
        <>
          <Head item={item}>{item.isOpen && <Chip tone="warn" dot>waits for an answer</Chip>}</Head>
          <Text name="said" className="said" text={item.text} />
          {item.options.length > 0 && <ul className="soft">{item.options.map((option) => <li key={option.label}>· {option.label}{option.description ? `: ${option.description}` : ""}</li>)}</ul>}
        </>
      );
    case "event":
      return <Head item={item}><span className="cut" title={item.text}>{oneLine(item.text)}</span></Head>;
    default:
      return (
        <>
          <Head item={item} />
          {item.text && <Text name="said" className="said" text={item.text} most={item.kind === "system" ? 500 : LONG} />}
          {item.parts.length > 0 && <Parts runId={item.runId} parts={item.parts} />}
        </>
      );
  }
}

interface LineProps extends Opening { item: Item; version: number; isPicked: boolean; onPick: (item: Item) => void }

export const Line = memo(function Line({ item, isPicked, onPick, onOpen, isOpened, isDriven }: LineProps): ReactNode {
  const style = { marginLeft: 12 * Math.min(6, Math.max(0, item.depth - 1)) };
  return (
    <article className={`block ${item.kind} ${item.role} is-${item.state}${isPicked ? " picked" : ""}`} style={style} onClick={() => onPick(item)} aria-label={item.title}>
      <Owner value={`${item.runId} ${item.id}`}><Block item={item} {...(onOpen ? { onOpen } : {})} isOpened={isOpened ?? false} isDriven={isDriven} /></Owner>
    </article>
  );
});

const sizes: Record<Item["kind"], number> = { system: 120, turn: 36, message: 80, inference: 88, call: 120, question: 88, event: 32 };

interface Props {
  items: readonly Item[];
  version: number;
  picked: number;
  onPick: (index: number) => void;
  /** Whether the end stays in view while items are added. */
  sticks: boolean;
  onOpen: (child: string | null) => void;
  opened: ReadonlySet<string>;
  isDriven: (item: Item) => boolean;
}

export function Transcript({ items, version, picked, onPick, sticks, onOpen, opened, isDriven }: Props): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const virtual = useVirtual(items.length, box, (index) => sizes[(items[index] as Item).kind], 600);
  const pick = useRef(onPick);
  pick.current = onPick;
  const indexes = useRef(items);
  indexes.current = items;
  const [onLine] = useState(() => (item: Item) => pick.current(indexes.current.indexOf(item)));
  const open = useRef(onOpen);
  open.current = onOpen;
  const [onChild] = useState(() => (child: string | null) => open.current(child));
  useEffect(() => {
    virtual.scrollTo(picked);
  }, [picked]);
  useMarks(box);
  const wanted = useContext(Wanted);
  const shown = useRef("");
  useEffect(() => {
    // A block may be higher than the window: its first mark is scrolled to, once for each pick.
    const key = `${picked} ${wanted}`;
    const place = wanted.length && shown.current !== key ? box.current?.querySelector(`[data-index="${picked}"]`) ?? null : null;
    const below = markIn(place, wanted);
    if (below === null) return;
    shown.current = key;
    virtual.scrollTo(picked, "auto", below);
  });
  useLayoutEffect(() => {
    if (isAtEnd.current && sticks && items.length) virtual.scrollTo(items.length - 1, "end");
  }, [version, items.length, sticks]);
  return (
    <div
      className="transcript" ref={box} tabIndex={0} role="feed" aria-label="transcript"
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40;
      }}
    >
      <div style={{ height: virtual.total, position: "relative" }}>
        {virtual.lines.map((line) => {
          const item = items[line.index] as Item;
          return (
            <div key={item.id} data-index={line.index} ref={virtual.measure} className="place" style={{ transform: `translateY(${line.start}px)` }}>
              <Line item={item} version={item.version} isPicked={line.index === picked} onPick={onLine} onOpen={onChild} isOpened={item.child !== null && opened.has(item.child)} isDriven={isDriven(item)} />
            </div>
          );
        })}
      </div>
    </div>
  );
}
