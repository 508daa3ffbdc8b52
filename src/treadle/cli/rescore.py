"""`treadle rescore`: grades finished runs again."""

from collections import defaultdict
from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import Apart, find_runs, open_existing
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import bar
from treadle.cli.terminal.output import clean, print_json, print_labelled, print_note, stdout, write_count
from treadle.core.errors import TreadleError
from treadle.scoring.grade import Graded, NotGradableError, grade, total_reward
from treadle.scoring.registry import make_scorers, read_rewards

EXAMPLES = (
    "treadle rescore --all",
    "treadle rescore last --reward check --reward tool_use=0.2 --reward rewards.py:brevity=0.1",
)


def rescore(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN...", help="Run ids.", show_default=False)
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Grade all finished runs of the journal that have a task.")
    ] = False,
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            metavar="NAME[=WEIGHT]",
            help="check, tool_use, or a function as module:function or file.py:function; may be repeated. "
            "Default: check.",
        ),
    ] = None,
    is_trusted: o.IsTrusted = False,
    journal: o.Journal = None,
    is_json: o.IsJson = False,
) -> int:
    """Grade finished runs again, and record the grades that are new or have changed.

    No model is asked. A run that is not finished, or failed through no fault of its model, has no grade and is left
    out. The exit code is 1 if a scorer fails.
    """
    specs = read_rewards(rewards or ["check"])
    scorers = make_scorers(specs)
    found: list[Graded] = []
    skipped: list[str] = []
    apart = Apart(TreadleError)
    with closing(open_existing(journal)) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)

        async def work() -> None:
            with bar("grading", len(run_ids), is_json=is_json) as advance:
                for run_id in run_ids:
                    with apart.guard(run_id):
                        try:
                            graded = await grade(opened, run_id, scorers, trust=is_trusted)
                        except NotGradableError as error:
                            if not is_all:
                                raise
                            skipped.append(str(error))
                        else:
                            found.append(graded)
                            _print(graded, total_reward(graded.rewards, specs), is_json=is_json)
                    advance(run_id)

        execute(work())
    if not is_json and is_all:
        _print_summary(found, len(skipped))
    return ExitCode.FAILED if apart.count else ExitCode.DONE


def _print(graded: Graded, total: float | None, *, is_json: bool) -> None:
    if is_json:
        print_json(
            {"run_id": graded.run_id, "reward": total, "rewards": graded.rewards, "changed": graded.changed}
        )
        return
    console = stdout()
    text = "no grade" if total is None else f"{total:.3g}"
    style = "dim" if total is None else "green" if total > 0 else "red"
    print_labelled(console, f"{text:9}", style, graded.run_id, "bold" if graded.changed else "dim")
    for name in graded.changed:
        detail = graded.details.get(name)
        console.print(f"  {name} {graded.rewards[name]:.3g}: {clean(detail or 'no detail')}", soft_wrap=True)


def _print_summary(found: list[Graded], skipped: int) -> None:
    means: dict[str, list[float]] = defaultdict(list)
    for graded in found:
        for name, reward in graded.rewards.items():
            means[name].append(reward)
    changed = sum(bool(graded.changed) for graded in found)
    written = ", ".join([f"{name} {sum(values) / len(values):.3f}" for name, values in means.items()])
    stdout().print(
        f"{write_count(len(found), 'run')} graded, {changed:,} changed{'; means: ' if means else ''}{written}",
        style="bold",
    )
    if skipped:
        print_note(
            f"{write_count(skipped, 'run')} left out: not finished, or failed through no fault of the model"
        )
