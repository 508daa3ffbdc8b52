"""Requests with any field missing, or with a value of another type in its place, are refused or answered."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from tests.conftest import IS_FULL
from tests.server.test_responses import client, config, journal

__all__ = ["client", "config", "journal"]
RESPONSE = {
    "model": "echo",
    "input": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "mcp_call", "id": "x", "name": "n", "arguments": "{}", "output": "o"},
        {"role": "user", "content": "more"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "text": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "metadata": {"a": "b"},
}
CHAT = {
    "model": "echo",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "user", "content": "more"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "stop": ["x"],
}
MESSAGES = {
    "model": "echo",
    "max_tokens": 30,
    "system": [{"type": "text", "text": "a"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}
            ],
        },
        {"role": "user", "content": "more"},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
}
HEADERS = {"content-type": "application/json"}
BODIES = {"responses": RESPONSE, "chat/completions": CHAT, "messages": MESSAGES}
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    "\ud800",
    [],
    [1],
    [None],
    [[]],
    {},
    {"a": 1},
    {"type": "x"},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value within `value`."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def with_value(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a body with another value at `path`; `...` takes it away."""
    if not path:
        return value
    made = copy.deepcopy(body)
    place = made
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


def is_written(body: Any, param: str) -> bool:
    """Return whether `param` is the path of a value in a body, or of a key that one of its objects lacks."""
    *path, last = param.split(".")
    for part in path:
        if not ((isinstance(body, dict) and part in body) or (isinstance(body, list) and part.isdecimal())):
            return False
        body = body[part] if isinstance(body, dict) else body[int(part)]
    return isinstance(body, dict) or (isinstance(body, list) and last.isdecimal())


@pytest.mark.sets(0)
@pytest.mark.parametrize("path", BODIES)
async def test_odd_fields_are_no_fault_of_the_server(client: AsyncOpenAI, path: str) -> None:
    body = BODIES[path]
    cases = [
        (place, value) for place in places(body) for value in (*VALUES, ...) if place or value is not ...
    ]
    for number, (place, value) in enumerate(cases):
        if IS_FULL or number % 7 == len(path) % 7:
            odd = with_value(body, place, value)
            answer = await client._client.post(
                f"{client.base_url}{path}", content=json.dumps(odd), headers=HEADERS
            )
            assert answer.status_code < 500, (place, value, answer.text)
            if answer.status_code >= 400:
                told = answer.json()["error"]
                assert told["message"], (place, value)
                assert told.get("param") is None or is_written(odd, told["param"]), (place, value, told)


MISTAKES = [
    (
        "POST",
        "/v1/runs",
        '{"agnt": "echo", "input": "x"}',
        400,
        "there is no such key; did you mean 'agent'?",
    ),
    ("POST", "/v1/runs", '{"model": "echo"}', 400, "input is missing"),
    ("POST", "/v1/runs", '{"model": "echo"', 400, "the body is not JSON"),
    (
        "POST",
        "/v1/runs",
        '["x"]',
        400,
        "the body is not a JSON object; send one, with the header 'content-type",
    ),
    ("POST", "/responses", "{}", 404, "there is nothing at '/responses'; /openapi.json lists all paths"),
    ("PUT", "/v1/runs", "{}", 405, "'/v1/runs' takes no PUT; /openapi.json lists all paths"),
    ("GET", "/v1/runs?status=pausd", "", 400, "there is no status 'pausd'; did you mean 'paused'?"),
    ("GET", "/v1/runs?staus=x", "", 400, "there is no parameter 'staus'; did you mean 'status'"),
    ("GET", "/v1/runs?limit=x", "", 400, "limit: 'x' is not possible; it should be a valid integer"),
    ("GET", "/v1/runs/export?formt=x", "", 400, "there is no parameter 'formt'; did you mean 'format'?"),
    ("GET", "/v1/runs/x/events?after=1", "", 400, "there is no parameter 'after'"),
    (
        "GET",
        "/v1/view/datasets/0/rows?word=x",
        "",
        400,
        "there is no parameter 'word'; did you mean 'words'?",
    ),
    ("GET", "/v1/view/runs/x/tokens?masks=x", "", 400, "there is no parameter 'masks'; did you mean 'mask'?"),
    ("GET", "/v1/view/runs/x/events?limt=1", "", 400, "there is no parameter 'limt'; did you mean 'limit'?"),
    ("GET", "/v1/files?odd=1", "", 200, ""),
    (
        "POST",
        "/v1/responses",
        '{"model": "echo", "input": 5}',
        400,
        "input: 5 is not possible; it should be a ",
    ),
    (
        "POST",
        "/v1/responses",
        '{"model": "echo", "input": [5]}',
        400,
        "input.0: 5 is not possible; it should be a mapping",
    ),
    (
        "POST",
        "/v1/responses",
        '{"model": "echo", "input": "x", "conversation": {"od": 5}}',
        400,
        "conversation.id: it is missing",
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "message"), MISTAKES)
async def test_a_refusal_says_what_to_give_instead(
    client: AsyncOpenAI, method: str, path: str, body: str, status: int, message: str
) -> None:
    url = str(client.base_url).removesuffix("/v1/") + path
    headers = {"content-type": "application/json"}
    answer = await client._client.request(method, url, content=body, headers=headers)
    assert answer.status_code == status
    assert status == 200 or message in answer.json()["error"]["message"]
