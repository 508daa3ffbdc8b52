"""`treadle export` in token formats: groups, masks, and the count of tokens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.command import Cli
from tests.export.token_formats.groups import make_rollout
from tests.trajectory.tokens.engine import TemplateModel, say, think

from treadle import Agent, ExportError, ScriptedModel, open_journal
from treadle.export.token_exporter import reward_of


def write(path: Path, name: str, model: Any, *texts: str, **metadata: Any) -> None:
    """Write a run for each text."""

    async def run(journal: Any) -> None:
        for number, text in enumerate(texts):
            await Agent(model, journal=journal).run(text, run_id=f"{name}-{number}", metadata=metadata)

    with open_journal(path) as journal:
        asyncio.run(run(journal))


def test_runs_are_exported_in_their_groups(cli: Cli) -> None:
    path = cli.folder / "runs.db"
    write(path, "a", TemplateModel([say("One."), say("Two.")]), "Go.", "Go on.", group="first")
    write(path, "b", TemplateModel([say("Three.")]), "Go.")
    write(path, "c", ScriptedModel(["No tokens."]), "Go.")
    found = cli("export", "--all", "--journal", "runs.db", "--format", "tokens")
    assert found.code == 0, found
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert {row["run_id"]: row["group_id"] for row in rows} == {
        "a-0": "first",
        "a-1": "first",
        "b-0": "b-0",
        "c-0": "c-0",
    }
    assert "every token once" in found.err
    assert "1 as text" in found.err
    found = cli(
        "export", "--all", "--journal", "runs.db", "-f", "trl_sft", "--group-by", "run", "-o", "x.jsonl"
    )
    assert found.code == 0, found
    assert "3 groups written to 'x.jsonl'" in found.err
    assert "c-0 left out: " in found.err
    assert (
        "has the grade 'text', and the format needs 'token_ids': it has no token ids, for which only"
        in found.err
    )


def test_a_mask_is_a_choice_among_what_was_sampled(cli: Cli) -> None:
    (cli.folder / "weigh.py").write_text("def half(message):\n    return 0.5\n")
    write(cli.folder / "runs.db", "a", TemplateModel([think("Hm.", "One.")]), "Go.")
    found = cli("export", "a-0", "--journal", "runs.db", "--format", "tokens", "--mask", "weigh.py:half")
    assert found.code == 0, found
    row = json.loads(found.out)
    assert row["loss"] == [0.5 * flag for flag in row["sampled"]]
    assert sum(row["sampled"]) > 2
    found = cli("export", "a-0", "--journal", "runs.db", "--format", "verl")
    assert "has no reward" in found.err
    found = cli("export", "a-0", "--journal", "runs.db", "--format", "verll")
    assert found.code == 2
    assert "did you mean 'verl'" in found.err


def test_an_export_without_any_group_fails(cli: Cli) -> None:
    """A trainer must not begin with an empty file because nobody has read the reasons."""
    assert cli("run", "say x", "--model", "mock:echo", "--journal", "texts.db").code == 0
    for out in ((), ("-o", "rows.jsonl")):
        made = cli("export", "--all", "--journal", "texts.db", "-f", "verl", *out)
        assert made.code == 1, made
        assert "left out: " in made.err
        assert "every token once" not in made.err


def test_the_tokens_of_a_group_that_is_left_out_are_not_counted_as_delivered(cli: Cli) -> None:
    write(cli.folder / "runs.db", "a", TemplateModel([say("One.")]), "Go.")
    made = cli("export", "--all", "--journal", "runs.db", "--format", "verl", "-o", "rows.jsonl")
    assert made.code == 1, made
    assert "0 groups written" in made.err
    assert "sampled, 0 delivered; the rest is in groups that were left out" in made.err


def test_a_reward_that_a_rollout_does_not_have_is_told_with_those_that_it_has() -> None:
    """The advice was to grade the runs, which are graded."""
    with pytest.raises(ExportError, match="does not have the reward that was asked for, only 'check'"):
        reward_of(replace(make_rollout("r1", 1.0), reward=None))
    with pytest.raises(ExportError, match="grade it with `treadle rescore`"):
        reward_of(make_rollout("r1", None))


def test_rows_with_token_ids_are_known_where_they_cannot_be_read(cli: Cli) -> None:
    write(cli.folder / "runs.db", "a", TemplateModel([say("One.")]), "Go.")
    found = cli("export", "--all", "-j", "runs.db", "-f", "trl_sft", "-o", "rows.jsonl")
    assert found.code == 0, found
    converted = cli("dataset", "convert", "rows.jsonl", "--format", "trl")
    assert converted.code == 2, converted
    assert "'rows.jsonl' has rows of the token format 'trl_sft', which is not read here" in converted.err


def test_runs_with_a_low_reward_are_left_out(cli: Cli) -> None:
    (cli.folder / "own.py").write_text(
        "from treadle.tasks import SimpleTask\n"
        "def check(task, output, files):\n    return float(output)\n"
        "TASKS = [SimpleTask(task_id=text, input=f'say {text}', grader=check) for text in ('0', '0.5', '1')]\n"
    )
    done = cli("eval", "--task", "own.py:TASKS", "--model", "mock:echo", "--out", "e")
    assert done.code == 0, done
    write(cli.folder / "e" / "runs.db", "ungraded", ScriptedModel(["1"]), "Go.")
    given = ("export", "--all", "--journal", "e/runs.db", "--min-reward", "0.5", "--format")
    found = cli(*given, "trl")
    assert found.code == 0, found
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert sorted(row["messages"][-1]["content"] for row in rows) == ["0.5", "1"]
    assert "2 runs left out: no reward of at least 0.5\n" in found.err
    refused = cli(*given, "verl")
    assert refused.code == 2
    assert "the format 'verl' has whole groups" in refused.err
