"""`treadle replay`: decides runs again from their events, without a model or a tool."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import Apart, find_runs, open_existing, read_started
from treadle.cli.options import shared as o
from treadle.cli.options.agent import PolicyOptions
from treadle.cli.terminal.bar import bar
from treadle.cli.terminal.output import clean, print_json, print_labelled, stdout, write_count, write_seconds
from treadle.core.replay import Replay
from treadle.core.replay import replay as replay_events
from treadle.journal.protocol import Journal

EXAMPLES = (
    "treadle replay --all",
    "treadle replay last --max-steps 3",
)


def replay(
    runs: o.RunIds = None,
    is_all: Annotated[bool, typer.Option("--all", help="Replay all runs of the journal.")] = False,
    *,
    journal: o.Journal = None,
    limits: PolicyOptions,
    is_json: o.IsJson = False,
) -> int:
    """Replay runs from their journal, without a model or a tool, and report differences.

    A limit that is given replaces the recorded one: the first decision that it would have changed is reported.
    The exit code is 0 if all runs are exact, 1 otherwise.
    """
    begin = time.monotonic()
    with closing(open_existing(journal)) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)
        found = replay_runs(opened, run_ids, limits, is_json=is_json)
    exact = sum(item.is_exact for item in found)
    if not is_json and len(found) > 1:
        events = write_count(sum(item.events for item in found), "event")
        seconds = write_seconds(time.monotonic() - begin)
        runs_text = write_count(len(run_ids), "run")
        stdout().print(f"{exact:,} of {runs_text} exact, {events} in {seconds}", style="bold")
    return ExitCode.DONE if exact == len(run_ids) else ExitCode.FAILED


def replay_runs(
    journal: Journal,
    run_ids: Sequence[str],
    limits: PolicyOptions = PolicyOptions(),
    *,
    is_json: bool = False,
    is_quiet: bool = False,
) -> list[Replay]:
    """Replay runs with `limits` in place of the recorded ones, and print each unless `is_quiet`.

    A run that is damaged is named on standard error and left out.
    """
    from treadle.tools.schema.answer_schema import find_output_fault

    found: list[Replay] = []
    apart = Apart()
    with bar("replaying", len(run_ids), is_json=is_json) as advance:
        for run_id in run_ids:
            with apart.guard(run_id):
                recorded = read_started(journal, run_id).spec.policy
                policy = limits.over(recorded)
                given = policy if policy != recorded else None
                found.append(replay_events(journal.read(run_id), find_output_fault, given))
                if not is_quiet:
                    _print(found[-1], is_json=is_json)
            advance(run_id)
    return found


def _print(replay: Replay, *, is_json: bool) -> None:
    divergence = replay.divergence
    if is_json:
        line = {
            "run_id": replay.run_id,
            "is_exact": replay.is_exact,
            "events": replay.events,
            "divergence": divergence
            and {"seq": divergence.seq, "expected": divergence.expected, "actual": divergence.actual},
        }
        print_json(line)
        return
    console = stdout()
    found = "exact   " if divergence is None else "differs "
    print_labelled(console, found, "", f"{replay.run_id}  {write_count(replay.events, 'event')}", "dim")
    if divergence is not None:
        console.print(f"  {clean(str(divergence))}", style="red", soft_wrap=True)
