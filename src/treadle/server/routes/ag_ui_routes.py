"""`/v1/ag-ui`: agents in the AG-UI protocol, for user interfaces. A thread is a session."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response

from treadle.core.errors import ConfigError
from treadle.core.inbox import Cancel
from treadle.core.texts.hiding import hide_servers
from treadle.runs.options import SessionOptions
from treadle.runs.recording import send
from treadle.server.admission.idempotency import keyed_request
from treadle.server.event_stream import EventStream, to_sse
from treadle.server.gateway.wires import RUN_HEADER
from treadle.server.protocols.ag_ui_input import RunAgentInput, has_news, read_answers
from treadle.server.protocols.ag_ui_stream import AgUiStream
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_fold import ResponseFold
from treadle.server.responses.response_ids import ResponseId
from treadle.server.routes.route_context import Name, Runner, TheHost, encode
from treadle.server.run_host import BegunTurn
from treadle.server.turn_order import TurnOrder, begin_options, check_idle, find_before, run_id_of, start_turn

router = APIRouter(prefix="/v1/ag-ui", tags=["ag-ui"])


@router.post("/{agent}")
async def run_agent(
    agent: Name, body: RunAgentInput, request: Request, host: TheHost, caller: Runner
) -> Response:
    """Run an agent on the newest message of a thread, or go on with what it waited for, as AG-UI's events.

    Questions and approvals are interrupts, which the next request answers with `resume`. A client that leaves
    before the end cancels the run.
    """
    await host.check_room(caller)
    asked = body.read()
    wish = body.wish(asked)
    made = await asyncio.to_thread(host.catalog.agent, agent, wish)
    run_id = run_id_of(caller, "ag-ui", body.thread_id)
    keyed = keyed_request(request)
    run = await find_before(host, caller, run_id, keyed)
    mail = [] if run is None else read_answers(run, asked, body.resume)
    if run is None and body.resume:
        raise ConfigError(f"the thread {body.thread_id!r:.100} waits for nothing")
    if not mail and asked.message is None:
        raise ConfigError("the newest message is not one of the user, and no call or interrupt is answered")
    options: SessionOptions = {"renews_instructions": True}
    if run is None:
        options |= begin_options(host, caller, agent, history=asked.history)
    elif not mail:
        check_idle(run)
    is_told = run is None or not mail or has_news(run, asked)
    message = asked.message if is_told else None
    order = TurnOrder(
        agent=made, run_id=run_id, message=message, blobs=asked.blobs, mail=mail, options=options
    )
    turn = await start_turn(host, order, 0 if run is None else run.state.seq, keyed)
    number, step = (0, 0) if run is None else (run.state.turn.number, run.state.step)
    place = ResponseId(run_id, number if mail else number + 1, step)
    fold = ResponseFold(place, Echo(model=agent, created_at=0))
    external = [tool.spec.name for tool in made.tools.values() if tool.spec.is_external]
    output = made.kit.output(made.answer.schema, None)
    fold.offer([tool.spec for tool in made.tools.values()], output)
    stream = AgUiStream(fold, body.thread_id, body.run_id, external)

    async def leave() -> None:
        turn.drop()
        if not turn.task.done():
            await send(host.journal, run_id, Cancel("the client left"))

    return EventStream(_lines(turn, stream), lambda: host.start_quietly(leave()), {RUN_HEADER: run_id})


async def _lines(turn: BegunTurn, stream: AgUiStream) -> AsyncIterator[bytes]:
    for event in stream.begin():
        yield to_sse(encode(event))
    try:
        async for item in turn.items():
            for event in stream.take(item):
                yield to_sse(encode(event))
        for event in stream.finish(await turn.task):
            yield to_sse(encode(event))
    except asyncio.CancelledError:
        if not turn.task.cancelled():
            raise
        yield to_sse(encode(stream.fail("the run was paused; it goes on when the server starts again")))
    except Exception as error:
        yield to_sse(encode(stream.fail(hide_servers(str(error)))))
