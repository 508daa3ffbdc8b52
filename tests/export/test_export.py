"""Rows of runs: their content, and which runs are refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from treadle import (
    Agent,
    ConfigError,
    ExportError,
    Policy,
    RunNotFoundError,
    ScriptedModel,
    load_task,
    open_journal,
)
from treadle.core.errors import ServerError
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.export import FORMATS, encode_row, export_rows, load_row, read_row, read_rows
from treadle.models import call
from treadle.models.scripted import Answer
from treadle.testbed import oracle_for
from treadle.tools.protocol import ToolLike, ToolOutput
from treadle.trajectory.run_verification import verify_run


async def record(*answers: Answer, tools: list[ToolLike] | None = None) -> tuple[Any, str]:
    journal = open_journal("memory:")
    agent = Agent(ScriptedModel(answers), instructions="Be brief.", tools=tools or ["files"], journal=journal)
    return journal, (await agent.run("go")).run_id


def rows_of(journal: Any, run_id: str, name: str, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export_rows(journal, [run_id], name, **options)]


STEPS: list[Answer] = [
    Message(
        Role.ASSISTANT,
        "I look.",
        (ToolCall("c1", "list_files", "{}"), ToolCall("c2", "read_file", '{ "file_path":"a" }')),
        reasoning="First the files.",
    ),
    "done",
]


async def test_openai_keeps_arguments_as_the_text_that_was_written() -> None:
    (row,) = rows_of(*await record(*STEPS), "openai")
    roles = [message["role"] for message in row["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert row["messages"][2]["tool_calls"][1]["function"]["arguments"] == '{ "file_path":"a" }'
    assert row["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "[]"}
    assert "reasoning_content" not in row["messages"][2]
    assert row["tools"][0]["function"]["parameters"]["type"] == "object"


async def test_trl_has_arguments_as_objects_and_reasoning() -> None:
    (row,) = rows_of(*await record(*STEPS), "trl")
    assert row["messages"][2]["tool_calls"][1]["function"]["arguments"] == {"file_path": "a"}
    assert row["messages"][2]["reasoning_content"] == "First the files."
    assert row["messages"][3]["name"] == "list_files"


async def test_a_row_says_where_it_came_from() -> None:
    journal = open_journal("memory:")
    task = load_task("files:csv_sum-0007")
    oracle = oracle_for(task)
    assert oracle is not None
    run = await Agent(oracle, journal=journal).run(task)
    (row,) = rows_of(journal, run.run_id, "trl")
    lineage = row["lineage"]
    assert lineage["run_id"] == run.run_id
    assert (lineage["task"], lineage["seed"]) == ("files:csv_sum-0007", task.seed)
    assert (lineage["reward"], lineage["model"], lineage["stop_reason"]) == (1.0, "oracle", "completed")
    other_journal, other = await record(*STEPS)
    assert lineage["tools_hash"] == rows_of(other_journal, other, "trl")[0]["lineage"]["tools_hash"]


@pytest.mark.parametrize("name", ["trl", "openai", "deepfabric", "sharegpt", "atif"])
async def test_arguments_that_readers_refuse_are_refused_and_kept_by_treadle(name: str) -> None:
    for text in ('{"file_path": "a"', "[1]"):
        journal, run_id = await record([call("read_file", text)], "done")
        row_format = FORMATS.load(name)
        trained = replace(load_row(journal, run_id), untrained=())
        with pytest.raises(ExportError, match="format treadle can hold them as text"):
            encode_row(trained, row_format)
        # It failed through the model's own fault, so that nobody trains on it, and the row goes on without it.
        (line,) = export_rows(journal, [run_id], name)
        assert b"read_file" not in line.partition(b'"tool')[0]
        assert [item.content for item in read_row(json.loads(line), row_format).messages] == CUT
        (row,) = rows_of(journal, run_id, "treadle")
        assert row["messages"][2]["tool_calls"][0]["arguments"] == text


CUT = ["Be brief.", "go", "done"]


async def test_openai_has_only_the_keys_that_the_service_accepts() -> None:
    journal, run_id = await record(*STEPS)
    plain = await Agent(ScriptedModel(["Hello."]), journal=journal).run("go")
    assert [list(row) for row in rows_of(journal, run_id, "openai")] == [["messages", "tools"]]
    assert [list(row) for row in rows_of(journal, plain.run_id, "openai")] == [["messages"]]
    steps: list[Answer] = [[call("list_files", {})], [call("list_files", {}), call("list_files", {})]]
    cut = Agent(ScriptedModel(steps), tools=["files"], policy=Policy(max_steps=1), journal=journal)
    with pytest.raises(ExportError, match="last message is not the assistant's"):
        list(export_rows(journal, [(await cut.run("go")).run_id], "openai"))


async def test_runs_that_are_left_out_are_told() -> None:
    journal, good = await record(*STEPS)
    failed = await Agent(ScriptedModel([ServerError("down")]), journal=journal).run("go")
    told: dict[str, str] = {}
    lines = list(export_rows(journal, [good, failed.run_id], "trl", on_skip=told.__setitem__))
    assert len(lines) == 1
    assert list(told) == [failed.run_id]
    assert "down" in told[failed.run_id]
    with pytest.raises(ExportError):
        list(export_rows(journal, [failed.run_id], "trl"))


async def test_a_run_at_a_limit_is_a_whole_row() -> None:
    journal = open_journal("memory:")
    steps: list[Answer] = [[call("list_files", {})], [call("list_files", {}), call("list_files", {})]]
    agent = Agent(ScriptedModel(steps), tools=["files"], policy=Policy(max_steps=1), journal=journal)
    run = await agent.run("go")
    assert run.stop_reason == "max_steps"
    (row,) = rows_of(journal, run.run_id, "treadle")
    assert row["lineage"]["stop_reason"] == "max_steps"
    assert len(row["lineage"]["tool_errors"]) == 2
    # The answer to the limit is not trained on, since the limit is not in the row.
    assert row["untrained"] == [1]
    (row,) = rows_of(journal, run.run_id, "trl")
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool"]


async def test_a_run_that_failed_through_no_fault_of_its_model_is_no_row() -> None:
    journal, run_id = await record([call("list_files")], ServerError("down"))
    with pytest.raises(ExportError, match="through no fault of its model"):
        load_row(journal, run_id)
    await Agent(ScriptedModel(["up again"]), tools=["files"], journal=journal).resume(run_id)
    assert load_row(journal, run_id).messages[-1].content == "up again"


async def test_rows_are_made_one_at_a_time() -> None:
    journal, good = await record(*STEPS)
    asked: list[str] = []

    def ids() -> Iterator[str]:
        for run_id in (good, good, "nobody"):
            asked.append(run_id)
            yield run_id

    rows = export_rows(journal, ids(), "openai")
    next(rows)
    assert asked == [good]
    next(rows)
    with pytest.raises(RunNotFoundError):
        next(rows)


async def test_arguments_of_trl_are_what_was_written() -> None:
    text = '{\n  "file_path": "a",\n  "n": 123456789012345678901234567890,\n  "x": 1.50\n}'
    journal, run_id = await record([call("read_file", text), call("list_files", "")], "done")
    line = encode_row(replace(load_row(journal, run_id), untrained=()), FORMATS.load("trl"))
    assert b'{"file_path":"a","n":123456789012345678901234567890,"x":1.50}' in line
    assert b"\n" not in line
    (row,) = read_rows([line], "trl")
    texts = [item.arguments for item in row.messages[2].tool_calls]
    assert texts == ['{"file_path":"a","n":123456789012345678901234567890,"x":1.5}', "{}"]


async def test_a_session_is_a_row_with_all_its_turns() -> None:
    journal = open_journal("memory:")
    async with Agent(ScriptedModel(["one", "two"]), journal=journal).session("s") as session:
        await session.send("a")
        await session.send("b")
    assert [message.content for message in load_row(journal, "s").messages] == ["a", "one", "b", "two"]


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'trl'"):
        FORMATS.load("tlr")


@pytest.mark.parametrize("line", [b"{", b"{}", b'{"messages":[{}],"tools":[],"lineage":{}}', b"[]"])
def test_a_line_that_is_no_row_is_named(line: bytes) -> None:
    with pytest.raises(ExportError, match="line 1"):
        list(read_rows([line], "openai"))


async def test_load_row_refuses_a_run_that_is_not_over() -> None:
    journal = open_journal("memory:")
    async with Agent(ScriptedModel([]), journal=journal).session("s") as session:
        assert session.run_id is not None
    with pytest.raises(ExportError, match="not finished"):
        load_row(journal, session.run_id)


async def test_a_row_says_which_results_were_made_up() -> None:
    class Pretend:
        spec = ToolSpec("pretend", "", {"type": "object"})

        def find_fault(self, arguments: Any) -> None:
            return None

        async def call(self, arguments: Any, context: Any) -> ToolOutput:
            return ToolOutput("made up", is_simulated=True)

    journal, run_id = await record([call("pretend")], "done", tools=[Pretend()])
    for name in FORMATS.names():
        if name not in ("custom", "openai", "xlam"):
            lines = b"".join(export_rows(journal, [run_id], name)).splitlines()
            (row,) = read_rows(lines, name)
            assert row.lineage.simulated == ("call_1_0",)
    assert (await verify_run(journal, run_id, [Pretend()])).skips == (
        "pretend (call_1_0): its result was simulated",
    )
