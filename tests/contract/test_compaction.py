"""Compacted contexts and growing prompts in every dialect: what is sent is whole, and begins as it did before."""

from itertools import pairwise

import pytest
from tests.context.contexts import TEXT
from tests.context.test_plan import carry_out, session, sizes_of
from tests.contract.test_dialect import SPEC, WIRES, connect, has_calls, plain, said, whole
from tests.models.server import serve

from treadle.core.log import Log
from treadle.core.prompts.transcript import check_transcript
from treadle.core.types import Message, Request, Role, ToolCall
from treadle.models import Watch


@pytest.fixture(params=WIRES)
def wire(request):
    return WIRES[request.param]


def kinds():
    """Return the messages after each kind of compaction, by name."""
    long_turn = session(3, steps=6)
    return {
        "cut results": carry_out(session(6), sizes_of(sum(session(6).tokens)))[2],
        "summary": carry_out(session(8), sizes_of(1500))[2],
        "dropped": carry_out(session(8), sizes_of(1500), text="")[2],
        "within a turn": carry_out(long_turn, sizes_of(700))[2],
        "everything": carry_out(session(4), sizes_of(1, 2))[2],
        "asked": [
            *carry_out(session(5, is_open=False), sizes_of(1), 0, is_asked=True)[2],
            Message(Role.USER, "And now?"),
        ],
    }


@pytest.mark.parametrize("kind", kinds())
async def test_a_compacted_transcript_is_sent_as_it_is(wire, kind):
    messages = kinds()[kind]
    assert not check_transcript(messages)
    if not has_calls(wire):
        messages = spoken(messages)
    tools = (SPEC,) if has_calls(wire) else ()
    async with serve([whole(wire, said())]) as server:
        await connect(wire, server).infer(Request(Log(messages), tools), Watch())
        body = server.requests[0].json()
    sent = [plain(message) for message in wire.messages(body)]
    assert joined(sent) == joined([plain(message) for message in messages])


def spoken(messages):
    """Return the messages as a dialect without calls is asked: those of the user and the answers."""
    return [
        Message(item.role, item.content) for item in messages if item.role is not Role.TOOL and item.content
    ]


def joined(messages):
    """Return messages with those of the same author in a row as one, since some dialects send them so."""
    found = []
    for role, content, calls in messages:
        if found and found[-1][0] == role != Role.TOOL:
            found[-1] = (role, f"{found[-1][1]}\n\n{content}".strip(), found[-1][2] + calls)
        else:
            found.append((role, content, calls))
    return [(role, " ".join(content.split()), calls) for role, content, calls in found]


def body_of(wire, messages, tools):
    model = wire.MODEL("m", base_url="http://localhost:1/v1", api_key="k")
    return model._body(Request(messages, tools), is_stream=False)


def test_a_longer_prompt_begins_with_the_bytes_of_the_shorter(wire):
    """persona.md 2.6: the system prompt was built anew in each round, so that no provider's cache was hit."""
    tools = (SPEC,) if has_calls(wire) else ()
    log = Log([Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Look it up.")])
    bodies = [body_of(wire, log, tools)]
    for number in range(40):
        if tools:
            call = ToolCall(f"c{number}", "look_up", '{"word": "a"}')
            log = log.extend(
                [
                    Message(Role.ASSISTANT, "", (call,)),
                    Message(Role.TOOL, TEXT, call_id=call.call_id, name="look_up"),
                ]
            )
        else:
            log = log.append(Message(Role.ASSISTANT, "Yes."))
        if number % 3 == 0 or not tools:
            answered = [Message(Role.ASSISTANT, "Done.")] if tools else []
            log = log.extend([*answered, Message(Role.USER, f"And number {number}?")])
        bodies.append(body_of(wire, log, tools))
    for shorter, longer in pairwise(bodies):
        same = next(
            (at for at, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter)
        )
        # What differs is what closes the last message and the request, or stands after the messages.
        assert len(shorter) - same <= 200, shorter[same:][:300]
    assert len(bodies[-1]) > 15 * 200
