"""The task set `files`: its ids, its size, that it is the same everywhere, and that its tasks differ."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import islice

import pytest

from treadle.core.errors import ConfigError
from treadle.tasks import load_task, task_set
from treadle.tasks.files import TASK_SET
from treadle.tasks.generated import SEEDS

DIGEST = "f83f196bbda0a7fe0287abd59315c0f7f9d0e5843fc4247b41d42fcf927e2821"
"""The digest of the first three tasks of each family. Any change to a task changes it, and makes earlier
measurements on the set incomparable."""


def digest(task) -> str:
    files = {path: content.decode() for path, content in task.files.items()}
    return hashlib.sha256(json.dumps([task.task_id, task.input, files]).encode()).hexdigest()


def digest_of_first(count: int) -> str:
    parts = [digest(task) for task in islice(TASK_SET, count * len(TASK_SET.templates))]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def test_has_ten_thousand_tasks_and_mixes_the_families():
    ids = [task.task_id for task in TASK_SET]
    assert len(ids) == len(set(ids)) == len(TASK_SET) == len(TASK_SET.templates) * SEEDS >= 10_000
    head = [task_id.rpartition("-")[0] for task_id in ids[: len(TASK_SET.templates)]]
    assert sorted(head) == sorted(family.name for family in TASK_SET.templates)
    assert len(TASK_SET.templates) >= 12


def test_tasks_are_what_they_were():
    assert digest_of_first(3) == DIGEST


@pytest.mark.sets(0)
def test_a_task_does_not_depend_on_the_process():
    code = (
        "from treadle.tasks import load_task; import hashlib\n"
        "task = load_task('files:json_merge-0123')\n"
        "print(hashlib.sha256(repr((task.input, list(task.files.items()))).encode()).hexdigest())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    task = load_task("files:json_merge-0123")
    here = hashlib.sha256(repr((task.input, list(task.files.items()))).encode()).hexdigest()
    assert runs == {f"{here}\n".encode()}


def check_differing(seeds: range) -> None:
    for family in TASK_SET.templates:
        made = [TASK_SET.get(f"{family.name}-{seed:04d}") for seed in seeds]
        assert len({digest(task) for task in made}) == len(made)
        cases = [task._drawn[0] for task in made]
        outcomes = {repr((case.goal.expected, case.goal.changes)) for case in cases}
        assert len(outcomes) >= 0.97 * len(made), family.name
        answers = {repr(case.goal.expected) for case in cases}
        assert len(answers) >= 0.6 * len(made), family.name
        for case in cases:
            assert len(case.files) >= 3, family.name
            changes = {path: text and text.encode() for path, text in case.goal.changes.items()}
            assert all(case.files.get(path) != content for path, content in changes.items())
            assert case.files != changes


def test_tasks_differ_and_ask_for_something():
    check_differing(range(60))


@pytest.mark.full
def test_all_tasks_differ():
    check_differing(range(SEEDS))
    assert len({digest(task) for task in TASK_SET}) == len(TASK_SET)


def test_a_prompt_tells_its_family():
    for task in islice(TASK_SET, 20 * len(TASK_SET.templates)):
        found = {
            family.name
            for family in TASK_SET.templates
            for wording in family.prompts
            if wording.match(task.input)
        }
        assert found == {task.task_id.rpartition("-")[0]}


def test_every_wording_is_used():
    for family in TASK_SET.templates:
        prompts = [TASK_SET.get(f"{family.name}-{seed:04d}").input for seed in range(60)]
        for wording in family.prompts:
            assert any(wording.match(prompt) for prompt in prompts), wording.text


def test_what_a_task_says_of_itself():
    task = load_task("files:csv_sum-0042")
    assert (task.task_set, task.task_id, task.seed, task.tools) == ("files", "csv_sum-0042", 42, ("files",))
    assert task.instructions is not None
    assert "Answer: " in task.instructions


@pytest.mark.parametrize(
    ("ref", "near"),
    [
        ("files:csv_sun-0042", "csv_sum-0042"),
        ("files:csv_sum-1000", "csv_sum-0000"),
        ("files:csv_sum-42", "csv_sum-0000"),
        ("files:csv_sum-00a1", "csv_sum-0000"),
        ("files:csv_sum", "csv_sum-0000"),
        ("files:csv_sum-００４２", "csv_sum-0000"),
        ("fils:csv_sum-0042", "files"),
        ("files", "SET:ID"),
        (":csv_sum-0042", "SET:ID"),
        ("files:", "SET:ID"),
    ],
)
def test_an_unknown_task_names_near_ones(ref, near):
    with pytest.raises(ConfigError, match=near):
        load_task(ref)


def test_a_set_comes_by_its_name():
    assert task_set("files") is TASK_SET
    with pytest.raises(ConfigError, match=r"'nothing'.*files"):
        task_set("nothing")
