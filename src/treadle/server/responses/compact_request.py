"""What a request to compact a conversation asks for: a new session with the conversation as its history.

In it, one summary takes the place of everything but the user's messages.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.parts import describe
from treadle.core.state import fold as fold_events
from treadle.core.types import Message, Role
from treadle.runs.options import SessionOptions, check_history
from treadle.server.admission.access import ApiCaller
from treadle.server.catalog import ClientWish
from treadle.server.responses.given_items import read_input, seen_of
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.request_items import CompactResponse
from treadle.server.responses.response_fold import ResponseFold
from treadle.server.responses.response_ids import ResponseId, wire_call_id
from treadle.server.responses.response_part import part_of_run
from treadle.server.responses.response_plan import find_response, join_texts
from treadle.server.responses.response_records import read_request, record_of
from treadle.server.run_host import RunHost
from treadle.server.turn_order import begin_options


class CompactOrder(Struct, frozen=True):
    """A compaction that a client asks for."""

    agent: Agent[Any]
    place: ResponseId
    echo: Echo
    options: SessionOptions


async def plan_compaction(
    host: RunHost, caller: ApiCaller, body: CompactResponse, run_id: str
) -> CompactOrder:
    """Return the compaction that a request asks for, in a new run. Raises: `ConfigError`, `RequestRefused`."""
    asked = await read_input(host, caller, body.input or [])
    results, history = dict(asked.results), list[Message]()
    system = list(asked.instructions)
    if body.previous_response_id is not None:
        before = await find_response(host, caller, body.previous_response_id)
        place = before.response_id
        events = await asyncio.to_thread(host.journal.read, place.run_id, until_seq=before.seq)
        state = fold_events([event.body for event in events])
        history += _answer(seen_of(state), results, place.run_id)
        known = await asyncio.to_thread(read_request, host.journal, place)
        system = [*(() if known is None else known.system), *system]
    history += _answer(asked.history, results)
    if results:
        raise ConfigError(f"no call {next(iter(results))!r:.100} waits for an output")
    if asked.message is not None:
        history.append(asked.message)
    if not history:
        raise ConfigError("there is nothing to compact; give input or previous_response_id")
    instructions = join_texts([body.instructions, *system])
    agent = await host.catalog.open_agent(
        body.model, ClientWish(instructions=instructions, client=caller.name), None
    )
    echo = Echo(model=body.model, created_at=time.time(), instructions=instructions, system=system)
    echo.previous_response_id = body.previous_response_id
    given = check_history([_name_parts(message) for message in history])
    options = begin_options(host, caller, body.model, history=given)
    host.note_run(run_id)
    return CompactOrder(agent, ResponseId(run_id, 0, 0), echo, {**options, "begins_with_message": False})


def _answer(messages: Iterable[Message], results: dict[str, str], run_id: str = "") -> Iterator[Message]:
    """Yield messages, and after them the results of calls that have none. Results that are used are taken out."""
    waiting: dict[str, str] = {}
    for message in messages:
        yield message
        waiting |= {call.call_id: call.name for call in message.tool_calls}
        waiting.pop(message.call_id or "", None)
    for call_id, name in waiting.items():
        wire = wire_call_id(run_id, call_id) if run_id else call_id
        if wire in results:
            yield Message(Role.TOOL, results.pop(wire), call_id=call_id, name=name)


def _name_parts(message: Message) -> Message:
    """Return a message whose images and files are only named, because a summary replaces what was said of them."""
    if not message.parts:
        return message
    lines = [message.content, *[f"[{describe(part)}]" for part in message.parts]]
    return replace(message, content="\n".join(filter(None, lines)), parts=())


async def drive_compaction(host: RunHost, caller: ApiCaller, order: CompactOrder) -> ResponseFold:
    """Compact the conversation, and return the response, which has failed if there is no summary."""
    record = record_of(order.place, order.echo, caller.name)
    await host.journal.resources.add_soon([record], time.time())
    async with order.agent.session(order.place.run_id, **order.options) as session:
        # An earlier try of the request, whose process died, may have made the summary.
        if not session.run.state.shown.compactions:
            await session.compact(is_whole=True)
    events = await asyncio.to_thread(host.journal.read, order.place.run_id)
    fold = part_of_run(events, order.place, order.echo)
    assert fold is not None
    return fold
