"""Requests for responses that differ in their input alone are checked once."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from treadle.server.responses.request_form import RequestReader
from treadle.server.responses.request_items import CreateResponse

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
BODIES: list[Any] = [
    {"model": "echo", "input": "hello"},
    {"model": "echo"},
    {"model": "echo", "input": None, "metadata": None, "previous_response_id": None},
    {"model": "echo", "input": [{"role": "user", "content": [{"type": "input_text", "text": "æ"}]}]},
    {"model": "echo", "input": "hello", "tools": [TOOL], "tool_choice": "auto", "temperature": 1},
    {"model": "echo", "input": "hello", "conversation": "conv_1", "metadata": {"a": "b"}},
    {"model": "echo", "input": "hello", "conversation": {"id": "conv_1"}},
    {"model": "echo", "input": "hello", "max_tool_calls": 2**70, "stream": "true"},
    {"model": "echo", "input": [{"role": "user", "content": 2**70}]},
    {"model": "echo", "input": [{"role": "user", "content": float("nan")}]},
]
WRONG: list[bytes] = [
    b"",
    b"[]",
    b"null",
    b'{"input": "hello"}',
    b'{"model": "echo", "input": 5}',
    b'{"model": "echo", "input": ["hello"]}',
    b'{"model": "echo", "metadata": {"a": 1}}',
    b'{"model": "echo", "unknown": 1}',
    b'{"model": "echo", "temperature": 9}',
    b'{"model": "echo", "input": "hello"} more',
    b'{"model": "echo", "input": [' + b"[" * 5000,
    b'{"model": "echo", "input": "\\ud800"}',
    b'{"model": "echo", "input": "\xff"}',
    b'{"model": "\xff", "input": "hello"}',
]


@pytest.mark.parametrize("body", BODIES)
def test_a_request_that_is_known_is_read_like_any_other(body: Any) -> None:
    reader, raw = RequestReader(), json.dumps(body).encode()
    for _ in range(2):
        # As text, because NaN differs from itself.
        assert repr(reader.read(raw)) == repr(CreateResponse.model_validate_json(raw))


@pytest.mark.parametrize("raw", WRONG)
def test_what_is_wrong_is_refused_each_time(raw: bytes) -> None:
    reader = RequestReader()
    reader.read(b'{"model": "echo"}')
    for _ in range(2):
        with pytest.raises(ValidationError) as refused:
            reader.read(raw)
        with pytest.raises(ValidationError) as expected:
            CreateResponse.model_validate_json(raw)
        assert refused.value.errors()[0]["type"] == expected.value.errors()[0]["type"]


def test_requests_share_what_they_have_in_common_and_nothing_else() -> None:
    reader = RequestReader()
    first = reader.read(
        json.dumps({"model": "echo", "input": "a", "metadata": {"k": "1"}, "tools": [TOOL]}).encode()
    )
    second = reader.read(json.dumps({"tools": [TOOL], "model": "echo", "input": "b"}).encode())
    third = reader.read(
        json.dumps({"model": "echo", "metadata": {"k": "1"}, "input": "a", "tools": [TOOL]}).encode()
    )
    other = reader.read(json.dumps({"model": "echo", "input": "a", "user": "u", "tools": [TOOL]}).encode())
    assert first.form is third.form
    assert first.form is not other.form
    assert (second.input, second.metadata) == ("b", None)


def test_long_requests_are_not_kept() -> None:
    reader = RequestReader()
    raw = json.dumps({"model": "echo", "input": "a", "instructions": "x" * 100_000}).encode()
    assert reader.read(raw).form is not reader.read(raw).form
