"""Tools that disturb their worker, and workers and stores that fail for a while: no run waits for ever."""

import asyncio
import os
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, ConfigError, JournalError, open_journal
from treadle.journal.protocol import Journal
from treadle.workers.protocol import Workers
from treadle.workers.queued import QueueWorkers, WorkerReport
from treadle.workers.registry import make_workers

TOOLS = """
    import os, subprocess, sys
    from treadle import tool

    @tool(effect="idempotent")
    async def disturb() -> str:
        "Print, read standard input, and start a process that does the same."
        print("from a tool", b"\\xff".decode("latin1"), flush=True)
        os.write(1, b'{"run_id": 7}\\n')
        sys.stderr.write("x" * 300_000)
        sys.stderr.flush()
        subprocess.run(["sh", "-c", "echo from a process; cat"], timeout=60)
        return repr(sys.stdin.read())
"""


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with open_journal(tmp_path / "runs.db") as journal:
        yield journal


@pytest.fixture
async def workers(journal: Journal) -> AsyncIterator[Workers]:
    workers = make_workers("local:1", journal)
    yield workers
    await workers.close()


async def test_what_a_tool_prints_and_reads_does_not_disturb_its_worker(
    workers: Workers, journal: Journal, tmp_path: Path
) -> None:
    """A worker tells its workers about its runs on standard output, and ends with standard input."""
    name = f"disturbing_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(TOOLS))
    agent = Agent("mock:echo", tools=[f"{name}:disturb"], journal=journal)
    async with asyncio.timeout(60):
        first = await workers.run(agent, "r", "call disturb\nthen\nsay done")
        second = await workers.run(agent, "other", "say fine")
    assert (first.results[0].content, first.output, second.output) == ("''", "done", "fine")
    assert workers.status().restarts == 0


@pytest.mark.sets(0)
async def test_a_runner_whose_workers_could_not_start_tries_again_with_the_next_run(
    workers: Workers, journal: Journal, tmp_path: Path
) -> None:
    agent = Agent("mock:echo", journal=journal)
    (tmp_path / "treadle.toml").write_text("[nonsense]\n")
    async with asyncio.timeout(60):
        for _ in range(2):
            with pytest.raises(ConfigError, match="nonsense"):
                await workers.run(agent, "r", "say hello")
        (tmp_path / "treadle.toml").unlink()
        assert (await workers.run(agent, "r", "say hello")).output == "hello"


async def test_a_runner_goes_on_after_the_store_has_failed(
    workers: QueueWorkers, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("mock:echo", journal=journal)
    find_ended = workers._find_ended

    def fail(run_ids: list[str]) -> list[str]:
        if run_ids:
            workers._find_ended = find_ended  # type: ignore[method-assign]
            raise JournalError("the journal cannot be reached")
        return []

    workers._find_ended = fail  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        with pytest.raises(JournalError, match="cannot be reached"):
            await workers.run(agent, "r", "say hello")
        assert (await workers.run(agent, "r", "say hello")).output == "hello"


def test_a_report_about_a_long_error_is_short() -> None:
    assert len(WorkerReport.of("r", ValueError("x" * 1_000_000)).problem or "") < 10_000
