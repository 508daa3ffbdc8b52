"""The worker process of the demonstration: takes jobs on standard input, reports on standard output.

It runs what the journal does not have, and resumes what it has and is not finished, so that the first worker
and the one after a kill are the same program. It ends when standard input does.
"""

import asyncio
import os
import sys
from contextlib import closing, suppress
from functools import partial

import msgspec
from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.cli.resume_runs import run_limited
from treadle.cli.terminal.execute import call_at_end_of_stdin, execute
from treadle.cli.terminal.output import print_error, print_lines
from treadle.cli.terminal.setup import ModelOptions, make_model
from treadle.core.errors import TreadleError
from treadle.core.types import Completion, Json, Request
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.models.protocol import Model, Watch
from treadle.tasks import load_task
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool, ToolOutput
from treadle.tools.resolve import resolve_tools

REPORT_SECONDS = 0.1
TASK_TOOLS = ("files",)


class Job(Struct, frozen=True, omit_defaults=True):
    """One run to make."""

    run_id: str
    task: str | None = None
    text: str | None = None


class Order(Struct, frozen=True):
    """What a worker is told on its standard input."""

    journal: str
    model: ModelOptions
    api_key: str | None
    parallel_runs: int
    tool_seconds: float
    """How long a call of a task's tools takes, as if they did more than they do."""
    jobs: list[Job]


class Report(Struct):
    """How far a worker is, sent every now and then."""

    finished: int = 0
    in_flight: int = 0
    steps: int = 0
    tokens: int = 0


class _Counted:
    """A model whose answers are counted."""

    def __init__(self, inner: Model, report: Report) -> None:
        self._inner = inner
        self._report = report
        self.name = inner.name

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        completion = await self._inner.infer(request, watch)
        self._report.steps += 1
        if completion.usage is not None:
            self._report.tokens += completion.usage.total_tokens
        return completion


class _Slow:
    """A tool that takes time, half of it before its effect and half of it after."""

    def __init__(self, inner: Tool, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds
        self.spec = inner.spec
        self.find_fault = inner.find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str | ToolOutput:
        """See `Tool.call`."""
        await asyncio.sleep(self._seconds / 2)
        content = await self._inner.call(arguments, context)
        await asyncio.sleep(self._seconds / 2)
        return content


class Worker:
    """Works through an order."""

    def __init__(self, order: Order, journal: Journal) -> None:
        self._order = order
        self._report = Report()
        self._known = {info.run_id: info.status for info in journal.runs()}
        self._agent = Agent(
            _Counted(make_model(order.model, order.api_key, None), self._report),
            tools=[_Slow(tool, order.tool_seconds) for tool in resolve_tools(TASK_TOOLS)]
            if order.tool_seconds
            else order.model.tools,
            journal=journal,
        )

    async def work(self) -> None:
        """Do all jobs, and report."""
        reporting = asyncio.ensure_future(self._report_on())
        unfinished = [job for job in self._order.jobs if self._known.get(job.run_id) != "finished"]
        # What was begun comes first.
        unfinished.sort(key=lambda job: job.run_id not in self._known)
        await run_limited([partial(self._do, job) for job in unfinished], self._order.parallel_runs)
        reporting.cancel()
        self._send()

    async def _do(self, job: Job) -> None:
        self._report.in_flight += 1
        if job.run_id in self._known:
            await self._agent.resume(job.run_id)
        else:
            work = load_task(job.task) if job.task is not None else job.text or ""
            await self._agent.run(work, run_id=job.run_id, metadata=self._order.model.to_metadata())
        self._report.in_flight -= 1
        self._report.finished += 1
        self._send()

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._send()

    def _send(self) -> None:
        print_lines([msgspec.json.encode(self._report)])


async def _work(order: Order, journal: Journal) -> None:
    # Whoever gave the order is gone: nobody wants the work.
    call_at_end_of_stdin(asyncio.get_running_loop(), lambda: os._exit(1))
    await Worker(order, journal).work()


def main() -> int:
    """Read an order and do it; the exit code."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    try:
        with closing(open_journal(order.journal)) as journal:
            execute(_work(order, journal))
    except TreadleError as error:
        print_error(str(error))
        return 2
    except BaseExceptionGroup as group:
        print_error("; ".join(dict.fromkeys(str(error) for error in group.exceptions)))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    code = main()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)
