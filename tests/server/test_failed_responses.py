"""Responses that fail: what OpenAI's SDK raises or yields, and that it begins no second run."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.models.answers import answer
from tests.models.server import Reply
from tests.server.test_idempotency import forget_answers, post
from tests.server.test_relay import calls, relaying
from tests.server.test_responses import journal

from treadle.journal.protocol import Journal

__all__ = ["journal"]
TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 100 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}
BUSY = Reply({"error": {"message": "slow down"}}, 429, {"retry-after": "7"})
FAILURES: Any = {
    "server": (Reply({"error": {"message": "broken"}}, 500), openai.InternalServerError, 500, "server_error"),
    "key": (Reply({"error": {"message": "who?"}}, 401), openai.InternalServerError, 502, "server_error"),
    "rate": (BUSY, openai.RateLimitError, 429, "rate_limit_exceeded"),
    "context": (Reply(TOO_LONG, 400), openai.BadRequestError, 400, "context_length_exceeded"),
}


def retrying(client: AsyncOpenAI) -> AsyncOpenAI:
    """Return a client that asks again as often as an SDK does by default."""
    return client.with_options(max_retries=openai.DEFAULT_MAX_RETRIES)


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_failure_before_any_output_is_an_error(kind: str, tmp_path: Path, journal: Journal) -> None:
    reply, error, status, code = FAILURES[kind]
    async with relaying([reply], tmp_path, journal) as (client, engine):
        asking, given = retrying(client).responses, {"model": "far", "input": "hi"}
        with pytest.raises(error) as raised:
            await asking.create(**given)
        assert (raised.value.status_code, raised.value.code) == (status, code)
        assert (len(engine.requests), len(journal.runs())) == (1, 1)
        told = raised.value.response.headers
        assert told["x-treadle-run"] == journal.runs()[0].run_id
        assert told.get("retry-after") == ("7" if kind == "rate" else None)
        events = [event async for event in await asking.create(stream=True, **given)]
        assert [event.type for event in events] == [
            *("response.created", "response.in_progress", "response.failed")
        ]
        assert events[-1].response.error.code == code
        queued = await asking.create(background=True, **given)
        while (polled := await asking.retrieve(queued.id)).status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
        assert (polled.status, polled.error and polled.error.code) == ("failed", code)
        assert len(journal.runs()) == 3


async def test_a_prompt_that_is_filtered_is_an_incomplete_response(tmp_path: Path, journal: Journal) -> None:
    reply = Reply(answer("I", finish="content_filter"))
    async with relaying([reply], tmp_path, journal) as (client, _):
        response = await client.responses.create(model="far", input="hi")
        details = response.incomplete_details
        assert (response.status, details and details.reason) == ("incomplete", "content_filter")


async def test_a_failure_after_output_keeps_the_output(tmp_path: Path, journal: Journal) -> None:
    look = Reply(calls(("c1", "list_files", "{}")))
    agent = '[agents.clerk]\nmodel = "far"\ntools = ["files"]\n'
    async with relaying([look, Reply(b"", 500)], tmp_path, journal, agent) as (client, _):
        response = await retrying(client).responses.create(model="clerk", input="hi")
        assert (response.status, [item.type for item in response.output]) == ("failed", ["mcp_call"])
        assert response.error is not None
        assert (response.error.code, len(journal.runs())) == ("server_error", 1)


@pytest.mark.parametrize("kind", ["server", "rate"])
async def test_a_failure_is_the_same_for_the_same_key(kind: str, tmp_path: Path, journal: Journal) -> None:
    body = {"model": "far", "input": "hi"}
    async with relaying([FAILURES[kind][0]], tmp_path, journal) as (client, engine):
        first = await post(client, "responses", body, "k")
        assert first.status_code == FAILURES[kind][2]
        again = await post(client, "responses", body, "k")
        await forget_answers(journal, "k")
        found = await post(client, "responses", body, "k")
        assert again.headers["idempotency-replayed"] == "true"
        assert {(it.status_code, it.text) for it in (first, again, found)} == {
            (first.status_code, first.text)
        }
        assert (len(engine.requests), len(journal.runs())) == (1, 1)
