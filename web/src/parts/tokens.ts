/** Tokens as arrays, and the lines that they fill. */
import type { Answer, TokenMap } from "../datatypes";

export interface Tokens {
  size: number;
  ids: Int32Array;
  logprobs: Float32Array;
  sampled: Uint8Array;
  weights: Float32Array | null;
  texts: string[] | null;
  /** The answer of each token, by its place in `answers`; -1 for a token of a prompt. */
  answer: Int32Array;
  /** The version of the weights that sampled each token, by its place in `versions`; -1 if none is known. */
  version: Int32Array;
  versions: string[];
}

function bytesOf(text: string): ArrayBuffer {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
  return bytes.buffer;
}

export function openTokens(map: TokenMap): Tokens {
  const ids = new Int32Array(bytesOf(map.ids));
  const answer = new Int32Array(ids.length).fill(-1);
  const version = new Int32Array(ids.length).fill(-1);
  const versions: string[] = [];
  map.answers.forEach((span, index) => {
    answer.fill(index, span.start, span.end);
    let at = span.start;
    for (const [size, name] of span.weight_versions) {
      if (!versions.includes(name)) versions.push(name);
      version.fill(versions.indexOf(name), at, at + size);
      at += size;
    }
  });
  const weights = map.weights ? new Float32Array(bytesOf(map.weights)) : null;
  return { size: ids.length, ids, logprobs: new Float32Array(bytesOf(map.logprobs)), sampled: new Uint8Array(bytesOf(map.sampled)), weights, texts: map.texts, answer, version, versions };
}

export const weightAt = (tokens: Tokens, at: number): number => tokens.weights?.[at] ?? tokens.sampled[at] ?? 0;

/** Return the text of a token as it is drawn: control characters have signs. */
export function shownText(tokens: Tokens, at: number): string {
  if (!tokens.texts) return `${tokens.ids[at]} `;
  const text = tokens.texts[at] ?? "";
  // The text of a token whose character ends in a later token is empty.
  return text === "" ? "·" : text.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "␣");
}

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\ud83c-\ud83e][\udc00-\udfff]/g;

/** Return how many columns a text takes in a font whose letters are equally wide. */
const widthOf = (text: string): number => (/^[\x20-\x7e]*$/.test(text) ? text.length : text.length + (text.match(WIDE)?.length ?? 0));

/** Return the first token of each line, so that lines have at most `columns`, and end after a line break. */
export function breakLines(tokens: Tokens, columns: number): Int32Array {
  const starts: number[] = [0];
  let used = 0;
  for (let at = 0; at < tokens.size; at += 1) {
    const width = widthOf(shownText(tokens, at));
    if (used > 0 && used + width > columns) {
      starts.push(at);
      used = 0;
    }
    used += width;
    if (tokens.texts?.[at]?.includes("\n") && at + 1 < tokens.size) {
      starts.push(at + 1);
      used = 0;
    }
  }
  return Int32Array.from(starts);
}

/** Return the place of the line that holds a token. */
export function lineOf(starts: Int32Array, at: number): number {
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((starts[middle] ?? 0) <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

export const COLOURS = ["logprob", "training", "advantage", "version"] as const;
export type Colour = (typeof COLOURS)[number];

/** Return how surprising a token was, from 0 to 1; `null` if that is not known. */
export function surprise(logprob: number): number | null {
  return Number.isNaN(logprob) ? null : Math.min(1, Math.max(0, -logprob / 6));
}

/** Return the name of a token's colour, of which there are few, so that the styles hold them all. */
export function colourOf(tokens: Tokens, at: number, colour: Colour, advantage: number | null, answers: Answer[]): string {
  const isMine = tokens.sampled[at] === 1;
  const span = answers[tokens.answer[at] ?? -1];
  const base = isMine ? "sampled" : span ? "elsewhere" : "given-token";
  if (colour === "logprob") {
    const value = surprise(tokens.logprobs[at] ?? NaN);
    return value === null ? base : `${base} heat${Math.round(value * 10)}`;
  }
  const weight = weightAt(tokens, at);
  if (colour === "training") return weight > 0 ? `${base} trained` : isMine ? `${base} untrained` : base;
  if (colour === "advantage") return weight > 0 && advantage !== null ? `${base} ${advantage > 0 ? "better" : advantage < 0 ? "worse" : "even"}` : base;
  const version = tokens.version[at] ?? -1;
  return version < 0 ? base : `${base} version${version % 6}`;
}
