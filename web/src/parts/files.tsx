/** The files of a run: what each call changed, as differences. */
import { structuredPatch } from "diff";
import { useMemo, type ReactNode } from "react";
import { useKept } from "../kept";
import type { FileChange, RunFold, Snapshot } from "../fold/run";
import { clock, count } from "../format";
import { useKeys } from "../keys";
import { useGet } from "../load";
import { change, to, usePlace } from "../router";
import { Status } from "./basics";

export interface Content { text?: string; base64?: string }

/** Return the address of a content of a run. */
export const contentOf = (runId: string, digest: string | null): string | null =>
  digest === null ? null : `/v1/view/runs/${encodeURIComponent(runId)}/contents/${digest}`;

type Line = [sign: " " | "+" | "-" | "@", text: string, number: number];

/** Return the lines of a difference with three lines around each change; `null` if it takes too long. */
export function linesOf(before: string, after: string): Line[] | null {
  const patch = structuredPatch("a", "b", before, after, "", "", { context: 3, timeout: 1000 });
  if (!patch) return null;
  return patch.hunks.flatMap((hunk): Line[] => {
    let number = hunk.newStart;
    return [
      ["@", `line ${hunk.newStart}`, hunk.newStart],
      ...hunk.lines.filter((line) => !line.startsWith("\\")).map((line): Line => {
        const sign = line[0] as Line[0];
        return [sign, line.slice(1), sign === "-" ? 0 : number++];
      }),
    ];
  });
}

function Difference({ runId, change }: { runId: string; change: FileChange }): ReactNode {
  const before = useGet<Content>(contentOf(runId, change.before));
  const after = useGet<Content>(contentOf(runId, change.after));
  const [most, setMost] = useKept(`lines of ${change.before} ${change.after}`, 400);
  const isReady = (change.before === null || before.data !== null) && (change.after === null || after.data !== null);
  const lines = useMemo(() => {
    if (!isReady || before.data?.base64 !== undefined || after.data?.base64 !== undefined) return null;
    return linesOf(before.data?.text ?? "", after.data?.text ?? "");
  }, [isReady, before.data, after.data]);
  const error = before.error ?? after.error;
  return (
    <section className="difference">
      <h2 className="mono">{change.path} <span className="soft">{change.before === null ? "new" : change.after === null ? "deleted" : ""}</span></h2>
      {error ? <Status error={error} /> : !isReady ? <Status /> : lines === null ? <p className="soft">This file is not text, or the difference is too large.</p> : (
        <pre>
          {lines.slice(0, most).map(([sign, text, number], index) => (
            <span key={index} className={sign === "+" ? "add" : sign === "-" ? "gone" : sign === "@" ? "place-of soft" : ""}>
              <i className="soft">{sign === "@" ? "" : number || ""}</i><b>{sign === "@" ? "" : sign}</b>{text}{"\n"}
            </span>
          ))}
        </pre>
      )}
      {lines && lines.length > most && <button className="plain more" onClick={() => setMost(lines.length)}>Show all {count(lines.length)} lines</button>}
    </section>
  );
}

export function Files({ runId, fold }: { runId: string; fold: RunFold }): ReactNode {
  const snapshots = fold.snapshots;
  const at = Number(usePlace().query.get("at") ?? 0);
  const before = snapshots.findLastIndex((snapshot) => snapshot.seq <= at);
  const picked = before < 0 ? (at ? 0 : snapshots.length - 1) : before;
  const pick = (place: number): void => change({ at: snapshots[place]?.seq });
  const move = (by: number): void => pick(Math.max(0, Math.min(snapshots.length - 1, picked + by)));
  useKeys([
    { key: "j", about: "Next change of files", run: () => move(1) },
    { key: "k", about: "Change of files before", run: () => move(-1) },
  ]);
  const shown = snapshots[picked] as Snapshot | undefined;
  if (!shown) return <Status>The tools of this run have changed no files.</Status>;
  return (
    <>
      <div className="outline" tabIndex={0} role="listbox" aria-label="changes of files">
        {snapshots.map((snapshot, index) => (
          <div key={snapshot.seq} role="option" aria-selected={index === picked} className="leaf stays" onClick={() => pick(index)}>
            <span className="cut"><b>{snapshot.step ? `Step ${snapshot.step}: ` : ""}{snapshot.title}</b> <span className="soft">{snapshot.changes.map((change) => change.path).join(", ")}</span></span>
          </div>
        ))}
      </div>
      <div className="differences" tabIndex={0} aria-label="differences" role="region">
        <p className="soft">{clock(shown.at)} · <a href={to(["run", runId], { at: shown.seq })}>event {shown.seq}</a></p>
        {shown.changes.map((one) => <Difference key={`${shown.seq} ${one.path}`} runId={runId} change={one} />)}
      </div>
    </>
  );
}
