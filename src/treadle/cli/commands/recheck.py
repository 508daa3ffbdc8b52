"""`treadle replay`, `verify` and `rescore`: go through recorded runs again."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import Apart, find_runs, import_file, open_existing
from treadle.cli.options.agent_options import PolicyOptions
from treadle.cli.terminal.output import (
    bar,
    clean,
    print_json,
    print_line,
    print_note,
    print_parts,
    spinner,
    write_count,
    write_seconds,
)
from treadle.core.errors import ConfigError, TreadleError, UserCodeError
from treadle.core.replay import Replay
from treadle.core.replay import replay as replay_events
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.runs.run import Run
from treadle.runs.statuses import read_started
from treadle.scoring.grade import Graded, NotGradableError, grade
from treadle.scoring.registry import make_scorers, read_rewards, total_reward

if TYPE_CHECKING:
    from treadle.trajectory.run_verification import Verification


def replay(
    runs: list[str] | None = None,
    is_all: bool = False,
    *,
    journal: str | None = None,
    limits: PolicyOptions,
    is_json: bool = False,
) -> int:
    """Replay runs from their journal, without a model or a tool, and report differences.

    A limit that is given replaces the recorded one: the first decision that it would have changed is reported.
    The exit code is 0 if all runs are exact, 1 otherwise.

    Examples:
        treadle replay --all
        treadle replay last --max-steps 3
    """
    begin = time.monotonic()
    with open_existing(journal) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)
        found = replay_runs(opened, run_ids, limits, is_json=is_json)
    exact = sum(item.is_exact for item in found)
    if not is_json and len(found) > 1:
        events = write_count(sum(item.events for item in found), "event")
        seconds = write_seconds(time.monotonic() - begin)
        runs_text = write_count(len(run_ids), "run")
        print_line(f"{exact:,} of {runs_text} exact, {events} in {seconds}", "bold")
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
                    _print_replay(found[-1], is_json=is_json)
            advance(run_id)
    return found


def _print_replay(replay: Replay, *, is_json: bool) -> None:
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
    found = "exact   " if divergence is None else "differs "
    print_parts((found, ""), (f"{replay.run_id}  {write_count(replay.events, 'event')}", "dim"))
    if divergence is not None:
        print_line(f"  {divergence!s}", "red")


def verify(
    runs: list[str] | None = None,
    is_all: bool = False,
    tools: list[str] | None = None,
    is_trusted: bool = False,
    journal: str | None = None,
    is_json: bool = False,
) -> int:
    """Make the tool calls of runs again in a fresh sandbox and compare the results.

    The tools are those of --tools, then those that the journal names, then Treadle's own. A call with the effect
    'once' is never made again. The exit code is 0 if all compared results are the same. It is 1 if a result
    differs, if the tool of a call is missing or its server does not answer, or if a run has calls and none of them
    could be compared.

    Examples:
        treadle verify --all
        treadle verify runs.jsonl
    """
    if runs and len(runs) == 1 and runs[0].endswith(".jsonl"):
        memory = MemoryJournal()
        return _verify(
            memory, import_file(memory, runs[0]).added, tools, is_trusted=is_trusted, is_json=is_json
        )
    with open_existing(journal) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)
        return _verify(opened, run_ids, tools, is_trusted=is_trusted, is_json=is_json)


def _verify(
    journal: Journal,
    run_ids: Sequence[str],
    tools: Sequence[str] | None,
    *,
    is_trusted: bool,
    is_json: bool,
) -> int:
    """Verify runs, print each, and return the exit code."""
    from treadle.trajectory.run_verification import Implementations, verify_run

    _refuse_strange_tools(journal, run_ids, tools or ())
    found: list[Verification] = []
    # A run whose tools cannot be started says nothing about the others.
    apart = Apart(TreadleError)

    async def verify_all() -> None:
        shared = Implementations(tools or None)
        with bar("verifying", len(run_ids), is_json=is_json) as advance:
            for run_id in run_ids:
                with apart.guard(run_id):
                    found.append(
                        await verify_run(journal, run_id, tools or None, trust=is_trusted, shared=shared)
                    )
                    _print_verification(found[-1], is_json=is_json)
                advance(run_id)

    execute(verify_all())
    if not is_json and len(found) > 1:
        calls, matched = sum(item.calls for item in found), sum(item.matched for item in found)
        print_line(
            f"{write_count(len(found), 'run')}: {matched:,} of {write_count(calls, 'call')} gave the same result, "
            f"{sum(item.skipped for item in found):,} skipped",
            "bold",
        )
    missing = sum(len(item.unavailable) for item in found)
    if missing and not is_json:
        print_note(
            f"{write_count(missing, 'call')} not made again, because the tool is missing; name it with --tools"
        )
    is_good = not apart.count and all(_is_good(item) for item in found)
    return ExitCode.DONE if is_good else ExitCode.FAILED


def _is_good(found: "Verification") -> bool:
    is_checked = found.matched > 0 or found.calls == 0
    return is_checked and not found.differences and not found.unavailable and not found.unreached


def _refuse_strange_tools(journal: Journal, run_ids: Sequence[str], tools: Sequence[str]) -> None:
    """Raise an error if no run has any of the given tools. Raises: `ConfigError`."""
    from treadle.tools.resolve import resolve_tools

    with spinner("starting the tools"):
        given = {tool.spec.name for tool in resolve_tools(tools)}
    known = (
        {spec.name for run_id in run_ids for spec in Run.load(run_id, journal).state.tools}
        if given
        else given
    )
    if given and not given & known:
        raise ConfigError(
            f"--tools: no run has a tool {' or '.join(map(repr, sorted(given)))}; the tools are: "
            f"{', '.join(sorted(known)) or 'none'}"
        )


def _print_verification(verification: "Verification", *, is_json: bool) -> None:
    if is_json:
        print_json(verification)
        return
    found, style = "same    ", "green"
    if verification.differences:
        found, style = "differs ", "bold red"
    elif not verification.calls:
        found, style = "no calls  ", "dim"
    elif not verification.matched:
        found, style = "nothing ", "yellow"
    elif verification.skipped:
        found, style = "partly  ", "yellow"
    skipped = f", {verification.skipped:,} skipped" if verification.skipped else ""
    counts = f"{verification.matched:,} of {write_count(verification.calls, 'call')}{skipped}"
    print_parts((found, style), (f"{verification.run_id}  {counts}", "dim"))
    for skip in verification.skips:
        print_line(f"  skipped: {skip}", "yellow")
    for difference in verification.differences:
        print_line(f"  {difference!s}", "red")


def rescore(
    runs: list[str] | None = None,
    is_all: bool = False,
    rewards: list[str] | None = None,
    is_trusted: bool = False,
    journal: str | None = None,
    is_json: bool = False,
) -> int:
    """Grade finished runs again, and record the grades that are new or have changed.

    Only the scorer `judge` asks a model. A run that is not finished, or failed through no fault of its model, has
    no grade and is left out. The exit code is 1 if a scorer fails.

    Examples:
        treadle rescore --all
        treadle rescore last --reward check --reward tool_use=0.2 --reward rewards.py:brevity=0.1
    """
    specs = read_rewards(rewards or ["check"])
    scorers = make_scorers(specs)
    found: list[Graded] = []
    skipped: list[str] = []
    apart = Apart(TreadleError)
    with open_existing(journal) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)

        async def work() -> None:
            with bar("grading", len(run_ids), is_json=is_json) as advance:
                is_wrong = False
                for run_id in run_ids:
                    with apart.guard(run_id):
                        try:
                            graded = await grade(opened, run_id, scorers, trust=is_trusted)
                        except NotGradableError as error:
                            if not is_all:
                                raise
                            skipped.append(str(error))
                        except UserCodeError:
                            is_wrong = True
                            raise
                        else:
                            found.append(graded)
                            _print_grades(graded, total_reward(graded.rewards, specs), is_json=is_json)
                    advance(run_id)
                    if is_wrong:  # the other runs would have the same error
                        break

        execute(work())
    if not is_json and is_all:
        _print_summary(found, len(skipped))
    return ExitCode.FAILED if apart.count else ExitCode.DONE


def _print_grades(graded: Graded, total: float | None, *, is_json: bool) -> None:
    if is_json:
        print_json(
            {
                "run_id": graded.run_id,
                "reward": total,
                "rewards": graded.rewards,
                "changed": graded.changed,
                "without_verdict": graded.without_verdict,
            }
        )
        return
    text = "no grade" if total is None else f"{total:.3g}"
    style = "dim" if total is None else "green" if total > 0 else "red"
    print_parts((f"{text:9}", style), (graded.run_id, "bold" if graded.changed else "dim"))
    for name in graded.changed:
        detail = graded.details.get(name)
        print_line(f"  {name} {graded.rewards[name]:.3g}: {clean(detail or 'no detail')}")
    for name in graded.without_verdict:
        print_line(f"  {name} has no verdict on this run", "yellow")


def _print_summary(found: list[Graded], skipped: int) -> None:
    means: dict[str, list[float]] = defaultdict(list)
    for graded in found:
        for name, reward in graded.rewards.items():
            means[name].append(reward)
    changed = sum(bool(graded.changed) for graded in found)
    written = ", ".join([f"{name} {sum(values) / len(values):.3f}" for name, values in means.items()])
    print_line(
        f"{write_count(len(found), 'run')} graded, {changed:,} changed{'; means: ' if means else ''}{written}",
        "bold",
    )
    if skipped:
        print_note(
            f"{write_count(skipped, 'run')} left out: not finished, or failed through no fault of the model"
        )
