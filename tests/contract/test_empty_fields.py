"""The contract of every dialect for fields that are there and empty, whole and streamed.

Servers write fields that they have nothing for: `"function_call": {"name": "", "arguments": ""}`. The vendor's own
types say which fields an answer may have. Each that it lacks is given each empty value of its type, which must
change nothing.
"""

import copy
import json
from collections.abc import Sequence
from typing import Literal, get_args, get_origin

import msgspec
import pytest
from pydantic import BaseModel
from tests.contract.test_dialect import CALLS, QUESTION, WIRES, has_calls, said
from tests.models.answers import Listener

from treadle.models import HttpResponse, InProcessTransport, Watch

pytestmark = pytest.mark.xdist_group("vendors")
LISTS = (list, Sequence)
NO_PLACEHOLDERS = ("logprobs", "logprobsResult")
"""Fields in which an empty text with a logarithm of 0 is a token with a probability of 1."""


def is_model(kind):
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def fields(kind):
    return [(field.alias or name, field.annotation) for name, field in kind.model_fields.items()]


def empties(kind, depth=0):
    """Yield the empty values of a type, the fullest one first."""
    inner, origin = get_args(kind), get_origin(kind)
    if is_model(kind):
        if depth < 4:
            yield {name: next(empties(item, depth + 1), "") for name, item in fields(kind)}
        yield {}
    elif origin in LISTS or kind is list:
        if depth < 3:
            yield from ([item] for item in empties(inner[0], depth + 1) if isinstance(item, dict))
        yield []
    elif dict in (kind, origin):
        yield {}
    elif kind in (str, int, float, bool):
        yield kind()
    elif kind in (type(None), bytes) or origin is Literal:
        yield None if kind is type(None) else ""
    else:
        for item in inner:
            yield from empties(item, depth)


def arms(kind):
    """Return the types that a union may have."""
    return [arm for item in get_args(kind) for arm in arms(item)] if not is_plain(kind) else [kind]


def is_plain(kind):
    return is_model(kind) or get_origin(kind) in (*LISTS, dict, Literal) or not get_args(kind)


def places(value, kind, path=()):
    """Yield the path of each field that an object lacks, with each empty value for it."""
    if isinstance(value, list):
        item_kind = next((get_args(arm)[0] for arm in arms(kind) if get_origin(arm) in LISTS), None)
        for index, item in enumerate(value):
            yield from places(item, item_kind, (*path, index))
        return
    known = [arm for arm in arms(kind) if is_model(arm)] if isinstance(value, dict) else []
    if len(known) > 1:
        known = [arm for arm in known if value.get("type") in get_args(arm.model_fields["type"].annotation)]
    for name, inner in fields(known[0]) if known else ():
        if value.get(name):
            yield from places(value[name], inner, (*path, name))
        elif name not in NO_PLACEHOLDERS:
            texts = dict.fromkeys([json.dumps(item) for item in empties(inner)])
            yield from [((*path, name), json.loads(text)) for text in texts]


def put(body, path, value):
    made = copy.deepcopy(body)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def read(event):
    """Return a decoded event; its bytes if it has no data."""
    lines = [line.removeprefix("data:").strip() for line in event.decode().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return found[0] if found else event


def encode(wire, event, *, is_streamed):
    if isinstance(event, bytes):
        return event
    text = json.dumps(event).encode()
    if not is_streamed:
        return text
    return text + b"\n" if wire.CONTENT_TYPE == "application/x-ndjson" else b"data: %s\n\n" % text


async def ask(wire, events, *, is_streamed):
    """Return what is read from an answer, or the error."""
    pieces = [encode(wire, event, is_streamed=is_streamed) for event in events]
    model = wire.MODEL("m", transport=InProcessTransport(lambda _: HttpResponse(pieces)), api_key="k")
    try:
        made = await model.infer(QUESTION, Listener().watch if is_streamed else Watch())
    except Exception as error:
        return error
    return made.message, made.finish_reason, made.contents


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", [name for name, wire in WIRES.items() if hasattr(wire, "types")])
async def test_an_empty_field_says_nothing(name, is_streamed):
    wire = WIRES[name]
    wrong, count = [], 0
    for message in (said(), said(tool_calls=CALLS if has_calls(wire) else ())):
        answer = msgspec.json.decode(msgspec.json.encode(wire.answer(message)))
        events = [read(event) for event in wire.events(answer)] if is_streamed else [answer]
        wanted = await ask(wire, events, is_streamed=is_streamed)
        assert wanted[0].content == message.content
        for index, raw in enumerate(events):
            for path, value in () if isinstance(raw, bytes) else places(raw, wire.types()[is_streamed]):
                count += 1
                changed = [*events[:index], put(raw, path, value), *events[index + 1 :]]
                found = await ask(wire, changed, is_streamed=is_streamed)
                if found != wanted:
                    wrong.append((path, value, found))
    assert count > 10
    assert wrong == []
