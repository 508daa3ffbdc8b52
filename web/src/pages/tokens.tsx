/** The tokens of a run, branch by branch: which were sampled, trained on, and how surprising they were. */
import { useRef, type ReactNode } from "react";
import { Chip, Status } from "../parts/basics";
import { TokenView } from "../parts/tokenmap";
import type { Drift, TokenMap } from "../datatypes";
import { count } from "../format";
import { useKeys } from "../keys";
import { useGet } from "../load";
import { change, to, usePlace, useSwitch } from "../router";
import { bare, isLive } from "../source";
import type { PageSpec } from ".";

/** Return the address of the tokens of a run. */
export const tokensOf = (runId: string): string => `/v1/view/runs/${encodeURIComponent(runId)}/tokens`;
const MASKS = ["all", "last_turn", "no_failed_calls", "no_reasoning"];
export interface RunTokens {
  branches: TokenMap[];
  /** How many sampled tokens the branches deliver, as a sentence. */
  conservation: string;
}

export function Branches({ branches, run }: { branches: TokenMap[]; run: string }): ReactNode {
  const place = usePlace();
  const given = Number(place.query.get("branch") ?? 0);
  const chosen = branches[given] ?? branches[0];
  const at = Number(place.query.get("at") ?? 0);
  /** The token that the address led to, and the one that was picked here: that stays where it is. */
  const [first, pickedHere] = [useRef(at), useRef(at)];
  if (at !== pickedHere.current) first.current = pickedHere.current = at;
  useKeys([
    { key: "]", about: "Next branch", run: () => change({ branch: Math.min(branches.length - 1, given + 1), at: "" }) },
    { key: "[", about: "Branch before", run: () => change({ branch: Math.max(0, given - 1), at: "" }) },
  ]);
  if (!chosen) return <Status>This run has no token ids: the engine did not return any.</Status>;
  return (
    <>
      {branches.length > 1 && (
        <nav className="branchlist" aria-label="branches">
          {branches.map((item, index) => (
            <button key={index} aria-pressed={item === chosen} onClick={() => change({ branch: index, at: "" })}>
              <b>{item.run_id === bare(run) ? `branch ${item.branch}` : `${item.run_id} · ${item.branch}`}</b>
              <span className="soft">{count(item.sampled_tokens)} of {count(item.tokens)} sampled</span>
              {item.drift && <Chip tone="warn">{item.drift.kind}</Chip>}
            </button>
          ))}
        </nav>
      )}
      <BranchHead map={chosen} />
      <TokenView key={`${given} ${first.current} ${chosen.tokens} ${chosen.trained_tokens}`} map={chosen} first={first.current} onPick={(token) => { pickedHere.current = token; change({ at: token }); }} />
    </>
  );
}

function BranchHead({ map }: { map: TokenMap }): ReactNode {
  const [showsDrift, setShowsDrift] = useSwitch("drift");
  const policy = map.is_of_policy === null ? "of a distribution that is not known" : map.is_of_policy ? "of the policy, as it samples" : "of another distribution than the one sampled from";
  return (
    <div className="branchhead">
      <div className="row wrap">
        <Chip tone={map.grade === "token_exact" ? "good" : "warn"}>{map.grade.replace("_", " ")}</Chip>
        <span>{count(map.sampled_tokens)} of {count(map.tokens)} tokens are sampled, {count(map.trained_tokens)} trained on</span>
        <span className="soft">log probabilities {policy}</span>
        {map.advantage !== null && <span>advantage <b className={map.advantage > 0 ? "good" : map.advantage < 0 ? "bad" : ""}>{map.advantage.toFixed(3)}</b></span>}
        {map.drift && <button className="plain" aria-expanded={showsDrift} onClick={() => setShowsDrift(!showsDrift)}>begins because of {map.drift.kind}</button>}
      </div>
      {map.mask_error && <p className="bad">The loss mask cannot be applied: {map.mask_error}</p>}
      {map.drift && showsDrift && <DriftText drift={map.drift} />}
    </div>
  );
}

export function DriftText({ drift }: { drift: Drift }): ReactNode {
  const text = (said: string | null, ids: number[]): string => (said === null ? ids.join(" ") : JSON.stringify(said));
  return (
    <div className="drift">
      <p className="soft">From token {count(drift.position)} on, the prompt differs from the earlier prompt and answer{drift.run_id && <> of {drift.run_id}</>}.</p>
      <dl className="facts">
        <dt>expected</dt><dd><code>{text(drift.expected_text, drift.expected)}</code></dd>
        <dt>found</dt><dd><code>{text(drift.found_text, drift.found)}</code></dd>
      </dl>
    </div>
  );
}

function TokensPage(): ReactNode {
  const place = usePlace();
  const run = place.path[1] ?? "";
  const mask = MASKS.find((name) => name === place.query.get("mask")) ?? "all";
  const address = tokensOf(run);
  const { data, error } = useGet<RunTokens>(isLive ? `${address}?mask=${mask}` : address);
  return (
    <main className="page">
      <div className="bar">
        <h1 className="cut">Tokens of <a href={to(["run", run])} className="mono">{run}</a></h1>
        <span className="grow soft cut">{data?.conservation}</span>
        {isLive && (
          <select aria-label="loss mask" value={mask} onChange={(event) => change({ mask: event.target.value === "all" ? "" : event.target.value })}>
            {MASKS.map((name) => <option key={name} value={name}>mask: {name.replaceAll("_", " ")}</option>)}
          </select>
        )}
      </div>
      {error || !data ? <Status error={error} /> : <Branches branches={data.branches} run={run} />}
    </main>
  );
}

export const tokensPage: PageSpec = { name: "tokens", title: "", key: "", Page: TokensPage, isOffered: () => false };
