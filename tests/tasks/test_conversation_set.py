"""Rows whose conversations are run anew: the calls get the recorded results, and no tool is run."""

import json
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, load_task
from treadle.core.errors import ConfigError, ExportError
from treadle.core.events import ToolCompleted
from treadle.core.types import Message, Role
from treadle.export.exporter import FORMATS, encode_row
from treadle.export.rows import load_row
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import ScriptedModel, call
from treadle.runs.task import find_tasks, task_set
from treadle.scoring.grade import grade
from treadle.scoring.registry import make_scorers, read_rewards
from treadle.testbed import oracle_for

READ = {
    "name": "read",
    "description": "d",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def write_rows(path: Path, *rows: list[Any]) -> str:
    """Write rows in the format of OpenAI. An answer is a text, or a list of calls, each with its result."""
    lines = []
    for said in rows:
        messages: list[dict[str, Any]] = []
        for item in said:
            if isinstance(item, dict):
                messages.append(item)
                continue
            if isinstance(item, str):
                messages.append({"role": "assistant", "content": item})
                continue
            ids = [f"call-{len(messages)}-{place}" for place in range(len(item))]
            calls = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(given)},
                }
                for call_id, (name, given, _) in zip(ids, item, strict=True)
            ]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages += [
                {"role": "tool", "tool_call_id": call_id, "content": result}
                for call_id, (_, _, result) in zip(ids, item, strict=True)
            ]
        lines.append(json.dumps({"messages": messages, "tools": [{"type": "function", "function": READ}]}))
    path.write_text("\n".join(lines))
    return f"conversations:{path}"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def results(messages: Any) -> list[tuple[str, bool]]:
    return [(item.content, item.is_error) for item in messages if item.role is Role.TOOL]


async def test_the_calls_of_a_real_run_get_its_results_again(tmp_path: Path) -> None:
    journal, task = MemoryJournal(), load_task("files:csv_sum-0001")
    before = await Agent(oracle_for(task), journal=journal).run(task)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(encode_row(load_row(journal, before.run_id), FORMATS.load("treadle")))
    for place in (path, tmp_path):
        again = load_task(f"conversations:{place}:row-1")
        run = await Agent(oracle_for(again), journal=journal).run(again)
        assert [(item.role, item.content) for item in run.messages] == [
            (item.role, item.content) for item in before.messages
        ]
        assert results(run.messages)
        assert (run.reward, run.files) == (1.0, {})
        done = [event.body for event in run.events if isinstance(event.body, ToolCompleted)]
        assert all([item.result.is_simulated for item in done])


async def test_a_call_made_again_gets_the_next_result_also_in_a_fork(tmp_path: Path) -> None:
    read = ["read", {"path": "a"}]
    name = write_rows(tmp_path / "r.jsonl", [user("go"), [[*read, "one"]], [[*read, "two"]], "done"])
    task, journal = load_task(f"{name}:row-1"), MemoryJournal()
    again = [[call("read", {"path": "a"})] for _ in range(3)]
    run = await Agent(ScriptedModel([*again, "done"]), journal=journal).run(task)
    assert results(run.messages) == [("one", False), ("two", False), ("two", False)]
    assert run.reward == 0.0
    seq = next(event.seq for event in run.events if isinstance(event.body, ToolCompleted))
    forked = await Agent(ScriptedModel([again[0], "done"]), journal=journal).fork(run.run_id, seq)
    assert results(forked.messages) == [("one", False), ("two", False)]


async def test_what_the_row_called_is_answered_whatever_its_schema_says(tmp_path: Path) -> None:
    odd = ["read", {"path": 3}]
    name = write_rows(
        tmp_path / "r.jsonl", [user("go"), [[*odd, "three"], ["read", {"path": "b"}, "bee"]], "done"]
    )
    task = load_task(f"{name}:row-1")
    made = [call("read", {"path": given}) for given in (3, 4, "b", "other")]
    run = await Agent(ScriptedModel([made, [call("open", {})], "done"]), journal=MemoryJournal()).run(task)
    first, second, third, fourth, last = results(run.messages)
    assert (first, third, fourth) == (("three", False), ("bee", False), ("three", False))
    assert second[1]
    assert "4" in second[0]
    assert last[1]
    assert "open" in last[0]


async def test_a_tool_that_the_row_never_calls_has_no_result(tmp_path: Path) -> None:
    task = load_task(f"{write_rows(tmp_path / 'r.jsonl', [user('go'), 'hi'])}:row-1")
    made = [[call("read", {"path": "a"})], "hi"]
    run = await Agent(ScriptedModel(made), journal=MemoryJournal()).run(task)
    assert results(run.messages) == [('{"error": "Tool not found in ground truth"}', True)]
    run = await Agent(ScriptedModel(["hi"]), journal=MemoryJournal()).run(task)
    assert run.reward == 1.0


async def test_the_user_says_what_he_said_and_two_messages_are_one(tmp_path: Path) -> None:
    row = [{"role": "system", "content": "Be brief."}, user("one"), user("two"), "hi", user("one"), "ho"]
    task = load_task(f"{write_rows(tmp_path / 'r.jsonl', row)}:row-1")
    run = await Agent(oracle_for(task), journal=MemoryJournal()).run(task)
    assert [item.content for item in run.messages] == ["Be brief.", "one\n\ntwo", "hi", "one", "ho"]
    assert task.reply([Message(Role.USER, "one\n\ntwo"), Message(Role.USER, "a nudge")]) == "one"  # type: ignore[attr-defined]


def test_rows_that_cannot_be_run_are_left_out_and_mistakes_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    name = write_rows(path, ["hello", user("go"), "hi"], [user("go"), "hi"], [user("go")])
    assert find_tasks([name]) == [f"{name}:row-2"]
    assert (
        "left out 2 of its rows: line 1: it does not begin with a message of the user; line 3:" in caplog.text
    )
    for given, text in (
        (f"{name}:row-1", "row-1 cannot be run: line 1: it does not begin"),
        (f"{name}:row-4", "no task 'row-4'; did you mean 'row-2'"),
        (f"{name}:x", "no task 'x'; ids are such as 'row-2'"),
        ("conversations:none.jsonl:row-1", "there is no file 'none.jsonl'"),
    ):
        with pytest.raises(ConfigError, match=text):
            load_task(given)
    for text in ("", str(tmp_path / "r.jsonl")):
        write_rows(tmp_path / "r.jsonl", ["hello", user("go"), "hi"])
        with pytest.raises(ConfigError, match=r"give (a|another) file of rows"):
            task_set(f"conversations:{text}")
    with pytest.raises(ConfigError, match="give a file of rows, as in"):
        find_tasks(["conversations:"])
    path.write_text('{"messages": []}\nnothing')
    with pytest.raises(ExportError, match=r"r\.jsonl': line 2 is not JSON"):
        task_set(name)


async def test_calls_that_are_not_trained_on_may_be_made_and_need_not_be(tmp_path: Path) -> None:
    made = [[["read", {"path": path}, path]] for path in "abab"]
    name = write_rows(tmp_path / "r.jsonl", [user("go"), *made, "done"])
    row = json.loads((tmp_path / "r.jsonl").read_text())
    row["messages"][1]["weight"] = 0  # the first call of "a"
    row["messages"][3]["weight"] = 0  # the first call of "b"
    (tmp_path / "r.jsonl").write_text(json.dumps(row))
    task, journal = load_task(f"{name}:row-1"), MemoryJournal()
    rewards = read_rewards({"check": 1.0, "calls": {"ordered": True}, "trajectory": {"mode": "exact"}})
    for said, value in (("abab", 1.0), ("ab", 1.0), ("aab", 1.0), ("ba", 0.0), ("ababa", 0.0), ("a", 0.0)):
        calls: list[Any] = [[call("read", {"path": path})] for path in said]
        run = await Agent(ScriptedModel([*calls, "done"]), journal=journal).run(task)
        scores = (await grade(journal, run.run_id, make_scorers(rewards))).rewards
        expected = dict.fromkeys(scores, value)
        if said == "ba":
            expected["check"] = 1.0
        assert scores == expected, said
    run = await Agent(oracle_for(task), journal=journal).run(task)
    assert run.reward == 1.0


async def test_a_call_of_an_unknown_tool_is_no_task(tmp_path: Path) -> None:
    """If the call failed, it was a mistake of the recorded model, which is not expected of others."""
    path = tmp_path / "r.jsonl"
    rows: list[list[Any]] = [[user("go"), [["open", {}, result]], "done"] for result in ("yes", "no")]
    name = write_rows(path, *rows)
    first, second = map(json.loads, path.read_text().splitlines())
    lineage = {"run_id": "r", "model": None, "stop_reason": "completed", "tools_hash": ""}
    second["lineage"] = {**lineage, "tool_errors": ["call-1-0"]}
    path.write_text("\n".join(map(json.dumps, [first, second])))
    assert find_tasks([name]) == [f"{name}:row-2"]
    with pytest.raises(ConfigError, match="row-1 cannot be run: line 1: it calls 'open', which is not among"):
        load_task(f"{name}:row-1")
    task = load_task(f"{name}:row-2")
    for model in (ScriptedModel(["done"]), oracle_for(task)):
        assert model is not None
        assert (await Agent(model, journal=MemoryJournal()).run(task)).reward == 1.0
