"""Retries: which errors are retried, how long the waits are, and what the last error says."""

import asyncio
import pickle

import pytest
from tests.models.answers import REQUEST, Listener

from treadle.core.errors import (
    ConfigError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestError,
    ServerError,
    TransportError,
)
from treadle.models import RetryModel, ScriptedModel, Watch
from treadle.models.protocol import Hold


class Sleeper:
    """A replacement for `asyncio.sleep` that records the time and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def retrying(answers, **options) -> tuple[RetryModel, ScriptedModel, Sleeper]:
    inner, sleep = ScriptedModel(answers), Sleeper()
    return RetryModel(inner, sleep=sleep, **options), inner, sleep


async def test_an_answer_goes_straight_through():
    model, inner, sleep = retrying(["hello"])
    assert (await model.infer(REQUEST, Watch())).message.content == "hello"
    assert (len(inner.requests), sleep.seconds) == (1, [])
    assert model.name == inner.name


async def test_three_failures_in_a_row_are_survived_and_reported():
    errors = [ServerError("one"), TransportError("two"), RateLimitError("three", retry_after_seconds=7.5)]
    model, inner, sleep = retrying([*errors, "hello"])
    listener = Listener()
    assert (await model.infer(REQUEST, listener.watch)).message.content == "hello"
    assert len(inner.requests) == 4
    assert [(message, number) for message, number, _ in listener.failures] == [
        ("one", 1),
        ("two", 2),
        ("three", 3),
    ]
    assert [seconds for _, _, seconds in listener.failures] == sleep.seconds
    assert sleep.seconds[2] == 7.5


@pytest.mark.parametrize("error", [ServerError, TransportError, RateLimitError])
@pytest.mark.parametrize("patience", [0.1, 2.0])
async def test_another_model_is_asked_when_pauses_take_longer_than_it(error, patience):
    model, inner, sleep = retrying([error("down")] * 9)
    with pytest.raises(error, match="after which another model is asked"):
        await model.infer(REQUEST, Watch(patience_seconds=patience))
    # A short fault is waited for even if the other model is quick.
    assert 2 <= len(inner.requests) <= 4
    assert sum(sleep.seconds) <= 2.0


async def test_delays_grow_and_start_small():
    for _ in range(20):
        model, _, sleep = retrying([ServerError("x")] * 6)
        with pytest.raises(ServerError):
            await model.infer(REQUEST, Watch())
        assert len(sleep.seconds) == 5
        for number, seconds in enumerate(sleep.seconds):
            assert 0.25 * 2**number <= seconds <= 0.25 * 2**number + 0.25


async def test_delays_differ_between_runs():
    delays = set()
    for _ in range(10):
        model, _, sleep = retrying([ServerError("x"), "hello"])
        await model.infer(REQUEST, Watch())
        delays.add(sleep.seconds[0])
    assert len(delays) > 1


async def test_delays_have_a_limit():
    model, _, sleep = retrying([ServerError("x")] * 20, max_attempts=20, max_delay_seconds=2)
    with pytest.raises(ServerError):
        await model.infer(REQUEST, Watch())
    assert 2 <= max(sleep.seconds) <= 2.25


@pytest.mark.parametrize("error", [RequestError("no"), ValueError("a bug")])
async def test_what_would_fail_again_is_not_tried_again(error):
    model, inner, _ = retrying([error, "never"])
    with pytest.raises(type(error)) as caught:
        await model.infer(REQUEST, Watch())
    assert caught.value is error
    assert len(inner.requests) == 1


async def test_a_busy_server_and_a_failing_one_are_counted_apart():
    errors = [RateLimitError("slow"), ServerError("x")] * 2
    model, inner, _ = retrying([*errors, "hello"], max_attempts=3)
    assert (await model.infer(REQUEST, Watch())).message.content == "hello"
    model, inner, _ = retrying([*errors, ServerError("x"), "never"], max_attempts=3)
    with pytest.raises(ServerError, match=r"gave up after 5 attempts\)$"):
        await model.infer(REQUEST, Watch())
    assert len(inner.requests) == 5


async def test_an_error_that_is_final_after_one_that_is_not():
    model, inner, _ = retrying([ServerError("x"), RequestError("no"), "never"])
    with pytest.raises(RequestError, match=r"^no$"):
        await model.infer(REQUEST, Watch())
    assert len(inner.requests) == 2


async def test_the_last_error_says_how_often_it_was_tried():
    first = RateLimitError("first", status=429)
    last = RateLimitError("last", status=429, retry_after_seconds=1)
    model, _, _ = retrying([first, first, last], max_attempts=3)
    listener = Listener()
    with pytest.raises(RateLimitError) as caught:
        await model.infer(REQUEST, listener.watch)
    assert str(caught.value) == "last (gave up after 3 attempts)"
    assert (caught.value.status, caught.value.retry_after_seconds) == (429, 1)
    assert caught.value.__cause__ is last
    assert len(listener.failures) == 2
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_one_attempt_is_one_attempt():
    model, inner, sleep = retrying([ServerError("x"), "never"], max_attempts=1)
    with pytest.raises(ServerError):
        await model.infer(REQUEST, Watch())
    assert (len(inner.requests), sleep.seconds) == (1, [])


async def test_a_server_that_asks_for_more_time_than_there_is_is_given_up_at_once():
    model, inner, sleep = retrying(
        [RateLimitError("busy", retry_after_seconds=3600)], total_timeout_seconds=60
    )
    listener = Listener()
    with pytest.raises(
        RateLimitError, match=r"busy \(gave up after 1 attempt: .*3600 s, past the 60 s"
    ) as caught:
        await model.infer(REQUEST, listener.watch)
    assert caught.value.retry_after_seconds == 3600
    assert (len(inner.requests), sleep.seconds, listener.failures) == (1, [], [])


async def test_the_callers_time_is_a_limit_too_and_is_left_as_it_was():
    model, inner, sleep = retrying([ServerError("x", retry_after_seconds=40)], total_timeout_seconds=60)
    watch = Watch(left_seconds=30.0)
    with pytest.raises(ServerError, match=r"wait 40 s, past the run's deadline, which is in 30 s"):
        await model.infer(REQUEST, watch)
    assert (watch.left_seconds, len(inner.requests), sleep.seconds) == (30.0, 1, [])


async def test_a_wait_from_before_a_resume_is_obeyed_once_by_the_model_that_was_asked():
    for name, waits in (("scripted", [7.0]), (None, [7.0]), ("another", [])):
        model, inner, sleep = retrying(["one", "two"])
        listener = Listener()
        listener.watch.held = Hold(name and (inner.name if name == "scripted" else name), 7.0)
        for expected in ("one", "two"):
            assert (await model.infer(REQUEST, listener.watch)).message.content == expected
        assert sleep.seconds == waits
        assert [seconds for _, _, seconds in listener.failures] == waits


async def test_an_attempt_is_cut_off_when_the_total_time_is_over():
    class Hanging:
        name = "hanging"
        calls = 0

        async def infer(self, request, watch):
            self.calls += 1
            if self.calls == 1:
                raise ServerError("x")
            await asyncio.Event().wait()

    hanging = Hanging()
    model = RetryModel(hanging, total_timeout_seconds=0.05, min_delay_seconds=0)
    with pytest.raises(ProviderTimeoutError, match="gave up after 2 attempts"):
        await asyncio.wait_for(model.infer(REQUEST, Watch()), 5)
    assert hanging.calls == 2


async def test_cancelling_while_it_waits_ends_it():
    waiting = asyncio.Event()

    async def sleep(seconds):
        waiting.set()
        await asyncio.Event().wait()

    inner = ScriptedModel([ServerError("x"), "never"])
    task = asyncio.create_task(RetryModel(inner, sleep=sleep).infer(REQUEST, Watch()))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(inner.requests) == 1


async def test_inferences_beside_each_other_do_not_share_their_attempts():
    seen: dict[str, int] = {}

    class Flaky:
        name = "flaky"

        async def infer(self, request, watch):
            await asyncio.sleep(0)
            task = asyncio.current_task().get_name()
            seen[task] = seen.get(task, 0) + 1
            if seen[task] < 4:
                raise ServerError("x")
            return task

    model = RetryModel(Flaky(), max_attempts=4, sleep=Sleeper())
    names = [str(number) for number in range(50)]
    tasks = [asyncio.create_task(model.infer(REQUEST, Watch()), name=name) for name in names]
    assert await asyncio.gather(*tasks) == names


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"total_timeout_seconds": 0},
        {"total_timeout_seconds": float("nan")},
        {"min_delay_seconds": -1},
        {"min_delay_seconds": 2, "max_delay_seconds": 1},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        RetryModel(ScriptedModel([]), **options)


def test_retryable_is_a_flag_of_the_class():
    assert not ProviderError("x").is_retryable
    assert TransportError("x").is_retryable
