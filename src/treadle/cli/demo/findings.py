"""What the demonstration finds in the journal once all runs are over, and what to try next."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.demo.census import Census, count_second_answers, take_census
from treadle.cli.demo.view import DemoView
from treadle.cli.export_runs import write_file, write_lines
from treadle.cli.replay_runs import replay_run
from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import write_command, write_count, write_seconds
from treadle.cli.terminal.transcript import print_transcript
from treadle.journal.protocol import Journal
from treadle.trajectory.verify import verify_run

if TYPE_CHECKING:
    from treadle.cli.demo.stages import Outcome

EXCERPT_RESULT_LINES = 3
MAX_EXCERPT_EVENTS = 45


def show_findings(view: DemoView, journal: Journal, outcome: "Outcome", rows: Path) -> tuple[bool, str]:
    """Print what came of it; whether all is as it should be, and a run worth a look."""
    census = take_census(journal, outcome.run_ids)
    view.section("What came of it")
    goods = [
        _show_runs(view, census, outcome),
        _show_replays(view, journal, outcome.run_ids),
        _show_rows(view, journal, census.finished, rows),
    ]
    if outcome.interrupted is not None:
        again = count_second_answers(journal, outcome.run_ids)
        lost = write_count(outcome.interrupted.inferences_lost, "request")
        text = f"{again or 'no'} kept answers were paid for twice; the {lost} under way were sent anew"
        view.result("paid", text, is_good=not again)
        goods.append(not again)
    example = _choose_example(journal, census, outcome.interrupted)
    if example is not None:
        view.section("One of the runs that were in the middle when the worker was killed")
        print_transcript(journal, example, result_lines=EXCERPT_RESULT_LINES)
    return all(goods), example or outcome.run_ids[0]


def _show_runs(view: DemoView, census: Census, outcome: "Outcome") -> bool:
    reasons = " · ".join(f"{count} {reason}" for reason, count in sorted(census.stop_reasons.items()))
    is_whole = not census.interrupted and not census.not_begun
    view.result("runs", f"{reasons or 'none ended'}", is_good=is_whole)
    if census.rewards:
        full = sum(reward == 1 for reward in census.rewards)
        mean = sum(census.rewards) / len(census.rewards)
        text = f"mean {mean:.3f}: {full} of {len(census.rewards)} tasks have the right answer and files"
        view.result("reward", text)
    pace = census.steps / outcome.seconds
    text = f"{census.steps:,} in {write_seconds(outcome.seconds)}, {pace:,.0f} a second; {census.tokens:,} tokens"
    view.result("steps", text)
    return is_whole


def _show_replays(view: DemoView, journal: Journal, run_ids: Sequence[str]) -> bool:
    begin = time.monotonic()
    exact = events = 0

    async def replay_all() -> None:
        nonlocal exact, events
        for run_id in run_ids:
            replay = await replay_run(journal, run_id)
            exact += replay.is_exact
            events += replay.events

    execute(replay_all())
    text = (
        f"{exact} of {len(run_ids)} exact: {events:,} events decided again without the model, "
        f"in {write_seconds(time.monotonic() - begin)}"
    )
    view.result("replay", text, is_good=exact == len(run_ids))
    return exact == len(run_ids)


def _show_rows(view: DemoView, journal: Journal, run_ids: Sequence[str], rows: Path) -> bool:
    skips: dict[str, str] = {}
    count = write_file(write_lines(journal, run_ids, "trl", skips.__setitem__), rows)
    text = f"{write_count(count, 'row')} for training in {rows} (trl)"
    if skips:
        text += f"; {len(skips)} left out: they hold a malformed call"
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
        text += f", {skipped:,} are not to be run again"
    view.result(
        "verify", f"{text}, in {write_seconds(time.monotonic() - begin)}", is_good=matched + skipped == calls
    )
    return matched + skipped == calls


def _choose_example(journal: Journal, census: Census, interrupted: Census | None) -> str | None:
    """A finished run that was interrupted, with a call in doubt if there is one, and not too long."""
    if interrupted is None:
        return None
    finished = set(census.finished)
    candidates = [run_id for run_id in interrupted.interrupted if run_id in finished]
    sizes = {info.run_id: info.events for info in journal.runs()}
    # Not so short that there was nothing to go on with.
    candidates.sort(
        key=lambda run_id: (
            sizes[run_id] > MAX_EXCERPT_EVENTS,
            run_id not in interrupted.doubtful,
            abs(sizes[run_id] - 24),
        )
    )
    return candidates[0] if candidates else None


def show_next(view: DemoView, journal_path: Path, rows: Path, example: str) -> None:
    """Commands that work from here."""
    view.section("Try next")
    view.command(write_command("runs", journal=journal_path), "the runs")
    view.command(write_command("show", example, "--events", journal=journal_path), "one run, event by event")
    view.command(
        write_command("replay", "--all", "--max-steps", "4", journal=journal_path),
        "where a limit of 4 steps would have changed what happened",
    )
    view.command(f"head -1 {rows}", "the first row")
    view.command(
        write_command("run", "--task", "files:csv_sum-0001", "--model", "oracle"), "one run, as it goes"
    )
    view.command(
        'treadle run "Which of these files are empty?" --model openai:gpt-5-mini --mount DIR',
        "a model of yours on files of yours, which are read and never written (needs OPENAI_API_KEY)",
    )
    view.command(
        "treadle demo --model NAME --base-url URL --tools your.py --prompts prompts.txt",
        "all of this with your model and functions",
    )
