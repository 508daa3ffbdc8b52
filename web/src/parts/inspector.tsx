/** What is known about one item: its facts, what was sent to the model, and its events as they are stored. */
import type { ReactNode } from "react";
import type { RunEvent } from "../fold/events";
import type { Item, RunFold } from "../fold/run";
import { clock, count, many, oneLine, pretty, seconds, usd } from "../format";
import { useGet } from "../load";
import { to, useSetting } from "../router";
import { copy, Status } from "./basics";
import { describeUsage, Owner, Text, textOf } from "./transcript";

interface StepView {
  step: number;
  model: string | null;
  messages: { message: { role: string; content?: string; tool_calls?: { name: string; arguments: string }[]; name?: string }; tokens: number; number?: number; is_summary?: boolean; is_cut?: boolean; recalled_chars?: number }[];
  tools: string[];
  tools_tokens: number;
  tokens: number;
  is_counted: boolean;
  room: number | null;
  window?: { tokens: number } | null;
  left_out: { message: { role: string; content?: string }; tokens: number; why: string; seq: number }[];
}

const WHY: Record<string, string> = { summarised: "in the summary", dropped: "in no summary", cut: "shown in part", forgotten: "its memories were taken out" };

/** A text with its name, and a button that copies it as it is written. */
function Copied({ name, text, shown }: { name: string; text: string; shown: string }): ReactNode {
  return <section><div className="row"><h3 className="grow">{name}</h3><button className="plain" onClick={() => void copy(text)}>Copy</button></div><Text name={name} text={shown} most={4_000} /></section>;
}

export function Facts({ facts }: { facts: [string, ReactNode][] }): ReactNode {
  return (
    <dl className="facts">
      {facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [
        <dt key={name}>{name}</dt>, <dd key={`${name}=`}>{value}</dd>,
      ])}
    </dl>
  );
}

/** The fields of a policy that limit a run, as they are named in a configuration. */
const LIMITS = ["max_steps", "max_tool_calls", "max_tokens", "max_cost_usd", "deadline_seconds", "approve", "autonomy"];

/** Return what a run began or goes on with: its model, its tools and its limits. */
function factsOfAgent(events: RunEvent[]): [string, ReactNode][] {
  const event = events.find((one) => one.agent);
  const agent = event?.agent as { model: { name: string; settings?: object }; policy: Record<string, unknown> } | undefined;
  if (!event || !agent) return [];
  const tools = (event.tools ?? []) as { name: string }[];
  const settings = agent.model.settings && JSON.stringify(agent.model.settings);
  return [
    ["Model", agent.model.name],
    ["Settings", settings && <code>{settings}</code>],
    ["Tools", tools.map((tool) => tool.name).join(", ")],
    ...LIMITS.map((name): [string, ReactNode] => {
      const value = agent.policy[name] ?? "";
      return [name, typeof value === "object" ? Object.entries(value).map(([tool, rule]) => `${tool}: ${rule}`).join(", ") : String(value)];
    }),
  ];
}

function factsOf(item: Item): [string, ReactNode][] {
  const completion = item.completion;
  const waited = item.spans.filter((span) => span.phase === "wait").reduce((sum, span) => sum + (span.to ?? span.from) - span.from, 0);
  const retried = item.spans.filter((span) => span.phase === "retry").reduce((sum, span) => sum + (span.to ?? span.from) - span.from, 0);
  return [
    ["Time", clock(item.at)],
    ["Took", item.seconds === null ? null : seconds(item.seconds)],
    ["Waited", waited ? seconds(waited) : null],
    ["Retrying", retried ? seconds(retried) : null],
    ["First token", item.firstToken === null ? null : seconds(item.firstToken)],
    ["Model", item.model],
    ["Engine", completion?.engine ?? null],
    ["Weights", completion?.weight_version ?? null],
    ["Tokens", describeUsage(completion?.usage)],
    ["Cost", completion ? (completion.cost_usd === null || completion.cost_usd === undefined ? "unknown" : usd(completion.cost_usd)) : null],
    ["Ended by", completion?.finish_reason ?? null],
    ["Settings", completion?.settings ? <code>{JSON.stringify(completion.settings)}</code> : null],
    ["Call id", item.kind === "call" ? <code>{item.callId}</code> : null],
    ["Effect", item.effect],
    ["Error", item.result?.error_kind ?? null],
    ["Sub-agent", item.child ? <a href={to(["run", item.child])}>{item.child}</a> : null],
    ["Notes", item.notes.join("; ")],
  ];
}

function Prompt({ runId, step }: { runId: string; step: number }): ReactNode {
  const { data, error } = useGet<StepView>(`/v1/view/runs/${encodeURIComponent(runId)}/prompts/${step}`);
  if (error) return <Status error={error} />;
  if (!data) return <Status />;
  return (
    <div className="prompt">
      <p className="soft">
        {many(data.messages.length, "message")}, {count(data.tokens)} tokens {data.is_counted ? "as the server counted" : "as estimated"}
        {data.room ? `, room for ${count(data.room)}` : ""}. Tools: {data.tools.join(", ") || "none"} ({count(data.tools_tokens)} tokens).
      </p>
      {data.messages.map(({ message, tokens, is_summary, is_cut, recalled_chars }, number) => (
        <section key={number}>
          <h3>{message.role}{message.name ? ` ${message.name}` : ""} · {count(tokens)} tokens{is_summary ? " · summary" : ""}{is_cut ? " · cut" : ""}{recalled_chars ? " · with memories" : ""}</h3>
          {message.content && <Text name={`message ${step} ${number}`} text={message.content} most={700} />}
          {message.tool_calls?.map((call, at) => <Text key={at} name={`call ${step} ${number} ${at}`} text={`${call.name} ${call.arguments}`} most={400} />)}
        </section>
      ))}
      {data.left_out.length > 0 && <h2>Left out</h2>}
      {data.left_out.map((gone, number) => (
        <p key={number} className="soft">{gone.message.role}, {count(gone.tokens)} tokens: {WHY[gone.why] ?? gone.why}, by event {gone.seq}. {oneLine(gone.message.content ?? "", 80)}</p>
      ))}
    </div>
  );
}

function Raw({ events }: { events: RunEvent[] }): ReactNode {
  return (
    <>
      {events.map((event) => (
        <section key={event.seq}>
          <div className="row"><h3 className="grow">{event.seq} · {event.type}</h3><button className="plain" onClick={() => void copy(JSON.stringify(event, null, 2))}>Copy</button></div>
          <Text name={`event ${event.seq}`} text={JSON.stringify(event, null, 2)} most={6_000} />
        </section>
      ))}
    </>
  );
}

const TABS = ["facts", "prompt", "events"] as const;

export function Inspector({ item, fold, runId, actions, onClose }: { item: Item | null; fold: RunFold; runId: string; actions?: ReactNode; onClose: () => void }): ReactNode {
  const [asked, setTab] = useSetting("tab", "facts");
  const tab = TABS.find((name) => name === asked) ?? "facts";
  const close = <button className="close" onClick={onClose} aria-label="Hide the inspector" title="Hide the inspector (i)">✕</button>;
  if (!item) return <aside className="inspector" aria-label="inspector"><div className="tabs empty"><span className="grow" />{close}</div><Status>Pick a line to see what is known about it.</Status></aside>;
  const events = item.seqs.flatMap((seq) => fold.events[seq - 1] ?? []);
  const agent = factsOfAgent(events);
  // The notes of a start name the tools again.
  const facts = factsOf(item).filter(([name]) => name !== "Notes" || !agent.length);
  const canPrompt = item.kind === "inference" || item.kind === "call";
  const shown = tab === "prompt" && !canPrompt ? "facts" : tab;
  return (
    <aside className="inspector" aria-label="inspector" tabIndex={0}>
      <div className="tabs">
        <div role="tablist">
          {TABS.filter((name) => name !== "prompt" || canPrompt).map((name) => (
            <button key={name} role="tab" aria-selected={shown === name} onClick={() => setTab(name)}>{name === "prompt" ? `What the model saw in step ${item.step}` : name === "facts" ? "Facts" : "Events"}</button>
          ))}
        </div>
        {close}
      </div>
      <Owner value={`inspected ${runId} ${item.id}`}><div className="inside">
        {shown === "facts" && (
          <>
            <h2>{item.title}</h2>
            {actions}
            <Facts facts={[...facts, ...agent]} />
            {item.kind === "call" && <Copied name="Arguments" text={item.arguments} shown={pretty(item.arguments)} />}
            {item.result && <Copied name="Result" text={item.result.content} shown={pretty(item.result.content)} />}
            {item.result?.structured !== undefined && <Copied name="Structured" text={JSON.stringify(item.result.structured)} shown={JSON.stringify(item.result.structured, null, 2)} />}
            {item.reasoning && <Copied name="Reasoning" text={item.reasoning} shown={item.reasoning} />}
            {item.kind !== "call" && item.text && <Copied name="Text" text={item.text} shown={textOf(item)} />}
          </>
        )}
        {shown === "prompt" && <Prompt key={`${runId} ${item.step}`} runId={runId} step={item.step} />}
        {shown === "events" && <Raw events={events} />}
      </div></Owner>
    </aside>
  );
}
