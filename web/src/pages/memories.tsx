/** What personas remember about users. */
import type { ReactNode } from "react";
import { clock } from "../format";
import { useGet } from "../load";
import { Chip, Overview, Status } from "../parts/basics";
import { change, go, to, usePlace } from "../router";
import { has } from "../source";
import type { PageSpec } from ".";

interface Entry { entry_id: string; store: string; version: number; text: string; author: string; written_at: number; epistemic?: string; reason?: string; strength?: number; merged?: number; metadata?: Record<string, string> }

const STORES: Record<string, string> = { identity: "who it is", self_facts: "facts", worldview: "world view", episodic: "episodes", documents: "documents" };

function Memories(): ReactNode {
  const { path, query } = usePlace();
  const owners = useGet<{ data: { persona: string; user: string }[] }>("/v1/view/memories");
  const first = owners.data?.data[0];
  const [persona, user] = path[2] ? [path[1], path[2]] : [first?.persona, first?.user];
  const chosen = persona && user ? `/v1/view/memories/entries?${new URLSearchParams({ persona, user })}` : null;
  const { data, error } = useGet<{ data: Entry[] }>(chosen);
  const text = (query.get("text") ?? "").toLowerCase();
  const store = query.get("store") ?? "";
  const shown = (data?.data ?? []).filter((entry) => (!store || entry.store === store) && entry.text.toLowerCase().includes(text));
  return (
    <main className="page">
      <h1 className="hidden">Memories</h1>
      <div className="bar">
        {owners.data?.data.length !== 0 && <select aria-label="Persona and user" value={persona && user ? to(["memories", persona, user]) : ""} onChange={(event) => go(event.target.value)}>
          {owners.data?.data.map((owner) => {
            const address = to(["memories", owner.persona, owner.user]);
            return <option key={address} value={address}>{owner.persona} about {owner.user}</option>;
          })}
        </select>}
        <input type="search" aria-label="Search the memories" placeholder="Search" value={query.get("text") ?? ""} onChange={(event) => change({ text: event.target.value })} />
        <select aria-label="Kind" value={store} onChange={(event) => change({ store: event.target.value })}>
          <option value="">all kinds</option>
          {Object.entries(STORES).map(([name, label]) => <option key={name} value={name}>{label}</option>)}
        </select>
        <span className="grow" />
        {data && <span className="soft">{shown.length} of {data.data.length}</span>}
      </div>
      {owners.error ? <Status error={owners.error} /> : error ? <Status error={error} />
        : !owners.data ? <Status /> : !owners.data.data.length ? <Status>This journal has no memories. Agents with a persona that has <code>memory: true</code> write what they remember about a user.</Status>
        : !data ? <Status /> : !shown.length ? <Status>No memory matches.</Status> : (
          <Overview label="memories" className="page scrolls memories">
            {shown.slice(0, 1000).map((entry) => (
              <article key={entry.entry_id}>
                <p className="said">{entry.text}</p>
                <p className="row wrap soft">
                  <Chip>{STORES[entry.store] ?? entry.store}</Chip>{entry.epistemic && <Chip>{entry.epistemic}</Chip>}
                  <span className="mono">{entry.entry_id}</span><span>by {entry.author}</span><span>{clock(entry.written_at)}</span>
                  {entry.version > 1 && <span>version {entry.version}</span>}{entry.merged ? <span>said {entry.merged + 1} times</span> : null}
                  {entry.reason && <span>{entry.reason}</span>}
                </p>
              </article>
            ))}
          </Overview>
        )}
    </main>
  );
}

export const memoriesPage: PageSpec = { name: "memories", title: "Memories", key: "m", Page: Memories, isOffered: () => has("/v1/view/memories") };
