"""`treadle test` and `treadle test record`: recorded runs as tests of agents."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import to_builtins

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import find_runs, open_existing
from treadle.cli.options.option_groups import OptionGroup
from treadle.cli.terminal.output import (
    clean,
    flush,
    print_json,
    print_line,
    print_lines,
    print_note,
    shorten,
    write_command,
    write_count,
    write_seconds,
)
from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from treadle.regression.live_scores import ThresholdVerdict
    from treadle.regression.regression_suite import RecordingOutcome, Suite

_STYLES = {"-": "red", "+": "green"}


class TestOptions(OptionGroup, frozen=True, kw_only=True):
    """The options that override keys of `test` in treadle.toml. Each field has the name of its key."""

    agent: str | None = None
    tools: str | None = None
    samples: int | None = None
    min_score: float | None = None
    must_not_drop: bool | None = None


def replay_recordings(
    paths: list[Path] | None = None,
    keyword: str | None = None,
    is_updating: bool = False,
    is_live: bool = False,
    is_trusted: bool = False,
    junit: Path | None = None,
    annotate: Literal["github", "none"] | None = None,
    is_json: bool = False,
    *,
    options: TestOptions,
) -> int:
    """Replay recorded runs with the current agent, and show the first request to the model that differs.

    The model is not asked: the recording has its answers and, unless --tools says otherwise, the results of the
    tools. The exit code is 1 if an agent differs from its recordings. `treadle test --live` asks the model anew,
    and judges what the agent does by scorers and thresholds.

    Examples:
        treadle test record last --name refund
        treadle test --agent agents.py:clerk -k refund
    """
    from treadle.regression.regression_suite import run_recording

    suite = _make_suite(options, is_updating=is_updating, is_live=is_live, is_trusted=is_trusted)
    outcomes: list[RecordingOutcome] = []

    async def run_all() -> None:
        found = suite.find(paths or [], keyword)
        await suite.check_agents(found)
        for path in found:
            outcomes.append(await run_recording(suite, path))
            _print(outcomes[-1], is_json=is_json)

    execute(run_all())
    if not paths and keyword is None:
        for note in suite.find_unused([item.name for item in outcomes]):
            print_note(f"warning: {note}")
    verdicts = _judge(suite, outcomes)
    if junit is not None:
        from treadle.regression.regression_reports import write_junit

        write_junit(outcomes, verdicts, junit)
    default = "github" if os.environ.get("GITHUB_ACTIONS") == "true" else "none"
    if (annotate or default) == "github" and not is_json:
        from treadle.regression.regression_reports import annotate as write_annotations

        print_lines([line.encode() for line in write_annotations(outcomes, verdicts)])
    failed = [item for item in outcomes if item.has_failed]
    if is_json:
        print_json(*verdicts)
    else:
        _print_end(outcomes, verdicts)
        if any([item.divergence is not None for item in failed]):
            _print_advice(paths or [], keyword, options)
    is_good = not failed and all([item.is_kept for item in verdicts])
    return ExitCode.DONE if is_good else ExitCode.FAILED


def record(
    runs: list[str] | None = None,
    text: str | None = None,
    agent: str | None = None,
    name: str | None = None,
    journal: str | None = None,
    is_forced: bool = False,
) -> None:
    """Write runs of a journal to recordings, or run an agent on a text and record that.

    Keys of servers, and the values of variables with names such as API_TOKEN, are replaced by ***.

    Examples:
        treadle test record last --name refund
        treadle test record --text "What is a euro in NOK?" --agent agents.py:clerk --name euro
    """
    from treadle.regression.recorded_runs import write_recording
    from treadle.regression.regression_suite import load_agent, slug

    if (text is None) is not bool(runs):
        raise ConfigError(
            "give runs, or --text with --agent, not both" if runs else "give a run, such as 'last', or --text"
        )
    suite = _make_suite(TestOptions(agent=agent))

    def find_path(named: str) -> Path:
        path = suite.path_of(named)
        if path.exists() and not is_forced:
            raise ConfigError(f"{str(path)!r} exists; give another --name, or replace it with --force")
        return path

    def write(opened: "object", run_id: str, path: Path) -> None:
        write_recording(opened, run_id, path, suite.redaction())  # type: ignore[arg-type]
        print_note(
            f"recorded {run_id} as {str(path)!r}; look at it before you commit it, for it is shown to others"
        )
        print_line(str(path))

    if text is not None:
        if suite.table.agent is None:
            raise ConfigError("--text needs the agent that answers it: give --agent file.py:NAME")
        path = find_path(name or slug(text))
        made = load_agent(suite.table.agent, suite.base)
        run = execute(made.run(text))
        write(made.journal, run.run_id, path)
        return
    if name is not None and len(runs or ()) > 1:
        raise ConfigError("--name names one recording; record the runs one after another")
    with open_existing(journal) as opened:
        for run_id in find_runs(opened, runs, is_all=False):
            write(opened, run_id, find_path(name or run_id))


def _make_suite(
    options: TestOptions, *, is_updating: bool = False, is_live: bool = False, is_trusted: bool = False
) -> "Suite":
    """Return the suite of the treadle.toml of this folder, with the given options. Raises: `ConfigError`."""
    from treadle.models.config.recipe import load_config
    from treadle.regression.regression_suite import Suite

    changes = options.given_values
    if changes.get("agent") is not None:
        # What a command line names is relative to the folder of its user, and is for all recordings.
        place = changes["agent"].rpartition(":")[0]
        changes |= {"agents": {}} | (
            {"agent": f"{Path.cwd() / changes['agent']}"} if place.endswith(".py") else {}
        )
    return Suite.of_config(
        load_config(), changes, is_updating=is_updating, is_live=is_live, is_trusted=is_trusted
    )


def _judge(suite: "Suite", outcomes: "list[RecordingOutcome]") -> "list[ThresholdVerdict]":
    """Return the verdicts about the scores of live runs. If recordings are updated, store the scores instead."""
    if not suite.is_live:
        return []
    from treadle.regression.live_scores import judge_scores, read_scores, write_scores

    scores = {item.name: item.live.scores for item in outcomes if item.live is not None}
    if suite.is_updating:
        write_scores(suite.folder, scores)
        return []
    return judge_scores(suite.table, scores, read_scores(suite.folder))


def _print(outcome: "RecordingOutcome", *, is_json: bool) -> None:
    if is_json:
        print_json({"has_failed": outcome.has_failed, **to_builtins(outcome, enc_hook=str)})
        return
    from rich.text import Text

    label, style = ("FAIL", "bold red") if outcome.has_failed else ("pass", "green")
    if outcome.is_updated:
        label, style = "new ", "bold yellow"
    said = f"  {write_count(outcome.requests, 'request')} as recorded" if outcome.requests else ""
    if outcome.live is not None and outcome.live.scores:
        said = f"  scores {', '.join([f'{score:.2f}' for score in outcome.live.scores])}"
    if outcome.divergence is not None:
        said = f"  {outcome.divergence.title}"
    print_line(Text.assemble((label, style), f"  {clean(outcome.name)}", (clean(said), "dim")))
    if outcome.divergence is not None:
        place = f"{clean(str(outcome.path))}:{outcome.line}"
        print_line(f"      {place}  (-: recorded, +: now)", "dim")
        print_line("")
        for line in outcome.divergence.lines():
            style = _STYLES.get(line.strip()[:1], "") if line.startswith("  ") else "bold"
            print_line(f"      {line}".rstrip(), style)
    elif outcome.error is not None:
        print_line(f"      {outcome.error}", "red")
    for reason in outcome.live.reasons if outcome.live is not None else ():
        print_line(f"      {shorten(reason, 200)}", "dim")
    flush()


def _print_end(outcomes: "list[RecordingOutcome]", verdicts: "list[ThresholdVerdict]") -> None:
    for verdict in verdicts:
        print_line(
            verdict.text if verdict.is_kept else f"FAIL  {verdict.text}",
            "" if verdict.is_kept else "bold red",
        )
    missed = sum([not verdict.is_kept for verdict in verdicts])
    failed, updated = (
        sum(found) for found in zip(*[(item.has_failed, item.is_updated) for item in outcomes], strict=True)
    )
    counts = [f"{failed:,} failed"] if failed else []
    counts += [write_count(missed, "threshold") + " not reached"] if missed else []
    counts += [f"{updated:,} updated"] if updated else []
    counts.append(f"{len(outcomes) - failed - updated:,} passed")
    seconds = write_seconds(sum([item.seconds for item in outcomes]))
    print_line(f"{', '.join(counts)} in {seconds}", "bold red" if failed or missed else "bold green")


def _print_advice(paths: list[Path], keyword: str | None, options: TestOptions) -> None:
    """Print how differences are accepted."""
    command = write_command(
        "test", *map(str, paths), update=True, keyword=keyword, agent=options.agent, tools=options.tools
    )
    print_note(f"if the change is intended, accept it with: {command}")
