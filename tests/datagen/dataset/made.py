"""Datasets for tests: runs of the oracle on built-in tasks, or rows without runs where only their number counts."""

import random
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from treadle import Agent, load_task, open_journal
from treadle.core.types import Effect, Message, Role, ToolCall, ToolSpec
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.quality.protocol import FilterVerdict
from treadle.datagen.topics.topic_graph import topic_id
from treadle.export import FORMATS
from treadle.export.rows import Lineage, Row, SampleInfo, load_row
from treadle.testbed import oracle_for

CONFIG = GenerationConfig.model_validate(
    {"name": "shop", "topics": {"prompt": "Shop"}, "tools": {"use": ["files"]}}
)
FAMILIES = ("csv_sum", "todo_count", "stock_update", "json_merge", "log_errors", "ledger_diff")
TOOL = ToolSpec(
    "read_file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}, Effect.PURE
)


def path_of(number: int, leaves: int = 4) -> tuple[str, ...]:
    """Return the path of the topic of a row."""
    leaf = number % leaves
    return ("Shop", f"area {leaf // 2}", f"topic {leaf}")


def info(number: int, *, leaves: int = 4, name: str = "shop", **fields: object) -> SampleInfo:
    """Return the origin of a row."""
    path = path_of(number, leaves)
    values: dict[str, object] = {
        "sample_id": f"s{number:06d}",
        "dataset": name,
        "topic": path,
        "topic_id": topic_id(path),
        "seed": number,
        "kind": ("single", "chained", "parallel")[number % 3],
        "kinds": ("single",),
        "difficulty": ("easy", "hard")[number % 2],
        "models": {"agent": "mock:teacher"},
        "input_tokens": 100,
        "output_tokens": 20,
        "cost_usd": 0.0,
        "filters": {"transcript": "", "verification": "3 calls"},
        "is_verified": True,
        "is_from_teacher": True,
        **fields,
    }
    return msgspec.convert(values, SampleInfo)


def plain_row(
    number: int, *, text: str | None = None, leaves: int = 4, name: str = "shop", **fields: object
) -> Row:
    """Return a row that has no run."""
    call = ToolCall("c1", "read_file", '{"path": "a.txt"}')
    messages = (
        Message(Role.USER, text or f"What is in file {number}?"),
        Message(Role.ASSISTANT, "", (call,)),
        Message(Role.TOOL, "tea, 3 EUR", call_id="c1", name="read_file"),
        Message(Role.ASSISTANT, "Tea for 3 EUR."),
    )
    lineage = Lineage(
        run_id=f"s{number:06d}-1",
        model="mock:teacher",
        stop_reason="completed",
        tools_hash="0" * 64,
        sample=info(number, leaves=leaves, name=name, **fields),
    )
    return Row(messages, (TOOL,), lineage)


def encode(row: Row, *verdicts: FilterVerdict) -> bytes:
    """Return a row as a line of the format `treadle`, with the verdicts about it if there are any."""
    raw = FORMATS.load("treadle").write(row, with_reasoning=True)
    return msgspec.json.encode({**raw, "verdicts": verdicts} if verdicts else raw) + b"\n"


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows to a file, and return its path."""
    with path.open("wb") as file:
        file.writelines(map(encode, rows))
    return path


def plain_folder(path: Path, count: int, *, leaves: int = 4, rejected: int = 2) -> Path:
    """Write a dataset whose rows have no runs, and return its folder."""
    path.mkdir(parents=True, exist_ok=True)
    folder = DatasetFolder(path)
    write_rows(folder.rows, (plain_row(number, leaves=leaves) for number in range(1, count + 1)))
    verdict = FilterVerdict("grounding", False, "the answer names 4 EUR, which no result has")
    with folder.rejected.open("wb") as file:
        for number in range(count + 1, count + rejected + 1):
            file.write(encode(plain_row(number, leaves=leaves), FilterVerdict("transcript", True), verdict))
    (path / "config.yaml").write_text(CONFIG.model_dump_json(), "utf-8")
    return path


async def real_folder(path: Path, count: int = 6) -> Path:
    """Write a dataset whose rows are runs of the oracle in its journal, and return its folder."""
    path.mkdir(parents=True, exist_ok=True)
    folder = DatasetFolder(path)
    random.seed(0)
    with open_journal(folder.journal) as journal, folder.rows.open("wb") as file:
        for number in range(1, count + 1):
            task = load_task(f"files:{FAMILIES[number % len(FAMILIES)]}-{number:04d}")
            oracle = oracle_for(task)
            assert oracle is not None
            labels = {"dataset": "shop", "part": "sample", "sample_id": f"s{number:06d}", "attempt": "1"}
            run = await Agent(oracle, journal=journal).run(task, run_id=f"s{number:06d}-1", metadata=labels)
            row = load_row(journal, run.run_id)
            sample = info(number, input_tokens=run.usage.input_tokens, output_tokens=run.usage.output_tokens)
            file.write(encode(replace(row, lineage=replace(row.lineage, sample=sample))))
    (path / "config.yaml").write_text(CONFIG.model_dump_json(), "utf-8")
    return path
