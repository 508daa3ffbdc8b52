"""The generation of a dataset as a whole, over a real server that plays all models."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError, ProviderError, UserCodeError
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.splits import read_written
from treadle.datagen.generation import Continuation, GenerationResult, generate
from treadle.datagen.generation_progress import GenerationProgress, SampleEnded
from treadle.jobs.ledger import ItemStatus, Ledger
from treadle.jobs.progress import JobNotice
from treadle.journal.registry import open_journal
from treadle.journal.run_info import QUEUE
from treadle.testbed.server import OracleServer, ServerSettings, serve


@pytest.fixture
async def server() -> AsyncIterator[OracleServer]:
    made = await serve("127.0.0.1", 0, ServerSettings(failure_rate=0.1))
    yield made
    await made.close()


def config(server: OracleServer | None, **sections: Any) -> GenerationConfig:
    models: dict[str, Any] = {"default": "mock:teacher"}
    if server is not None:
        models = {"default": {"model": "openai:teacher", "base_url": f"{server.url}", "price": PRICE}}
    return GenerationConfig.model_validate(
        {
            "seed": 7,
            "models": models,
            "topics": {"prompt": "work in a shop", "degree": 3, "depth": 2},
            "tools": {"use": ["files"], "files": "tasks:files"},
            **sections,
        }
    )


ECHO = {"default": "mock:echo"}
"""A model that can do nothing of what is asked."""
PRICE = {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def make(made: GenerationConfig, path: Path, **more: Any) -> GenerationResult:
    return await generate(made, DatasetFolder(path), **more)


async def test_the_asked_number_of_rows_with_all_that_they_say_about_themselves(
    server: OracleServer, tmp_path: Path
) -> None:
    made = config(server, generation={"num_samples": 16, "conversation": {"max_turns": 2}})
    result = await make(made, tmp_path)
    assert (result.end.reason, result.progress.kept) == ("done", 16)
    rows = read(tmp_path / "rows.jsonl")
    samples = [row["lineage"]["sample"] for row in rows]
    assert len({sample["sample_id"] for sample in samples}) == len(rows) == 16
    for row, sample in zip(rows, samples, strict=True):
        assert sample["topic"][0] == "work in a shop"
        assert sample["models"]["agent"] == "openai:teacher"
        assert sample["is_from_teacher"]
        assert sample["cost_usd"] > 0
        assert sample["seed"]
        assert sample["tool_hashes"].keys() == {tool["name"] for tool in row["tools"]}
        assert {"transcript", "schema", "verified", "duplicates"} <= sample["filters"].keys()
        assert row["lineage"]["run_id"].startswith(sample["sample_id"])
    assert sum(sample.get("is_verified", False) for sample in samples) > 5
    for name in ("topics.json", "config.yaml", "README.md", "train.trl.jsonl"):
        assert (tmp_path / name).stat().st_size > 0
    assert result.view.stats["rows"] == len(samples)


async def test_the_same_seed_makes_the_same_plan(tmp_path: Path) -> None:
    """Personas, topics, kinds, difficulties and seeds depend only on the configuration."""
    plans = []
    for name, window in (("a", 1), ("b", 16), ("c", 16)):
        seed = 7 if name != "c" else 8
        made = config(None, generation={"num_samples": 8, "window": window}).model_copy(update={"seed": seed})
        await make(made, tmp_path / name)
        with Ledger(tmp_path / name / "ledger.db", is_readonly=True) as ledger:
            plans.append(
                [entry.spec for entry in ledger.entries() if entry.number <= 8 and entry.attempt == 1]
            )
    assert plans[0] == plans[1]
    assert len(plans[0]) == 8
    assert plans[0] != plans[2]


async def test_every_leaf_has_a_row_and_a_larger_number_continues(tmp_path: Path) -> None:
    made = config(None)
    assert (await make(made, tmp_path)).progress.kept == 9
    first = (tmp_path / "rows.jsonl").read_bytes()
    topics = {tuple(row["lineage"]["sample"]["topic"]) for row in read(tmp_path / "rows.jsonl")}
    assert len(topics) == 9
    more = config(None, generation={"num_samples": 12})
    assert (await make(more, tmp_path)).progress.kept == 12
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(first)


async def test_a_changed_configuration_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    await make(config(None, generation={"num_samples": 3}), tmp_path)
    other = config(None, generation={"num_samples": 5, "instructions": "Be brief."})
    with pytest.raises(ConfigError, match=r'generation.instructions was not set and is now "Be brief\."'):
        await make(other, tmp_path)
    result = await make(other, tmp_path, options=Continuation(accept_changes=True))
    assert result.progress.kept == 5


async def test_a_mistake_in_the_first_configuration_can_be_mended(tmp_path: Path) -> None:
    """Nothing was made with it, so there is nothing that another one could differ from."""
    dead = {"model": "openai:x", "base_url": "http://127.0.0.1:1/v1", "max_attempts": 1}
    for wrong in (
        config(None, generation={"num_samples": 3}, tools={"use": ["mcp:no-such-program"]}),
        config(None, generation={"num_samples": 3}, models={"default": dead}),
    ):
        with pytest.raises((ConfigError, ProviderError)):
            await make(wrong, tmp_path)
    assert (await make(config(None, generation={"num_samples": 3}), tmp_path)).progress.kept == 3


async def test_topics_that_were_paid_for_bind_the_configuration(tmp_path: Path) -> None:
    wrong = config(
        None, generation={"num_samples": 3}, models={"topics": "mock:teacher", "default": "mock:echo"}
    )
    await make(
        wrong.model_copy(update={"limits": wrong.limits.model_copy(update={"max_tokens": 5_000})}), tmp_path
    )
    with pytest.raises(ConfigError, match="begun with another configuration"):
        await make(config(None, generation={"num_samples": 3}), tmp_path)


async def test_after_a_mistake_in_the_code_of_a_tool_the_same_command_goes_on(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    text = (
        "from treadle import tool\n\n@tool(effect='pure')\ndef sky(city: str) -> str:\n    return {} + city\n"
    )
    code.write_text(text.format("gone"))
    made = config(None, tools={"use": [str(code)]}, generation={"num_samples": 3})
    with pytest.raises(UserCodeError, match=r"mine\.py, line 5.*run the same command again"):
        await make(made, tmp_path / "out")
    code.write_text(text.format("'sun in '"))
    assert (await make(made, tmp_path / "out")).progress.kept == 3
    # Nothing is wrong any more, so a change of the code would make other rows.
    code.write_text(text.format("'rain in '"))
    with pytest.raises(ConfigError, match=r"tools\.use\[0\] was"):
        await make(made, tmp_path / "out")


async def test_rejected_samples_are_kept_with_their_reasons_and_tried_again(tmp_path: Path) -> None:
    quality = {"filters": {"length": {"max_words": 1}}}
    made = config(
        None, generation={"num_samples": 4, "max_attempts": 1, "sample_attempts": 1}, quality=quality
    )
    result = await make(made, tmp_path)
    assert (result.end.reason, result.progress.kept) == ("max_items", 0)
    rejected = read(tmp_path / "rejected.jsonl")
    assert len(rejected) == 4
    for row in rejected:
        failed = [item for item in row["verdicts"] if not item["is_passed"]]
        assert "length" in {item["filter"] for item in failed}
        assert all(item["reason"] for item in failed)
    relaxed = config(None, generation={"num_samples": 4, "max_attempts": 1, "sample_attempts": 1})
    options = Continuation(retry_failed=True, accept_changes=True)
    assert (await make(relaxed, tmp_path, options=options)).progress.kept == 4
    with Ledger(tmp_path / "ledger.db", is_readonly=True) as ledger:
        assert {entry.attempt for entry in ledger.entries(ItemStatus.KEPT)} == {2}
    with open_journal(tmp_path / "journal.db") as journal:
        asked = journal.read("s000001-2-scenario")
    assert any("length" in str(event.body) for event in asked), "the reasons are feedback"


async def test_rows_that_a_format_cannot_hold_are_told(tmp_path: Path) -> None:
    """Rules out that a file has fewer rows than the dataset, and nobody says so."""
    made = config(
        None,
        models={"default": "mock:teacher:0.6"},
        generation={"num_samples": 12},
        output={"formats": ["treadle", "trl"]},
        quality={"filters": {"check": False, "grounding": False}},
    )
    result = await make(made, tmp_path)
    lacking = 12 - len(read(tmp_path / "train.trl.jsonl"))
    assert lacking
    assert len(read(tmp_path / "train.treadle.jsonl")) == 12
    assert read_written(tmp_path).left_out["train.trl.jsonl"].startswith(f"{lacking} row")
    assert any(note.startswith(f"train.trl.jsonl lacks {lacking} row") for note in result.view.notes)
    assert f"`train.trl.jsonl` lacks {lacking} row" in (tmp_path / "README.md").read_text()


async def test_a_generation_that_can_only_be_rejected_ends_early(tmp_path: Path) -> None:
    """Rules out that a whole plan is paid for, although no sample can be kept."""
    told: list[str] = []
    hopeless = {"length": {"min_words": 500}, "kind": False}
    made = config(None, generation={"num_samples": 40, "window": 4}, quality={"filters": hopeless})
    result = await make(made, tmp_path, listener=lambda notice, progress: told.extend(progress.faults()))
    assert (result.end.reason, result.progress.kept) == ("rejections", 0)
    assert 20 <= result.progress.rejected <= 24
    assert result.end.error is not None
    assert result.end.error.startswith("length: words in the shortest final answer")
    assert "length 20), such as: length: words in the shortest final answer: " in " ".join(told)
    mended = made.model_copy(update={"quality": config(None).quality})
    again = await make(mended, tmp_path, options=Continuation(accept_changes=True, retry_failed=True))
    assert again.end.reason == "done"


@pytest.mark.sets(0)
async def test_a_generation_that_is_rejected_for_several_reasons_ends_early_too(tmp_path: Path) -> None:
    await make(config(None, generation={"num_samples": 1}), tmp_path / "topics")
    topics = {"load": str(tmp_path / "topics" / "topics.json")}
    quick = {"filters": {"grounding": False}}  # which takes as long as all else
    asked = {"num_samples": 60, "window": 4}
    made = config(None, generation=asked, topics=topics, models=ECHO, quality=quick)
    result = await make(made, tmp_path / "out")
    assert (result.end.reason, result.progress.kept) == ("rejections", 0)
    assert 60 <= result.progress.rejected <= 64
    reasons = {row["verdicts"][-1]["filter"] for row in read(tmp_path / "out" / "rejected.jsonl")}
    assert len(reasons) > 1


@pytest.mark.parametrize("limit", [{"max_tokens": 60_000}, {"max_cost_usd": 0.05}])
async def test_a_limit_is_not_exceeded_and_the_same_command_continues(
    server: OracleServer, tmp_path: Path, limit: dict[str, float]
) -> None:
    asked = {"num_samples": 40, "window": 4}
    made = config(server, generation=asked, limits=limit)
    result = await make(made, tmp_path)
    assert result.end.reason == next(iter(limit))
    progress = result.progress
    assert 0 < progress.kept < 40
    used = {"max_tokens": progress.input_tokens + progress.output_tokens, "max_cost_usd": progress.cost_usd}
    assert used[result.end.reason] <= next(iter(limit.values()))
    with open_journal(tmp_path / "journal.db") as journal:
        runs = journal.runs()
    in_journal = {
        "max_tokens": sum(run.input_tokens + run.output_tokens for run in runs),
        "max_cost_usd": sum(run.cost_usd or 0 for run in runs),
    }
    assert in_journal[result.end.reason] <= next(iter(limit.values()))
    assert (await make(config(server, generation=asked), tmp_path)).progress.kept == 40


async def test_a_wrong_key_ends_the_generation_at_once(tmp_path: Path) -> None:
    """A fault of the user is not repeated for each sample."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while (head := await reader.readuntil(b"\r\n\r\n")) and not reader.at_eof():
            asked += 1
            size = next(
                int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            await reader.readexactly(size)
            body = b'{"error": {"message": "Incorrect API key", "type": "invalid_request_error"}}'
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    asked = 0
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    model = {"model": "openai:gpt", "base_url": f"http://127.0.0.1:{port}/v1", "api_key_env": ""}
    made = GenerationConfig.model_validate(
        {**config(None).model_dump(), "models": {"default": "mock:teacher", "agent": model}}
    )
    with pytest.raises(ProviderError, match="Incorrect API key"):
        await make(made, tmp_path)
    server.close()
    assert asked <= 32


async def test_a_stop_finishes_what_is_in_flight(server: OracleServer, tmp_path: Path) -> None:
    stop = asyncio.Event()

    def listen(notice: JobNotice, progress: GenerationProgress) -> None:
        if isinstance(notice, SampleEnded) and progress.kept == 3:
            stop.set()

    made = config(server, generation={"num_samples": 24, "window": 8})
    result = await make(made, tmp_path, listener=listen, stop=stop)
    assert result.end.reason == "stopped"
    assert 3 <= result.progress.kept <= 3 + 8
    with Ledger(tmp_path / "ledger.db", is_readonly=True) as ledger:
        # A sample that was rejected is attempted again by the next call.
        assert all(item.attempts and item.feedback for item in ledger.open_items())
    assert (await make(made, tmp_path)).progress.kept == 24


async def test_the_judge_is_counted(tmp_path: Path) -> None:
    judge = {"rubric": "Is the answer right?", "min_score": 0.0}
    plain = await make(config(None, generation={"num_samples": 5}), tmp_path / "plain")
    judged = await make(
        config(None, generation={"num_samples": 5}, quality={"judge": judge}), tmp_path / "judged"
    )
    assert judged.progress.kept == 5
    assert judged.progress.input_tokens > plain.progress.input_tokens
    with Ledger(tmp_path / "judged" / "ledger.db", is_readonly=True) as ledger:
        counts = ledger.counts()
    with open_journal(tmp_path / "judged" / "journal.db") as journal:
        used = sum(run.input_tokens for run in journal.runs() if run.labels["part"] != "topic")
    assert counts.input_tokens == used
    samples = [row["lineage"]["sample"] for row in read(tmp_path / "judged" / "rows.jsonl")]
    assert all("judge" in sample["filters"] for sample in samples)


async def test_a_continued_dataset_still_counts_the_topics(tmp_path: Path) -> None:
    """Limits hold for the whole dataset, so what the topics used counts in every later call."""
    first = (await make(config(None), tmp_path)).progress
    again = (await make(config(None), tmp_path)).progress
    assert (again.input_tokens, again.output_tokens) == (first.input_tokens, first.output_tokens)


async def test_a_server_of_tools_that_does_not_start_costs_nothing(tmp_path: Path) -> None:
    made = config(None, tools={"use": ["mcp:no-such-server-of-tools"]})
    with pytest.raises(ConfigError, match="no-such-server-of-tools"):
        await make(made, tmp_path)
    with open_journal(tmp_path / "journal.db") as journal:
        assert not journal.runs()


@pytest.mark.sets(0)
async def test_workers_make_the_same_rows_and_what_they_use_is_counted(tmp_path: Path) -> None:
    """Scenarios, turns of agents and of simulated users, and judgements are runs that any worker can drive."""
    found = []
    for workers in ("here", "local:2"):
        quality = {"judge": {"rubric": "Is it helpful?"}}
        conversation = {"min_turns": 2, "max_turns": 2}
        generation = {"num_samples": 4, "workers": workers, "conversation": conversation}
        result = await make(config(None, generation=generation, quality=quality), tmp_path / workers)
        assert result.end.reason == "done"
        rows = sorted(read(tmp_path / workers / "rows.jsonl"), key=lambda row: str(row["lineage"]["run_id"]))
        found.append((rows, result.progress.input_tokens, result.progress.output_tokens))
        with open_journal(tmp_path / workers / "journal.db") as journal:
            drivers = {info.labels.get("part"): info.labels.get(QUEUE) for info in journal.runs()}
        queue = "default" if workers != "here" else None
        assert {drivers[part] for part in ("scenario", "sample", "user", "judge")} == {queue}
    assert found[0] == found[1]
