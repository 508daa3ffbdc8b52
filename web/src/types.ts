/** The shapes of the API's answers. */
export interface RunInfo {
  id: string;
  title: string;
  status: string;
  stop_reason: string | null;
  fault: string | null;
  error: string | null;
  model: string | null;
  task_set: string | null;
  task_id: string | null;
  parent_run_id: string | null;
  labels: Record<string, string>;
  input: string | null;
  is_session: boolean;
  is_turn_open: boolean;
  is_waiting: boolean;
  is_driven: boolean;
  reward: number | null;
  turns: number;
  steps: number;
  events: number;
  input_tokens: number;
  cached_input_tokens: number;
  output_tokens: number;
  cost_usd: number | null;
  created_at: number;
  updated_at: number;
  ended_at: number | null;
}

export interface Listing<T> {
  data: T[];
  has_more: boolean;
}
