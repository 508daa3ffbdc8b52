/** What an exporter makes of a run: any format of rows or of tokens, line by line. */
import { useMemo, useRef, type ReactNode } from "react";
import { Chip, copy, Status } from "../parts/basics";
import { bytes, indent, many } from "../format";
import { useKeys } from "../keys";
import { useGet } from "../load";
import { change, to, usePlace } from "../router";
import type { PageSpec } from ".";
import "../data.css";
import { useVirtual } from "../parts/virtual";

interface Formats {
  rows: { name: string; losses: string[] }[];
  tokens: string[];
}

interface Exported {
  lines: string[];
  /** What the row loses in the format. */
  losses: string[];
  /** Why nothing was written; empty if something was. */
  refused: string;
}

/** How many letters fit beside each other. */
const wide = (): number => Math.max(40, Math.floor((innerWidth - 48) / 7.4));

/** Return a line of JSON with indentation, and its long lines broken. */
function layOut(lines: string[]): string[] {
  const letters = new RegExp(`.{1,${wide()}}`, "gsu");
  return lines.flatMap((line) => {
    const text = indent(line).replace(/\[\s+((?:-?[\d.e+-]+|null)(?:,\s+(?:-?[\d.e+-]+|null))*)\s+\]/g, (_, inner: string) => `[${inner.replace(/\s+/g, " ")}]`);
    return text.split("\n").flatMap((part) => part.match(letters) ?? [""]);
  });
}

function Exports(): ReactNode {
  const place = usePlace();
  const run = place.path[1] ?? "";
  const format = place.query.get("format") ?? "openai";
  const formats = useGet<Formats>("/v1/view/formats");
  const found = useGet<Exported>(`/v1/view/runs/${encodeURIComponent(run)}/exported?format=${encodeURIComponent(format)}`);
  const lines = useMemo(() => layOut(found.data?.lines ?? []), [found.data]);
  const box = useRef<HTMLDivElement>(null);
  const shown = useVirtual(lines.length, box, () => 18);
  const names = [...(formats.data?.rows.map((item) => item.name) ?? []), ...(formats.data?.tokens ?? [])];
  const step = (by: number): void => change({ format: names[(names.indexOf(format) + by + names.length) % names.length] });
  useKeys([
    { key: "]", about: "Next format", run: () => step(1) },
    { key: "[", about: "Format before", run: () => step(-1) },
    { key: "y", about: "Copy the lines", run: () => void copy(found.data?.lines.join("\n") ?? "") },
  ]);
  const size = found.data?.lines.reduce((sum, line) => sum + line.length + 1, 0) ?? 0;
  return (
    <main className="page">
      <div className="bar">
        <h1 className="cut">Export of <a href={to(["run", run])} className="mono">{run}</a></h1>
        <select aria-label="format" value={format} onChange={(event) => change({ format: event.target.value })}>
          <optgroup label="rows">{formats.data?.rows.map((item) => <option key={item.name}>{item.name}</option>)}</optgroup>
          <optgroup label="tokens">{formats.data?.tokens.map((name) => <option key={name}>{name}</option>)}</optgroup>
        </select>
        {found.data && !found.data.refused && <span className="soft">{many(found.data.lines.length, "line")}, {bytes(size)}</span>}
        {found.data?.losses.map((loss) => <Chip key={loss} tone="warn" title="The format cannot hold this.">without {loss}</Chip>)}
        <span className="grow" />
        <button onClick={() => void copy(found.data?.lines.join("\n") ?? "")} disabled={!size}>Copy</button>
      </div>
      {found.error || !found.data ? <Status error={found.error} /> : found.data.refused ? <Status><b>This format cannot express the run.</b> {found.data.refused}</Status> : (
        <div className="exported" ref={box} tabIndex={0} role="region" aria-label="exported lines">
          <div style={{ height: shown.total, position: "relative" }}>
            {shown.lines.map((line) => <code key={line.index} style={{ transform: `translateY(${line.start}px)` }}>{lines[line.index]}</code>)}
          </div>
        </div>
      )}
    </main>
  );
}

export const exportsPage: PageSpec = { name: "export", title: "", key: "", Page: Exports, isOffered: () => false };
