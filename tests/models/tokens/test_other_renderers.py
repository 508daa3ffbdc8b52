"""Runs that are begun or continued with a renderer which is not that of the model or of the run's tokens."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.command import Cli
from tests.export.token_formats.groups import make_group
from tests.testbed.threaded import ThreadedServer

from treadle import Agent, model, open_journal
from treadle.core.errors import ConfigError, ExportError
from treadle.export.token_exporter import TOKEN_FORMATS, encode_group
from treadle.models.wrappers.fallback import FallbackModel
from treadle.testbed.engines import ENGINES, EngineSettings, export_tokenizer
from treadle.trajectory.tokens.token_graph import load_tokens


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ThreadedServer]:
    export_tokenizer("echo", tmp_path / "tokenizer")
    with ThreadedServer(ENGINES["vllm"](EngineSettings())) as server:
        yield server


def load(server: ThreadedServer, renderer: str | None = None) -> Any:
    options = {"renderer": renderer} if renderer else {"return_token_ids": True, "logprobs": True}
    return model("vllm:echo", base_url=server.url, **options)


async def test_no_run_begins_with_the_renderer_of_another_model(engine, tmp_path):
    """Its ids mean something else to the model, and the answer would be read as nonsense."""
    said = r"the renderer 'chatml' is for another model than vllm:echo at http://127"
    wrong = load(engine, "chatml")
    with open_journal(tmp_path / "runs.db") as journal:
        right = Agent(load(engine, f"hf:{tmp_path}/tokenizer"), journal=journal)
        done = await right.run("Say one.", run_id="begun")
        for made in (wrong, FallbackModel([load(engine), wrong])):
            agent = Agent(made, journal=journal)
            with pytest.raises(ConfigError, match=said):
                await agent.run("Say one.", run_id="new")
            with pytest.raises(ConfigError, match=said):
                await agent.fork("begun", text="Say two.")
            with pytest.raises(ConfigError, match=said):
                async with agent.session("talk") as session:
                    await session.send("Say one.")
        assert [item.run_id for item in journal.runs()] == ["begun"]
        assert done.output
        async with right.session("talk") as session:
            await session.send("Say one.")
        with pytest.raises(ConfigError, match=said):
            async with Agent(wrong, journal=journal).session("talk") as session:
                await session.send("Say two.")
        async with right.session("talk") as session:  # the lease was given back
            assert (await session.send("Say two.")).output


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        ("hf:{}/tokenizer", "hf:{}/tokenizer", False),
        ("hf:{}/tokenizer", "chatml:{}/tokenizer/tokenizer.json", True),
        ("hf:{}/tokenizer", None, True),
        (None, "hf:{}/tokenizer", True),
        (None, None, False),
    ],
)
async def test_a_run_with_tokens_is_continued_with_another_renderer(
    engine, tmp_path, caplog, before, after, is_told
):
    """The ids of the first answer stay as they were sampled; a note says that they are not continued."""
    first, second = (load(engine, name and name.format(tmp_path)) for name in (before, after))
    with open_journal(tmp_path / "runs.db") as journal, caplog.at_level(logging.WARNING, "treadle"):
        async with Agent(first, journal=journal).session("talk") as session:
            await session.send("Say one.")
        one = await Agent(second, journal=journal).fork("talk", text="Say two.", new_run_id="fork")
        async with Agent(second, journal=journal).session("talk") as session:
            two = await session.send("Say two.")
        told = [item.getMessage() for item in caplog.records if "has the token ids of" in item.getMessage()]
        assert [text.split()[1] for text in told] == (["'fork'", "'talk'"] if is_told else [])
        if before and is_told:
            assert f"'vllm:echo' with the renderer '{before.format(tmp_path)}', which" in told[0]
        assert one.output == two.output
        graph = load_tokens(journal, "talk")
        assert not graph.conservation.faults
        ends = [span.is_trained for item in graph.trajectories for span in item.spans]
        assert ends.count(True) == 2
        if is_told:
            assert len({item.tokenizer for item in graph.trajectories}) == 2


def test_tokens_of_two_renderers_are_not_mixed_in_rows_of_a_trainer(engine, tmp_path) -> None:
    """Equal ids mean different things there. The format `tokens` says whose ids they are."""
    cli, folder = Cli(tmp_path), tmp_path / "tokenizer"
    asked = ("run", "Say one.", "--model", "vllm:echo", "--base-url", engine.url, "--journal", "runs.db")
    for run_id, renderer in (("one", f"hf:{folder}"), ("two", f"chatml:{folder}/tokenizer.json")):
        assert cli(*asked, "--renderer", renderer, "--run-id", run_id).code == 0
    rows = cli("export", "--all", "--journal", "runs.db", "-f", "trl_sft", "-o", "rows.jsonl")
    assert "1 group written to 'rows.jsonl'" in rows.err, rows
    told = "two left out: branch 0 of run 'one' (vllm:echo) and branch 0 of it (vllm:echo) have ids of"
    assert told in rows.err.replace("run 'two'", "it")
    assert "have ids of different renderers, which one trainer cannot use" in rows.err
    rows = cli("export", "--all", "--journal", "runs.db", "-f", "tokens")
    assert len({json.loads(line)["tokenizer"] for line in rows.out.splitlines()}) == 2
    shown = cli("show", "two", "--journal", "runs.db", "--tokens", "--renderer", f"hf:{folder}")
    assert f"another renderer than 'hf:{folder}' made these ids" in shown.out.replace("\n", " "), shown
    shown = cli("show", "one", "--journal", "runs.db", "--tokens", "--renderer", f"hf:{folder}")
    assert "another renderer" not in shown.out
    refused = cli(*asked, "--renderer", "chatml", "--run-id", "three")
    assert refused.code == 2
    assert "the renderer 'chatml' is for another model than vllm:echo at http://127.0.0.1" in refused.err


def test_branches_of_two_renderers_in_one_group_are_refused() -> None:
    group = make_group(size=2)
    first, second = group.rollouts
    branch = replace(second.trajectories[0], tokenizer="other")
    group = replace(group, rollouts=(first, replace(second, trajectories=(branch,))))
    token_format = TOKEN_FORMATS.load("verl")
    with pytest.raises(
        ExportError, match=r"branch 0 of run 'g1-0' \(m\) and branch 0 of run 'g1-1' \(m\) have"
    ):
        encode_group(group, token_format)
    encode_group(
        group, token_format, lambda item: [0.0] * len(item.sampled_T) if item is branch else item.sampled_T
    )
