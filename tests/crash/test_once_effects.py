"""A generation whose tool has an effect that must not happen twice is killed at random times, and continued."""

import json
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Cli
from tests.conftest import IS_FULL
from tests.datagen.hostile import Server, read_lines
from tests.forks.process import FORKS

TOOLS = """
import os, time
from treadle import ToolContext, tool

@tool(effect="once")
def order(item: str, context: ToolContext) -> str:
    \"\"\"Order an item.\"\"\"
    file = os.open("orders.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{context.idempotency_key}\\n".encode())
    os.close(file)
    time.sleep(0.15)
    return f"ordered {item} under {context.idempotency_key}"
"""
CONFIG = """
name: orders
models: {{default: {{model: "openai:teacher", base_url: "{url}"}}}}
topics: {{prompt: Orders of a shop, degree: 4, depth: 1}}
generation: {{num_samples: 8, window: 4, max_attempts: 20}}
tools: {{use: ["tools.py:order"]}}
quality: {{filters: {{duplicates: false}}}}
output: {{path: dataset, formats: [trl]}}
"""


def agent(asked: dict[str, Any]) -> Any:
    results = [item["content"] for item in asked["messages"] if item["role"] == "tool"]
    return (
        f"Done: {results[-1]}."
        if len(results) > 1
        else [("order", json.dumps({"item": f"tea{len(results)}"}))]
    )


def scenario(asked: dict[str, Any]) -> str:
    return json.dumps({"message": "Please order tea0 and then tea1 for me.", "goal": "both are ordered"})


@pytest.mark.full
def test_no_effect_happens_twice_and_every_row_shows_its_own(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    env = {**Cli(tmp_path).env, "OPENAI_API_KEY": "none"}
    draw = random.Random(5)
    with Server(agent=agent, scenario=scenario) as server:
        (tmp_path / "config.yaml").write_text(CONFIG.format(url=server.url))

        def start() -> Any:
            with (tmp_path / "log").open("w") as log:
                return FORKS.start(
                    "-m", "treadle", "generate", "config.yaml", "--json",
                    cwd=tmp_path, env=env, stdout=log.fileno(), stderr=log.fileno(),
                )  # fmt: skip

        for _ in range(30 if IS_FULL else 4):
            process = start()
            try:
                process.wait(draw.uniform(0.3, 0.9))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait(60)
        assert start().wait(120) == 0, (tmp_path / "log").read_text()
    made = Counter((tmp_path / "orders.txt").read_text().split())
    assert max(made.values()) == 1, "an order was made twice"
    rows = read_lines(tmp_path / "dataset" / "rows.jsonl")
    assert len(rows) == 8
    shown: list[str] = []
    for row in rows:
        results = [item["content"] for item in row["messages"] if item["role"] == "tool"]
        assert len(results) == 2
        shown += [result.rpartition(" ")[2] for result in results]
    assert len(set(shown)) == len(shown) == 16
    assert set(shown) <= set(made), "a result came from no tool that ran"
