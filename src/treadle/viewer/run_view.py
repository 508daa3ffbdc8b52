"""What the page shows of one run, as answers of the API: its events, its prompts, and the contents of its files.

The page itself folds the events. Tokens are left out here, because the page of tokens asks for them.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from treadle.context.step_view import view_step
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Json
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, RunFilter, RunInfo
from treadle.knowledge.memory import open_memory
from treadle.knowledge.memory.protocol import LIBRARY
from treadle.viewer.bundle import escape_part

_MAX_RELATIVES = 200
_MAX_MEMORIES = 5_000
_MAX_PROMPTS_BYTES = 2_000_000
"""How many bytes of a run's prompts a file has: together they grow with the square of the steps."""
_MAX_CONTENT_BYTES = 400_000
_MAX_CONTENTS_BYTES = 20_000_000
"""How many bytes of a content, and of all contents, a file has."""


def write_run(info: RunInfo) -> dict[str, Json]:
    """Return the facts about a run as the API lists them."""
    return {"object": "run", "id": info.run_id, "title": info.title, **msgspec.to_builtins(info)}


def shorten_event(event: e.Event) -> bytes:
    """Return an event as JSON. The tokens of answers are left out; where they have ids, an empty record is left."""
    body = event.body
    slim: e.DurableBody
    if isinstance(body, e.InferenceCompleted) and (found := body.completion.tokens) is not None:
        left = None if found.token_ids is None else TokenRecord()
        slim = replace(body, completion=replace(body.completion, tokens=left))
    elif isinstance(body, e.ContextCompacted) and body.sampled is not None:
        slim = replace(body, sampled=None)
    else:
        return event.to_json()
    return e.Event(event.run_id, event.seq, slim).to_json()


def write_events(events: Iterable[e.Event], info: RunInfo) -> bytes:
    """Return a list of events of a run as JSON, and the facts about the run, which count its sub-agents too."""
    data = b",".join(map(shorten_event, events))
    return b'{"object":"list","run":%s,"data":[%s]}' % (msgspec.json.encode(write_run(info)), data)


def read_content(journal: Journal, run_id: str, digest: str) -> bytes:
    """Return a content that an event of the run refers to. Raises: `ConfigError` if none does; `JournalError`."""
    if not any(digest in e.digests_of(event.body) for event in journal.scan(run_id)):
        raise ConfigError(f"no event of run {run_id!r} has a content {digest!r:.80}")
    return journal.read_blob(digest)


def find_relatives(journal: Journal, info: RunInfo, labels: Mapping[str, str]) -> dict[str, Json]:
    """Return the runs that were forked from each other with this one, parents first, and its sub-agents' runs.

    Only runs with `labels` are among them.
    """
    root = info
    for _ in range(_MAX_RELATIVES):
        above = journal.runs(RunFilter(run_ids=[root.parent_run_id or ""], labels=labels))
        if not above:
            break
        root = above[0]
    family: list[dict[str, Json]] = []
    _add_forks(journal, root, labels, family)
    children = []
    for child in journal.runs(RunFilter(labels={**labels, CALLER: info.run_id}), limit=_MAX_RELATIVES):
        caller = _start_of(journal, child).caller
        children.append({**write_run(child), "call_id": "" if caller is None else caller.call_id})
    return {"family": family, "children": children}


def _add_forks(
    journal: Journal, run: RunInfo, labels: Mapping[str, str], family: list[dict[str, Json]]
) -> None:
    parent = _start_of(journal, run).parent
    family.append({**write_run(run), "forked_at": None if parent is None else parent.seq})
    for fork in journal.runs(RunFilter(parent_run_id=run.run_id, labels=labels), limit=_MAX_RELATIVES):
        if len(family) < _MAX_RELATIVES:
            _add_forks(journal, fork, labels, family)


def _start_of(journal: Journal, info: RunInfo) -> e.RunStarted:
    (first,) = journal.read(info.run_id, 0, 1)
    assert isinstance(first.body, e.RunStarted)
    return first.body


def list_owners(journal: Journal) -> dict[str, Json]:
    """Return the personas and users that have memories. Raises: `JournalError`."""
    owners = open_memory(journal).store.owners()
    data = [{"persona": persona, "user": user} for persona, user in owners if persona != LIBRARY]
    return {"object": "list", "data": data}


def list_memories(journal: Journal, persona: str, user: str) -> dict[str, Json]:
    """Return what a persona remembers about a user, the newest first. Raises: `ConfigError`, `JournalError`."""
    entries = open_memory(journal, persona, user).store.entries(limit=_MAX_MEMORIES, newest_first=True)
    return {"object": "list", "data": msgspec.to_builtins(entries)}


def embed_runs(journal: Journal, infos: Iterable[RunInfo]) -> dict[str, object]:
    """Return the answers that the pages of some runs and of their sub-agents need, by their addresses."""
    answers: dict[str, object] = {}
    listed: dict[str, dict[str, Json]] = {}
    waiting = list(infos)
    budget = [_MAX_CONTENTS_BYTES]
    while waiting:
        info = waiting.pop(0)
        if info.run_id in listed:
            continue
        listed[info.run_id] = write_run(info)
        answers.update(_embed_run(journal, info, budget))
        waiting += journal.runs(RunFilter(labels={CALLER: info.run_id}))
    return {"/v1/runs": {"object": "list", "data": list(listed.values()), "has_more": False}, **answers}


def _embed_run(journal: Journal, info: RunInfo, budget: list[int]) -> dict[str, object]:
    run_id = info.run_id
    events = journal.read(run_id)
    address = f"/v1/view/runs/{escape_part(run_id)}"
    answers: dict[str, object] = {
        f"{address}/events": Raw(write_events(events, info)),
        f"{address}/relatives": find_relatives(journal, info, {}),
    }
    steps = sorted({event.body.step for event in events if isinstance(event.body, e.InferenceStarted)})
    left = _MAX_PROMPTS_BYTES
    for step in steps:
        prompt = msgspec.json.encode(view_step(events, step))
        left -= len(prompt)
        if left < 0:
            break
        answers[f"{address}/prompts/{step}"] = Raw(prompt)
    for digest in dict.fromkeys([digest for event in events for digest in e.digests_of(event.body)]):
        content = journal.read_blob(digest)
        if len(content) <= min(_MAX_CONTENT_BYTES, budget[0]):
            budget[0] -= len(content)
            answers[f"{address}/contents/{digest}"] = write_content(content)
    return answers


def write_content(content: bytes) -> dict[str, Json]:
    """Return a content as the API gives it: its text, or base64 if it is not text."""
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": content}
