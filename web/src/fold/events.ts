/** The events of a run, with the fields that pages read. `docs/events.md` describes them. */
export interface ToolCall {
  call_id: string;
  name: string;
  arguments: string;
}

export interface Artifact {
  kind: string;
  digest?: string;
  size_bytes?: number;
  mime_type?: string;
  uri?: string;
  name?: string;
  data?: string;
}

export interface Message {
  role: string;
  content?: string;
  tool_calls?: ToolCall[];
  call_id?: string;
  name?: string;
  is_error?: boolean;
  reasoning?: string;
  server_calls?: { call_id: string; name: string; arguments?: string; result?: string; is_error?: boolean }[];
  parts?: Artifact[];
  is_partial?: boolean;
  is_own?: boolean;
}

export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  cached_input_tokens?: number;
  reasoning_tokens?: number;
  is_reported?: boolean;
}

export interface Completion {
  message: Message;
  finish_reason: string;
  usage?: Usage;
  cost_usd?: number | null;
  model?: string;
  engine?: string;
  weight_version?: string;
  settings?: Record<string, unknown>;
  is_cached?: boolean;
  /** Given if the engine returned ids of tokens; the page of tokens asks for them. */
  tokens?: object;
}

export interface ToolResult {
  call_id: string;
  name: string;
  content: string;
  is_error?: boolean;
  error_kind?: string;
  is_simulated?: boolean;
  structured?: unknown;
  artifacts?: Artifact[];
}

export interface Delta {
  changed?: Record<string, string>;
  deleted?: string[];
}

/** An event: its type says which of the other fields it has. */
export interface RunEvent {
  run_id: string;
  seq: number;
  type: string;
  at: number;
  step?: number;
  turn?: number;
  message?: Message;
  messages?: number;
  model?: string;
  completion?: Completion;
  duration_seconds?: number;
  first_token_seconds?: number;
  answered_by?: string;
  error?: string;
  error_type?: string;
  fault?: string;
  status?: number;
  attempt?: number;
  retry_in_seconds?: number;
  said?: string;
  next_tier?: string;
  call_id?: string;
  name?: string;
  effect?: string;
  arguments?: string;
  parent_call_id?: string;
  result?: ToolResult;
  child?: { run_id: string; cost_usd?: number | null; usage?: Usage };
  snapshot_id?: string;
  delta?: Delta;
  stop_reason?: string;
  output?: unknown;
  reason?: string;
  inbox?: number | null;
  remark?: string;
  labels?: Record<string, string | null>;
  by?: string;
  refused?: string;
  reward?: number;
  detail?: string;
  metrics?: Record<string, number> | null;
  scorer?: { name: string; settings?: object } | null;
  question_id?: string;
  text?: string;
  options?: { label: string; description?: string }[];
  allows_text?: boolean;
  is_withdrawn?: boolean;
  is_approved?: boolean;
  delivery?: string;
  limit?: string;
  is_nudge?: boolean;
  output_fault?: string;
  recalled?: { text?: string } & Record<string, unknown>;
  hint?: string;
  route?: { tier?: string; reason?: string } & Record<string, unknown>;
  parent?: { run_id: string; seq: number };
  caller?: { run_id: string; call_id: string };
  instructions?: string;
  history?: Message[];
  tools?: { name: string; description: string; parameters: unknown; effect?: string }[];
  agent?: { model: { name: string }; instructions?: string } & Record<string, unknown>;
  metadata?: Record<string, unknown>;
  tokens_before?: number;
  tokens_after?: number;
  replacement?: Message[];
  dropped?: number;
  worked_seconds?: number;
}

/** A piece of output that is streamed and not stored. */
export interface Piece {
  type: string;
  text?: string;
  call_id?: string | null;
  name?: string | null;
  arguments?: string;
  index?: number;
  seq?: undefined;
}
