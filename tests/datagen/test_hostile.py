"""Generations with servers, folders and files that behave badly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.datagen.hostile import Server, make_config, read_lines, run

from treadle import open_journal
from treadle.core.errors import ConfigError, JournalError
from treadle.core.types import Json
from treadle.datagen.dataset.dataset_stats import collect


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def test_a_dataset_within_the_folder_of_its_files_can_be_continued(tmp_path: Path) -> None:
    """The dataset became a part of the files, so the same command was refused as another configuration."""
    (tmp_path / "notes.txt").write_text("milk: 3\nflour: 4\n")
    with Server() as server:
        tools = {"use": ["files"], "files": str(tmp_path)}
        run(make_config(server, tmp_path, tools=tools, generation={"num_samples": 1}))
        result = run(make_config(server, tmp_path, tools=tools, generation={"num_samples": 2}))
    assert result.progress.kept == 2
    for row in read_lines(tmp_path / "dataset" / "rows.jsonl"):
        assert "ledger" not in json.dumps(row["messages"])


def test_a_lost_journal_is_missed(tmp_path: Path) -> None:
    """Rows would name runs that no longer exist, and what was paid for would be asked again."""
    with Server() as server:
        result = run(make_config(server, tmp_path))
        for file in result.folder.path.glob("journal.db*"):
            file.unlink()
        with pytest.raises(ConfigError, match=r"journal\.db' with the runs of this job is missing"):
            run(make_config(server, tmp_path, generation={"num_samples": 3}))
        assert not result.folder.journal.exists()


def test_rows_that_the_ledger_does_not_know_are_not_deleted(tmp_path: Path) -> None:
    """A lost ledger was made anew, and all rows were cut off as if they had not been counted."""
    with Server() as server:
        result = run(make_config(server, tmp_path))
        rows = result.folder.rows.read_bytes()
        result.folder.ledger.unlink()
        for file in result.folder.path.glob("ledger.db-*"):
            file.unlink()
        with pytest.raises(JournalError, match="lines that were not counted"):
            run(make_config(server, tmp_path))
    assert result.folder.rows.read_bytes() == rows


def test_rows_that_were_edited_are_not_cut(tmp_path: Path) -> None:
    """The file was cut in the middle of the last row, or a row was appended to a broken line."""
    with Server() as server:
        result = run(make_config(server, tmp_path))
        rows = result.folder.rows
        lines = rows.read_bytes().splitlines(keepends=True)
        edited = b"".join([lines[0].replace(b'"role"', b'"role" ', 1), *lines[1:]])
        rows.write_bytes(edited)
        with pytest.raises(JournalError, match="was changed"):
            run(make_config(server, tmp_path, generation={"num_samples": 3}))
        assert rows.read_bytes() == edited


PRICE = {"input_usd_per_million": 1, "output_usd_per_million": 2}


def priced(server: Server, price: bool = True) -> dict[str, Any]:
    model = {"model": "openai:teacher", "base_url": server.url, "max_attempts": 2}
    return {"default": model | ({"price": PRICE} if price else {})}


def spent(folder: Path) -> int:
    """Return the tokens of all answers in the journal of a dataset."""
    with open_journal(folder / "dataset" / "journal.db", must_exist=True) as journal:
        return sum(info.input_tokens + info.output_tokens for info in journal.runs())


@pytest.mark.parametrize(
    "limits", [{"max_tokens": 1500}, {"max_tokens": 9000}, {"max_cost_usd": 0.002}, {"max_cost_usd": 0.012}]
)
def test_the_requests_of_a_wide_window_do_not_exceed_a_limit(tmp_path: Path, limits: dict[str, Any]) -> None:
    """A whole window of requests was sent before the first answer showed how large they are."""
    with Server() as server:
        config = make_config(
            server,
            tmp_path,
            models=priced(server),
            limits=limits,
            generation={"num_samples": 40, "window": 20},
        )
        for _ in range(2):
            result = run(config)
            assert result.end.reason == next(iter(limits))
            assert server.tokens <= limits.get("max_tokens", server.tokens)
            assert (result.progress.cost_usd or 0) <= limits.get("max_cost_usd", 1)
            assert result.progress.input_tokens + result.progress.output_tokens == server.tokens


def test_topics_judgements_and_interrupted_samples_count_for_limits_after_a_restart(tmp_path: Path) -> None:
    """Only counted samples did, so that each call of the command could spend the rest of the limit again."""
    with Server() as server:
        judge: Json = {"judge": {"rubric": "It is good."}}
        first = run(make_config(server, tmp_path, quality=judge, limits={"max_tokens": 4500}))
        assert first.end.reason == "max_tokens"
        assert first.progress.kept < 2
        again = run(make_config(server, tmp_path, quality=judge))
        assert again.progress.kept == 2
        last = run(make_config(server, tmp_path, quality=judge))
        used = last.progress.input_tokens + last.progress.output_tokens
        assert used == server.tokens == spent(tmp_path)


def test_topics_that_did_not_fit_in_a_limit_are_built_later(tmp_path: Path) -> None:
    """They were recorded as failed, and left out for ever although the limit was raised."""
    topics: Json = {"degree": 3, "depth": 2, "window": 1}
    with Server() as server:
        first = run(make_config(server, tmp_path, topics=topics, limits={"max_tokens": 1700}))
        assert first.end.reason == "max_tokens"
        assert server.asked["subtopics"] in (1, 2, 3)
        again = run(make_config(server, tmp_path, topics=topics, generation={"num_samples": "auto"}))
    assert again.end.reason == "done"
    assert again.progress.wanted == again.progress.kept == 9


def test_a_server_that_does_not_count_tokens_cannot_evade_a_limit(tmp_path: Path) -> None:
    answer = json.dumps({"subtopics": [{"topic": "Taxes of shops"}, {"topic": "Menus of cafes"}]})
    with Server(subtopics=lambda asked: answer) as server:
        server.usage = None
        result = run(make_config(server, tmp_path, limits={"max_tokens": 3000}))
        assert result.end.reason == "max_tokens"
        assert result.progress.input_tokens > 0


def test_an_unknown_cost_ends_a_generation_whose_cost_is_limited(tmp_path: Path) -> None:
    """The sum of the costs became unknown with the first such answer, and the limit was never reached."""
    limits: Json = {"max_cost_usd": 5}
    with Server() as server:
        result = run(make_config(server, tmp_path, models=priced(server, False), limits=limits))
        assert result.end.reason == "unknown_cost"
        assert sum(server.asked.values()) == 1
        free = make_config(server, tmp_path / "free", models={"default": "mock:teacher"}, limits=limits)
    assert run(free).end.reason == "done"


def placeholder(asked: dict[str, Any]) -> str:
    return json.dumps({"message": "Sum {{column}} of <your file>.", "goal": "g"})


def no_json(asked: dict[str, Any]) -> str:
    return "I would rather not."


@pytest.mark.parametrize("role", [{"scenario": placeholder}, {"scenario": no_json}, {"user_turn": no_json}])
def test_samples_that_came_to_no_end_are_kept_with_the_reason(tmp_path: Path, role: dict[str, Any]) -> None:
    """Only the ledger had them, so that the file of rejected samples, the card and the report lacked them."""
    turns: Json = {"num_samples": 1, "conversation": {"min_turns": 3, "max_turns": 3}}
    with Server(**role) as server:
        result = run(make_config(server, tmp_path, generation=turns))
    assert result.end.reason == "max_items"
    rejected = read_lines(result.folder.rejected)
    assert len(rejected) == result.progress.rejected > 0
    for line in rejected:
        (verdict,) = line["verdicts"]
        assert verdict["filter"] == "unfinished"
        assert verdict["reason"]
        assert line["lineage"]["sample"]["topic"][0] == "Office work"
        assert line["lineage"]["sample"]["is_from_teacher"]
    stats = collect(result.folder.path)
    assert stats.rejections["unfinished"] == stats.rejected == len(rejected)
    assert "unfinished" in result.folder.card.read_text()
    assert "unfinished" in msgspec.json.encode(result.view).decode()


def call_once(name: str, arguments: str) -> Callable[[dict[str, Any]], Any]:
    """Return an agent that makes one call and then answers."""
    return lambda asked: (
        "I have done what I could." if asked["messages"][-1]["role"] == "tool" else [(name, arguments)]
    )


@pytest.mark.parametrize(
    "agent",
    [
        call_once("read_file", '{"file_path": ' + "[" * 3000 + "]" * 3000 + "}"),
        call_once("write_file", '{"file_path": "a\\ud800", "content": "\\u0000"}'),
        call_once("no_such_tool", "{}"),
        call_once("read_file", "{"),
        lambda asked: [("list_files", "{}")] * 200,
        lambda asked: f"It is {'9' * 5000}.\ud800\x00",
        lambda asked: "",
    ],
)
def test_no_answer_of_an_agent_ends_the_generation(tmp_path: Path, agent: Callable[..., Any]) -> None:
    """An exception over one sample ended the command, and again each time it was continued."""
    sizes: Json = {"num_samples": 1, "max_attempts": 1, "sample_attempts": 1}
    with Server(agent=agent) as server:
        result = run(make_config(server, tmp_path, generation=sizes))
    assert result.progress.kept + result.progress.rejected == 1
    assert len(read_lines(result.folder.rows)) == result.progress.kept
    assert len(read_lines(result.folder.rejected)) == result.progress.rejected
