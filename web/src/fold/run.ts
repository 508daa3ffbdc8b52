/**
 * A run as a list of items, folded from its events in their order.
 *
 * Each item is one block of the transcript: a message, an inference, a call, or something that happened. An item knows
 * its depth in the tree of turns, steps and calls. Items change as more events come, and then have a new `version`.
 */
import { signOf } from "../source";
import type { Artifact, Completion, Message, Piece, RunEvent, ToolResult } from "./events";

export type Kind = "system" | "turn" | "message" | "inference" | "call" | "question" | "event";

/** Spans of time by what happens in them. */
export type Phase = "model" | "tool" | "retry" | "wait" | "failed";

export interface Span {
  phase: Phase;
  from: number;
  /** `null` as long as it goes on. */
  to: number | null;
}

export interface Item {
  id: string;
  runId: string;
  kind: Kind;
  depth: number;
  version: number;
  /** The events that this item shows, the first of them first. */
  seqs: number[];
  at: number;
  end: number | null;
  step: number;
  turn: number;
  title: string;
  /** `good`, `bad`, `warn`, `running` or nothing. */
  state: "" | "good" | "bad" | "warn" | "running";
  text: string;
  reasoning: string;
  role: string;
  notes: string[];
  parts: Artifact[];
  spans: Span[];
  completion: Completion | null;
  seconds: number | null;
  firstToken: number | null;
  model: string;
  failures: RunEvent[];
  arguments: string;
  effect: string;
  result: ToolResult | null;
  callId: string;
  child: string | null;
  files: { changed: Record<string, string>; deleted: string[] } | null;
  /** What a question offers. */
  options: { label: string; description?: string }[];
  /** Whether the text must fit a schema. */
  isStructured: boolean;
  /** Whether something is waited for that a person can give: an answer or a decision. */
  isOpen: boolean;
}

export interface FileChange {
  path: string;
  before: string | null;
  after: string | null;
}

export interface Snapshot {
  seq: number;
  at: number;
  step: number;
  title: string;
  itemId: string;
  changes: FileChange[];
}

const LABELS: Record<string, string> = { steer: "during the turn", queue: "queued", interrupt: "interrupts the turn" };

/** Return the further numbers of a grade, each with its name. */
export const metricsOf = (event: RunEvent): string[] => Object.entries(event.metrics ?? {}).map(([name, value]) => `${name} ${Number(value.toFixed(3))}`);

export class RunFold {
  readonly items: Item[] = [];
  readonly snapshots: Snapshot[] = [];
  readonly labels = new Map<string, string>();
  /** The newest grade of each scorer since the turn began, by the scorer's name. */
  readonly rewards = new Map<string, RunEvent>();
  events: RunEvent[] = [];
  version = 0;
  seq = 0;
  /** How many turns the user began. */
  turn = 0;
  step = 0;
  model = "";
  started: RunEvent | null = null;
  stopReason: string | null = null;
  /** Whether an engine returned the ids of the tokens of an answer. */
  hasTokens = false;
  /** The event that says why the run, or its last turn, failed. */
  failure: RunEvent | null = null;
  /** What the run does now: `running`, `paused`, `open` or `finished`. */
  state = "running";
  pausedFor = "";
  /** The time of the newest event of the run's own work: notes and rewards may come days later. */
  lastAt = 0;
  /** Whether texts of answers must fit a schema. */
  private isStructured = false;
  private readonly calls = new Map<string, Item>();
  private readonly questions = new Map<string, Item>();
  /** The ids of the calls that pieces of output have told of, by their places: only the first piece need name one. */
  private readonly pieces = new Map<number, string>();
  /** The items whose time a question takes: that of the call that asked, or its own. */
  private readonly asking = new Map<Item, Item>();
  private readonly files = new Map<string, string>();
  private turnItem: Item | null = null;
  private inference: Item | null = null;
  /** `runId` is the id of the run in the page. */
  constructor(readonly runId: string) {}
  private pause: Item | null = null;
  /** Changes of files whose call is not known yet: its result is stored right after them. */
  private pending: RunEvent | null = null;

  /** The label `title`, or the first line that the user wrote. */
  get title(): string {
    const first = this.items.find((item) => item.kind === "message" && item.role === "user");
    return this.labels.get("title") ?? first?.text.trim().split("\n", 1)[0]?.slice(0, 300) ?? "";
  }

  /** Take in events in their order; those that are known already are left out. */
  take(events: readonly RunEvent[]): void {
    for (const event of events) {
      if (event.seq <= this.seq) continue;
      this.seq = event.seq;
      if (event.type !== "noted" && event.type !== "rewarded") this.lastAt = event.at;
      this.events.push(event);
      if ((event.type === "run_started" || event.type === "run_resumed") && event.output) this.isStructured = (event.output as { mode?: string }).mode !== "tool";
      this.apply(event);
    }
    this.version += 1;
  }

  /** Take in a piece of output, which the event at its end replaces. */
  takePiece(piece: Piece): void {
    const item = this.inference;
    if (!item) return;
    if (piece.type === "text_delta") item.text += piece.text ?? "";
    else if (piece.type === "reasoning_delta") item.reasoning += piece.text ?? "";
    else if (piece.type === "tool_progress" && piece.call_id) {
      const call = this.calls.get(piece.call_id);
      if (call) {
        call.notes = [...call.notes.slice(-4), piece.text ?? ""];
        call.version += 1;
      }
    } else if (piece.type === "tool_call_delta") {
      const index = piece.index ?? 0;
      const callId = piece.call_id ?? this.pieces.get(index) ?? `piece-${index}`;
      this.pieces.set(index, callId);
      const call = this.callOf(callId, piece.name ?? "", item);
      if (piece.name) call.title = piece.name;
      call.arguments += piece.arguments ?? "";
      call.state = "running";
      call.version += 1;
    }
    item.version += 1;
    this.version += 1;
  }

  /** Forget the pieces of an answer that is not complete, because a new listener gets them from its beginning. */
  forgetPieces(): void {
    const item = this.inference;
    if (!item || item.completion || item.state !== "running") return;
    this.dropPieces();
    Object.assign(item, { text: "", reasoning: "" });
    item.version += 1;
    this.version += 1;
  }

  private add(kind: Kind, event: RunEvent, title: string, depth: number, more: Partial<Item> = {}): Item {
    const item: Item = {
      id: `${event.seq}`, runId: this.runId, kind, depth, version: 0, seqs: [event.seq], at: event.at, end: event.at, step: this.step, turn: this.turn, title,
      state: "", text: "", reasoning: "", role: "", notes: [], parts: [], spans: [], completion: null, seconds: null, firstToken: null,
      model: "", failures: [], arguments: "", effect: "", result: null, callId: "", child: null, files: null, options: [], isStructured: false, isOpen: false, ...more,
    };
    this.items.push(item);
    return item;
  }

  private note(event: RunEvent, title: string, text = "", state: Item["state"] = ""): Item {
    return this.add("event", event, title, this.turnItem ? 1 : 0, { text, state });
  }

  private touch(item: Item, event: RunEvent): void {
    item.version += 1;
    item.seqs.push(event.seq);
    item.end = event.at;
  }

  /** End what an item does. Events are stored a little before and after the work, whose time was measured. */
  private endSpan(item: Item, at: number, measured = Infinity): void {
    const last = item.spans.at(-1);
    if (last && last.to === null) Object.assign(last, { to: at, from: Math.max(last.from, at - measured) });
  }

  /** End what an item does, and begin the next phase of its time. */
  private switchPhase(item: Item, event: RunEvent, phase: Phase): void {
    this.endSpan(item, event.at);
    item.spans.push({ phase, from: event.at, to: null });
    item.version += 1;
  }

  private callOf(callId: string, name: string, parent: Item | null): Item {
    const known = this.calls.get(callId);
    if (known) return known;
    const fake = { seq: this.seq, at: parent?.end ?? parent?.at ?? this.lastAt } as RunEvent;
    const depth = (parent?.depth ?? 1) + 1;
    const item = this.add("call", fake, name, depth, { id: `call-${callId}`, callId, seqs: [] });
    item.end = null;
    if (parent?.kind === "call") {
      // A call within a call stands below the one that made it.
      this.items.pop();
      let place = this.items.indexOf(parent) + 1;
      while (place < this.items.length && (this.items[place]?.depth ?? 0) > parent.depth) place += 1;
      this.items.splice(place, 0, item);
    }
    this.calls.set(callId, item);
    return item;
  }

  private addMessage(event: RunEvent, message: Message, title: string): Item {
    return this.add("message", event, title, 1, {
      role: message.is_own ? "treadle" : message.role, text: message.content ?? "", reasoning: message.reasoning ?? "", parts: message.parts ?? [],
    });
  }

  private apply(event: RunEvent): void {
    if (this.pending && event.type !== "tool_completed") {
      this.takeSnapshot(this.pending, null);
      this.pending = null;
    }
    switch (event.type) {
      case "run_started": return this.startRun(event);
      case "turn_started": return this.startTurn(event);
      case "inference_started": return this.startInference(event);
      case "inference_completed": return this.completeInference(event);
      case "inference_failed": return this.failInference(event);
      case "tool_started": return this.startTool(event);
      case "tool_completed": return this.completeTool(event);
      case "snapshot_taken":
        this.pending = event;
        return;
      case "question_asked": return this.ask(event);
      case "question_answered": return this.answer(event);
      case "approval_requested": return this.requestApproval(event);
      case "approval_decided": return this.decide(event);
      case "turn_completed": return this.completeTurn(event);
      case "run_paused": return this.pauseRun(event);
      case "run_resumed": return this.resumeRun(event);
      case "run_finished": return this.finishRun(event);
      case "message_injected": return this.inject(event);
      case "context_compacted": {
        const text = event.error ?? `${event.messages ?? 0} messages replaced, ${event.tokens_before ?? 0} → ${event.tokens_after ?? 0} tokens (${event.reason ?? "budget"})`;
        this.note(event, "Context compacted", text, event.error ? "bad" : "").seconds = event.duration_seconds ?? null;
        return;
      }
      case "rewarded": {
        const name = event.name ?? "check";
        this.rewards.set(name, event);
        const item = this.note(event, `Reward ${event.reward ?? ""}`, [name, event.detail].filter(Boolean).join(": "), (event.reward ?? 0) >= 1 ? "good" : "warn");
        item.notes = metricsOf(event);
        return;
      }
      case "noted": return this.addNote(event);
      default:
        this.note(event, event.type);
    }
  }

  private startRun(event: RunEvent): void {
    this.started = event;
    this.model = event.agent?.model.name ?? event.model ?? "";
    for (const [name, value] of Object.entries(event.metadata ?? {})) {
      if (typeof value === "string") this.labels.set(name, value);
    }
    const text = event.instructions ?? event.agent?.instructions ?? "";
    const item = this.add("system", event, text ? "System message" : "Start", 0, { role: "system", text });
    item.notes = event.tools?.length ? [`tools: ${event.tools.map((tool) => tool.name).join(", ")}`] : [];
    for (const message of event.history ?? []) this.addMessage(event, message, `${message.role} (before this run)`).id += `-h${this.items.length}`;
  }

  private startTurn(event: RunEvent): void {
    const isOwn = event.message?.is_own ?? false;
    if (!isOwn) this.turn += 1;
    this.state = "running";
    this.failure = null;
    this.rewards.clear();
    this.turnItem = this.add("turn", event, isOwn ? "Asked again" : `Turn ${this.turn}`, 0, { state: "running", end: null });
    const item = this.addMessage(event, event.message ?? { role: "user" }, isOwn ? "Treadle asked again" : "User");
    item.id += "-m";
    if (event.recalled) item.notes.push("with recalled memories");
    if (event.hint) item.notes.push(`hint: ${event.hint}`);
  }

  private startInference(event: RunEvent): void {
    this.step = event.step ?? this.step + 1;
    this.state = "running";
    if (this.inference) this.endSpan(this.inference, event.at);
    if (this.inference?.state === "running" && this.inference.step === this.step && !this.inference.failures.length) {
      // The answer to the first attempt was lost with its process.
      this.inference.state = "bad";
      this.inference.notes.push("the answer was lost");
      this.inference.version += 1;
    }
    this.model = event.model ?? this.model;
    this.inference = this.add("inference", event, `Step ${this.step}`, 1, {
      state: "running", model: event.model ?? this.model, end: null, isStructured: this.isStructured, spans: [{ phase: "model", from: event.at, to: null }],
    });
    if (event.route?.tier) this.inference.notes.push(`tier ${event.route.tier}`);
  }

  private completeInference(event: RunEvent): void {
    const item = this.inference ?? this.add("inference", event, `Step ${event.step ?? ""}`, 1);
    const completion = event.completion as Completion;
    const message = completion.message;
    if (completion.tokens) this.hasTokens = true;
    if (item.seqs[0] !== event.seq) this.touch(item, event);
    this.endSpan(item, event.at, event.duration_seconds);
    Object.assign(item, {
      completion, text: message.content ?? "", reasoning: message.reasoning ?? "", parts: message.parts ?? [],
      seconds: event.duration_seconds ?? null, firstToken: event.first_token_seconds ?? null,
      model: event.answered_by ?? completion.model ?? item.model,
      state: ["length", "content_filter"].includes(completion.finish_reason) ? "warn" : "good",
    });
    this.dropPieces();
    for (const call of message.tool_calls ?? []) this.callOf(call.call_id, call.name, item).arguments = call.arguments;
    for (const call of message.server_calls ?? []) {
      const made = this.callOf(call.call_id, call.name, item);
      Object.assign(made, {
        arguments: call.arguments ?? "", effect: "server", state: call.is_error ? "bad" : "good", end: event.at,
        result: { call_id: call.call_id, name: call.name, content: call.result ?? "", is_error: call.is_error ?? false },
      });
    }
  }

  /** Remove calls that only pieces of output have told of. */
  private dropPieces(): void {
    this.pieces.clear();
    for (let place = this.items.length - 1; place >= 0; place -= 1) {
      const item = this.items[place] as Item;
      if (item.kind !== "call" || item.seqs.length) break;
      this.items.splice(place, 1);
      this.calls.delete(item.callId);
    }
  }

  private failInference(event: RunEvent): void {
    const item = this.inference ?? this.add("inference", event, `Step ${event.step ?? ""}`, 1);
    this.dropPieces();
    if (item.seqs[0] !== event.seq) this.touch(item, event);
    item.failures = [...item.failures, event];
    const last = item.spans.at(-1);
    if (last && last.to === null) Object.assign(last, { to: event.at, phase: "failed" });
    item.text = event.said ?? "";
    item.reasoning = "";
    const wait = event.retry_in_seconds;
    if (wait === undefined && !event.next_tier) item.state = "bad";
    else {
      item.spans.push({ phase: "retry", from: event.at, to: event.at + (wait ?? 0) }, { phase: "model", from: event.at + (wait ?? 0), to: null });
      item.end = null;
    }
  }

  private startTool(event: RunEvent): void {
    const parent = event.parent_call_id ? this.calls.get(event.parent_call_id) ?? this.inference : this.inference;
    const item = this.callOf(event.call_id ?? "", event.name ?? "", parent);
    this.endSpan(item, event.at);
    if (!item.seqs.length) item.at = event.at;
    this.touch(item, event);
    Object.assign(item, { state: "running", end: null, effect: event.effect ?? "", title: event.name ?? item.title, isOpen: false });
    if (event.arguments) item.arguments = event.arguments;
    // A call that asked somebody is started again once it has the answer.
    if ((event.attempt ?? 1) > 1 && ![...this.asking.values()].includes(item)) item.notes = [...item.notes, `attempt ${event.attempt}: the outcome of the one before was lost`];
    item.spans.push({ phase: "tool", from: event.at, to: null });
  }

  private completeTool(event: RunEvent): void {
    const result = event.result as ToolResult;
    const parent = event.parent_call_id ? this.calls.get(event.parent_call_id) ?? this.inference : this.inference;
    const item = this.callOf(result.call_id, result.name, parent);
    if (!item.seqs.length) item.at = event.at;
    this.touch(item, event);
    this.endSpan(item, event.at, event.duration_seconds);
    if (this.pending) {
      this.takeSnapshot(this.pending, item);
      this.pending = null;
    }
    Object.assign(item, {
      result, seconds: event.duration_seconds ?? null, child: event.child ? `${signOf(this.runId)}${event.child.run_id}` : null, isOpen: false,
      state: result.is_error ? (["refused", "not_run", "over_limit"].includes(result.error_kind ?? "") ? "warn" : "bad") : "good",
    });
  }

  private takeSnapshot(event: RunEvent, owner: Item | null): void {
    const changed = event.delta?.changed ?? {};
    const deleted = event.delta?.deleted ?? [];
    const changes = [
      ...Object.entries(changed).map(([path, after]) => ({ path, before: this.files.get(path) ?? null, after })),
      ...deleted.map((path) => ({ path, before: this.files.get(path) ?? null, after: null })),
    ];
    for (const [path, digest] of Object.entries(changed)) this.files.set(path, digest);
    for (const path of deleted) this.files.delete(path);
    if (!changes.length) return;
    const item = owner ?? this.note(event, this.turn ? "Files changed" : "Files at the start", changes.map((change) => change.path).join(", "));
    if (owner) this.touch(owner, event);
    item.files = { changed, deleted };
    this.snapshots.push({ seq: event.seq, at: event.at, step: this.step, title: item.title, itemId: item.id, changes });
  }

  private ask(event: RunEvent): void {
    const item = this.add("question", event, "Question", 2, {
      text: event.text ?? "", callId: event.question_id ?? "", options: event.options ?? [], isOpen: true, state: "warn", end: null,
    });
    this.questions.set(item.callId, item);
    const call = this.calls.get(event.call_id ?? "");
    if (call) call.state = "warn";
    this.switchPhase(call ?? item, event, "wait");
    this.asking.set(item, call ?? item);
  }

  private answer(event: RunEvent): void {
    const item = this.questions.get(event.question_id ?? "");
    if (!item) return;
    this.touch(item, event);
    const asking = this.asking.get(item);
    if (asking && asking !== item && asking.end === null) {
      // In a run that is paused, the call goes on only when it is started again.
      asking.state = this.state === "paused" ? "" : "running";
      this.switchPhase(asking, event, "tool");
    } else this.endSpan(asking ?? item, event.at);
    Object.assign(item, { isOpen: false, state: "good" });
    item.notes = [event.is_withdrawn ? "nobody answers any more" : event.text ? `answer: ${event.text}` : "declined to answer"];
  }

  private requestApproval(event: RunEvent): void {
    const item = this.callOf(event.call_id ?? "", "", this.inference);
    if (!item.seqs.length) item.at = event.at;
    this.touch(item, event);
    Object.assign(item, { isOpen: true, state: "warn", end: null });
    item.spans.push({ phase: "wait", from: event.at, to: null });
  }

  private decide(event: RunEvent): void {
    const item = this.calls.get(event.call_id ?? "");
    if (!item) return;
    this.touch(item, event);
    this.endSpan(item, event.at);
    Object.assign(item, { isOpen: false, state: "" });
    item.notes = [...item.notes, event.is_approved ? "approved" : `refused${event.reason ? `: ${event.reason}` : ""}`];
    if (event.arguments) {
      item.arguments = event.arguments;
      item.notes.push("with other arguments than the model's");
    }
  }

  private completeTurn(event: RunEvent): void {
    const item = this.turnItem;
    if (item) {
      this.touch(item, event);
      item.state = event.stop_reason === "completed" ? "good" : event.stop_reason === "error" ? "bad" : "warn";
      item.seconds = event.at - item.at;
      item.notes = event.stop_reason === "completed" ? [] : [event.stop_reason ?? ""];
    }
    if (this.inference && this.inference.end === null) {
      this.endSpan(this.inference, event.at);
      this.inference.end = event.at;
      if (this.inference.state === "running") this.inference.state = "bad";
      this.inference.version += 1;
    }
    this.failure = event.error ? event : null;
    // The error stands at the top of the run, and where it happened.
    const isTold = this.inference?.failures.at(-1)?.error === event.error;
    if (event.error) this.note(event, `${this.turnItem?.title ?? "Turn"} ended: ${event.stop_reason ?? ""}`, isTold ? "" : event.error, "bad");
    this.turnItem = null;
    this.state = "open";
  }

  private pauseRun(event: RunEvent): void {
    this.state = "paused";
    // A pause that nobody has asked for: the process that drove the run was stopped.
    const isLeft = event.reason === "cancelled" && event.inbox == null;
    this.pausedFor = isLeft ? "interrupted" : event.reason ?? "";
    const isClosed = event.reason === "closed";
    this.pause = this.note(event, isClosed ? "Left open" : `Paused: ${this.pausedFor}`, event.remark ?? "", isClosed ? "" : "warn");
    if (isClosed) return;
    this.pause.spans = [{ phase: "wait", from: event.at, to: null }];
    this.pause.end = null;
  }

  private resumeRun(event: RunEvent): void {
    this.state = this.turnItem ? "running" : "open";
    if (this.pause) {
      this.endSpan(this.pause, event.at);
      this.pause.end = event.at;
      this.pause.seconds = event.at - this.pause.at;
      this.pause.version += 1;
      this.pause = null;
    }
    for (const item of this.calls.values()) {
      if (item.state === "running" && item.end === null) {
        this.endSpan(item, event.at);
        item.state = "warn";
        item.notes = [...item.notes, "in doubt: its outcome was lost"];
        item.version += 1;
      }
    }
    this.note(event, "Resumed");
  }

  private finishRun(event: RunEvent): void {
    this.state = "finished";
    this.stopReason = event.stop_reason ?? null;
    const isTold = this.failure?.error === event.error;
    if (event.error) this.failure = event;
    if (this.pause) this.endSpan(this.pause, event.at);
    const tone = event.stop_reason === "completed" ? "good" : event.stop_reason === "error" ? "bad" : "warn";
    this.turnItem = null;
    this.note(event, `Finished: ${event.stop_reason ?? ""}`, isTold ? "" : event.error ?? "", tone);
  }

  private inject(event: RunEvent): void {
    const message = event.message ?? { role: "user" };
    const title = event.delivery && message.role !== "user" ? `${message.role} (before this run)` : event.delivery ? `User, ${LABELS[event.delivery] ?? event.delivery}` : event.limit ? `Treadle, at the limit ${event.limit}` : event.is_nudge ? "Treadle, a nudge" : "Treadle";
    const item = this.addMessage(event, message, title);
    if (!event.delivery) item.role = "treadle";
    if (event.output_fault) item.notes.push(event.output_fault);
  }

  private addNote(event: RunEvent): void {
    const said = [];
    for (const [name, value] of Object.entries(event.labels ?? {})) {
      if (value === null) this.labels.delete(name);
      else this.labels.set(name, value);
      if (!name.startsWith("treadle.")) said.push(value === null ? `removed ${name}` : `${name} = ${value}`);
    }
    if (event.remark) said.push(event.remark);
    if (said.length) this.note(event, `${event.refused ? "Not done" : "Note"}${event.by ? ` by ${event.by}` : ""}`, said.join("\n"), event.refused ? "warn" : "");
  }
}
