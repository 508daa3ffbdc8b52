"""Drives a run for a command: shows it, says how it ended, and how to go on if it was interrupted."""

import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from treadle.agent.run import Run
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.format import exit_code, format_call
from treadle.cli.terminal.output import clean, print_interrupted, print_note, stderr, write_command
from treadle.cli.terminal.view import View
from treadle.core.types import Json, StopReason
from treadle.loop.driver import Emit


def drive(
    start: Callable[[Emit], Coroutine[Any, Any, Run]],
    view: View,
    run_id: str,
    journal: Path | None,
    describe: Callable[[Run], Mapping[str, Json]] | None = None,
) -> int:
    """Run `start` to its end; the exit code. `describe` adds to a program's summary."""
    begin = time.monotonic()
    try:
        run = execute(start(view.on_event))
    except KeyboardInterrupt:
        view.close()
        print_interrupted("; go on with: " + write_command("resume", run_id, journal=journal))
        return 130
    except BaseException:
        view.close()
        raise
    view.finish(run, time.monotonic() - begin, describe(run) if describe else None)
    say_how_to_go_on(run, journal)
    return exit_code(run)


def say_how_to_go_on(run: Run, journal: Path | None) -> None:
    """What to do with a run that waits for an answer, or that failed through no fault of its own."""
    for text in run.questions.values():
        stderr().print(f"question: {clean(text)}", style="yellow", soft_wrap=True)
    for call in run.approvals.values():
        stderr().print(f"waits for a yes: {format_call(call, 500)}", style="yellow", soft_wrap=True)
    if run.approvals:
        for call_id in run.approvals:
            command = write_command("approve", run.run_id, call_id, "yes", journal=journal)
            print_note(f"decide with: {command}   (or no, or edit JSON)")
    elif run.questions:
        print_note("answer with: " + write_command("resume", run.run_id, "--answer", "TEXT", journal=journal))
    elif run.stop_reason is StopReason.ERROR:
        print_note("try again with: " + write_command("resume", run.run_id, journal=journal))
