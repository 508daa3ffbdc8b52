"""The results of the demonstration, and what to try next."""

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from treadle.cli.demo.census import Census, count_second_answers, take_census
from treadle.cli.demo.view import DemoView
from treadle.cli.export import write_lines
from treadle.cli.replay import replay_runs
from treadle.cli.terminal.output import shorten, write_command, write_count, write_seconds
from treadle.cli.terminal.transcript import print_transcript
from treadle.cli.work.execute import execute
from treadle.cli.work.journals import Apart
from treadle.export.whole import write_whole
from treadle.journal.protocol import Journal
from treadle.trajectory.verify import verify_run

EXCERPT_RESULT_LINES = 3
MAX_EXCERPT_EVENTS = 45


class Outcome(Struct, frozen=True):
    """The journal that the workers wrote."""

    journal_path: Path
    run_ids: list[str]
    interrupted: Census | None
    """The counts after the kill; `None` if no worker was killed."""
    seconds: float
    """How long both workers worked."""


def show_findings(view: DemoView, journal: Journal, outcome: Outcome, rows: Path) -> tuple[bool, str]:
    """Print the results. Return whether all results are as expected, and the id of an example run."""
    census = take_census(journal, outcome.run_ids)
    view.section("Results")
    goods = [
        _show_runs(view, census, outcome),
        _show_replays(view, journal, outcome.run_ids),
        _show_rows(view, journal, census.finished, rows),
    ]
    if outcome.interrupted is not None:
        again = count_second_answers(journal, outcome.run_ids)
        lost = outcome.interrupted.inferences_lost
        sent = f"{write_count(lost, 'request')} without an answer {'was' if lost == 1 else 'were'} sent again"
        text = f"{again or 'no'} stored answers were paid for twice; the {sent}"
        view.result("paid", text, is_good=not again)
        goods.append(not again)
    example = _choose_example(journal, census, outcome.interrupted)
    if example is not None:
        view.section("One of the runs that were interrupted when the worker was killed")
        print_transcript(journal, example, result_lines=EXCERPT_RESULT_LINES)
    return all(goods), example or outcome.run_ids[0]


def _show_runs(view: DemoView, census: Census, outcome: Outcome) -> bool:
    reasons = " · ".join(f"{count} {reason}" for reason, count in sorted(census.stop_reasons.items()))
    failed = sum(census.errors.values())
    is_good = not census.interrupted and not census.not_begun and failed < len(census.finished)
    view.result("runs", f"{reasons or 'none ended'}", is_good=None if is_good and failed else is_good)
    if failed:
        error, count = max(census.errors.items(), key=lambda item: item[1])
        view.more(f"{count} of them: {shorten(error, 400)}", "yellow" if is_good else "red")
    if census.rewards:
        full = sum(reward == 1 for reward in census.rewards)
        mean = sum(census.rewards) / len(census.rewards)
        text = f"mean {mean:.3f}: {full} of {len(census.rewards)} tasks have the right answer and files"
        view.result("reward", text)
    pace = census.steps / outcome.seconds
    text = f"{census.steps:,} in {write_seconds(outcome.seconds)}, {pace:,.0f} a second; {census.tokens:,} tokens"
    view.result("steps", text)
    return is_good


def _show_replays(view: DemoView, journal: Journal, run_ids: Sequence[str]) -> bool:
    begin = time.monotonic()
    replays = replay_runs(journal, run_ids, is_quiet=True)
    exact, events = sum(replay.is_exact for replay in replays), sum(replay.events for replay in replays)
    text = (
        f"{exact} of {len(run_ids)} exact: {events:,} events decided again without the model, "
        f"in {write_seconds(time.monotonic() - begin)}"
    )
    view.result("replay", text, is_good=exact == len(run_ids))
    return exact == len(run_ids)


def _show_rows(view: DemoView, journal: Journal, run_ids: Sequence[str], rows: Path) -> bool:
    skips: dict[str, str] = {}
    count = write_whole(write_lines(journal, run_ids, "trl", skips.__setitem__, Apart()), rows)
    text = f"{write_count(count, 'row')} for training in {rows} (trl)"
    if skips:
        text += f"; {len(skips)} left out, the first because {shorten(next(iter(skips.values())), 200)}"
    view.result("export", text)
    begin = time.monotonic()
    calls = matched = skipped = 0

    async def verify_all() -> None:
        nonlocal calls, matched, skipped
        for run_id in run_ids:
            found = await verify_run(journal, run_id)
            calls += found.calls
            matched += found.matched
            skipped += found.skipped

    execute(verify_all())
    text = f"{matched:,} of {write_count(calls, 'tool call')} gave the same result in a fresh sandbox"
    if skipped:
        text += f", {skipped:,} must not be made again"
    view.result(
        "verify",
        f"{text}, in {write_seconds(time.monotonic() - begin)}",
        is_good=matched + skipped == calls if calls else None,
    )
    return matched + skipped == calls


def _choose_example(journal: Journal, census: Census, interrupted: Census | None) -> str | None:
    """Return a finished run that was interrupted: with a call in doubt if possible, and not too long."""
    if interrupted is None:
        return None
    finished = set(census.finished)
    candidates = [run_id for run_id in interrupted.interrupted if run_id in finished]
    sizes = {info.run_id: info.events for info in journal.runs()}
    # About 24 events are enough to show the interruption.
    candidates.sort(
        key=lambda run_id: (
            sizes[run_id] > MAX_EXCERPT_EVENTS,
            run_id not in interrupted.doubtful,
            abs(sizes[run_id] - 24),
        )
    )
    return candidates[0] if candidates else None


def show_next(view: DemoView, journal_path: Path, rows: Path, example: str) -> None:
    """Print commands to try, which work in the current folder."""
    view.section("Try next")
    activate = Path(sys.executable).with_name("activate")
    found = shutil.which("treadle")
    if (found is None or Path(found).parent != activate.parent) and activate.exists():
        folder = Path.cwd()
        shown = activate.relative_to(folder) if activate.is_relative_to(folder) else activate
        view.command(
            f". {shlex.quote(str(shown))}", "first, once in each shell: lets it find the command treadle"
        )
    view.command(write_command("runs", journal=journal_path), "the runs")
    view.command(write_command("show", example, events=True, journal=journal_path), "one run, event by event")
    view.command(
        write_command("replay", all=True, max_steps="4", journal=journal_path),
        "where a limit of 4 steps would have changed a run",
    )
    view.command(f"head -1 {shlex.quote(str(rows))}", "the first row")
    view.command(
        write_command("run", task="files:csv_sum-0001", model="oracle"),
        "one run, shown while it works",
    )
    view.command(
        'treadle run "Which of these files are empty?" --model openai:gpt-5-mini --mount .',
        "your own model on your own files, which are never changed (needs OPENAI_API_KEY)",
    )
    view.command(
        "treadle demo --model NAME --base-url URL --tools your.py --prompts prompts.txt",
        "this demo with your own model and functions",
    )
