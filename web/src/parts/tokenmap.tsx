/** The tokens of a branch: only the lines in view are drawn, and a strip shows the whole branch. */
import { memo, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import type { TokenMap } from "../datatypes";
import { count } from "../format";
import { useKeys } from "../keys";
import { to, useSetting } from "../router";
import { isLive } from "../source";
import { Legend, number } from "./charts";
import { breakLines, COLOURS, colourOf, lineOf, openTokens, shownText, surprise, weightAt, type Colour, type Tokens } from "./tokens";
import "../data.css";
import { useVirtual } from "./virtual";

const LINE = 24;
const LEGENDS: Record<Colour, [string, string][]> = {
  logprob: [["heat0", "certain"], ["heat5", ""], ["heat10", "surprising"]],
  training: [["trained", "trained on"], ["untrained", "sampled, not trained on"], ["elsewhere", "another branch delivers it"]],
  advantage: [["better", "better than its group"], ["even", "as good"], ["worse", "worse"]],
  version: [],
};

const Line = memo(function Line({ map, tokens, from, until, colour, picked }: { map: TokenMap; tokens: Tokens; from: number; until: number; colour: Colour; picked: number }): ReactNode {
  const shown: ReactNode[] = [];
  for (let at = from; at < until; at += 1) {
    const kind = colourOf(tokens, at, colour, map.advantage, map.answers);
    shown.push(<span key={at} data-at={at} className={at === picked ? `${kind} picked` : kind}>{shownText(tokens, at)}</span>);
  }
  return shown;
});

export function TokenView({ map, first = 0, onPick }: { map: TokenMap; first?: number; onPick?: (at: number) => void }): ReactNode {
  const tokens = useMemo(() => openTokens(map), [map]);
  const start = useMemo(() => first || Math.max(0, tokens.sampled.indexOf(1)), [tokens, first]);
  const box = useRef<HTMLDivElement>(null);
  const ruler = useRef<HTMLSpanElement>(null);
  const [columns, setColumns] = useState(0);
  const [asked, setColour] = useSetting("colour", "logprob");
  const colour = COLOURS.find((name) => name === asked) ?? "logprob";
  const [picked, setPicked] = useState(start);
  useEffect(() => {
    const node = box.current;
    if (!node) return;
    const observer = new ResizeObserver(() => {
      const letter = (ruler.current?.getBoundingClientRect().width ?? 72) / 10;
      setColumns(Math.max(20, Math.floor((node.clientWidth - 96) / letter)));
    });
    observer.observe(node);
    return () => observer.disconnect();
  }, []);
  const starts = useMemo(() => (columns ? breakLines(tokens, columns) : new Int32Array(0)), [tokens, columns]);
  const virtual = useVirtual(starts.length, box, () => LINE);
  const pick = (at: number): void => {
    const next = Math.max(0, Math.min(tokens.size - 1, at));
    setPicked(next);
    onPick?.(next);
    virtual.scrollTo(lineOf(starts, next));
  };
  // The prompt is long: begin where the model does.
  useEffect(() => {
    if (starts.length) virtual.scrollTo(Math.max(0, lineOf(starts, start) - 3), "start");
  }, [starts, start]);
  const answerFrom = (step: 1 | -1): void => {
    const begins = map.answers.map((span) => span.start).sort((one, two) => one - two);
    const next = step > 0 ? begins.find((at) => at > picked) : begins.reverse().find((at) => at < picked);
    if (next !== undefined) pick(next);
  };
  const nextSurprise = (): void => {
    for (let at = picked + 1; at < tokens.size; at += 1) if ((tokens.logprobs[at] ?? 0) < -3) return pick(at);
  };
  const vertical = (step: number): void => pick(starts[Math.max(0, Math.min(starts.length - 1, lineOf(starts, picked) + step))] ?? picked);
  useKeys([
    { key: "l", about: "Next token", run: () => pick(picked + 1) },
    { key: "ArrowRight", about: "", run: () => pick(picked + 1) },
    { key: "h", about: "Token before", run: () => pick(picked - 1) },
    { key: "ArrowLeft", about: "", run: () => pick(picked - 1) },
    { key: "j", about: "Next line of tokens", run: () => vertical(1) },
    { key: "ArrowDown", about: "", run: () => vertical(1) },
    { key: "k", about: "Line before", run: () => vertical(-1) },
    { key: "ArrowUp", about: "", run: () => vertical(-1) },
    { key: "PageDown", about: "", run: () => vertical(20) },
    { key: "PageUp", about: "", run: () => vertical(-20) },
    { key: "n", about: "Next answer", run: () => answerFrom(1) },
    { key: "p", about: "Answer before", run: () => answerFrom(-1) },
    { key: "s", about: "Next surprising token (log probability below -3)", run: nextSurprise },
    { key: "c", about: "Change the colours", run: () => setColour(COLOURS[(COLOURS.indexOf(colour) + 1) % COLOURS.length] as Colour) },
  ]);
  const legend = colour === "version" ? tokens.versions.map((name, index) => [`version${index % 6}`, name] as [string, string]) : LEGENDS[colour];
  return (
    <div className="tokenview">
      <div className="row wrap tools">
        <div className="choice" role="group" aria-label="colours">
          {COLOURS.map((name) => <button key={name} aria-pressed={colour === name} onClick={() => setColour(name)}>{name === "logprob" ? "log probability" : name === "version" ? "weight version" : name}</button>)}
        </div>
        <Legend items={legend.map(([kind, name]) => [`token ${kind}`, name] as const)} />
      </div>
      <Strip map={map} tokens={tokens} colour={colour} picked={picked} onPick={pick} />
      <div
        className="tokens" ref={box} tabIndex={0} role="region" aria-label={`${count(tokens.size)} tokens`}
        onClick={(event) => { const at = (event.target as HTMLElement).dataset.at; if (at !== undefined) { setPicked(Number(at)); onPick?.(Number(at)); } }}
      >
        <span className="ruler" ref={ruler} aria-hidden="true">0123456789</span>
        <div style={{ height: virtual.total, position: "relative" }}>
          {virtual.lines.map((line) => {
            const from = starts[line.index] ?? 0;
            const until = starts[line.index + 1] ?? tokens.size;
            return (
              <div key={line.index} className="tokenline" style={{ transform: `translateY(${line.start}px)` }}>
                <span className="at soft" aria-hidden="true">{from}</span>
                <Line map={map} tokens={tokens} from={from} until={until} colour={colour} picked={picked >= from && picked < until ? picked : -1} />
              </div>
            );
          })}
        </div>
      </div>
      <Inspector map={map} tokens={tokens} at={picked} />
    </div>
  );
}

/** The whole branch in one line of pixels. A click goes there. */
function Strip({ map, tokens, colour, picked, onPick }: { map: TokenMap; tokens: Tokens; colour: Colour; picked: number; onPick: (at: number) => void }): ReactNode {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const node = canvas.current;
    const pen = node?.getContext("2d");
    if (!node || !pen) return;
    const width = (node.width = Math.max(1, node.clientWidth));
    const styles = getComputedStyle(node);
    const known = new Map<string, string>();
    const probe = document.createElement("span");
    node.after(probe);
    const fill = (kind: string): string => {
      let found = known.get(kind);
      if (found === undefined) {
        probe.className = `token ${kind}`;
        found = getComputedStyle(probe).backgroundColor;
        // A token of a prompt has no colour of its own.
        if (found === "rgba(0, 0, 0, 0)") found = kind.startsWith("given-token") ? styles.backgroundColor : styles.color;
        known.set(kind, found);
      }
      return found;
    };
    for (let x = 0; x < width; x += 1) {
      // A pixel stands for several tokens: a sampled one goes before one of a prompt.
      const from = Math.floor((x * tokens.size) / width);
      const until = Math.max(from + 1, Math.floor(((x + 1) * tokens.size) / width));
      let at = from;
      for (let other = from; other < until; other += 1) if (tokens.sampled[other] && (!tokens.sampled[at] || (tokens.logprobs[other] ?? 0) < (tokens.logprobs[at] ?? 0))) at = other;
      pen.fillStyle = fill(colourOf(tokens, at, colour, map.advantage, map.answers));
      pen.fillRect(x, 0, 1, node.height);
    }
    probe.remove();
  }, [map, tokens, colour]);
  return (
    <div className="strip" onClick={(event) => {
      const area = event.currentTarget.getBoundingClientRect();
      onPick(Math.floor(((event.clientX - area.left) / area.width) * tokens.size));
    }}>
      <canvas ref={canvas} height={16} role="img" aria-label="the whole branch" />
      <i style={{ left: `${(100 * picked) / Math.max(1, tokens.size)}%` }} />
    </div>
  );
}

function Inspector({ map, tokens, at }: { map: TokenMap; tokens: Tokens; at: number }): ReactNode {
  const logprob = tokens.logprobs[at] ?? NaN;
  const span = map.answers[tokens.answer[at] ?? -1];
  const version = tokens.versions[tokens.version[at] ?? -1];
  const weight = weightAt(tokens, at);
  const facts: [string, ReactNode][] = [
    ["token", `${count(at)} of ${count(tokens.size)}`],
    ["id", tokens.ids[at]],
    ["text", tokens.texts ? <code>{JSON.stringify(tokens.texts[at] ?? "")}</code> : <span className="soft">no tokenizer is known</span>],
    ["log probability", Number.isNaN(logprob) ? <span className="soft">none</span> : <>{number(logprob)} <span className="soft">({share2(Math.exp(logprob))})</span></>],
    ["sampled", tokens.sampled[at] ? "by the model" : span ? "by the model, delivered by another branch" : "no, a prompt"],
    ["loss weight", weight ? number(weight) : <span className="soft">0, not trained on</span>],
    ["advantage", weight && map.advantage !== null ? number(map.advantage) : <span className="soft">none</span>],
    ["weight version", version ?? <span className="soft">not known</span>],
  ];
  if (span) {
    const event = isLive ? <a href={to(["run", span.run_id], { at: span.seq })}>event {span.seq}</a> : `event ${span.seq}`;
    facts.push(["answer", <>step {span.step}, {event}, ended with {span.finish_reason}{span.model ? `, ${span.model}` : ""}</>]);
  }
  return (
    <dl className="tokenfacts" aria-live="polite" data-surprise={surprise(logprob) ?? undefined}>
      {facts.map(([name, value]) => <div key={name}><dt className="soft">{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

const share2 = (value: number): string => (value >= 0.001 ? `${(100 * value).toPrecision(3)}%` : `${(100 * value).toExponential(1)}%`);
