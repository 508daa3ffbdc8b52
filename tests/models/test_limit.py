"""The limiter with real waiting: event loops, threads and sockets. Its rules are in test_limit_rules.py."""

import asyncio
import contextlib
import os
import threading
import time

import pytest
from tests.models.answers import REQUEST, Listener, answer, error
from tests.models.server import Reply, serve

from treadle.core.errors import ConfigError, RateLimitError, ServerError
from treadle.core.log import Log
from treadle.core.types import UNREPORTED, Completion, FinishReason, Message, Request, Role, Usage
from treadle.models import HttpTransport, Limiter, LimitModel, OpenAIChatModel, RetryModel, Watch
from treadle.models.protocol import RateLimits


class Answering:
    """A model that answers after a delay, and counts the concurrent requests."""

    name = "answering"

    def __init__(self, seconds=0.0, usage=UNREPORTED, faults=()):
        self.seconds, self.usage, self.faults = seconds, usage, list(faults)
        self.asked, self.in_flight, self.most = [], 0, 0

    async def infer(self, request, watch):
        self.asked.append(time.monotonic())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        if self.faults:
            raise self.faults.pop(0)
        return Completion(Message(Role.ASSISTANT, "yes"), FinishReason.STOP, self.usage)


async def ask(model, count=1):
    return await asyncio.gather(*[model.infer(REQUEST, Watch()) for _ in range(count)])


async def test_nothing_waits_where_nothing_is_limited():
    inner = Answering()
    model = LimitModel(inner, limiter=Limiter(is_adaptive=False))
    await ask(model, 100)
    stats = model.limiter.stats()
    assert (inner.most, stats.admitted, stats.waited_seconds) == (100, 100, 0.0)
    assert (stats.in_flight, stats.concurrency, stats.requests_per_minute) == (0, None, None)
    assert (model.name, model.identity) == ("answering", "answering")


async def test_no_more_are_in_flight_than_may_be():
    inner = Answering(0.01)
    model = LimitModel(inner, limiter=Limiter(max_concurrency=3))
    await ask(model, 30)
    assert inner.most == 3
    assert model.limiter.stats().waited_seconds > 0


async def test_requests_come_in_the_order_in_which_they_asked():
    limiter, order = Limiter(max_concurrency=1, is_adaptive=False), []

    async def one(number):
        permit = await limiter.admit()
        order.append(number)
        await asyncio.sleep(0)
        limiter.finish(permit)

    await asyncio.gather(*[one(number) for number in range(50)])
    assert order == list(range(50))


async def test_a_cancelled_request_gives_its_place_back():
    limiter = Limiter(max_concurrency=1, is_adaptive=False)
    permit = await limiter.admit()
    waiting = [asyncio.create_task(limiter.admit()) for _ in range(3)]
    await asyncio.sleep(0)
    assert limiter.stats().waiting == 3
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert limiter.stats().waiting == 2
    limiter.finish(permit)
    # The next waiter has just been admitted, and is cancelled before it learns about it.
    waiting[1].cancel()
    second = await asyncio.wait_for(waiting[2], 1)
    limiter.finish(second)
    assert (limiter.stats().in_flight, limiter.stats().waiting) == (0, 0)


async def test_a_request_that_is_cancelled_at_work_gives_its_place_back():
    model = LimitModel(Answering(10), limiter=Limiter(max_concurrency=1))
    task = asyncio.create_task(model.infer(REQUEST, Watch()))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert model.limiter.stats().in_flight == 0


async def test_requests_a_minute_are_paced():
    inner = Answering()
    # Two requests start at once, then one every 17 ms.
    model = LimitModel(inner, limiter=Limiter(requests_per_minute=3600, is_adaptive=False))
    begin = time.monotonic()
    await ask(model, 80)
    # 60 at once, 20 after them at nearly 60 a second.
    assert time.monotonic() - begin > 0.3
    assert model.limiter.stats().requests_per_minute == 3600


async def test_tokens_a_minute_are_reserved_and_settled():
    usage = Usage(100, 900)
    limiter = Limiter(tokens_per_minute=600_000, is_adaptive=False)
    model = LimitModel(Answering(usage=usage), limiter=limiter)
    begin = time.monotonic()
    await ask(model, 5)
    # Half of the 10,000 tokens are left, because the actual usage counts.
    level = limiter._buckets["tokens"].level
    assert 4_900 <= level <= 10_000
    await ask(model, 30)
    assert time.monotonic() - begin > 1.0


async def test_a_request_that_is_longer_than_the_limit_is_sent_all_the_same():
    limiter = Limiter(tokens_per_minute=60_000, is_adaptive=False)
    model = LimitModel(Answering(), limiter=limiter)
    long = Request(Log([Message(Role.USER, "x" * 100_000)]))
    await asyncio.wait_for(model.infer(long, Watch()), 20)
    # The debt is paid back before another request is sent.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(model.infer(REQUEST, Watch()), 0.3)


async def test_after_a_refusal_nobody_is_sent_too_soon():
    inner = Answering(faults=[RateLimitError("slow down", status=429, retry_after_seconds=1.0)])
    model = LimitModel(inner, limiter=Limiter())
    with pytest.raises(RateLimitError):
        await ask(model)
    assert model.limiter.stats().held_seconds > 0
    await ask(model, 5)
    assert inner.asked[1] - inner.asked[0] >= 1.0
    stats = model.limiter.stats()
    assert (stats.refused, stats.admitted) == (1, 6)


async def test_a_wait_that_is_too_long_for_its_caller_is_an_error_and_harms_no_other():
    limiter = Limiter(requests_per_minute=1, max_concurrency=1, is_adaptive=False)
    permit = await limiter.admit(max_wait_seconds=1.0)
    patient = asyncio.ensure_future(limiter.admit(max_wait_seconds=1000.0))
    await asyncio.sleep(0)
    with pytest.raises(
        RateLimitError, match=r"the limits of requests and tokens allow the next request only in \d+ s"
    ):
        await limiter.admit(max_wait_seconds=5.0)
    assert not patient.done()
    patient.cancel()
    limiter.finish(permit, error=RateLimitError("busy", retry_after_seconds=3600.0))
    waiters = [asyncio.ensure_future(limiter.admit(max_wait_seconds=end)) for end in (10_000.0, 5.0, 7.0)]
    for waiter in waiters[1:]:
        with pytest.raises(
            RateLimitError, match="the server asked, in its answer to another request"
        ) as caught:
            await waiter
        assert caught.value.retry_after_seconds >= 3590
    assert not waiters[0].done()
    waiters[0].cancel()


async def test_an_overloaded_server_is_asked_less():
    inner = Answering(faults=[ServerError("overloaded", status=529)] * 4)
    model = LimitModel(inner, limiter=Limiter())
    before = model.limiter.stats().concurrency
    await asyncio.gather(*[model.infer(REQUEST, Watch()) for _ in range(4)], return_exceptions=True)
    # The limit is lowered once for all requests that were in flight together.
    assert model.limiter.stats().concurrency == int(before * 0.7)


async def test_headers_are_heard_and_passed_on():
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "60s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "3000",
        "x-ratelimit-reset-tokens": "30s",
    }
    heard = []
    async with serve([Reply(answer(), headers=headers)]) as server:
        inner = OpenAIChatModel("m", base_url=server.base_url, transport=HttpTransport(timeout_seconds=5.0))
        model = LimitModel(inner, limiter=Limiter())
        await model.infer(REQUEST, Watch(None, None, heard.append))
    assert heard == [RateLimits(60, 0, 60.0, 6000, 3000, 30.0)]
    assert model.limiter.stats().requests_per_minute == pytest.approx(60)
    assert model.limiter.counts_tokens
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(model.infer(REQUEST, Watch()), 0.2)


async def test_tries_again_go_through_the_limiter():
    replies = [Reply(error("slow down"), 429, {"retry-after": "0.2"}), Reply(answer("Done."))]
    async with serve(replies) as server:
        inner = OpenAIChatModel("m", base_url=server.base_url, transport=HttpTransport(timeout_seconds=5.0))
        model = RetryModel(LimitModel(inner, limiter=Limiter()), min_delay_seconds=0.001)
        listener = Listener()
        completion = await model.infer(REQUEST, listener.watch)
    assert completion.message.content == "Done."
    assert len(listener.failures) == 1
    assert model.inner.limiter.stats().admitted == 2


def test_loops_in_several_threads_share_a_limiter():
    limiter = Limiter(max_concurrency=2, is_adaptive=False)
    inner = Answering(0.002)
    faults = []

    def work():
        try:
            asyncio.run(ask(LimitModel(inner, limiter=limiter), 25))
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not faults
    assert (len(inner.asked), inner.most) == (100, 2)
    assert limiter.stats().waiting == 0


def test_a_loop_that_ends_leaves_the_others_going():
    limiter = Limiter(max_concurrency=1, is_adaptive=False)

    async def leave():
        await limiter.admit()
        task = asyncio.create_task(limiter.admit())
        await asyncio.sleep(0)
        return task

    permit = limiter.stats()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False
    loop.close()
    assert permit.waiting == 0
    assert limiter.stats().waiting == 1

    async def go_on():
        from treadle.models.wrappers.limiter import Permit

        limiter.finish(Permit(0.0, 0.0))
        return await asyncio.wait_for(limiter.admit(), 1)

    asyncio.run(go_on())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_begins_anew():
    limiter = Limiter(max_concurrency=1, is_adaptive=False)
    asyncio.run(limiter.admit())
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(asyncio.wait_for(limiter.admit(), 2))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_there_is_one_limiter_of_a_name():
    first = Limiter.shared("test-one", requests_per_minute=5)
    assert Limiter.shared("test-one", requests_per_minute=5) is first
    with pytest.raises(ConfigError, match="was made with"):
        Limiter.shared("test-one", requests_per_minute=6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"requests_per_minute": 0}, "requests_per_minute is 0"),
        ({"tokens_per_minute": -1}, "tokens_per_minute is -1"),
        ({"max_concurrency": float("nan")}, "max_concurrency is nan"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        Limiter(**options)


@pytest.mark.parametrize(("every", "learns"), [(20, False), (2, True)])
async def test_a_rate_is_learned_only_if_many_requests_are_refused(every, learns):
    """A server that refuses one request of twenty by accident is not slowed down; one with a limit is."""

    class Server:
        name = "server"
        asked = 0

        async def infer(self, request, watch):
            self.asked += 1
            if self.asked % every == 0:
                raise RateLimitError("slow down", status=429, retry_after_seconds=0.001)
            return Completion(Message(Role.ASSISTANT, "yes"), FinishReason.STOP, Usage(1, 1))

    limiter = Limiter(is_adaptive=False, learn_at_share=0.4)
    model = LimitModel(Server(), limiter=limiter)
    for _ in range(32):
        with contextlib.suppress(RateLimitError):
            await model.infer(REQUEST, Watch())
    assert limiter._learns is learns
