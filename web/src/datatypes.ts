/** The shapes of what pages of datasets, rollouts, tokens and topics get. Fields that have their usual value are left out. */
export interface Summary {
  total: number;
  mean: number;
  least: number;
  median: number;
  p95: number;
  most: number;
}

export type Counts = Record<string, number>;
export const SPREADS = ["turns", "steps", "calls", "messages", "chars"] as const;
export type SpreadName = (typeof SPREADS)[number];

export interface DatasetStats extends Record<SpreadName, Summary> {
  rows: number;
  rejected: number;
  tools: Counts;
  tool_errors: Counts;
  offered: Counts;
  kinds_planned: Counts;
  kinds_shown: Counts;
  kinds_met: Counts;
  difficulties: Counts;
  conversations: Counts;
  stop_reasons: Counts;
  filters: Counts;
  rejections: Counts;
  reasons: Record<string, Counts>;
  models: Record<string, Counts>;
  input_tokens: number;
  output_tokens: number;
  cost_usd: number | null;
  known_cost_usd: number;
  rows_without_cost: number;
  duplicates: number;
  with_calls: number;
  verified: number;
  statements: number;
  grounded: number;
  controls: number;
  agreed: number;
  repaired: number;
  rejected_input_tokens: number;
  rejected_output_tokens: number;
  rejected_cost_usd: number;
  rejected_without_cost: number;
  topics_with_rows: number;
  counts: Record<SpreadName, [number, number][]>;
  orders: [string, string, number][];
  sequences: [string[], number][];
  turns_in_all: number;
}

export interface RowHead {
  number: number;
  row_id: string;
  text: string;
  is_rejected?: boolean;
  kind?: string;
  topic?: string;
  tools?: string[];
  failed?: string[];
  is_verified?: boolean;
  weight?: number;
}

export interface RowList {
  heads: RowHead[];
  bodies: Record<string, RowBody>;
  words: Record<string, string>;
}

export interface DatasetView {
  name: string;
  about: string;
  folder: string;
  stats: DatasetStats;
  leaves: [string[], number][];
  times: { begin: number; seconds: number; kept: number[]; rejected: number[]; tokens: number[]; cost_usd: number[] } | null;
  notes: string[];
  rows: RowList | null;
}

export interface FoundRows {
  total: number;
  found: number;
  heads: RowHead[];
}

export interface ShownCall {
  name: string;
  arguments: string;
  result?: string;
  is_error?: boolean;
  is_simulated?: boolean;
}

export interface ShownMessage {
  role: string;
  text: string;
  thought?: string;
  calls?: ShownCall[];
  /** Whether an answer and its calls are not trained on. */
  is_untrained?: boolean;
}

export interface RowBody {
  facts: Record<string, string>;
  messages: ShownMessage[];
  verdicts: { filter: string; is_passed: boolean; reason: string }[];
  left_out: number;
}

export interface ComparedRows {
  name: string;
  equal: number;
  changed: string[];
  only: [string[], string[]];
  moved: number;
}

export interface Drift {
  kind: string;
  position: number;
  expected: number[];
  found: number[];
  expected_text: string | null;
  found_text: string | null;
  run_id: string | null;
  seq: number | null;
}

export interface BranchFacts {
  grade: string;
  tokens: number;
  sampled_tokens?: number;
  is_of_policy?: boolean | null;
  drift?: Drift | null;
  versions?: Counts;
}

export interface RolloutFacts {
  run_id: string;
  reward: number | null;
  rewards: Counts;
  advantage: number | null;
  stop_reason: string;
  steps: number;
  input_tokens: number;
  output_tokens: number;
  calls: Record<string, [number, number]>;
  branches: BranchFacts[];
  is_trained?: boolean;
  is_solved?: boolean;
}

export interface GroupFacts {
  number: number;
  group_id: string;
  task: string;
  has_variance: boolean;
  weight_version: string | null;
  rollouts: RolloutFacts[];
}

export interface RolloutBody {
  messages: ShownMessage[];
  branches: TokenMap[];
  /** What the scorers said about the rewards, by their names. */
  reasons: Record<string, string>;
}

export interface HeldOutScore {
  number: number;
  version: string | null;
  groups: number;
  score?: MeanEstimate | null;
  solved?: number;
  own_answers?: number;
  left_out?: number;
  failed?: number;
}

export interface RolloutsView {
  name: string;
  folder: string;
  groups: GroupFacts[];
  /** How many groups are delivered, of which `groups` may be a part. */
  delivered: number;
  dropped: Counts;
  held_out: HeldOutScore[];
}

export interface Answer {
  start: number;
  end: number;
  run_id: string;
  seq: number;
  step: number;
  turn: number;
  finish_reason: string;
  model: string | null;
  is_trained: boolean;
  weight_versions: [number, string][];
}

export interface TokenMap {
  run_id: string;
  branch: number;
  grade: string;
  tokens: number;
  sampled_tokens: number;
  trained_tokens: number;
  ids: string;
  logprobs: string;
  sampled: string;
  weights: string;
  texts: string[] | null;
  answers: Answer[];
  drift: Drift | null;
  is_of_policy: boolean | null;
  advantage: number | null;
  mask_error: string;
}

export interface TopicLine {
  text: string;
  depth: number;
  children?: number;
  rows?: number;
  links?: string[];
  missing?: number;
  error?: string;
}

export interface TopicsView {
  name: string;
  is_counted: boolean;
  lines: TopicLine[];
}

export interface MeanEstimate {
  mean: number;
  /** The ends of the interval; null where it has none, as for a single sample. */
  low: number | null;
  high: number | null;
  tasks: number;
  samples: number;
}

export interface ModelResult {
  model: string;
  samples: number;
  failed: number;
  score: MeanEstimate | null;
  bootstrap?: MeanEstimate | null;
  scorers: Record<string, MeanEstimate>;
  pass_at: Record<string, MeanEstimate>;
  pass_all: Record<string, MeanEstimate>;
  steps: number;
  calls: number;
  tokens: number;
  seconds: number;
  cost_usd: number | null;
}

export interface ModelPair {
  one: string;
  other: string;
  difference: { mean: number; low: number | null; high: number | null; p_value: number; tasks: number; needed_tasks: number | null };
}

export interface FailureKind {
  kind: string;
  models: Counts;
  run_ids: string[];
  example: string;
}

export interface Sample {
  run_id: string;
  spec: { task: string; model: string; epoch: number };
  details: { score: number | null; stop_reason: string; scores?: Record<string, number>; reasons?: Record<string, string>; kind?: string; steps?: number };
  input_tokens: number;
  output_tokens: number;
  cost_usd: number | null;
}

export interface Evaluation {
  name: string;
  path: string;
  planned: number;
  models: ModelResult[];
  families: Record<string, Record<string, MeanEstimate>>;
  pairs: ModelPair[];
  failures: FailureKind[];
  failed: Record<string, string>;
  samples: Sample[];
}

export interface EvaluationView {
  evaluations: Evaluation[];
  pairs: ModelPair[];
  /** What makes a comparison of the two unfair. */
  remarks?: string[];
  /** Whether the page has the runs of each evaluation. */
  has_runs: boolean[];
}
