"""Every event type, drawn from its annotations, is read as it was written."""

import types
import typing
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.policy import Policy
from treadle.core.types import Usage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
policies = st.builds(
    Policy, max_steps=st.none() | st.integers(0, 99), max_cost_usd=st.none() | st.floats(0, 9)
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bytes: st.binary(max_size=8),
    int: integers,
    float: numbers,
    bool: st.booleans(),
    type(None): st.none(),
    Any: json_values,
    Policy: policies,
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of an annotation."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(arg) for arg in args])
    if origin is tuple and len(args) > 1 and args[1] is not Ellipsis:
        return st.tuples(*map(values_of, args))
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if issubclass(kind, StrEnum):
        return st.sampled_from(kind)
    assert issubclass(kind, Struct), kind
    return structs_of(kind)


def structs_of(kind: type[Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a struct."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})


KINDS = typing.get_args(e.DurableBody)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__struct_config__.tag)
@settings(max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_an_event_is_read_as_it_was_written(kind: type[Struct], data: st.DataObject) -> None:
    body = data.draw(structs_of(kind).map(as_of_this_version))
    raw = e.encode_body(body)
    assert raw.startswith(b'{"type":"%b"' % str(kind.__struct_config__.tag).encode())
    assert e.decode_body(raw) == body
    line = e.Event("run", 3, body).to_json()
    assert b"\n" not in line
    back = e.decode_line(line)
    assert (back.body, back.to_json()) == (body, line)


def as_of_this_version(body: Any) -> Any:
    """Return `body` with the present version, because events of a newer version are refused."""
    if not isinstance(body, e.RunStarted):
        return body
    return e.RunStarted(
        **{name: getattr(body, name) for name in body.__struct_fields__} | {"version": e.VERSION}
    )


def test_a_line_is_kept_byte_for_byte() -> None:
    line = (
        b'{"run_id":"r","seq":7,"type":"run_paused","at":1.50,"reason":"caf\\u00e9","later":{"z":1e2,"a":[ ]},'
        b'"more":"\\u2028"}'
    )
    event = e.decode_line(line)
    assert isinstance(event.body, e.RunPaused)
    assert event.body.reason == "café"
    assert event.to_json() == line


def test_a_newer_version_is_refused_wherever_the_line_says_so() -> None:
    """The keys may come in another order, for example if a tool has sorted them."""
    raw = b'{"at":1.0,"instructions":"%b","policy":{},"type":"run_started","version":"3.0"}' % (b"x" * 100)
    with pytest.raises(JournalError, match="newer Treadle"):
        e.decode_body(raw)


def test_usage_that_was_not_reported_is_still_counts() -> None:
    """Older versions left it out where it was not reported. A sum says that a part of it is missing."""
    line = (
        b'{"run_id":"r","seq":1,"type":"inference_completed","at":1.0,"step":1,'
        b'"completion":{"message":{"role":"assistant"},"finish_reason":"stop"%b}}'
    )
    absent, zero = (e.decode_line(line % usage) for usage in (b"", b',"usage":{}'))
    assert isinstance(absent.body, e.InferenceCompleted)
    assert isinstance(zero.body, e.InferenceCompleted)
    unknown, known = absent.body.completion.usage, zero.body.completion.usage
    assert (unknown.output_tokens, unknown.is_reported, known.is_reported) == (0, False, True)
    assert (unknown + Usage(1, 2)) == Usage(1, 2, is_reported=False)
    assert b'"usage"' not in e.Event("r", 1, absent.body).to_json()
