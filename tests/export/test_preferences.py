"""Preference pairs: which steps are compared, which one is better, and what TRL makes of them."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.export.test_files import example

from treadle import Agent, ScriptedModel, load_task, open_journal
from treadle.core.events import ToolCompleted
from treadle.core.types import Message, Role, ToolCall
from treadle.export import Lineage, Row
from treadle.export.preferences import find_pairs, pair_rows, write_pair
from treadle.models import call
from treadle.models.scripted import Answer
from treadle.testbed import oracle_for

LOOK = call("list_files", {})


def find_result(journal: Any, run_id: str) -> int:
    """Return the number of the event with the first result of a tool."""
    return next(event.seq for event in journal.read(run_id) if isinstance(event.body, ToolCompleted))


async def family(*endings: list[Answer]) -> tuple[Any, list[str]]:
    """Return a journal with a run, which lists the files, and forks of it after that; each ends in its own way."""
    journal = open_journal("memory:")
    first = await Agent(ScriptedModel([[LOOK], *endings[0]]), tools=["files"], journal=journal).run("go")
    at = find_result(journal, first.run_id)
    ids = [first.run_id]
    for ending in endings[1:]:
        agent = Agent(ScriptedModel(ending), tools=["files"], journal=journal)
        ids.append((await agent.fork(first.run_id, at=at)).run_id)
    return journal, ids


async def test_forks_make_a_pair_at_the_step_where_they_part() -> None:
    journal, ids = await family([[call("read_file", {"file_path": "a"})], "good"], ["bad"])
    (pair,) = find_pairs(journal, values=dict(zip(ids, (1.0, 0.0), strict=True)))
    assert [message.role for message in pair.prompt] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert [[item.name for item in message.tool_calls] for message in pair.chosen.messages] == [["read_file"]]
    assert [message.content for message in pair.rejected.messages] == ["bad"]
    assert (pair.chosen.run_id, pair.rejected.run_id) == tuple(ids)
    raw = json.loads(write_pair(pair))
    assert list(raw) == ["prompt", "chosen", "rejected", "tools", "lineage"]
    assert raw["lineage"] | {"message": 3} == raw["lineage"]


async def test_whole_continuations_can_be_compared() -> None:
    journal, ids = await family(["bad"], [[call("read_file", {"file_path": "a"})], "good"])
    (pair,) = find_pairs(journal, values=dict(zip(ids, (0.0, 1.0), strict=True)), is_whole=True)
    assert [message.role.value for message in pair.chosen.messages] == ["assistant", "tool", "assistant"]
    assert [message.content for message in pair.rejected.messages] == ["bad"]


async def test_the_best_step_is_paired_with_each_worse_one() -> None:
    journal, ids = await family(["a"], ["b"], ["c"], ["b"])
    values = dict(zip(ids, (0.0, 1.0, 0.25, 0.5), strict=True))
    found = [
        (pair.chosen.messages[0].content, pair.rejected.messages[0].content, pair.chosen.value)
        for pair in find_pairs(journal, values=values)
    ]
    assert sorted(found) == [("b", "a", 0.75), ("b", "c", 0.75)]
    assert len(list(find_pairs(journal, values=values, min_gap=0.5))) == 1


async def test_the_reward_of_a_check_decides() -> None:
    journal = open_journal("memory:")
    task = load_task("files:csv_sum-0002")
    oracle = oracle_for(task)
    assert oracle is not None
    good = await Agent(oracle, journal=journal).run(task)
    at = find_result(journal, good.run_id)
    bad = await Agent(ScriptedModel(["Answer: 1"]), journal=journal).fork(good.run_id, at=at)
    (pair,) = find_pairs(journal)
    assert (pair.chosen.run_id, pair.chosen.value) == (good.run_id, 1.0)
    assert (pair.rejected.run_id, pair.rejected.value) == (bad.run_id, 0.0)


async def test_runs_that_are_no_forks_or_have_no_reward_make_no_pair() -> None:
    journal, ids = await family(["a"], ["b"])
    told: dict[str, str] = {}
    assert list(find_pairs(journal, on_skip=told.__setitem__)) == []
    assert told == dict.fromkeys(ids, "it has no reward")
    values = dict.fromkeys(ids, 1.0)
    assert list(find_pairs(journal, values=values)) == []
    other, ids = open_journal("memory:"), []
    for text in ("a", "b"):
        ids.append((await Agent(ScriptedModel([text]), journal=other).run("go")).run_id)
    assert list(find_pairs(other, values={ids[0]: 1.0, ids[1]: 0.0})) == []


def row(run_id: str, *messages: Message, tools_hash: str = "h") -> Row:
    return Row(messages, example().tools, Lineage(run_id, "m", "completed", tools_hash))


def test_only_what_the_assistant_says_is_compared() -> None:
    ask, made = Message(Role.USER, "go"), Message(Role.ASSISTANT, "", (ToolCall("c1", "read", "{}"),))
    answer = Message(Role.ASSISTANT, "done")
    values = {"a": 1.0, "b": 0.0}
    by_user = [row("a", ask, answer), row("b", Message(Role.USER, "other"), answer)]
    by_result = [
        row(name, ask, made, Message(Role.TOOL, name, (), "c1", "read"), answer) for name in ("a", "b")
    ]
    by_tools = [row("a", ask, answer), row("b", ask, Message(Role.ASSISTANT, "no"), tools_hash="other")]
    for rows in (by_user, by_result, by_tools):
        assert list(pair_rows(rows, values=values)) == []


def test_the_ids_of_calls_do_not_part_runs() -> None:
    ask, end = Message(Role.USER, "go"), [Message(Role.ASSISTANT, text) for text in ("yes", "no")]
    rows = [
        row(
            name,
            ask,
            Message(Role.ASSISTANT, "", (ToolCall(f"id-{name}", "read", "{}"),)),
            Message(Role.TOOL, "x", (), f"id-{name}", "read"),
            last,
        )
        for name, last in zip(("a", "b"), end, strict=True)
    ]
    (pair,) = pair_rows(rows, values={"a": 1.0, "b": 0.0})
    assert len(pair.prompt) == 3
    assert pair.chosen.messages == (end[0],)


@pytest.mark.full
@pytest.mark.xdist_group("training")
def test_trl_prepares_a_pair() -> None:
    data = pytest.importorskip("trl.data_utils")
    from tests.export.test_training import make_tokenizer

    other = replace(example("b"), messages=(*example().messages[:5], Message(Role.ASSISTANT, "no")))
    (pair,) = pair_rows([example("a"), other], values={"a": 1.0, "b": 0.0})
    raw = json.loads(write_pair(pair))
    lineage = raw.pop("lineage")
    assert lineage["message"] == 5
    found = data.maybe_apply_chat_template(raw, make_tokenizer("qwen2_5"), tools=raw["tools"])
    assert found["prompt"].endswith("<|im_start|>assistant\n")
    assert '<tool_call>\n{"name": "read", "arguments": {"a": 1}}\n</tool_call>' in found["chosen"]
    assert found["rejected"].startswith("no<|im_end|>")
    unpaired = data._unpair_row({key: [raw[key]] for key in ("prompt", "chosen", "rejected")})
    assert unpaired["label"] == [True, False]
