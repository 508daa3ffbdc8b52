/**
 * Where the pages get their data: answers of the server's API, or the same answers embedded in the page.
 *
 * An embedded page has the answers by their addresses. Pages ask with the same addresses in both cases, and check
 * `isLive` only before they offer what needs a server.
 */
import type { Listing, RunInfo } from "./types";

export interface Embedded {
  title: string;
  /** The address of the page that is shown first, such as `#/runs/ID`. */
  start: string;
  /** The answers by the address of the request, as JSON, which is read when it is asked for. */
  answers: Record<string, string>;
}

export interface StreamItem {
  /** The number of an event; `null` for a piece of output that is not stored. */
  id: string | null;
  data: string;
}

const TOKEN = "treadle.token";
const NO_DATA: Embedded = { title: "Treadle", start: "#/runs", answers: {} };
let embedded: Embedded = NO_DATA;
let token = "";

/** Whether a server answers, so that what is shown goes on, and things can be done. */
export let isLive = true;
export const title = (): string => embedded.title;

export class RequestFailed extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Answers about the runs of files that were opened beside what is shown, by their addresses. */
const filed = new Map<string, string>();
const FILED = "@file/";
export const isFiled = (runId: string): boolean => runId.startsWith(FILED);

/** What the ids of a second journal's runs begin with in the page. The server has them below a path of its own. */
export const OTHER = "@other/";
export const isOther = (id: string | undefined): boolean => id?.startsWith(OTHER) ?? false;
const SIGN = encodeURIComponent(OTHER);
/** Return the address of an API for the journal of an id, or for the id's sign alone. */
const resolve = (address: string): string => (address.includes(SIGN) ? `/other${address.replace(SIGN, "")}` : address);
/** Return the id that a run has in its journal. */
export const bare = (runId: string): string => runId.replace(/^@(file|other)\//, "");
/** Return what the id of a run begins with if it is not one of the first journal. */
export const signOf = (runId: string): string => /^@(file|other)\//.exec(runId)?.[0] ?? "";

const readEmbedded = async (text: string): Promise<Embedded> => {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text()) as Embedded;
};

/** Read a file that `treadle report` wrote, and return its runs. Their ids begin with a sign that no other run has. */
export async function openFile(file: File): Promise<RunInfo[]> {
  const data = /id="data">([^<]+)</.exec(await file.text())?.[1];
  if (!data) throw new Error("this is no file that `treadle report` wrote");
  const { answers } = await readEmbedded(data);
  const runs = (JSON.parse(answers["/v1/runs"] ?? "{}") as Partial<Listing<RunInfo>>).data ?? [];
  if (!runs.length) throw new Error("this file has no runs");
  return runs.map((run) => {
    const { id, title } = run;
    const own = `/v1/view/runs/${encodeURIComponent(id)}/`;
    for (const [address, text] of Object.entries(answers)) {
      if (address.startsWith(own)) filed.set(`/v1/view/runs/${encodeURIComponent(FILED + id)}/${address.slice(own.length)}`, text);
    }
    return { ...run, id: FILED + id, title: title || id };
  });
}

/** Read the embedded answers, or the token in the address. Returns the address of the first page. */
export async function openSource(): Promise<string> {
  const text = document.getElementById("data")?.textContent?.trim();
  if (text) {
    embedded = await readEmbedded(text);
    isLive = false;
    return embedded.start;
  }
  const given = /^#token=([^&/]+)(?:&(.*))?$/.exec(location.hash);
  if (given?.[1]) {
    setToken(given[1]);
    history.replaceState(null, "", `#${given[2] ?? ""}`);
  }
  token = kept() ?? token;
  return "#/runs";
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const decoder = Uint8Array as typeof Uint8Array & { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };
  if (decoder.fromBase64) return decoder.fromBase64(text);
  const chars = atob(text);
  const bytes = new Uint8Array(chars.length);
  for (let place = 0; place < chars.length; place += 1) bytes[place] = chars.charCodeAt(place);
  return bytes;
}

function kept(): string | null {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return null;
  }
}

/** Whether the page has a key, which need not be valid. */
export const hasToken = (): boolean => token !== "";

export function setToken(text: string): void {
  token = text;
  try {
    sessionStorage.setItem(TOKEN, text);
  } catch {
    // The token is then kept only until the page is loaded again.
  }
}

const headers = (more: Record<string, string> = {}): Record<string, string> =>
  token ? { authorization: `Bearer ${token}`, ...more } : more;

async function check(response: Response): Promise<Response> {
  if (response.ok) return response;
  let message = `the server answered with status ${response.status}`;
  try {
    const body = (await response.json()) as { error?: { message?: string } };
    message = body.error?.message ?? message;
  } catch {
    // The answer is not JSON, so the status is all that is known.
  }
  throw new RequestFailed(response.status, message);
}

/** Send a request with the key. Throws `RequestFailed`, also if nobody answers. */
async function ask(address: string, request: RequestInit & { headers?: Record<string, string> } = {}): Promise<Response> {
  try {
    return await check(await fetch(resolve(address), { ...request, headers: headers(request.headers) }));
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new RequestFailed(0, "The server does not answer: it has ended, or cannot be reached.");
  }
}

const sending = (body: unknown): RequestInit & { headers: Record<string, string> } => ({ method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

const LONG_NUMBER = /[[:,]\s*-?\d{16,}[\s,\]}]/;
type Reviver = (name: string, value: unknown, context: { source?: string }) => unknown;
const { rawJSON } = JSON as unknown as { rawJSON?: (text: string) => unknown };
const keepLong: Reviver = (_, value, { source = "" }) => (typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source) ? rawJSON?.(source) : value);

/** Read JSON. Whole numbers that JavaScript cannot hold keep their digits, for those who write them again. */
export function readJson<T>(text: string): T {
  return (rawJSON && LONG_NUMBER.test(text) ? JSON.parse(text, keepLong as (name: string, value: unknown) => unknown) : JSON.parse(text)) as T;
}

/** Return the answer to a GET request. Throws `RequestFailed`. */
export async function get<T>(address: string, signal?: AbortSignal): Promise<T> {
  const kept = filed.get(address);
  if (kept !== undefined) return readJson<T>(kept);
  if (address.includes(encodeURIComponent(FILED))) throw new RequestFailed(404, "the file with this run is not open any more; choose it again");
  if (!isLive) {
    const found = embedded.answers[address];
    if (found !== undefined) return readJson<T>(found);
    throw new RequestFailed(404, "this file does not hold that; open the journal with `treadle view`");
  }
  return readJson<T>(await (await ask(address, { signal: signal ?? null })).text());
}

/** Return whether an answer that a file holds has a text, in whatever case. */
export const says = (address: string, text: string): boolean => Boolean(embedded.answers[address]?.toLowerCase().includes(JSON.stringify(text.toLowerCase()).slice(1, -1)));

/** Whether the answer can be had: always from a server, and from a file if it holds the answer. */
export const has = (address: string): boolean => isLive || address in embedded.answers;

/** Return the answer to a POST request. Throws `RequestFailed`. */
export async function post<T>(address: string, body: unknown): Promise<T> {
  if (!isLive) throw new RequestFailed(405, "this is a file; open the journal with `treadle view` to do that");
  return (await (await ask(address, sending(body))).json()) as T;
}

/** Return the text that a POST request gives, such as exported rows. Throws `RequestFailed`. */
export async function postForText(address: string, body: unknown): Promise<string> {
  return (await ask(address, sending(body))).text();
}

/** Yield what a stream of server-sent events sends. Ends with the stream. Throws `RequestFailed`. */
export async function* listen(address: string, after: number, signal: AbortSignal): AsyncGenerator<StreamItem[]> {
  const response = await ask(address, { headers: { accept: "text/event-stream", "last-event-id": String(after) }, signal });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    const items = blocks.map(readBlock).filter((item) => item !== null);
    if (items.length) yield items;
  }
}

function readBlock(block: string): StreamItem | null {
  let id: string | null = null;
  let data: string | null = null;
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data = (data === null ? "" : `${data}\n`) + line.slice(6);
  }
  return data === null ? null : { id, data };
}
