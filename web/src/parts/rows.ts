/** The rows of a dataset: a server finds them, and a file holds them all. */
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import type { DatasetView, FoundRows, RowBody, RowHead, RowList } from "../datatypes";
import { useGet } from "../load";
import { get } from "../source";

export const CHOICES = ["status", "kind", "tool", "filter", "topic"] as const;
export type Choice = (typeof CHOICES)[number];
export type Chosen = Partial<Record<Choice, string>>;
const PAGE = 500;

export interface Found {
  heads: RowHead[];
  found: number;
  total: number;
  error: Error | null;
  isLoading: boolean;
  more: () => void;
}

const texts = new WeakMap<RowList, string[]>();

/** Return the text by which a row is found, in small letters. */
function textOf(rows: RowList, place: number): string {
  let known = texts.get(rows);
  if (!known) texts.set(rows, (known = []));
  const kept = known[place];
  if (kept !== undefined) return kept;
  const head = rows.heads[place] as RowHead;
  const body = rows.bodies[place];
  const parts = [head.row_id, head.text, head.topic ?? "", head.kind ?? "", rows.words[place] ?? ""];
  if (body) {
    parts.push(...Object.values(body.facts), ...body.verdicts.flatMap((item) => [item.filter, item.reason]));
    for (const message of body.messages) {
      parts.push(message.text, message.thought ?? "", ...(message.calls ?? []).flatMap((call) => [call.name, call.arguments, call.result ?? ""]));
    }
  }
  return (known[place] = parts.join("\n").toLowerCase());
}

export function isChosen(head: RowHead, chosen: Chosen): boolean {
  if (chosen.status && chosen.status !== (head.is_rejected ? "rejected" : "kept")) return false;
  if (chosen.kind && chosen.kind !== head.kind) return false;
  if (chosen.tool && !head.tools?.includes(chosen.tool)) return false;
  if (chosen.filter && !head.failed?.includes(chosen.filter)) return false;
  return !chosen.topic || head.topic === chosen.topic || Boolean(head.topic?.startsWith(`${chosen.topic} › `));
}

function findLocally(rows: RowList, words: string, chosen: Chosen): RowHead[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.heads.filter((head, place) => isChosen(head, chosen) && (!wanted.length || wanted.every((word) => textOf(rows, place).includes(word))));
}

/** Return the rows that have all words and the chosen values. */
export function useRows(view: DatasetView | null, address: string, words: string, chosen: Chosen): Found {
  const query = new URLSearchParams({ words, ...Object.fromEntries(CHOICES.map((name) => [name, chosen[name] ?? ""]).filter(([, value]) => value)) }).toString();
  const local = useMemo(() => (view?.rows ? findLocally(view.rows, words, chosen) : null), [view, query]);
  const [state, setState] = useState({ heads: [] as RowHead[], found: 0, total: 0, error: null as Error | null, isLoading: true, query: "" });
  const busy = useRef(false);
  const load = useCallback(async (offset: number, signal?: AbortSignal) => {
    const found = await get<FoundRows>(`${address}/rows?${query}&offset=${offset}&limit=${PAGE}`, signal);
    if (signal?.aborted) return;
    setState((before) => ({ heads: offset ? [...before.heads, ...found.heads] : found.heads, found: found.found, total: found.total, error: null, isLoading: false, query }));
  }, [address, query]);
  const isAsked = view !== null && !view.rows;
  useEffect(() => {
    if (!isAsked) return;
    const stop = new AbortController();
    setState((before) => ({ ...before, isLoading: true }));
    load(0, stop.signal).catch((error: Error) => {
      if (!stop.signal.aborted) setState((before) => ({ ...before, heads: [], error, isLoading: false }));
    });
    return () => stop.abort();
  }, [load, isAsked]);
  const more = useCallback(() => {
    if (!isAsked || busy.current || state.heads.length >= state.found || state.query !== query) return;
    busy.current = true;
    load(state.heads.length).catch((error: Error) => setState((before) => ({ ...before, error }))).finally(() => (busy.current = false));
  }, [load, isAsked, state, query]);
  if (local) return { heads: local, found: local.length, total: view?.rows?.heads.length ?? 0, error: null, isLoading: false, more };
  return { ...state, more };
}

export interface OpenedRow {
  body: RowBody | null;
  /** Why there is no body; empty while it is loaded. */
  absent: string;
}

/** Return what a row shows when it is opened. */
export function useRow(view: DatasetView | null, address: string, head: RowHead | null): OpenedRow {
  const place = view?.rows && head ? view.rows.heads.indexOf(head) : -1;
  const asks = view !== null && !view.rows && head !== null;
  const found = useGet<RowBody>(asks ? `${address}/rows/${head.number}?is_rejected=${head.is_rejected ? "true" : "false"}` : null);
  if (!view || !head) return { body: null, absent: "" };
  if (asks) return { body: found.data, absent: found.error?.message ?? "" };
  const body = view.rows?.bodies[place] ?? null;
  const command = `treadle dataset show ${view.folder} ${head.row_id}${head.is_rejected ? " --rejected" : ""}`;
  return { body, absent: body ? "" : `The messages of this row are not in this file. Read it with: ${command}` };
}
