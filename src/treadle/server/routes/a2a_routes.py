"""`/v1/a2a`: agents in the A2A protocol, for other agents. Source: A2A 1.0, JSON-RPC binding."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Body, Request
from fastapi.responses import Response
from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from treadle import __version__
from treadle.core.errors import ConfigError, RunNotFoundError, TreadleError
from treadle.core.events import RunPaused, TurnCompleted
from treadle.core.events.narrowing import Item
from treadle.core.inbox import Cancel
from treadle.core.texts.hiding import hide_servers
from treadle.core.texts.mistakes import Keys
from treadle.core.types import Json
from treadle.journal.hub import listen
from treadle.journal.run_info import RunFilter
from treadle.runs.recording import send
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.admission.idempotency import KeyedRequest, keyed_request, new_run_id
from treadle.server.catalog import UnknownAgentError
from treadle.server.event_stream import EventStream, to_sse
from treadle.server.protocols.a2a_task import (
    CONTEXT,
    OVER,
    WORKING,
    TaskFilter,
    TaskId,
    TaskStream,
    context_of,
    list_tasks,
    write_task,
)
from treadle.server.routes.route_context import SLASH, ClientBody, Fast, Name, Reader, Runner, TheHost, encode
from treadle.server.run_host import AGENT, BegunTurn, RunHost
from treadle.server.turn_order import find_before, plan_text, run_id_of, start_turn

B = TypeVar("B", bound=ClientBody)

router = APIRouter(prefix="/v1/a2a", tags=["a2a"])
_NO_TASK, _NOT_CANCELABLE, _NO_METHOD, _BAD_PARAMS, _INTERNAL = -32001, -32002, -32601, -32602, -32603
_NO_PUSH, _NO_SUCH_CONTENT, _OTHER_VERSION = -32003, -32005, -32009
_ANY_STATE = "TASK_STATE_UNSPECIFIED"
_VERSION = "1."
"""The beginning of the versions of the protocol that are spoken here."""


class RpcError(Exception):
    """Raised if a request is answered with an error of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Params(ClientBody):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class A2aPart(_Params):
    text: str | None = None
    data: Any = None
    raw: Any = None
    url: Any = None


class A2aMessage(_Params):
    message_id: str
    context_id: str | None = None
    task_id: str | None = None
    parts: list[A2aPart]


class A2aConfiguration(_Params):
    history_length: Annotated[int, Field(ge=0)] | None = None
    return_immediately: bool = False
    task_push_notification_config: Any = None


class SendMessage(_Params):
    message: A2aMessage
    configuration: A2aConfiguration = A2aConfiguration()


class NamedTask(_Params):
    id: str
    history_length: Annotated[int, Field(ge=0)] | None = None


class ListTasks(_Params):
    context_id: str | None = None
    status: str | None = None
    page_size: Annotated[int, Field(ge=1, le=100)] = 50
    page_token: str | None = None
    history_length: Annotated[int, Field(ge=0)] | None = None
    status_timestamp_after: datetime | None = None
    include_artifacts: bool = False


@router.get("/{agent}/.well-known/agent-card.json")
async def get_card(agent: Name, request: Request, host: TheHost, caller: Reader) -> Response:
    """Return the card of an agent, which says how other agents reach it."""
    if agent not in host.catalog.names:
        raise UnknownAgentError(f"there is no model {agent!r:.100}")
    scheme = request.headers.get("x-forwarded-proto", "")  # of a proxy that ends TLS
    asked = request.url.replace(scheme=scheme) if scheme in ("http", "https") else request.url
    url = str(asked).removesuffix("/.well-known/agent-card.json").replace(SLASH, "%2F")
    described = host.catalog.describe(agent)
    skill = {"id": agent, "name": agent, "description": described, "tags": ["agent"]}
    return Fast(
        {
            "name": agent,
            "description": described,
            "version": __version__,
            "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "capabilities": {"streaming": True, "pushNotifications": False},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [skill],
            "securitySchemes": {"key": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        }
    )


@router.post("/{agent}")
async def call_agent(
    agent: Name, request: Request, host: TheHost, caller: Runner, body: Annotated[dict[str, Any], Body()]
) -> Response:
    """Answer a request of JSON-RPC: SendMessage, SendStreamingMessage, GetTask, ListTasks, CancelTask or
    SubscribeToTask."""
    method, number = str(body.get("method")), body.get("id")
    params, keyed = body.get("params") or {}, keyed_request(request)
    encode(number)  # before anything is begun whose answer could not be written
    try:
        _check_version(request)
        if method in ("SendMessage", "SendStreamingMessage"):
            asked = _read(SendMessage, params)
            _check_content(asked)
            run, turn, task_id = await _begin(host, caller, agent, asked.message, keyed)
            if method == "SendStreamingMessage":
                context = asked.message.context_id or (task_id.run_id if run is None else context_of(run))
                begun = {"id": str(task_id), "contextId": context, "status": {"state": WORKING}}
                return EventStream(_stream(host, caller, turn.items(), begun, number), turn.drop)
            turn.drop()
            if not asked.configuration.return_immediately:
                await asyncio.wait([turn.task])
            task = await _task(host, caller, task_id, asked.configuration.history_length)
            return Fast(_result(number, {"task": task}))
        if method in ("GetTask", "CancelTask", "SubscribeToTask"):
            named = _read(NamedTask, params)
            if (found := TaskId.read(named.id)) is None:
                raise RpcError(_NO_TASK, f"there is no task {named.id!r:.100}")
            task_id = found
            if method == "CancelTask":
                await _cancel(host, caller, task_id)
            # What happens while the task is read must reach those who follow it.
            run = await host.find_run(caller, task_id.run_id) if method == "SubscribeToTask" else None
            task = await _task(host, caller, task_id, named.history_length)
            if run is not None:
                items = listen(host.journal, task_id.run_id, run.state.seq)
                return EventStream(_stream(host, caller, items, task, number))
            return Fast(_result(number, task))
        if method == "ListTasks":
            return Fast(_result(number, await _list(host, caller, agent, _read(ListTasks, params))))
        raise RpcError(_NO_METHOD, f"there is no method {method!r:.100} in version 1.0 of A2A")
    except (ConfigError, RequestRefused, RpcError, TreadleError) as error:
        if keyed is not None:
            keyed.has_failed = True
        return _fail(number, error)


def _read(kind: type[B], params: Json) -> B:
    """Return the parameters of a request. Raises: `ConfigError`."""
    try:
        return kind.model_validate(params)
    except ValidationError as error:
        problem = Keys(kind.model_json_schema, {}).explain(error.errors(), params)[0]
        raise ConfigError(f"{problem.key or 'params'}: {problem.text}") from None


def _check_version(request: Request) -> None:
    """Refuse a client that speaks another version. Raises: `RpcError`."""
    asked = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or _VERSION
    if not asked.startswith(_VERSION):
        raise RpcError(_OTHER_VERSION, f"version {asked!r:.50} of A2A is not spoken here; 1.0 is")


def _check_content(asked: SendMessage) -> None:
    """Refuse what an agent would not see, and what would not be done. Raises: `RpcError`."""
    for number, part in enumerate(asked.message.parts):
        if part.raw is not None or part.url is not None:
            raise RpcError(
                _NO_SUCH_CONTENT, f"parts[{number}] is a file; the agent takes text, as its card says"
            )
        if part.data is not None and not asked.message.task_id:
            raise RpcError(
                _NO_SUCH_CONTENT,
                f"parts[{number}] is data, which only answers a task that waits; give a text",
            )
    if asked.configuration.task_push_notification_config is not None:
        raise RpcError(_NO_PUSH, "tasks are not pushed; webhooks of the server tell of the end of a turn")


def _result(number: Json, result: Json) -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _fail(number: Json, error: Exception) -> Response:
    """Return the answer of JSON-RPC to a request that failed."""
    code, message, headers = _INTERNAL, hide_servers(str(error)), None
    if isinstance(error, RpcError):
        code, message = error.code, str(error)
    elif isinstance(error, RequestRefused):
        code, message, headers = _BAD_PARAMS, error.detail, error.headers
    elif isinstance(error, ConfigError):
        code, message = _BAD_PARAMS, str(error)
    told = {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
    return Fast(told, headers=headers)


async def _begin(
    host: RunHost, caller: ApiCaller, agent: str, message: A2aMessage, keyed: KeyedRequest | None
) -> tuple[Run[Any] | None, BegunTurn, TaskId]:
    """Begin the turn that a message asks for, or go on with the turn that waits for it."""
    await host.check_room(caller)
    text = "\n".join([part.text for part in message.parts if part.text])
    data = {
        key: value
        for part in message.parts
        if isinstance(part.data, dict)
        for key, value in part.data.items()
    }
    if message.task_id:
        task_id = TaskId.read(message.task_id) or TaskId("", 0)
        run = await find_before(host, caller, task_id.run_id, keyed)
        is_open = run is not None and run.state.turn.number == task_id.turn and run.state.turn.is_open
        if run is None or run.metadata.get(AGENT) != agent or not is_open:
            raise RpcError(_NO_TASK, f"no task {message.task_id!r:.100} waits for a message")
        order = await plan_text(host, caller, agent, run, text, data)
    else:
        run, run_id = await _find_context(host, caller, agent, message.context_id, keyed)
        order = await plan_text(host, caller, agent, run_id if run is None else run, text, None)
        if run is None and message.context_id is not None:
            order.options["metadata"] = {**(order.options["metadata"] or {}), CONTEXT: message.context_id}
        task_id = TaskId(order.run_id, 1 if run is None else run.state.turn.number + 1)
    seq = 0 if run is None else run.state.seq
    return run, await start_turn(host, order, seq, keyed), task_id


async def _find_context(
    host: RunHost, caller: ApiCaller, agent: str, context: str | None, keyed: KeyedRequest | None
) -> tuple[Run[Any] | None, str]:
    """Return the run of a context, if it exists, and its id. Raises: `ConfigError` if another agent has it."""
    run, run_id = None, new_run_id(keyed)
    for name in () if context is None else (context, run_id_of(caller, "a2a", context)):
        if run is None:
            run_id, run = name, await find_before(host, caller, name, keyed)
    if run is not None and run.metadata.get(AGENT) != agent:
        raise ConfigError(f"the context {context!r:.100} belongs to another agent")
    return run, run_id


async def _task(
    host: RunHost, caller: ApiCaller, task_id: TaskId, history_length: int | None = None
) -> dict[str, Json]:
    run = await host.find_run(caller, task_id.run_id)
    task = None if run is None else await asyncio.to_thread(write_task, run, task_id, history_length)
    if task is None:
        raise RpcError(_NO_TASK, f"there is no task {str(task_id)!r:.100}")
    return task


async def _list(host: RunHost, caller: ApiCaller, agent: str, asked: ListTasks) -> dict[str, Json]:
    """Return a page of the tasks of an agent. Raises: `ConfigError`."""
    context = asked.context_id
    wanted = RunFilter(
        run_ids=[context, run_id_of(caller, "a2a", context)] if context else None,
        labels={**host.visible_to(caller), AGENT: agent},
    )
    after = asked.status_timestamp_after
    if after is not None and after.tzinfo is None:
        after = after.replace(tzinfo=UTC)
    state = asked.status or _ANY_STATE
    chosen = TaskFilter(
        state=None if state == _ANY_STATE else state,
        since=0.0 if after is None else after.timestamp(),
        before=_read_token(asked.page_token) if asked.page_token else None,
        limit=asked.page_size,
        history_length=asked.history_length,
        has_artifacts=asked.include_artifacts,
    )

    def load(run_id: str) -> Run[Any] | None:
        with suppress(RunNotFoundError):
            run = Run.load(run_id, host.journal)
            return run if context in (None, "", context_of(run)) else None
        return None

    def find() -> tuple[list[dict[str, Json]], tuple[float, str] | None, int]:
        return list_tasks(host.journal.runs(wanted), load, chosen)

    tasks, end, total = await asyncio.to_thread(find)
    token = "" if end is None else base64.urlsafe_b64encode(encode(end)).decode()
    return {"tasks": tasks, "nextPageToken": token, "pageSize": len(tasks), "totalSize": total}


def _read_token(token: str) -> tuple[float, str]:
    """Return the end of the page before. Raises: `ConfigError`."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[float, str])
    except (ValueError, msgspec.MsgspecError):
        raise ConfigError(f"pageToken {token!r:.100} is none of this server") from None


async def _cancel(host: RunHost, caller: ApiCaller, task_id: TaskId) -> None:
    task = await _task(host, caller, task_id)
    if task["status"]["state"] in OVER:
        raise RpcError(_NOT_CANCELABLE, f"the task {str(task_id)!r} is over")
    await send(host.journal, task_id.run_id, Cancel("the client has cancelled the task"))
    for _ in range(100):
        if (await _task(host, caller, task_id))["status"]["state"] in OVER:
            return
        await asyncio.sleep(0.02)


async def _stream(
    host: RunHost,
    caller: ApiCaller,
    items: AsyncIterator[Item],
    task: dict[str, Json],
    number: Json,
) -> AsyncIterator[bytes]:
    """Yield the task as it is given, what happens to it, and its status when it is over or waits for the client."""

    def line(result: Json) -> bytes:
        return to_sse(encode(_result(number, result)))

    yield line({"task": task})
    task_id, context = TaskId.read(task["id"]), task["contextId"]
    assert task_id is not None
    if task["status"]["state"] in OVER:
        return
    stream = TaskStream(task_id, context)
    async for item in items:
        for update in stream.take(item):
            yield line(update)
        if isinstance(item.body, TurnCompleted | RunPaused):
            break
    status = (await _task(host, caller, task_id))["status"]
    yield line({"statusUpdate": {"taskId": str(task_id), "contextId": context, "status": status}})
