"""The oracle solves every family of tasks from what it observes, whatever goes wrong."""

import re
from decimal import Decimal

import pytest

from treadle.core.types import Message, Role
from treadle.tasks.files import TASK_SET, find_solver
from treadle.tasks.generated import SEEDS, GeneratedTask
from treadle.testbed import OracleModel, oracle_for

NAMES = [family.name for family in TASK_SET.templates]


def tasks(name: str, count: int, first: int = 0) -> list[GeneratedTask]:
    return [TASK_SET.get(f"{name}-{seed:04d}") for seed in range(first, first + count)]


def oracle(rate: float = 0.0) -> OracleModel:
    return OracleModel(find_solver, mistake_rate=rate)


def errors_of(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.is_error]


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
async def test_solves_every_family(play, name, rate):
    failures = steps = 0
    for task in tasks(name, 30):
        messages, files = await play(task, oracle_for(task, mistake_rate=rate))
        grade = task.check(messages[-1].content, files)
        assert grade.reward == 1.0, (task.task_id, grade.detail, messages[-1].content)
        failures += len(errors_of(messages))
        steps += sum(message.role is Role.ASSISTANT for message in messages)
    assert 3 <= steps / 30 <= 13
    assert (failures > 0) is (rate > 0)


@pytest.mark.full
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", NAMES)
async def test_solves_the_whole_set(play, name, rate):
    for task in tasks(name, SEEDS):
        messages, files = await play(task, oracle_for(task, mistake_rate=rate))
        grade = task.check(messages[-1].content, files)
        assert grade.reward == 1.0, (task.task_id, grade.detail, messages[-1].content)


@pytest.mark.parametrize("name", NAMES)
async def test_solves_with_a_mistake_at_every_step_and_no_error_flags(play, name):
    for task in tasks(name, 6, 40):
        messages, files = await play(task, oracle(1.0), is_flagged=False)
        assert task.check(messages[-1].content, files).reward == 1.0


@pytest.mark.parametrize("is_flagged", [True, False])
@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("name", NAMES)
async def test_looks_again_when_an_outcome_is_lost(play, lose_outcomes, name, takes_effect, is_flagged):
    for task in tasks(name, 4, 80):
        doubt = lose_outcomes(takes_effect=takes_effect, is_flagged=is_flagged)
        messages, files = await play(task, oracle(), doubt=doubt, is_flagged=is_flagged)
        assert task.check(messages[-1].content, files).reward == 1.0, task.task_id
        lost = [m for m in messages if m.role is Role.TOOL and m.content.startswith("The outcome")]
        assert len(lost) == len(doubt.lost)


@pytest.mark.parametrize("name", NAMES)
async def test_a_fresh_model_at_every_step_does_the_same(play, name):
    task = TASK_SET.get(f"{name}-0007")
    once, _ = await play(task, oracle(0.4))
    again, _ = await play(task, lambda: oracle(0.4))
    assert once == again


def raise_digits(path: str, content: bytes) -> bytes:
    return re.sub(rb"[1-8](?=\b)", lambda match: b"%d" % (int(match[0]) + 1), content)


def cut_in_half(path: str, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return content if path.endswith(".json") else b"".join(lines[: (len(lines) + 1) // 2])


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_in_the_files_decides(play, name):
    """The prompt is the same but the files differ, so the outcome must differ."""
    changed = 0
    for task in tasks(name, 8, 20):
        messages, files = await play(task, oracle())
        written = [path for path in task.files | files if files.get(path) != task.files.get(path)]
        outcomes = []
        for change in (raise_digits, cut_in_half):
            other = {path: change(path, content) for path, content in task.files.items()}
            other_messages, other_files = await play(task, oracle(), files=other)
            answer = other_messages[-1].content.rpartition("Answer: ")[2]
            outcomes.append((answer, [other_files.get(path) for path in written]))
        right = messages[-1].content.rpartition("Answer: ")[2], [files.get(path) for path in written]
        changed += any(outcome != right for outcome in outcomes)
    assert changed >= 4


async def test_the_sum_follows_the_file(play):
    for task in tasks("csv_sum", 10):
        messages, _ = await play(task, oracle())
        values = next(v for f in TASK_SET.templates for p in f.prompts if (v := p.match(task.input)))
        path = next(path for path in task.files if path.startswith(values["folder"] + "/"))
        head = task.files[path].decode().partition("\n")[0]
        delimiter = ";" if ";" in head else ","
        cells = {values["key"]: values["value"], values["column"]: "1000.25"}
        row = delimiter.join([cells.get(name, "x") for name in head.split(delimiter)])
        more = {**task.files, path: task.files[path] + row.encode() + b"\n"}
        later, _ = await play(task, oracle(), files=more)
        before, after = [Decimal(item[-1].content.rpartition(": ")[2]) for item in (messages, later)]
        assert after - before == Decimal("1000.25")


async def test_the_chain_follows_the_note(play):
    for task in tasks("pointer_chase", 10):
        start = re.search(r"\w+/\w+\.txt", task.input)[0]
        ended = re.sub(rb"Go on with \S+\.\n", b"This is the last one.\n", task.files[start])
        messages, _ = await play(task, oracle(), files={**task.files, start: ended})
        stop = re.search(r"Stop: (\w+)", task.files[start].decode())[1]
        assert messages[-1].content.endswith(f"Answer: {stop}")


async def test_a_file_that_is_not_as_said_is_no_crash(play):
    for name in NAMES:
        task = TASK_SET.get(f"{name}-0003")
        messages, _ = await play(task, oracle(), files=dict.fromkeys(task.files, b"?"))
        assert messages[-1].content
