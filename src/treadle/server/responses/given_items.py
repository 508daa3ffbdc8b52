"""What the items of a request stand for, as far as the server knows it: items that it has made, uploaded files, and
conversations that it has compacted."""

import asyncio
from typing import Any

from treadle.context.compaction_summary import is_summary, pack_summary
from treadle.core.events import ContextCompacted
from treadle.core.prompts.prompting import forget
from treadle.core.state import State
from treadle.core.state import fold as fold_events
from treadle.core.types import Json, Message, Role
from treadle.knowledge.files.file_store import facts_of
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, no_such
from treadle.server.responses.conversation_items import items_of_run
from treadle.server.responses.request_items import GivenFile, Item, RequestItems, file_ids_in, read_items
from treadle.server.responses.response_ids import run_named_by
from treadle.server.run_host import RunHost

_FILES_AT_A_TIME = 8


async def read_input(host: RunHost, caller: ApiCaller, given: str | list[Item]) -> RequestItems:
    """Return what the items of a request mean. Raises: `ConfigError`, `RequestRefused`."""
    if isinstance(given, str):
        return read_items(given)
    items = await _find_items(host, caller, given)
    file_ids = list(dict.fromkeys(file_ids_in(items)))
    files = await _find_files(host, caller, file_ids) if file_ids else {}
    return read_items(items, files, await _find_compacted(host, caller, items))


async def _find_items(host: RunHost, caller: ApiCaller, given: list[Item]) -> list[Item]:
    """Return the input of a request, with the items that it only refers to. Raises: `RequestRefused`."""
    if not any([item.get("type") == "item_reference" for item in given]):
        return given
    known: dict[str, dict[Json, Item]] = {}
    found = []
    for item in given:
        if item.get("type") != "item_reference":
            found.append(item)
            continue
        name = str(item.get("id"))
        run_id = run_named_by(name) or ""
        if run_id not in known:
            run = await host.find_run(caller, run_id)
            shown = [] if run is None else await asyncio.to_thread(items_of_run, run.events, run_id)
            known[run_id] = {it["id"]: it for it in shown}
        if name not in known[run_id]:
            raise no_such("item", name)
        found.append(known[run_id][name])
    return found


async def _find_files(host: RunHost, caller: ApiCaller, file_ids: list[str]) -> dict[str, GivenFile]:
    """Return uploaded files by id. Raises: `RequestRefused` if the client sees no such file."""
    slots = asyncio.Semaphore(_FILES_AT_A_TIME)

    async def find(file_id: str) -> GivenFile:
        async with slots:
            item, content = await host.read_file(caller, file_id)
        facts = facts_of(item)
        return GivenFile(content, facts.mime_type, facts.name)

    found = await asyncio.gather(*[find(file_id) for file_id in file_ids], return_exceptions=True)
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise outcome
    return {name: file for name, file in zip(file_ids, found, strict=True) if isinstance(file, GivenFile)}


async def _find_compacted(host: RunHost, caller: ApiCaller, items: list[Item]) -> dict[str, list[Message]]:
    """Return what the model saw after the last compaction that a request names, by `encrypted_content`. It stands
    in place of all that was said before, so that earlier compactions need not be found.

    Without an item that its client keeps, or one of a run that is gone, the summary alone is known.
    """
    runs: dict[str, Run[Any] | None] = {}
    for item in reversed(items):
        packed: Any = item.get("encrypted_content") if item.get("type") == "compaction" else None
        named = run_named_by(str(item.get("id"))) if isinstance(packed, str) else None
        if named is None:
            continue
        if named not in runs:
            runs[named] = await host.find_run(caller, named)
        run = runs[named]
        seen = None if run is None else await asyncio.to_thread(_find_seen, run, packed)
        if seen is not None:
            return {packed: seen}
    return {}


def _find_seen(run: Run[Any], packed: str) -> list[Message] | None:
    """Return what the model saw after the compaction with this summary; `None` if the run has none."""
    bodies = [event.body for event in run.events]
    for at, body in enumerate(bodies):
        if isinstance(body, ContextCompacted) and packed in map(
            pack_summary, filter(is_summary, body.replacement)
        ):
            return seen_of(fold_events(bodies[: at + 1]))
    return None


def seen_of(state: State) -> list[Message]:
    """Return the messages that the model of a run sees, without what was recalled for them."""
    recalled = state.shown.recalled
    found = [forget(message, recalled.get(at, 0)) for at, message in enumerate(state.messages)]
    return [message for message in found if message.role is not Role.SYSTEM]
