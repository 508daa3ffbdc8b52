"""Rate limits: 64 runs on a server with a token bucket, and 64 runs on a server that slows down under load."""

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial

from benchmarks.common import Figure, serving
from treadle.core.log import Log
from treadle.core.types import Message, Request, Role
from treadle.models import HttpTransport, Limiter, LimitModel, OpenAIChatModel, RetryModel, Watch

RUNS = 64
STORM_SECONDS = 90
RATE, BURST = 100, 20
KNEE = 40
_NO_LIMIT = 1e9
_ASKED = Request(Log([Message(Role.USER, "Add 1 and 2.")]))


async def measure_storm() -> list[Figure]:
    """Measure 64 runs that ask as fast as they can for 90 seconds, for each form of `Retry-After`."""
    figures = []
    for header in ("seconds", "date", "none"):
        with serving("benchmarks.limit_server", str(RATE), str(BURST), header, "1000000") as base_url:
            _, seconds = await _ask(base_url, STORM_SECONDS, Limiter)
            answered, refused = await _stats(base_url)
        # The tokens that are in the bucket at the start come on top.
        useful = answered / (RATE * seconds + BURST)
        detail = f"{answered:,} answers in {seconds:.0f} s, {refused} refused; {RATE}/s and {BURST} at once"
        name = {"none": "no header", "date": "Retry-After as a date", "seconds": "Retry-After in seconds"}[
            header
        ]
        figures.append(
            Figure(f"useful requests of a storm over the bucket's, {name}", useful, ">= 0.95", detail)
        )
        wasted = refused / (answered + refused)
        figures.append(Figure(f"wasted calls of a storm, {name}", wasted, "<= 0.05", detail))
    return figures


async def measure_concurrency() -> list[Figure]:
    """Compare with the best of the fixed settings, measured on the same server."""
    fixed: dict[int, float] = {}
    for count in (10, 20, 30, 36, 40, 44, 50, 64):
        fixed[count] = await _rate(partial(Limiter, max_concurrency=count, is_adaptive=False), 3)
    best = max(fixed, key=lambda count: fixed[count])
    whole = await _rate(Limiter, 20)
    settled = await _rate(Limiter, 12, warm_up=8)
    told = f"{fixed[best]:.0f} with {best}, the best"
    detail = f"settled {settled:.0f} requests/s, {whole:.0f} from the start; {told}"
    name = f"adaptive concurrency, latency doubled past {KNEE} in flight, over the best fixed"
    return [Figure(name, settled / fixed[best], ">= 0.8", detail)]


async def _rate(make: Callable[[], Limiter], seconds: float, warm_up: float = 0.5) -> float:
    with serving("benchmarks.limit_server", str(_NO_LIMIT), str(_NO_LIMIT), "none", str(KNEE)) as base_url:
        count, took = await _ask(base_url, seconds, make, warm_up)
    return count / took


async def _ask(
    base_url: str, seconds: float, make: Callable[[], Limiter], warm_up: float = 0.0
) -> tuple[int, float]:
    """Return the number of answers after the warm-up, and the seconds that they took."""
    limiter = make()
    model = OpenAIChatModel("bench", base_url=base_url, transport=HttpTransport())
    asked = RetryModel(LimitModel(model, limiter=limiter), max_attempts=100)
    begin = time.monotonic()
    answers = 0

    async def run() -> None:
        nonlocal answers
        while True:
            await asked.infer(_ASKED, Watch())
            answers += time.monotonic() >= begin + warm_up

    runs = [asyncio.create_task(run()) for _ in range(RUNS)]
    await asyncio.sleep(warm_up + seconds)
    took = time.monotonic() - begin - warm_up
    for task in runs:
        task.cancel()
    await asyncio.wait(runs)
    return answers, took


async def _stats(base_url: str) -> tuple[int, int]:
    answer = await HttpTransport().get(f"{base_url}/stats", {})
    answered, refused = json.loads(answer.body)
    return answered, refused
