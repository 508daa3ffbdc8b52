"""The mock server's failures and slow answers come at their rates, are of the kinds that were asked for, and follow
from the seed."""

import asyncio
import json
from collections import Counter

import pytest

from treadle import Agent
from treadle.core.errors import ConfigError
from treadle.journal.memory import MemoryJournal
from treadle.models.dialects.openai_chat.request import OpenAIChatModel
from treadle.models.wrappers.retry import RetryModel
from treadle.testbed.server import FailureMode, ServerSettings
from treadle.testbed.server.oracle_app import OracleApp


def body_of(number: int) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": f"say {number}"}]}).encode()


def replies(count: int = 400, **settings: object) -> list:
    app = OracleApp(ServerSettings(**settings))
    return [app.answer("POST", "/v1/chat/completions", body_of(number)) for number in range(count)]


@pytest.mark.parametrize("kind", FailureMode)
def test_a_kind_of_failure_comes_at_its_rate(kind):
    found = Counter(
        (reply.status, reply.failure) for reply in replies(failure_rate=0.3, failure_kinds=(kind,), seed=3)
    )
    status = {FailureMode.RATE_LIMIT: 429, FailureMode.OVERLOADED: 503}.get(kind, 200)
    failed = found.pop((status, kind if status == 200 else None))
    assert 80 < failed < 160
    assert found == {(200, None): 400 - failed}


def test_a_share_of_the_answers_is_slow():
    def delays(seed: int) -> list[float]:
        made = replies(latency_seconds=0.02, slow_latency_seconds=0.5, slow_share=0.07, seed=seed)
        return [reply.delay_seconds for reply in made]

    assert set(delays(1)) == {0.02, 0.5}
    assert 12 < delays(1).count(0.5) < 50
    assert delays(1) == delays(1) != delays(2)


@pytest.mark.parametrize("kind", FailureMode)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_tries_again_gets_through(start, kind, is_streamed):
    server = await start(failure_rate=0.5, failure_kinds=(kind,), stall_seconds=0.02, seed=5)
    inner = OpenAIChatModel("echo", base_url=server.url, api_key="any")
    model = RetryModel(inner, max_attempts=40, min_delay_seconds=0.0, max_delay_seconds=0.001)
    agent = Agent(model, journal=MemoryJournal())
    listen = (lambda event: None) if is_streamed else None
    runs = await asyncio.gather(*[agent.run(f"say {number}", on_event=listen) for number in range(12)])
    assert [run.output for run in runs] == [str(number) for number in range(12)]
    journalled = [event.body for run in runs for event in run.events]
    assert any(type(body).__name__ == "InferenceFailed" for body in journalled)


async def test_a_response_is_cut_in_its_body(start, connect):
    server = await start(failure_rate=1.0, failure_kinds=(FailureMode.TRUNCATED,))
    async with connect(server.port) as raw:
        body = body_of(1)
        raw.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        status, headers = await raw.read_head()
        rest = await raw.reader.read()
    assert status == 200
    assert 0 < len(rest) < int(headers["content-length"])


@pytest.mark.parametrize(
    "settings", [{"slow_share": 2}, {"stall_seconds": -1}, {"failure_rate": 0.1, "failure_kinds": ()}]
)
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError, match=next(reversed(settings))):
        ServerSettings(**settings)
