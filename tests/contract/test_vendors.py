"""Tests with the vendors' own clients: of the responses of Treadle's servers, and the requests of its models."""

import importlib
import json
import pkgutil

import pytest
import tests.models.wire as wires
from tests.contract.test_dialect import CALLS, KEY, QUESTION, SPEC, TRANSCRIPT, connect, said, streamed, whole
from tests.models.answers import Listener
from tests.models.server import serve

from treadle.core.log import Log
from treadle.core.types import Message, Request, Role, Settings, ToolCall
from treadle.models import Watch

pytestmark = pytest.mark.xdist_group("vendors")
WIRES = {
    item.name: wire
    for item in pkgutil.iter_modules(wires.__path__)
    if hasattr(wire := importlib.import_module(f"tests.models.wire.{item.name}"), "ask_vendor")
}
ANSWERS = {
    "text": said(),
    "thought": said(reasoning="I think.\nÜ."),
    "calls": said(tool_calls=CALLS),
    "calls alone": Message(Role.ASSISTANT, "", CALLS),
    "all": said(reasoning="I think.", tool_calls=CALLS),
    "no arguments": Message(Role.ASSISTANT, "", (ToolCall("c1", "look_up", "{}"),)),
}


@pytest.fixture(params=WIRES)
def wire(request):
    return WIRES[request.param]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_vendors_client_reads_the_same(wire, name, is_streamed):
    make = streamed if is_streamed else whole
    async with serve(lambda _: make(wire, ANSWERS[name])) as server:
        theirs = await wire.ask_vendor(server.base_url, "Hello?", is_streamed=is_streamed)
        ours = await connect(wire, server).infer(QUESTION, Listener().watch if is_streamed else Watch())
        first, second = server.requests
    message, usage = ours.message, ours.usage
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    assert theirs == (
        message.content,
        calls,
        message.reasoning or "",
        usage.input_tokens,
        usage.output_tokens,
    )
    # Both send their requests to the same path.
    assert first.path.partition("?")[0] == second.path.partition("?")[0]


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_vendors_types_take_what_we_ask(wire, is_streamed):
    odd = Message(
        Role.ASSISTANT,
        "",
        (ToolCall("call 7", "look_up", "{half"), ToolCall("c8", "look_up", "")),
        reasoning="elsewhere",
    )
    results = [
        Message(Role.TOOL, "", call_id=call.call_id, name=call.name, is_error=True) for call in odd.tool_calls
    ]
    requests = [
        Request(Log(TRANSCRIPT), (SPEC,)),
        Request(QUESTION.messages, (), SCHEMA),
        Request(QUESTION.messages, (SPEC,), None, "look_up"),
        Request(Log([*QUESTION.messages, odd, *results]), (SPEC,)),
    ]
    for name in ("all", "thought"):
        async with serve([whole(wire, ANSWERS[name])]) as server:
            own = (await connect(wire, server).infer(QUESTION, Watch())).message
        back = [Message(Role.TOOL, "found", call_id=call.call_id, name=call.name) for call in own.tool_calls]
        more = back or [Message(Role.USER, "And?")]
        requests.append(Request(Log([*QUESTION.messages, own, *more]), (SPEC,)))
    stop = ("x",) if "stop" in wire.MODEL.SETTINGS else None
    settings = Settings(max_output_tokens=7, top_p=0.5, stop=stop)
    make = streamed if is_streamed else whole
    async with serve(lambda _: make(wire, said())) as server:
        for model in (connect(wire, server), connect(wire, server, settings=settings)):
            for request in requests:
                await model.infer(request, Listener().watch if is_streamed else Watch())
        assert len(server.requests) == 2 * len(requests)
        for request in server.requests:
            wire.check(request.json())
            assert KEY.encode() not in request.body
