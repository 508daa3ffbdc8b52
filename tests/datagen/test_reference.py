"""Defects of DeepFabric that show only in a whole generation, and that Treadle's must not have."""

import json
import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from tests.datagen.hostile import Server, make_config, read_lines, run

from treadle.core.errors import TreadleError
from treadle.core.types import Json


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def test_files_that_cannot_be_written_at_the_end_lose_no_row(tmp_path: Path) -> None:
    """DeepFabric converted all rows at the end of a run, and a row that did not fit lost them all."""
    dataset = tmp_path / "dataset"
    obstacle = dataset / "README.md"
    obstacle.mkdir(parents=True)
    with Server() as server:
        config = make_config(server, tmp_path)
        with pytest.raises(TreadleError, match="README"):
            run(config)
        rows = (dataset / "rows.jsonl").read_bytes()
        assert rows.count(b"\n") == 2
        obstacle.rmdir()
        asked = server.asked.total()
        assert run(config).progress.kept == 2
        assert server.asked.total() == asked
    assert (dataset / "rows.jsonl").read_bytes() == rows
    assert len(read_lines(dataset / "train.trl.jsonl")) == 2
    assert obstacle.is_file()


def test_all_samples_share_the_connections_of_one_client(tmp_path: Path) -> None:
    """DeepFabric opened an HTTP client for each sample, and closed none."""
    with Server() as server:
        result = run(make_config(server, tmp_path, generation={"num_samples": 12, "window": 2}))
        assert result.progress.kept == 12
        assert server.asked.total() > 30
        assert server.connections <= 4


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {
            "type": "object",
            "properties": {"name": {"type": "string", "minLength": 2}, "zone": {"enum": ["north", "south"]}},
            "required": ["name", "zone"],
        },
        "days": {"anyOf": [{"type": "integer", "maximum": 7}, {"type": "null"}]},
    },
    "required": ["place"],
}


def test_the_schema_of_a_tool_is_kept_whole_and_calls_are_checked_against_it(tmp_path: Path) -> None:
    """DeepFabric made one flat type of each parameter, and ran tools with arguments that do not fit."""

    def agent(asked: dict[str, Any]) -> Any:
        results = [item["content"] for item in asked["messages"] if item["role"] == "tool"]
        if not results:
            return [("weather", json.dumps({"place": {"name": "Oslo", "zone": "up"}, "days": 9}))]
        if len(results) == 1:
            assert "zone" in results[0]
            assert "north" in results[0]
            return [("weather", json.dumps({"place": {"name": "Oslo", "zone": "north"}, "days": None}))]
        return "I have looked up the weather."

    scenario: Json = {"message": "How is the weather in the north of Oslo?", "goal": "know the weather"}
    with Server(agent=agent, scenario=lambda asked: json.dumps(scenario)) as server:
        weather: Json = {"name": "weather", "description": "Look up the weather.", "parameters": CITY}
        tools = {"use": [], "files": None, "definitions": [weather]}
        quality: Json = {"filters": {"statements": False}}  # the server cannot judge
        config = make_config(server, tmp_path, tools=tools, generation={"num_samples": 1}, quality=quality)
        result = run(config)
    (row,) = read_lines(result.folder.rows)
    assert row["tools"][0]["parameters"] == CITY
    flags = [item.get("is_error", False) for item in row["messages"] if item["role"] == "tool"]
    assert flags == [True, False]
    assert len(row["lineage"]["simulated"]) == 1


def test_a_whole_run_with_failures_reports_them(tmp_path: Path) -> None:
    """DeepFabric's summary of failures raised an error if there was one, before the rows were saved."""

    def agent(asked: dict[str, Any]) -> str | None:
        # A model is asked once more after an empty answer, so several are empty in a row.
        return None if server.asked["agent"] % 8 < 4 else ""

    with Server(agent=agent) as server:
        generation: Json = {"num_samples": 6, "max_attempts": 50, "sample_attempts": 1}
        result = run(make_config(server, tmp_path, generation=generation))
    assert result.end.reason == "done"
    assert result.progress.rejected == len(read_lines(result.folder.rejected)) > 0
    assert len(read_lines(result.folder.rows)) == 6


def test_the_installation_is_light() -> None:
    """DeepFabric installs PyTorch, CUDA and 120 packages in all, also for those who only generate."""
    names = {
        re.split(r"[^\w.-]", item)[0].casefold()
        for item in requires("treadle") or ()
        if "extra ==" not in item
    }
    heavy = {"torch", "transformers", "datasets", "pyarrow", "numpy", "pandas", "outlines", "ray", "spin-sdk"}
    assert not names & heavy
    assert len(names) < 25
