/** Numbers, times and texts as pages write them. */
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value: number): string => whole.format(value);
export const compact = (value: number): string => (value < 10_000 ? whole.format(value) : short.format(value));
export const many = (value: number, unit: string): string => `${count(value)} ${unit}${value === 1 ? "" : "s"}`;

export function seconds(value: number): string {
  if (!Number.isFinite(value)) return "";
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  const total = Math.round(value);
  const [days, hours, minutes] = [Math.floor(total / 86_400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${total % 60} s`;
}

export function usd(value: number | null | undefined): string {
  if (value === null || value === undefined) return "cost unknown";
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(value < 1 ? 3 : 2)}`;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** Return a time as `HH:MM:SS` if it is of today, else with its day. */
export function clock(at: number): string {
  const date = new Date(at * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export function ago(at: number): string {
  const passed = Date.now() / 1000 - at;
  if (passed < 60) return "now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h`;
  return passed < 30 * 86_400 ? `${Math.floor(passed / 86_400)} d` : new Date(at * 1000).toISOString().slice(0, 10);
}

export function bytes(value: number): string {
  if (value < 1000) return `${value} B`;
  return value < 1e6 ? `${(value / 1e3).toFixed(1)} kB` : `${(value / 1e6).toFixed(1)} MB`;
}

export const oneLine = (text: string, most = 300): string => text.slice(0, most * 2).replace(/\s+/g, " ").trim().slice(0, most);

const TOKEN = /\s*("[^"\\]*(?:\\.[^"\\]*)*"?|[{}[\],:]|[^\s{}[\],:"]+)/gsy;

/** Return JSON with indentation, whole or as far as it has come. Numbers and repeated names stay as they are written. */
export function indent(text: string): string {
  let [laidOut, depth, last] = ["", 0, ""];
  const line = (): string => `\n${"  ".repeat(Math.max(0, depth))}`;
  for (const [, token = ""] of text.matchAll(TOKEN)) {
    const isEnd = token === "}" || token === "]";
    const isFirst = last === "{" || last === "[";
    if (isEnd) depth -= 1;
    laidOut += (isEnd ? !isFirst : isFirst || last === ",") ? line() + token : last === ":" ? ` ${token}` : token;
    if (token === "{" || token === "[") depth += 1;
    last = token;
  }
  return laidOut;
}

/**
 * Return JSON with indentation, and other texts unchanged. `breaksLines` shows the line breaks in its texts, and
 * `isPartial` says that the end of the JSON may not have come yet.
 */
export function pretty(text: string, breaksLines = false, isPartial = false): string {
  if (!/^\s*[[{]/.test(text) || text.length > 200_000) return text;
  try {
    if (!isPartial) JSON.parse(text);
  } catch {
    return text;
  }
  const shown = indent(text);
  return breaksLines ? shown.replace(/\\(.)/g, (pair, sign) => (sign === "n" ? "\n" : pair)) : shown;
}
