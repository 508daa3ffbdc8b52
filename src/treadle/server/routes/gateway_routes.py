"""`/v1/chat/completions` and `/v1/messages`: the wire formats of OpenAI and Anthropic."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Request
from fastapi.responses import Response

from treadle.core.errors import ConfigError
from treadle.core.types import Completion, FinishReason, Json, Message, Role, ToolCall
from treadle.models.dialects.anthropic.served import MessageStream, decode_request, write_message
from treadle.models.dialects.openai_chat.served import ChatStream, to_wire
from treadle.server.access import RequestRefused, error_body
from treadle.server.gateway.foreign_requests import ForeignRequest, read_chat, read_messages
from treadle.server.gateway.foreign_streams import Pieces
from treadle.server.responses.response_turn import ResponseTurn, make_plan
from treadle.server.routes.response_routes import while_connected
from treadle.server.routes.route_context import Fast, Runner, TheHost, encode, event_stream, to_sse

router = APIRouter(prefix="/v1", tags=["gateway"])
RUN_HEADER = "x-treadle-run"
"""The header of an answer with the id of the run that records it."""


async def _start(host: TheHost, caller: Runner, asked: ForeignRequest) -> ResponseTurn:
    await host.check_room(caller)
    turn = ResponseTurn(host, caller, await make_plan(host, caller, asked.body, asked.settings))
    await turn.start()
    return turn


@router.post("/chat/completions")
async def create_chat_completion(
    request: Request, host: TheHost, caller: Runner, body: Annotated[dict[str, Any], Body()]
) -> Response:
    """Answer as OpenAI's chat completions do, and record what is asked as a run.

    Requests that continue a conversation, by the ids of its calls or by the messages, continue its run.
    """
    asked = read_chat(body)
    turn = await _start(host, caller, asked)
    headers = {RUN_HEADER: turn.run_id}
    if asked.body.stream:
        lines = _stream_chat(turn, asked)
        return event_stream(lines, lambda: host.start_quietly(turn.cancel()), headers)
    await while_connected(request, turn)
    pieces, message = _gather(turn)
    if pieces.error is not None:
        raise RequestRefused(502, pieces.error, "server_error")
    reason = FinishReason(pieces.reason or "stop")
    made = Completion(message, reason, turn.fold.usage, response_id=str(turn.fold.response_id))
    return Fast(to_wire(made, asked.body.model), headers=headers)


async def _stream_chat(turn: ResponseTurn, asked: ForeignRequest) -> AsyncIterator[bytes]:
    stream = ChatStream(str(turn.fold.response_id), asked.body.model, has_usage=asked.has_usage)
    pieces = Pieces()
    yield _to_data(stream.begin())
    try:
        async for event in turn.events():
            for piece in pieces.of(event):
                if (made := stream.add(piece)) is not None:
                    yield _to_data(made)
        fault = pieces.error
    except Exception as error:
        fault = str(error)
    if fault is not None:
        yield _to_data(error_body(fault, "server_error", "server_error"))
    else:
        for made in stream.finish(pieces.reason or "stop", turn.fold.usage):
            yield _to_data(made)
    yield b"data: [DONE]\n\n"


def _to_data(event: dict[str, Json]) -> bytes:
    return b"data: %b\n\n" % encode(event)


def _gather(turn: ResponseTurn) -> tuple[Pieces, Message]:
    """Return how the answer of a turn that is over ended, and its message."""
    pieces, texts, reasoning, calls = Pieces(), [], [], []
    response = turn.fold.response()
    for position, item in enumerate(response["output"]):
        if item["type"] == "message":
            texts += [part.get("text") or part.get("refusal") or "" for part in item["content"]]
        elif item["type"] == "reasoning":
            reasoning += [part["text"] for part in item["content"]]
        elif item["type"] == "function_call":
            list(pieces.of({"type": "response.output_item.added", "output_index": position, "item": item}))
            calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
    list(pieces.of({"type": "response.completed", "response": response}))
    thoughts = "\n".join(reasoning) or None
    return pieces, Message(Role.ASSISTANT, "\n\n".join(texts), tuple(calls), reasoning=thoughts)


@router.post("/messages")
async def create_message(request: Request, host: TheHost, caller: Runner) -> Response:
    """Answer as Anthropic's Messages API does, and record what is asked as a run."""
    try:
        given = decode_request(await request.body())
    except msgspec.DecodeError as error:
        raise ConfigError(f"the body is not a request of the Messages API: {error}") from None
    asked = read_messages(given)
    turn = await _start(host, caller, asked)
    headers = {RUN_HEADER: turn.run_id}
    if given.stream:
        lines = _stream_message(turn, given.model)
        return event_stream(lines, lambda: host.start_quietly(turn.cancel()), headers)
    await while_connected(request, turn)
    pieces, message = _gather(turn)
    if pieces.error is not None:
        raise RequestRefused(502, pieces.error, "api_error")
    content: list[dict[str, Any]] = [{"type": "text", "text": message.content}] if message.content else []
    content += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.parsed}
        for call in message.tool_calls
    ]
    usage, reason = turn.fold.usage, pieces.reason
    return Fast(
        write_message(str(turn.fold.response_id), given.model, content, reason, usage), headers=headers
    )


async def _stream_message(turn: ResponseTurn, model: str) -> AsyncIterator[bytes]:
    stream, pieces = MessageStream(str(turn.fold.response_id), model), Pieces()
    for made in stream.begin():
        yield to_sse(made)
    try:
        async for event in turn.events():
            for piece in pieces.of(event):
                for made in stream.add(piece):
                    yield to_sse(made)
        fault = pieces.error
    except Exception as error:
        fault = str(error)
    if fault is not None:
        yield to_sse({"type": "error", "error": {"type": "api_error", "message": fault}})
        return
    for made in stream.finish(pieces.reason or "stop", turn.fold.usage):
        yield to_sse(made)
