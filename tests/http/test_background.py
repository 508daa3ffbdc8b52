"""Coroutines run from blocking code."""

import asyncio
import multiprocessing
import os
import threading

import pytest

from treadle.http.background import run_blocking, see_out


async def name_of_thread() -> str:
    """Return where this runs."""
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_one_background_loop_serves_all_callers():
    async def loop_of() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run_blocking(name_of_thread()) == "treadle-loop"
    assert run_blocking(loop_of()) is run_blocking(loop_of())


async def test_it_works_beside_a_running_loop():
    assert run_blocking(name_of_thread()) == "treadle-loop"


def test_an_error_is_raised_to_the_caller():
    async def fail() -> None:
        raise LookupError("nothing")

    with pytest.raises(LookupError, match="nothing"):
        run_blocking(fail())


async def test_work_is_seen_out_although_its_caller_is_cancelled():
    work, stops = asyncio.get_running_loop().create_future(), []
    caller = asyncio.create_task(see_out(work, lambda: stops.append("stop")))
    await asyncio.sleep(0)
    for number in (1, 2):
        caller.cancel()
        await asyncio.sleep(0.01)
        assert (len(stops), caller.done()) == (number, False)
    work.set_exception(LookupError("nobody needs it"))
    with pytest.raises(asyncio.CancelledError):
        await caller
    done = asyncio.get_running_loop().create_future()
    done.set_result(7)
    assert await see_out(done) == 7


def _run_in_child(results) -> None:
    results.put(run_blocking(name_of_thread()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own():
    run_blocking(name_of_thread())
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_run_in_child, args=(results,))
    child.start()
    try:
        assert results.get(True, 10) == "treadle-loop"
    finally:
        child.kill()
