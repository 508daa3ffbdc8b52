"""What the page shows of one run, as answers of the API: its events, its prompts, and the contents of its files.

The page itself folds the events. Tokens are left out here, because the page of tokens asks for them.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from treadle.context.step_view import view_step
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, RunFilter, RunInfo

_MAX_PROMPTS = 60
_MAX_CONTENT_BYTES = 400_000
_MAX_CONTENTS_BYTES = 20_000_000


def write_run(info: RunInfo) -> dict[str, Json]:
    """Return the facts about a run as the API lists them."""
    return {"object": "run", "id": info.run_id, "title": info.title, **msgspec.to_builtins(info)}


def shorten_event(event: e.Event) -> bytes:
    """Return an event as JSON, without the tokens of answers."""
    body = event.body
    slim: e.DurableBody
    if isinstance(body, e.InferenceCompleted) and body.completion.tokens is not None:
        slim = replace(body, completion=replace(body.completion, tokens=None))
    elif isinstance(body, e.ContextCompacted) and body.sampled is not None:
        slim = replace(body, sampled=None)
    else:
        return event.to_json()
    return e.Event(event.run_id, event.seq, slim).to_json()


def write_events(events: Iterable[e.Event]) -> bytes:
    """Return a list of events as JSON."""
    return b'{"object":"list","data":[' + b",".join(map(shorten_event, events)) + b"]}"


def read_content(journal: Journal, run_id: str, digest: str) -> bytes:
    """Return a content that an event of the run refers to. Raises: `ConfigError` if none does; `JournalError`."""
    if not any(digest in e.digests_of(event.body) for event in journal.scan(run_id)):
        raise ConfigError(f"no event of run {run_id!r} has a content {digest!r:.80}")
    return journal.read_blob(digest)


def embed_runs(journal: Journal, infos: Iterable[RunInfo]) -> dict[str, object]:
    """Return the answers that the pages of some runs and of their sub-agents need, by their addresses."""
    answers: dict[str, object] = {}
    listed = []
    waiting = list(infos)
    budget = [_MAX_CONTENTS_BYTES]
    while waiting:
        info = waiting.pop(0)
        if f"/v1/runs/{info.run_id}" in answers:
            continue
        listed.append(write_run(info))
        answers.update(_embed_run(journal, info, budget))
        waiting += journal.runs(RunFilter(labels={CALLER: info.run_id}))
    return {"/v1/runs": {"object": "list", "data": listed, "has_more": False}, **answers}


def _embed_run(journal: Journal, info: RunInfo, budget: list[int]) -> dict[str, object]:
    run_id = info.run_id
    events = journal.read(run_id)
    answers: dict[str, object] = {
        f"/v1/runs/{run_id}": write_run(info),
        f"/v1/view/runs/{run_id}/events": Raw(write_events(events)),
    }
    steps = sorted({event.body.step for event in events if isinstance(event.body, e.InferenceStarted)})
    for step in steps[-_MAX_PROMPTS:]:
        answers[f"/v1/view/runs/{run_id}/prompts/{step}"] = view_step(events, step)
    for digest in dict.fromkeys([digest for event in events for digest in e.digests_of(event.body)]):
        content = journal.read_blob(digest)
        if len(content) <= min(_MAX_CONTENT_BYTES, budget[0]):
            budget[0] -= len(content)
            answers[f"/v1/view/runs/{run_id}/contents/{digest}"] = write_content(content)
    return answers


def write_content(content: bytes) -> dict[str, Json]:
    """Return a content as the API gives it: its text, or base64 if it is not text."""
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": content}
