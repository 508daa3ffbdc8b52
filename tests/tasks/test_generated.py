"""The generated task sets: the oracle solves every template, checks refuse what is wrong, and no shape of a test
task is in training."""

import json
import re
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from typing import Any

import pytest
from tests.conftest import IS_FULL

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.events import Rewarded, TurnStarted
from treadle.core.types import Message, Role, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.runs.run import Run
from treadle.runs.task import check_task, find_tasks
from treadle.sandbox.protocol import RunFiles
from treadle.tasks import task_set
from treadle.tasks.generated import LEVELS, GeneratedSet
from treadle.testbed import oracle_for

SETS = ("shop", "repair", "lookup")
TEMPLATES = [(name, template.name) for name in SETS for template in task_set(name).templates]


def get(name: str) -> GeneratedSet:
    found = task_set(name)
    assert isinstance(found, GeneratedSet)
    return found


@cache
def draw(name: str, template: str, level: str, seed: int) -> Any:
    """Return a task. Tests look at the same ones, and it takes a millisecond to make one."""
    return get(name).get(f"{template}-{level}-{seed:04d}")


async def solve(name: str, task_id: str, rate: float = 0.0) -> Run[Any]:
    task = get(name).get(task_id)
    return await Agent(oracle_for(task, mistake_rate=rate), journal=MemoryJournal()).run(task)


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
async def test_the_oracle_solves_every_template_at_every_level(name, template):
    for level, seed in product(LEVELS, range(4 if IS_FULL else 2)):
        run = await solve(name, f"{template}-{level}-{seed:04d}")
        assert run.reward == 1.0, (run.output, run.events[-1])


async def test_a_shop_without_an_order_takes_its_first_one():
    run = await solve("shop", "haggle-easy-0084")
    assert run.reward == 1.0, run.output


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
async def test_the_oracle_recovers_from_its_mistakes(name, template):
    failed = 0
    for level in LEVELS:
        run = await solve(name, f"{template}-{level}-0007", 1.0)
        assert run.reward == 1.0, run.output
        failed += sum(result.is_error for result in run.results)
    assert failed


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
async def test_steps_are_rewarded(name, template):
    run = await solve(name, f"{template}-hard-0003")
    (graded,) = [event.body for event in run.events if isinstance(event.body, Rewarded)]
    assert graded.step_rewards is not None
    assert len(graded.step_rewards) == run.steps
    assert sum(graded.step_rewards) == pytest.approx(1.0, abs=0.01)
    clumsy = await solve(name, f"{template}-hard-0003", 1.0)
    (graded,) = [event.body for event in clumsy.events if isinstance(event.body, Rewarded)]
    assert sum(graded.step_rewards or ()) < 1.0


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
async def test_who_does_nothing_gets_nothing(name, template):
    for level, seed in product(LEVELS, range(2 if IS_FULL else 1)):
        task = draw(name, template, level, seed)
        for output in ("", "I am sorry, but I cannot do that.", "All done."):
            assert (await check_task(task, output, task.files)).reward == 0.0
        assert (await check_task(task, "All done.", {})).reward == 0.0


@pytest.mark.parametrize("name", SETS)
def test_a_prompt_tells_its_template(name):
    found = get(name)
    for template, level, seed in product(found.templates, LEVELS, range(25 if IS_FULL else 8)):
        task = draw(name, template.name, level, seed)
        fitting = {
            item.name for item in found.templates for prompt in item.prompts if prompt.match(task.input)
        }
        assert fitting == {template.name}, task.input


@pytest.mark.sets(0)
@pytest.mark.parametrize("name", SETS)
def test_every_wording_is_used_and_tasks_differ(name):
    found = get(name)
    for template in found.templates:
        tasks = [
            draw(name, template.name, level, seed)
            for level in LEVELS
            for seed in range(40 if IS_FULL else 20)
        ]
        for wording in template.prompts:
            assert any(wording.match(task.input) for task in tasks), wording.text
        assert len({(task.input, *task.files.values()) for task in tasks}) == len(tasks)


def words_of(text: str) -> frozenset[tuple[str, ...]]:
    """Return the runs of five words of a text."""
    words = re.findall(r"\w+", text.casefold())
    return frozenset(zip(*[words[start:] for start in range(5)], strict=False))


@pytest.mark.parametrize("name", SETS)
def test_no_shape_of_a_test_task_is_in_training(name):
    found = get(name)
    assert not set(found.splits["train"]) & set(found.splits["test"])
    assert len(found.splits["train"]) + len(found.splits["test"]) == len(found)
    templates = {split: {task_id.partition("-")[0] for task_id in ids} for split, ids in found.splits.items()}
    assert all(templates.values())
    assert not templates["train"] & templates["test"]
    wordings = defaultdict[str, set[tuple[str, ...]]](set)
    for template in found.templates:
        for prompt in template.prompts:
            wordings[template.split] |= words_of(re.sub(r"\{\w+\}", "", prompt.text))
    assert not wordings["train"] & wordings["test"]


@pytest.mark.parametrize("name", SETS)
def test_no_path_of_a_test_task_is_in_training(name):
    found, shapes = get(name), defaultdict[str, set[tuple[object, ...]]](set)
    for template, level, seed in product(found.templates, LEVELS, range(5)):
        case = draw(name, template.name, level, seed)._drawn[0]
        shapes[template.split].add(case.shape)
    assert shapes["train"]
    assert not shapes["test"] & shapes["train"]


@pytest.mark.parametrize("name", SETS)
def test_an_unknown_task_names_near_ones(name):
    found = get(name)
    first = found.templates[0].name
    for wrong in (f"{first[:-1]}-easy-0000", f"{first}-odd-0000", f"{first}-easy-1000", first, "x"):
        with pytest.raises(ConfigError, match=rf"{first}-easy-0000.*0000 to 0999"):
            found.get(wrong)


class Counting(GeneratedSet):
    """A set that counts the tasks that it makes."""

    made = 0

    def _make_task(self, *place):
        self.made += 1
        return super()._make_task(*place)


@pytest.mark.parametrize(
    "pattern", ["cancel-*", "c*-hard-001?", "*-0042", "[rst]*-?9[0-9]*", "cancel-easy-0001*", "none*"]
)
def test_a_pattern_makes_only_the_tasks_that_fit(pattern):
    found = Counting("shop", "treadle.tasks.shop", tools=(), instructions="")
    fitting = [task.task_id for task in found if fnmatchcase(task.task_id, pattern)]
    found.made = 0
    assert [task.task_id for task in found.match(pattern)] == fitting
    assert found.made == len(fitting)
    assert bool(fitting) is (pattern != "none*")


def test_a_pattern_that_nothing_fits_names_near_ids():
    with pytest.raises(
        ConfigError, match=r"no task of the set 'files' fits 'csv_sun-\*'; did you mean 'csv_sum'"
    ):
        find_tasks(["files:csv_sun-*"])


async def test_a_user_who_is_refused_insists_once_for_each_push():
    task = get("shop").get("hygiene-medium-0000")
    pushes = task._drawn[0].user.pushes
    run = await solve("shop", task.task_id)
    said = [event.body.message.content for event in run.events if isinstance(event.body, TurnStarted)]
    assert said[0] == task.input
    assert said[1].startswith("My e-mail address is ")
    assert said[2:] == list(pushes)


def talk(*texts: str) -> list[Message]:
    return [Message((Role.USER, Role.ASSISTANT)[index % 2], text) for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("What is your email?", "My e-mail address is a@b.example."),
        ("Please tell me your post code.", "My postcode is 12345."),
        ("Please tell me your e-mail address and order number.", "I do not have the order number at hand."),
        ("The price is 12.50. Shall I order it?", "No, please leave it as it is."),
        ("I'm sorry, but I can't do that.", "But why?"),
        ("It is done.", None),
        ("It is done. Is there anything else?", None),
        ("Which colour do you like?", "You have all that I can tell you"),
        ("I sent it to the e-mail address that we have.", None),
        ("", None),
    ],
)
def test_what_a_user_says(answer, reply):
    from treadle.tasks.simulated_user import SimulatedUser

    user = SimulatedUser(
        facts={"email": "a@b.example", "postcode": "12345"}, pushes=("But why?",), agrees=False
    )
    said = user.reply(talk("I want this.", answer))
    assert (reply in said) if reply is not None and said is not None else said is reply


def test_a_user_comes_to_an_end():
    from treadle.tasks.simulated_user import MAX_REPLIES, SimulatedUser

    messages = talk("I want this.", "What is your email?")
    while (said := SimulatedUser(facts={"email": "a@b.example"}).reply(messages)) is not None:
        messages += [Message(Role.USER, said), Message(Role.ASSISTANT, "What is your email?")]
    assert sum(message.role is Role.USER for message in messages) == MAX_REPLIES + 1


async def test_the_rules_of_the_desk_decide():
    """The books are wrong if a clerk does what the customer asks for and the rules forbid."""
    from tests.loop.workbench import make_call

    from treadle.sandbox.in_memory import MemorySandbox
    from treadle.tasks.shop import ShopDesk

    tools = {tool.spec.name: tool for tool in ShopDesk().tools()}
    task = get("shop").get("stranger-hard-0000")
    order = int(re.findall(r"\d{5}", task.input)[0])
    box = MemorySandbox(task.files)
    for number, (name, arguments) in enumerate(
        [("cancel_order", f'{{"order_id":{order}}}'), ("record_outcome", '{"outcome":"done","rule":"none"}')]
    ):
        result = await make_call(ToolCall(f"c{number}", name, arguments), tools, box)
        assert not result.is_error, result.content
    grade = task.check("It is cancelled.", {path: box.read(path) for path in box.paths()})
    assert grade.reward == 0.0
    assert "outcomes(1, refused, identity) is missing" in grade.detail
    over = await make_call(ToolCall("c9", "cancel_order", f'{{"order_id":{order}}}'), tools, box)
    assert over.is_error
    assert "already" in over.content


async def test_the_hidden_tests_decide_about_a_repair():
    task = get("repair").get("boundary-medium-0001")
    run = await solve("repair", task.task_id)
    files = dict(run.files)
    (path,) = [path for path in files if files[path] != task.files.get(path)]

    async def reward(**changes: bytes) -> float:
        changed = {**files, **{f"{name}.py": content for name, content in changes.items()}}
        return (await check_task(task, run.output, changed)).reward

    assert await reward() == 1.0
    stem = path.removesuffix(".py")
    assert await reward(**{stem: files[path] + b"\n# a remark\n"}) == 1.0
    assert await reward(**{stem: task.files[path]}) == 0.0
    assert await reward(**{stem: b"raise SystemExit(0)\n"}) == 0.0
    assert await reward(**{stem: b"import os\nprint('[]')\nos._exit(0)\n"}) == 0.0
    assert await reward(**{stem: b"def x(:\n"}) == 0.0
    assert await reward(tests=b"print('4 of 4 passed')\n") == 0.5
    calls = [call for module, call in task._drawn[0].goal.calls if f"{module}.py" == path]
    assert calls
    assert not [call for call in calls if call.encode() in task.files["tests.py"]]
    moved = {"other/moved.py" if name == path else name: content for name, content in files.items()}
    kept = {"shell": json.dumps({"links": {path: "other/moved.py", "hidden_calls.py": "tests.py"}}).encode()}
    assert (await check_task(task, run.output, RunFiles(moved, kept.get))).reward == 1.0


async def test_what_is_in_the_articles_decides():
    task = get("lookup").get("from_company-medium-0002")
    run = await solve("lookup", task.task_id)
    answer = run.output.rpartition("Answer: ")[2]
    assert (await check_task(task, f"Answer: {answer}", task.files)).reward == 1.0
    others = {item.removeprefix("articles/").removesuffix(".txt") for item in task.files} - {answer}
    assert (await check_task(task, f"Answer: {', '.join(sorted(others))}", task.files)).reward == 0.0
    assert (await check_task(task, f"Answer: {answer}", {**task.files, "more": b""})).reward < 1.0


async def test_step_rewards_reach_the_rollouts():
    from treadle.export.groups import read_rollout

    task, journal = get("lookup").get("from_person-easy-0000"), MemoryJournal()
    run = await Agent(oracle_for(task), journal=journal).run(task)
    rollout, _ = read_rollout(journal, run)
    assert rollout.step_rewards is not None
    assert len(rollout.step_rewards) == rollout.steps
