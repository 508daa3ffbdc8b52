"""The agents of a server as tools of MCP: a call is a turn, and its result names the run, so that it can go on."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from treadle.core.errors import ConfigError, TreadleError
from treadle.core.events import InferenceStarted, ToolStarted
from treadle.core.events.narrowing import Item
from treadle.core.inbox import Cancel
from treadle.core.texts.hiding import hide_servers
from treadle.core.types import Effect, Json, ToolErrorKind, ToolResult, ToolSpec
from treadle.runs.recording import send
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.admission.idempotency import KeyedRequest, keyed_request, new_run_id
from treadle.server.catalog import UnknownAgentError
from treadle.server.run_host import AGENT, BegunTurn, RunHost
from treadle.server.tools.mcp_tools import make_server
from treadle.server.turn_order import TurnOrder, find_before, plan_text, start_turn, write_needs
from treadle.tools.schema.validation import ArgumentChecker

_PARAMETERS: dict[str, Json] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The task or the next message for the agent."},
        "run_id": {"type": "string", "description": "The run to go on with. Default: a new one."},
        "answers": {
            "type": "object",
            "description": "What the run waits for, by id: answers, results, and true or false for approvals.",
        },
    },
    "additionalProperties": False,
}
_OUTPUT: dict[str, Json] = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string"},
        "output": {"type": "string"},
        "stop_reason": {"type": ["string", "null"]},
        "waits_for": {"type": "object"},
    },
    "required": ["run_id", "output", "stop_reason", "waits_for"],
}


def serve_agents(host: RunHost) -> Any:
    """Return the SDK's server of a host's agents. Raises: `ConfigError` if the SDK is not installed."""

    checker = ArgumentChecker(_PARAMETERS)
    names = {re.sub("[^A-Za-z0-9_.-]", "_", name): name for name in host.catalog.names}

    def specs() -> Iterator[ToolSpec]:
        for tool, name in names.items():
            described = host.catalog.describe(name)
            yield ToolSpec(tool, described, _PARAMETERS, effect=Effect.ONCE, output_schema=_OUTPUT)

    async def call(context: Any, name: str, arguments: dict[str, Json]) -> ToolResult:
        caller: ApiCaller = context.request.state.caller
        keyed = keyed_request(context.request)
        try:
            if "run" not in caller.scopes:
                raise RequestRefused(403, "this key does not have the scope 'run'", "forbidden")
            if (fault := checker.find_fault(arguments)) is not None:
                raise ConfigError(fault)
            order, seq = await _order_of(host, caller, names.get(name, name), arguments, keyed)
            return _to_result(name, await _drive(host, order, seq, context))
        except (RequestRefused, TreadleError) as error:
            if keyed is not None:
                keyed.has_failed = True
            hides = not isinstance(error, UnknownAgentError)  # which names only what the client asked for
            text = hide_servers(str(error), hides_models=hides)
            if isinstance(error, RequestRefused):
                text = error.detail
            return ToolResult("", name, text, is_error=True, error_kind=ToolErrorKind.FAILED)

    return make_server(specs, call)


async def _order_of(
    host: RunHost, caller: ApiCaller, name: str, arguments: dict[str, Json], keyed: KeyedRequest | None
) -> tuple[TurnOrder, int]:
    """Return what a call asks for, and the number of the run's newest event. Raises: `ConfigError`,
    `RequestRefused`."""
    await host.check_room(caller)
    text, given = str(arguments.get("message") or ""), arguments.get("answers")
    answers = given if isinstance(given, dict) else {}
    if (run_id := arguments.get("run_id")) is None:
        return await plan_text(host, caller, name, new_run_id(keyed), text, None), 0
    run = await find_before(host, caller, str(run_id), keyed)
    if run is None or run.metadata.get(AGENT) != name:
        raise RequestRefused(404, f"{name} has no run {run_id!r:.100}", "not_found")
    data = answers if answers or text else None
    return await plan_text(host, caller, name, run, text, data), run.state.seq


async def _drive(host: RunHost, order: TurnOrder, seq: int, context: Any) -> Run[Any]:
    """Drive a turn, and tell the client of its progress. If the client gives up, the run is cancelled."""
    beginning = host.start(start_turn(host, order, seq, keyed_request(context.request)))
    try:
        turn = await asyncio.shield(beginning)
        async for item in turn.items():
            if (told := _progress_of(item)) is not None:
                with contextlib.suppress(Exception):  # the client may not be there to hear it
                    await context.session.report_progress(*told)
        return await asyncio.shield(turn.task)
    except asyncio.CancelledError:
        host.start_quietly(_cancel(host, beginning, order.run_id))
        raise


async def _cancel(host: RunHost, beginning: "asyncio.Task[BegunTurn]", run_id: str) -> None:
    (await beginning).drop()
    await send(host.journal, run_id, Cancel("the client left"))


def _progress_of(item: Item) -> tuple[float, None, str] | None:
    body = item.body
    if isinstance(body, InferenceStarted):
        return float(item.seq or 0), None, f"step {body.step}"
    return (float(item.seq or 0), None, f"calling {body.name}") if isinstance(body, ToolStarted) else None


def _to_result(name: str, run: Run[Any]) -> ToolResult:
    ending, waits = run.state.ending, write_needs(run)
    is_waiting = any(waits.values())
    text = ending.output if not run.state.turn.is_open else ""
    if is_waiting:
        needs = msgspec.json.encode(waits).decode()
        text = f"The run {run.run_id} waits. Call {name} again with this run_id and answers: {needs}"
    elif ending.error is not None:
        text = hide_servers(ending.error)
    structured: dict[str, Json] = {
        "run_id": run.run_id,
        "output": text,
        "stop_reason": None if run.state.turn.is_open else str(ending.stop_reason),
        "waits_for": waits,
    }
    return ToolResult(
        "", name, text, structured=structured, is_error=not is_waiting and ending.error is not None
    )
