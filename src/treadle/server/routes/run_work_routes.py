"""`/v1/runs`: what makes runs and drives them on: a new run, its next turn, a fork, a run that is resumed.

The work goes on when the client leaves. A client that wants the answer asks for `stream` or `wait`, or follows the
run's events.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import replace
from pydantic import Field

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.events import TurnStarted
from treadle.core.inbox import check_labels
from treadle.core.types import Delivery, Message, StopReason
from treadle.journal.run_info import QUEUE
from treadle.loop.listener import Emit
from treadle.runs.options import ForkOptions, Given
from treadle.runs.recording import send, user_message
from treadle.runs.resume import fork_run
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.admission.idempotency import keyed_request, new_run_id
from treadle.server.event_stream import EventStream
from treadle.server.responses.request_items import AskedTurn, Item
from treadle.server.responses.response_plan import read_asked
from treadle.server.routes.route_context import Checked, ClientBody, Fast, Name, Runner, TheHost
from treadle.server.routes.run_routes import MAX_SEQ, write_events, write_run
from treadle.server.run_host import BegunTurn, RunHost
from treadle.server.shown_runs import view_of
from treadle.server.turn_order import TurnOrder, begin_options, follow_message, seq_before, start_turn

router = APIRouter(prefix="/v1/runs", tags=["runs"], dependencies=[Checked])


class RunWork(ClientBody):
    """What all requests that drive a run on may say."""

    stream: bool = False
    """True to get the events of the turn as they happen, with the pieces of output between them."""
    wait: bool = False
    """True to get the run when its turn is over, or waits for somebody."""


class CreateRun(RunWork, AskedTurn):
    """The body of `POST /v1/runs`."""

    agent: str | None = None
    """The name of an agent of this server."""
    model: str | None = None
    """The name of a model of this server, in place of `agent`."""
    input: str | list[Item] = Field(min_length=1)
    """The user's message, or a list of items as in `/v1/responses`."""
    output_schema: dict[str, Any] | None = None
    """The JSON Schema of the answers."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    files: dict[str, str] | None = None
    """The texts of the initial files, by path. Default: the files of the agent."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels by which the run can be found."""
    webhook: str | None = None
    """The address that is told when a turn of the run is over, or waits for somebody."""


class NextTurn(RunWork):
    """The body of `POST /v1/runs/RUN/turns`."""

    input: str | list[Item] = Field(min_length=1)
    """The user's message."""
    delivery: Literal["queue", "steer", "interrupt"] = "queue"
    """What happens if a turn is open: `queue` begins the next turn after it, `steer` is seen by the model at its
    next step, and `interrupt` ends the turn and begins the next one."""


class ForkRun(RunWork):
    """The body of `POST /v1/runs/RUN/fork`."""

    at: Annotated[int, Field(ge=1, le=MAX_SEQ)] | None = None
    """The number of the last event that the new run has in common with this one. Default: all events."""
    input: str | None = None
    """The user's message of the new run's next turn, if the turn is over at `at`."""
    agent: str | None = None
    """The name of the agent or model that goes on. Default: that of the run."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the new run, besides those of this one."""


def _read_labels(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in check_labels(labels).items() if value is not None}


@router.post("", status_code=201)
async def create_run(body: CreateRun, request: Request, host: TheHost, caller: Runner) -> Response:
    """Begin a run. The message is stored when this returns, and the run goes on whatever happens to the server."""
    if (body.agent is None) is (body.model is None):
        raise ConfigError("give the name of an agent as agent, or that of a model as model")
    await host.check_room(caller)
    name = str(body.agent or body.model)
    asked, wish = await read_asked(host, caller, body, body.output_schema, body.max_steps)
    if asked.message is None or asked.results or asked.approvals:
        raise ConfigError("input has no message of the user; results and decisions go to a run's inbox")
    agent = await host.catalog.open_agent(name, wish)
    options = begin_options(host, caller, name, _read_labels(body.labels), asked.history)
    if body.files is not None:
        options["files"] = body.files
    run_id = new_run_id(keyed_request(request))
    if body.webhook is not None:
        await host.webhooks.add(run_id, body.webhook)
    order = TurnOrder(agent=agent, run_id=run_id, message=asked.message, blobs=asked.blobs, options=options)
    turn = await start_turn(host, order, 0, keyed_request(request))
    return await _answer(host, caller, run_id, body, turn, status_code=201)


async def _answer(
    host: RunHost,
    caller: ApiCaller,
    run_id: str,
    body: RunWork,
    turn: BegunTurn,
    status_code: int = 202,
) -> Response:
    """Return what the client asked for: the events of the turn, or the run, now or at the end of the turn."""
    if body.stream:
        show = view_of(caller, await host.get_info(caller, run_id))
        return EventStream(write_events(turn.items(), show), turn.drop)
    turn.drop()
    if body.wait:
        await asyncio.wait([turn.task])
    return Fast(await write_run(host, caller, run_id), status_code=status_code)


async def _read_all(items: AsyncIterator[Any]) -> None:
    async for _ in items:
        pass


async def _agent_of(host: RunHost, run_id: str) -> Agent[Any]:
    """Return the agent that the journal of a run describes. Raises: `ConfigError`, `UntrustedError`."""
    _, agent = await asyncio.to_thread(host.worker.prepare, run_id)
    return agent


@router.post("/{run_id}/turns", status_code=202)
async def begin_turn(
    run_id: Name, body: NextTurn, request: Request, host: TheHost, caller: Runner
) -> Response:
    """Send the user's next message to a run. If a turn is open, the message goes to the run's inbox."""
    info = await host.get_info(caller, run_id)
    await host.check_room(caller)
    keyed = keyed_request(request)
    has_begun = keyed is not None and keyed.kept.place is not None
    asked, _ = await read_asked(host, caller, AskedTurn(input=body.input))
    if asked.message is None or asked.history:
        raise ConfigError("give one message of the user; the run has the conversation before it")
    message: Message | None = asked.message
    if not info.is_session:
        raise ConfigError(f"run {run_id!r} is no session, so it has no next turn; fork it with an input")
    if (info.is_turn_open or info.is_driven) and not has_begun:
        told = user_message(asked.message, Delivery(body.delivery))
        sent = await send(host.journal, run_id, told, asked.blobs or None)
        if sent.refused is not None:
            raise RequestRefused(409, sent.refused, "refused")
        info_now = await host.get_info(caller, run_id)
        if sent.is_driven or info_now.is_turn_open:
            if not info_now.is_waiting and info_now.labels.get(QUEUE) == host.queue:
                sent = replace(sent, is_driven=True)  # a server takes it up
            items = follow_message(host.journal, run_id, info.events, sent)
            if body.stream:
                return EventStream(write_events(items, view_of(caller, info_now)), host=host)
            if body.wait:
                await host.do(_read_all(items))
            return Fast(await write_run(host, caller, run_id), status_code=202)
        message = None  # the turn before has just ended, so that nobody answers what waits in the inbox
    agent = await _agent_of(host, run_id)
    order = TurnOrder(agent=agent, run_id=run_id, message=message, blobs=asked.blobs)
    turn = await start_turn(host, order, seq_before(info, keyed), keyed)
    return await _answer(host, caller, run_id, body, turn)


async def _check_cancelled(host: RunHost, caller: ApiCaller, run_id: str) -> None:
    """Refuse to resume a session whose newest turn was cancelled, because nothing would happen.

    Raises: `RequestRefused`.
    """
    run = await host.get_run(caller, run_id)
    if run.state.turn.is_open or run.state.ending.stop_reason is not StopReason.CANCELLED:
        return
    begun = max([event.seq for event in run.events if isinstance(event.body, TurnStarted)], default=1)
    raise RequestRefused(
        409,
        f"the turn was cancelled, and is over: send the next message, or fork the run at {begun} to try it again",
        "not_resumable",
    )


@router.post("/{run_id}/resume", status_code=202)
async def resume(
    run_id: Name, request: Request, host: TheHost, caller: Runner, body: RunWork = RunWork()
) -> Response:
    """Go on with a run that was cancelled, was set aside, or failed. A cancelled turn of a session is over."""
    info, keyed = await host.get_info(caller, run_id), keyed_request(request)
    await _check_cancelled(host, caller, run_id)
    await host.check_room(caller)
    order = TurnOrder(agent=await _agent_of(host, run_id), run_id=run_id)
    turn = await start_turn(host, order, seq_before(info, keyed), keyed)
    return await _answer(host, caller, run_id, body, turn)


@router.post("/{run_id}/fork", status_code=201)
async def fork(
    run_id: Name, request: Request, host: TheHost, caller: Runner, body: ForkRun = ForkRun()
) -> Response:
    """Make a run that begins with a copy of this one's events, and drive it on."""
    await host.get_info(caller, run_id)
    await host.check_room(caller)
    if body.agent is None:
        agent = await _agent_of(host, run_id)
    else:
        agent = await asyncio.to_thread(host.catalog.agent, body.agent)
    forked_id = new_run_id(keyed_request(request))
    labels = {**_read_labels(body.labels), **host.labels(caller, body.agent)}
    options: ForkOptions = {"text": body.input, "new_run_id": forked_id, "metadata": labels}

    async def drive(emit: Emit) -> Run[Any]:
        return await fork_run(agent, run_id, body.at, Given(agent.answer, agent.deps, emit), options)

    order = TurnOrder(agent=agent, run_id=forked_id)
    turn = await start_turn(host, order, 0, keyed_request(request), drive)
    return await _answer(host, caller, forked_id, body, turn, status_code=201)
