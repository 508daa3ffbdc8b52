/** What a person can do with a run: talk to it, answer, decide, stop, go on, fork, label and note. */
import { useState, type FormEvent, type ReactNode } from "react";
import { useKept } from "../kept";
import type { RunEvent } from "../fold/events";
import type { Item, RunFold } from "../fold/run";
import { pretty } from "../format";
import { post } from "../source";
import { go, to } from "../router";
import type { RunInfo } from "../types";
import { Dialog, tell } from "./basics";

const runAddress = (runId: string, what: string): string => `/v1/runs/${encodeURIComponent(runId)}/${what}`;

/** Do something on the server, and say if that failed. Returns whether it was done. */
async function attempt(work: Promise<unknown>, done = ""): Promise<boolean> {
  try {
    await work;
    if (done) tell(done);
    return true;
  } catch (error) {
    tell((error as Error).message);
    return false;
  }
}

async function mail(runId: string, message: Record<string, unknown>): Promise<void> {
  await post(runAddress(runId, "inbox"), message);
}

export const cancel = (runId: string): Promise<boolean> => attempt(mail(runId, { type: "cancel" }), "cancelled");
export const resume = (runId: string): Promise<boolean> => attempt(post(runAddress(runId, "resume"), {}), "resumed");

const fork = (runId: string, body: { at: number; input?: string }): Promise<boolean> => attempt(post<RunInfo>(runAddress(runId, "fork"), body).then((run) => go(to(["run", run.id]))));

/** Fork a failed run before the request that failed. */
export function TryAgain({ fold }: { fold: RunFold }): ReactNode {
  const failed = fold.items.findLast((item) => item.kind === "inference" && item.failures.length > 0 && !item.completion);
  const { runId } = fold;
  if (fold.state !== "finished" || fold.stopReason !== "error" || !failed?.seqs[0]) return null;
  const at = failed.seqs[0] - 1;
  return <button onClick={() => void fork(runId, { at })} title={`A fork that asks the model again in step ${failed.step}`}>Try again</button>;
}

function Question({ runId, item }: { runId: string; item: Item }): ReactNode {
  const [text, setText] = useKept(`answer ${item.seqs[0]}`, "");
  const say = (answer: string): void => void attempt(mail(runId, { type: "answer", question_id: item.callId, text: answer }));
  return (
    <form className="ask" onSubmit={(event) => { event.preventDefault(); say(text); }}>
      <b className="warn">It asks:</b> <span className="whole" tabIndex={0} role="region" aria-label="The question">{item.text}</span>
      {item.options.map((option) => <button key={option.label} type="button" title={option.description} onClick={() => say(option.label)}>{option.label}</button>)}
      <input aria-label="Answer" placeholder="Answer" className="grow" value={text} onChange={(event) => setText(event.target.value)} data-focus="reply" />
      <button className="main" disabled={!text.trim()}>Answer</button>
      <button type="button" onClick={() => void attempt(mail(runId, { type: "answer", question_id: item.callId, is_declined: true }))}>Decline</button>
    </form>
  );
}

function Approval({ runId, item }: { runId: string; item: Item }): ReactNode {
  const [reason, setReason] = useKept(`reason ${item.seqs[0]}`, "");
  // The text goes to the server as it was written, since JavaScript would change long numbers.
  const [changed, setChanged] = useKept<string | null>(`changed ${item.seqs[0]}`, null);
  const laidOut = pretty(item.arguments);
  const say = (isApproved: boolean): void => {
    const more = isApproved ? { arguments: changed === laidOut ? null : changed } : { reason: reason || null };
    void attempt(mail(runId, { type: "decide", call_id: item.callId, is_approved: isApproved, ...more }));
  };
  return (
    <form className="ask" onSubmit={(event) => { event.preventDefault(); say(false); }}>
      <b className="warn">It wants to call {item.title}:</b>
      {changed === null
        ? <code className="whole" tabIndex={0} role="region" aria-label="Arguments of the call">{item.arguments}</code>
        : <textarea aria-label="Arguments of the call, as JSON" className="grow mono" autoFocus value={changed} onChange={(event) => setChanged(event.target.value)} />}
      <button className="main" type="button" onClick={() => say(true)} data-focus="reply">Approve</button>
      <button type="button" title={changed === null ? "Change the arguments before the call is made; the model is told" : "Back to the arguments of the model"} onClick={() => setChanged(changed === null ? laidOut : null)}>{changed === null ? "Change" : "Undo"}</button>
      <span className="row grow">
        <input aria-label="Reason for a refusal" placeholder="Reason" title="Why the call is refused; the model is told" value={reason} onChange={(event) => setReason(event.target.value)} />
        <button>Refuse</button>
      </span>
    </form>
  );
}

/** When the model sees a message that is sent while it works. */
const DELIVERIES: Record<string, string> = { queue: "after this turn", steer: "at the next step", interrupt: "at once" };

function Talk({ runId, isSession, isOpen }: { runId: string; isSession: boolean; isOpen: boolean }): ReactNode {
  const [text, setText] = useKept("message", "");
  const [delivery, setDelivery] = useState(isSession ? "queue" : "steer");
  const [isSending, setIsSending] = useState(false);
  const say = async (): Promise<void> => {
    if (!text.trim() || isSending) return;
    setIsSending(true);
    const body = { input: text, delivery: isOpen ? delivery : "queue" };
    const message = { type: delivery, message: { role: "user", content: text } };
    const sent = isOpen ? `sent: the model sees it ${DELIVERIES[delivery]}` : "";
    const sending = attempt(isSession ? post(runAddress(runId, "turns"), body) : mail(runId, message), sent);
    if (await sending) setText("");
    setIsSending(false);
  };
  return (
    <form className="ask" onSubmit={(event) => { event.preventDefault(); void say(); }}>
      <textarea
        rows={1} aria-label="Message" placeholder={isSession ? "Say something (m)" : "Tell the model something while it works (m)"} className="grow" value={text} data-focus="message"
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) { event.preventDefault(); void say(); } }}
      />
      {isOpen && isSession && (
        <select aria-label="When the model sees it" value={delivery} onChange={(event) => setDelivery(event.target.value)}>
          {Object.entries(DELIVERIES).map(([name, when]) => <option key={name} value={name}>{when}</option>)}
        </select>
      )}
      <button className="main" disabled={!text.trim() || isSending}>Send</button>
    </form>
  );
}

/** The bar below a run: what it waits for, or a place to write to it. */
export function Reply({ runId, fold }: { runId: string; fold: RunFold }): ReactNode {
  const waiting = fold.items.slice(-200).filter((item) => item.isOpen);
  const isSession = Boolean((fold.started as { is_session?: boolean } | null)?.is_session);
  if (waiting.length) {
    return (
      <div className="reply">
        {waiting.map((item) => (item.kind === "question" ? <Question key={item.id} runId={runId} item={item} /> : <Approval key={item.id} runId={runId} item={item} />))}
      </div>
    );
  }
  if (fold.state === "paused" && ["question", "approval"].includes(fold.pausedFor)) {
    return (
      <div className="reply">
        <div className="ask"><span className="grow">The answer is stored. The run goes on when it is driven again.</span><button className="main" onClick={() => void resume(runId)}>Resume</button></div>
      </div>
    );
  }
  if (fold.state === "finished" || (!isSession && fold.state !== "running")) return null;
  return <div className="reply"><Talk runId={runId} isSession={isSession} isOpen={fold.state === "running"} /></div>;
}

/** A dialog with one form. `work` returns whether the dialog can close. `isReady` says whether there is anything to do. */
export function FormDialog({ title, action, isReady, work, onClose, children }: { title: string; action: string; isReady: boolean; work: () => Promise<boolean>; onClose: () => void; children: ReactNode }): ReactNode {
  const [isBusy, setIsBusy] = useState(false);
  const isOff = isBusy || !isReady;
  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    if (isOff) return;
    setIsBusy(true);
    if (await work()) onClose();
    else setIsBusy(false);
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => void submit(event)} onKeyDown={(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit(); }}>
        {children}
        <div className="ends"><button type="button" onClick={onClose}>Close</button><button className="main" disabled={isOff} title="Ctrl+Enter, also within a text of several lines">{action}</button></div>
      </form>
    </Dialog>
  );
}

export function NoteDialog({ runId, onClose }: { runId: string; onClose: () => void }): ReactNode {
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const [remark, setRemark] = useState("");
  const work = (): Promise<boolean> => {
    const labels = name.trim() ? { labels: { [name.trim()]: value || null } } : {};
    return attempt(mail(runId, { type: "note", ...labels, ...(remark.trim() ? { remark } : {}), by: "viewer" }), "noted");
  };
  return (
    <FormDialog title="Label and note" action="Save" isReady={Boolean(name.trim() || (remark.trim() && !value))} work={work} onClose={onClose}>
      <div className="row">
        <input className="grow" aria-label="Name of the label" placeholder="Name of a label" value={name} onChange={(event) => setName(event.target.value)} />
        <input className="grow" aria-label="Value of the label" placeholder="Value" title="Without a value, the label is removed" value={value} onChange={(event) => setValue(event.target.value)} />
      </div>
      <textarea aria-label="Note" placeholder="A note for people who read the run" value={remark} onChange={(event) => setRemark(event.target.value)} />
    </FormDialog>
  );
}

export function ForkDialog({ runId, events, seq, onClose }: { runId: string; events: readonly RunEvent[]; seq: number; onClose: () => void }): ReactNode {
  const [at, setAt] = useState(String(seq));
  const [text, setText] = useState("");
  const last = events[Number(at) - 1];
  const work = (): Promise<boolean> => fork(runId, { at: Number(at), ...(text.trim() ? { input: text } : {}) });
  return (
    <FormDialog title="Fork this run" action="Fork" isReady={at !== ""} work={work} onClose={onClose}>
      <p className="soft">The new run begins with a copy of the events up to this one, and goes on from there.</p>
      <label htmlFor="fork-at">Last event that is copied</label>
      <input id="fork-at" aria-describedby="fork-last" inputMode="numeric" pattern="0*[1-9][0-9]*" title="The number of an event, from 1 on" value={at} onChange={(event) => setAt(event.target.value)} />
      {last && <p className="soft" id="fork-last">{[last.type.replaceAll("_", " "), last.name, last.step && `step ${last.step}`].filter(Boolean).join(", ")}</p>}
      <label htmlFor="fork-text">Message of the next turn, if the turn is over there</label>
      <textarea id="fork-text" value={text} onChange={(event) => setText(event.target.value)} />
    </FormDialog>
  );
}

/** `sign`: what the ids of the runs of the journal begin with. */
export function NewRunDialog({ names, sign, onClose }: { names: string[]; sign: string; onClose: () => void }): ReactNode {
  const [name, setName] = useState(names[0] ?? "");
  const [text, setText] = useState("");
  const work = (): Promise<boolean> => attempt(post<RunInfo>(`${sign && "/other"}/v1/runs`, { model: name, input: text }).then((run) => go(to(["run", `${sign}${run.id}`]))));
  return (
    <FormDialog title="Talk to an agent" action="Send" isReady={Boolean(text.trim())} work={work} onClose={onClose}>
      <label htmlFor="new-agent">Agent or model</label>
      <select id="new-agent" value={name} onChange={(event) => setName(event.target.value)}>{names.map((one) => <option key={one}>{one}</option>)}</select>
      <label htmlFor="new-text">Message</label>
      <textarea id="new-text" value={text} onChange={(event) => setText(event.target.value)} />
    </FormDialog>
  );
}
