"""Tasks of the Berkeley Function Calling Leaderboard: its data, its verdicts, its classes."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tasks.bfcl_agreement import compare

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Message, Role, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import ScriptedModel
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tasks.foreign.bfcl_set import BfclTools, open_bfcl
from treadle.tasks.foreign.bfcl_worlds import BfclWorld, read_call, write_call
from treadle.testbed import oracle_for

needs_package = pytest.mark.skipif(
    find_spec("bfcl_eval") is None or find_spec("mpmath") is None,
    reason="it needs bfcl-eval (pip install --no-deps bfcl-eval mpmath)",
)
PLAY = {
    "name": "music.play",
    "description": "Play a song.",
    "parameters": {
        "type": "dict",
        "properties": {
            "song": {"type": "string"},
            "volume": {"type": "float"},
            "times": {"type": "integer"},
            "options": {"type": "dict", "properties": {"tags": {"type": "tuple", "items": {"type": "any"}}}},
        },
        "required": ["song"],
    },
}
TRUTH = [
    {
        "music.play": {
            "song": ["Let it be", "Yesterday"],
            "volume": [3, ""],
            "times": ["", 2],
            "options": ["", {"tags": [["a"], ["b"]], "mode": ["", "x"]}],
        }
    }
]


def write_data(place, name="mine", entries=(), truth=TRUTH):
    user = [[{"role": "user", "content": "Play it."}]]
    lines = entries or [{"id": "mine_0", "question": user, "function": [PLAY]}]
    (place / "possible_answer").mkdir(exist_ok=True)
    (place / f"BFCL_v4_{name}.json").write_text("\n".join(map(json.dumps, lines)))
    kept = [json.dumps({"id": item["id"], "ground_truth": truth}) for item in lines]
    (place / "possible_answer" / f"BFCL_v4_{name}.json").write_text("\n".join(kept))
    return str(place / f"BFCL_v4_{name}.json")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"song": "Let it be"}, None),
        ({"song": "let-it be."}, None),
        ({"song": "Yesterday", "volume": 3.0, "times": 2}, None),
        ({"song": "Yesterday", "volume": 3}, None),
        ({"song": "Yesterday", "options": {"tags": ["b"]}}, None),
        ({"song": "Yesterday", "options": {"tags": ["b"], "mode": "x"}}, None),
        ({"song": "Yesterday", "times": 2.0}, "argument 'times' of 'music_play' is 2.0 in place of 2"),
        ({"song": "Yesterday", "times": "2"}, "is '2' in place of 2"),
        ({"song": "Yesterday", "times": None}, "is None in place of 2"),
        ({"song": "Help"}, "is 'Help' in place of 'Let it be'"),
        ({"song": "Yesterday", "options": {}}, "argument 'options'"),
        ({"song": "Yesterday", "key": "c"}, "has the argument 'key'"),
        ({"volume": 3}, "argument 'song' of 'music_play' is missing"),
        (None, "the arguments of 'music_play' are not an object"),
    ],
)
def test_an_answer_is_graded_as_the_leaderboard_does(tmp_path, arguments, fault):
    grade = open_bfcl(write_data(tmp_path)).get("mine_0").grade_calls([("music_play", arguments)])
    assert grade.reward == (fault is None)
    assert fault is None or fault in grade.detail


async def test_only_the_first_answer_counts_and_no_call_is_run(tmp_path):
    path = write_data(tmp_path)
    task = open_bfcl(path).get("mine_0")
    tools = BfclTools(f"{path}:mine_0")
    assert tools.tools()[0].spec.parameters["properties"]["options"] == {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {}}},
    }
    wrong, right = [
        Message(Role.ASSISTANT, tool_calls=(ToolCall(song, "music_play", json.dumps({"song": song})),))
        for song in ("Help", "Yesterday")
    ]
    for messages, reward in (([right, "Done."], 1.0), ([wrong, right, "Done."], 0.0), (["I cannot."], 0.0)):
        made = await Agent(ScriptedModel(messages), tools=[tools], journal=MemoryJournal()).run("Play it.")
        assert task.check_transcript(list(made.state.transcript)).reward == reward


def test_irrelevance_and_relevance(tmp_path):
    for name, rewards in (("live_irrelevance", (1.0, 0.0)), ("live_relevance", (0.0, 1.0))):
        task = open_bfcl(write_data(tmp_path, name)).get("mine_0")
        assert (task.grade_calls([]).reward, task.grade_calls([("music_play", {})]).reward) == rewards


def test_what_cannot_be_run_says_why(tmp_path, monkeypatch, caplog):
    write_data(tmp_path, "simple_java")
    with pytest.raises(ConfigError, match="cannot be run here: its values are texts in the syntax of Java"):
        open_bfcl(str(tmp_path / "BFCL_v4_simple_java.json"))
    talk = [[{"role": role, "content": "x"} for role in ("user", "assistant", "user")]]
    path = write_data(tmp_path, "talk", [{"id": "t", "question": talk, "function": [PLAY]}])
    assert len(open_bfcl(path)) == 0
    with pytest.raises(ConfigError, match="its conversation has earlier answers"):
        open_bfcl(path).get("t")
    plain = {"question": [[{"role": "user", "content": "x"}]], "function": [PLAY]}
    rows = [
        {"id": "mine_0", **plain},
        {"id": "no_answer", **plain},
        {"id": "no_question", "function": [PLAY]},
    ]
    path = write_data(tmp_path, "partly", rows)
    answers = tmp_path / "possible_answer" / Path(path).name
    answers.write_text(answers.read_text().splitlines()[0])
    partly = open_bfcl(path)
    assert [task.task_id for task in partly] == ["mine_0"]
    assert "1 of the 3 tasks of" in caplog.text
    assert "(such as 'no_answer'): it has no possible answer" in caplog.text
    with pytest.raises(ConfigError, match="no_answer cannot be run here: it has no possible answer"):
        partly.get("no_answer")
    with pytest.raises(ConfigError, match="has several lines with the id 'mine_0'"):
        open_bfcl(write_data(tmp_path, "twins", [rows[0], rows[0]]))
    with pytest.raises(ConfigError, match="has no task 'mine_1'; did you mean 'mine_0'"):
        open_bfcl(write_data(tmp_path)).get("mine_1")
    (tmp_path / "BFCL_v4_bad.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as data of BFCL"):
        open_bfcl(str(tmp_path / "BFCL_v4_bad.json"))
    lost = write_data(tmp_path, "lost")
    (tmp_path / "possible_answer" / lost.rpartition("/")[2]).unlink()
    for place in (lost, str(tmp_path / "BFCL_v4_none.json")):
        with pytest.raises(
            ConfigError, match=r"there is no file .*; the data of BFCL are BFCL_v4_NAME\.json"
        ):
            open_bfcl(place).get("mine_0")


def test_calls_in_the_syntax_of_python():
    assert read_call("f('x', b=[1, None])", {"f": ["a", "b"]}) == ("f", {"a": "x", "b": [1, None]})
    assert write_call("f", {"a": "it's", "b": True}) == 'f(a="it\'s", b=True)'
    for name, arguments in (("f(", {}), ("f", {"a b": 1}), ("f", {"x=1)#": 1})):
        with pytest.raises(ToolError, match="cannot be called"):
            write_call(name, arguments)


@needs_package
def test_its_own_checker_agrees():
    found = list(compare(500))
    wrong = [pair[3].task_id for pair in found if pair[1] != pair[2]]
    assert len(found) > 2_800
    assert len(wrong) <= 0.002 * len(found), wrong


@needs_package
@pytest.mark.parametrize("category", ["multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context"])
async def test_the_calls_of_its_data_solve_its_tasks_and_no_others(category):
    for task in list(open_bfcl(category))[:3]:
        tools = BfclTools(f"{category}:{task.task_id}")
        for model, reward in ((oracle_for(task), 1.0), (ScriptedModel(["No."] * 9), 0.0)):
            made = await Agent(model, tools=[tools], journal=MemoryJournal()).run(task)
            assert made.reward == reward, (task.task_id, made)


@needs_package
async def test_a_world_goes_on_in_another_process():
    task = open_bfcl("multi_turn_base").get("multi_turn_base_0")
    box = MemorySandbox({})
    async with BfclWorld.open(task.entry, box) as world:
        world.call("cd", {"folder": "document"})
    async with BfclWorld.open(task.entry, box) as world:
        assert "final_report.pdf" in world.call("ls", {})
        with pytest.raises(ToolError, match="Error during execution"):
            world.call("ls", {"nonsense": 1})
