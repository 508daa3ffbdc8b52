"""The worker process of the demonstration, which reads jobs from standard input, and reports to standard output.

It starts the runs that the journal does not have and resumes those that are not finished. Therefore the first
worker and the one after the kill are the same program. It ends when standard input ends.
"""

import asyncio
import os
import sys
from contextlib import closing, suppress
from functools import partial

import msgspec
from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.cli.options.agent import AgentOptions
from treadle.cli.terminal.output import print_error, print_json
from treadle.cli.work.agents import make_model
from treadle.cli.work.execute import call_at_end_of_stdin, execute, run_limited
from treadle.core.errors import TreadleError
from treadle.core.spec import PartSpec
from treadle.core.types import Completion, Json, Request
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.models.protocol import Model, Watch, part_of
from treadle.tasks import load_task
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool, ToolOutput
from treadle.tools.resolve import resolve_tools

REPORT_SECONDS = 0.1


class Job(Struct, frozen=True, omit_defaults=True):
    """One run: of a task or of a text."""

    run_id: str
    task: str | None = None
    text: str | None = None


class Order(Struct, frozen=True):
    """The order for a worker, which it reads from its standard input."""

    journal: str
    agent: AgentOptions
    parallel_runs: int
    tool_seconds: float
    """A delay that is added to each tool call, because the tools of a task are very fast."""
    jobs: list[Job]


class Report(Struct):
    """The progress of a worker, sent several times a second."""

    finished: int = 0
    in_flight: int = 0
    steps: int = 0
    tokens: int = 0


class _Counted:
    """A model that counts its answers."""

    def __init__(self, inner: Model, report: Report) -> None:
        self._inner = inner
        self._report = report
        self.name = inner.name
        self.part = part_of(inner)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        completion = await self._inner.infer(request, watch)
        self._report.steps += 1
        if completion.usage is not None:
            self._report.tokens += completion.usage.total_tokens
        return completion


class _Slow:
    """A tool with a delay, half of it before its effect and half of it after."""

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


class _SlowFiles:
    """The toolset `files` with a delay."""

    part = PartSpec(name="files")
    """The description for the agent spec, which leaves out the delay."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def tools(self) -> list[Tool]:
        """Return the tools of `files`, each with the delay."""
        return [_Slow(tool, self._seconds) for tool in resolve_tools("files")]


class Worker:
    """A driver of the runs of an order."""

    def __init__(self, order: Order, journal: Journal) -> None:
        self._order = order
        self._report = Report()
        self._known = {info.run_id: info.status for info in journal.runs()}
        self._agent = Agent(
            _Counted(make_model(order.agent), self._report),
            tools=[_SlowFiles(order.tool_seconds)] if order.tool_seconds else order.agent.tools,
            journal=journal,
        )

    async def work(self) -> None:
        """Do all jobs, and report the progress."""
        reporting = asyncio.ensure_future(self._report_on())
        unfinished = [job for job in self._order.jobs if self._known.get(job.run_id) != "finished"]
        # Interrupted runs come first.
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
            await self._agent.run(work, run_id=job.run_id)
        self._report.in_flight -= 1
        self._report.finished += 1
        self._send()

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._send()

    def _send(self) -> None:
        print_json(self._report)


async def _work(order: Order, journal: Journal) -> None:
    # Stop when the process that gave the order has ended.
    call_at_end_of_stdin(asyncio.get_running_loop(), lambda: os._exit(1))
    await Worker(order, journal).work()


def main() -> int:
    """Read an order, do it, and return the exit code."""
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
