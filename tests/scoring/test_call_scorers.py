"""The scorers of calls, answers, files, rules and efficiency, on real runs."""

from typing import Any

import pytest
from msgspec.structs import replace

from treadle import Agent, Run, ScriptedModel, load_task, tool
from treadle.core.errors import ConfigError
from treadle.core.events import Rewarded
from treadle.core.types import Completion, Json, Request
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.models.protocol import Watch
from treadle.models.wrappers.wrapper import Wrapper
from treadle.runs.task import SimpleTask
from treadle.scoring.grade import Graded, grade
from treadle.scoring.registry import RewardSpec, make_scorers
from treadle.testbed import oracle_for


@tool(effect="pure")
def weather(city: str, days: int = 1) -> str:
    """Return the weather."""
    if city == "Atlantis":
        raise ValueError("there is no such city")
    return f"sunny in {city}"


@tool(effect="once")
def book(hotel: str) -> str:
    """Book a hotel."""
    return f"booked {hotel}"


async def run_steps(
    *steps: Any, expected: Json = None, answer: str = "done"
) -> tuple[MemoryJournal, Run[Any]]:
    journal = MemoryJournal()
    agent = Agent(ScriptedModel([*steps, answer]), tools=[weather, book], journal=journal)
    return journal, await agent.run("go", metadata={} if expected is None else {"expected": expected})


async def grade_with(journal: MemoryJournal, run: Run[Any], scorer: str, **settings: Any) -> Graded:
    return await grade(journal, run.run_id, make_scorers([RewardSpec("it", scorer, 1.0, settings)]))


async def score(
    *steps: Any, scorer: str, expected: Json = None, answer: str = "done", **settings: Any
) -> float | None:
    journal, run = await run_steps(*steps, expected=expected, answer=answer)
    return (await grade_with(journal, run, scorer, **settings)).rewards.get("it")


def calls(*wanted: tuple[str, dict[str, Json]]) -> Json:
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in wanted]}


ROME, OSLO, BOOK = ("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"}), ("book", {"hotel": "Ritz"})


def made(*wanted: tuple[str, dict[str, Json]]) -> Any:
    return [call(name, arguments) for name, arguments in wanted]


@pytest.mark.parametrize(
    ("steps", "expected", "settings", "value"),
    [
        ([made(ROME)], calls(ROME), {}, 1),
        ([[call("weather", {"city": "Rome", "days": "1"})]], calls(ROME), {}, 1),
        ([made(OSLO)], calls(ROME), {}, 0),
        ([made(ROME, OSLO)], calls(OSLO, ROME), {}, 1),
        ([made(ROME), made(OSLO)], calls(OSLO, ROME), {"ordered": True}, 0),
        ([made(ROME, OSLO)], calls(ROME), {}, 0),
        ([made(ROME, OSLO)], calls(ROME), {"partial": True}, 2 / 3),
        ([made(ROME)], calls(ROME, OSLO), {"partial": True}, 2 / 3),
        ([], calls(), {}, 1),
        ([made(ROME)], calls(), {}, 0),
        ([[call("weather", {"city": "ROME"})]], calls(ROME), {"ignore_case": True}, 1),
        ([made(ROME)], None, {}, None),
    ],
)
async def test_calls(steps: Any, expected: Json, settings: dict[str, Any], value: float | None) -> None:
    found = await score(*steps, scorer="calls", expected=expected, **settings)
    assert found == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("mode", "steps", "value"),
    [
        ("exact", [made(ROME), made(BOOK)], 1),
        ("exact", [made(ROME), made(OSLO), made(BOOK)], 0),
        ("in_order", [made(ROME), made(OSLO), made(BOOK)], 1),
        ("in_order", [made(BOOK), made(ROME)], 0.5),
        ("any_order", [made(BOOK), made(ROME)], 1),
        ("any_order", [made(BOOK)], 0.5),
        ("subset", [made(BOOK)], 1),
        ("subset", [made(BOOK, OSLO)], 0.5),
        ("subset", [made(BOOK), made(BOOK)], 0.5),
    ],
)
async def test_trajectories(mode: str, steps: Any, value: float) -> None:
    assert await score(*steps, scorer="trajectory", expected=calls(ROME, BOOK), mode=mode) == value


async def test_arguments_parallel_abstain_recovers_and_policy() -> None:
    assert await score(made(ROME), [call("weather", {"town": "x"})], scorer="arguments") == 0.5
    assert await score(scorer="arguments") is None
    assert await score(made(ROME, OSLO), scorer="parallel", expected=calls(ROME, OSLO)) == 1
    assert await score(made(ROME), made(OSLO), scorer="parallel", expected=calls(ROME, OSLO)) == 0.5
    assert await score(scorer="abstain", expected=calls()) == 1
    assert await score(made(ROME), scorer="abstain", expected=calls()) == 0
    assert await score(made(ROME), scorer="abstain", expected=calls(ROME)) is None
    lost = [call("weather", {"city": "Atlantis"})]
    assert await score(lost, made(ROME), scorer="recovers") == 1
    assert await score(made(ROME), lost, scorer="recovers") == 0
    assert await score(made(ROME), scorer="recovers") is None
    assert await score(made(ROME), scorer="policy", never=["book*"]) == 1
    assert await score(made(BOOK), scorer="policy", never=["book*"]) == 0
    assert await score(made(BOOK), scorer="policy", first={"book": "weather"}) == 0
    assert await score(lost, made(BOOK), scorer="policy", first={"book": "weather"}) == 0
    assert await score(made(ROME), made(BOOK), scorer="policy", first={"book": "weather"}) == 1
    assert await score(made(ROME), made(ROME), scorer="policy", at_most={"weather": 1}) == 0
    # Calls of one step do not wait for each other.
    assert await score(made(ROME, BOOK), scorer="policy", first={"book": "weather"}) == 0
    assert await score([*lost, *made(ROME)], scorer="recovers") == 0


async def test_a_misspelt_tool_of_a_rule_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    scorers = make_scorers([RewardSpec("it", "policy", 1.0, {"never": ["boook", "elsewhere", "w*"]})])
    for _ in range(2):
        journal, run = await run_steps(made(BOOK))
        assert (await grade(journal, run.run_id, scorers)).rewards == {"it": 1.0}
    (told,) = caplog.messages
    assert "has a rule for the tool 'boook'" in told
    assert told.endswith("does not have; did you mean 'book'?")


async def test_asking() -> None:
    expected: Json = {"missing": ["check_in_date"]}
    assert await score(scorer="asks_when_missing", expected=expected, answer="Which check in date?") == 1
    assert await score(made(BOOK), scorer="asks_when_missing", expected=expected) == 0
    assert await score(scorer="asks_when_missing", expected={"missing": []}, answer="Are you sure?") == 0
    assert await score(scorer="asks_when_missing", expected={"missing": []}) == 1
    assert await score(scorer="asks_when_missing") is None


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        ([["ask", ROME], [BOOK]], 1),
        ([[ROME], ["ask"], [BOOK]], 1),
        ([[BOOK], ["ask"]], 0),
        ([["ask", BOOK]], 0),
        ([[("book", {"hotl": "Ritz"})], ["ask"], [BOOK]], 1),
    ],
)
async def test_asking_comes_before_acting(steps: list[list[Any]], value: float) -> None:
    question = "ask_user", {"question": "Which check in date?"}
    turns = [made(*[question if item == "ask" else item for item in step]) for step in steps]
    journal, expected = MemoryJournal(), {"missing": ["check_in_date"]}
    agent = Agent(
        ScriptedModel([*turns, "done"]),
        tools=[weather, book, "ask"],
        journal=journal,
        asker=lambda question: "tomorrow",
    )
    run = await agent.run("go", metadata={"expected": expected})
    assert (await grade_with(journal, run, "asks_when_missing")).rewards["it"] == value


@pytest.mark.parametrize(
    ("expected", "answer", "settings", "value"),
    [
        ("Paris", "paris.", {}, 1),
        ("Paris", "It is Paris", {}, 0),
        ("Paris", "It is Paris", {"contains": True}, 1),
        ("Paris", "Long words.\nAnswer: **Paris**", {}, 1),
        (1234.5, "It costs $1,234.50", {}, 1),
        (1234.5, "It costs 1,234.50 or 7", {}, 0),
        (1234.5, "It costs 1,234.50 or 7", {"contains": True}, 1),
        (-3, "Answer: −3", {}, 1),
        (["a", "b"], "B", {}, 1),
        (True, "Answer: yes", {}, 1),
    ],
)
async def test_final_answers(expected: Json, answer: str, settings: dict[str, Any], value: float) -> None:
    assert (
        await score(scorer="final_answer", expected={"answer": expected}, answer=answer, **settings) == value
    )


async def test_final_states() -> None:
    wanted = {"a.txt": "one\ntwo", "b.json": '{"x": 1}', "old.txt": None}
    for written, settings, value in (
        ({"a.txt": "one \ntwo\n", "b.json": '{"x":1.0}'}, {}, 1),
        ({"a.txt": "one"}, {}, 1 / 3),
        ({"a.txt": "one\ntwo", "b.json": '{"x": 1}', "c": "x"}, {}, 0),
        ({"a.txt": "one\ntwo", "b.json": '{"x": 1}', "c": "x"}, {"allow_others": True}, 1),
    ):
        journal = MemoryJournal()
        steps = [call("delete_file", {"file_path": "old.txt"})]
        steps += [call("write_file", {"file_path": path, "content": text}) for path, text in written.items()]
        agent = Agent(
            ScriptedModel([steps, "done"]), tools=["files"], journal=journal, files={"old.txt": b"x"}
        )
        run = await agent.run("go", metadata={"expected": {"files": wanted}})
        assert (await grade_with(journal, run, "final_state", **settings)).rewards["it"] == pytest.approx(
            value
        )


@pytest.mark.parametrize("levels", [300, 100_000])
async def test_a_file_that_is_nested_too_deeply_is_a_wrong_one(levels: int) -> None:
    journal, deep = MemoryJournal(), f"{'[' * levels}{']' * levels}"
    steps = [call("write_file", {"file_path": "a.json", "content": deep})]
    run = await Agent(ScriptedModel([steps, "done"]), tools=["files"], journal=journal).run(
        "go", metadata={"expected": {"files": {"a.json": f"{deep} "}}}
    )
    assert (await grade_with(journal, run, "final_state")).rewards["it"] == 0


async def test_efficiency_and_trajectories_are_measured_against_the_oracle() -> None:
    task = load_task("files:csv_sum-0001")
    journal = MemoryJournal()
    best = await Agent(oracle_for(task), journal=journal).run(task)
    assert (await grade_with(journal, best, "efficiency", measures=["steps", "tokens"])).rewards["it"] == 1
    assert (await grade_with(journal, best, "trajectory", mode="exact")).rewards["it"] == 1
    slow = await Agent(oracle_for(task, mistake_rate=0.95), journal=journal).run(task)
    assert slow.steps > best.steps
    found = await grade_with(journal, slow, "efficiency")
    assert found.rewards["it"] == best.steps / slow.steps
    idle = await Agent(ScriptedModel(["no"]), journal=journal).run(task)
    assert (await grade_with(journal, idle, "efficiency")).rewards["it"] == 0
    body = [event.body for event in journal.read(slow.run_id)][-1]
    assert isinstance(body, Rewarded)
    assert body.metrics == {"steps": best.steps / slow.steps}
    assert body.scorer is not None
    assert body.scorer.name == "efficiency"


class Paid(Wrapper):
    """A model whose tokens cost."""

    async def infer(self, request: Request, watch: Watch) -> Completion:
        completion = await self.inner.infer(request, watch)
        return replace(completion, cost_usd=completion.usage.total_tokens * 1e-6)


async def test_costs_are_compared_with_those_of_a_free_oracle() -> None:
    task = load_task("files:csv_sum-0001")
    journal = MemoryJournal()
    best = await Agent(oracle_for(task), journal=journal).run(task)
    slow = await Agent(Paid(oracle_for(task, mistake_rate=0.95)), journal=journal).run(task)
    assert slow.cost_usd
    found = await grade_with(journal, slow, "efficiency", measures=["cost"])
    assert found.rewards["it"] == pytest.approx(best.usage.total_tokens / slow.usage.total_tokens)


async def test_a_task_can_have_its_expectation_and_a_wrong_one_is_named() -> None:
    journal = MemoryJournal()
    task = SimpleTask(task_id="t", input="go", data=calls(ROME), grader=lambda *_: 1.0)
    agent = Agent(ScriptedModel([made(ROME), "done"]), tools=[weather], journal=journal)
    run = await agent.run(task)
    with pytest.raises(Exception, match=r"no task set|is not a task"):
        await grade_with(journal, run, "calls")
    with pytest.raises(Exception, match=r"what is expected of run .* cannot be read: .*'calls'"):
        await score(scorer="calls", expected={"calls": [{"tool": "x"}]})


@pytest.mark.parametrize(
    ("scorer", "settings", "text"),
    [
        ("trajectory", {"mode": "near"}, "give one of exact, in_order"),
        ("policy", {}, "has no rule"),
        ("efficiency", {"measures": ["luck"]}, "give a list of steps"),
    ],
)
def test_wrong_settings_are_named(scorer: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_scorers([RewardSpec("it", scorer, 1.0, settings)])
