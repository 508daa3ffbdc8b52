"""Prompts are matched as they were rendered; draws are reproducible; task sets are found by name."""

import sys

import pytest

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.tasks import task_set
from treadle.tasks.draws import Draw, Wording, fraction, pick
from treadle.tasks.files import TASK_SET
from treadle.tasks.files.file_calls import edit_line
from treadle.tasks.files.materials import cents, money


def test_a_prompt_is_read_back():
    prompt = Wording("Put {what} into {where} (yes, {where}?)")
    values = {"what": "a+b*c", "where": "x.txt"}
    assert prompt.fields == values.keys()
    assert prompt.match(prompt.render(values)) == values
    assert prompt.match("Put a into b (yes, c?)") is None
    assert prompt.match(prompt.render(values) + " ") is None
    assert prompt.match("Put  into b (yes, b?)") is None


def test_draws_repeat_and_are_even():
    one, two, other = Draw("a"), Draw("a"), Draw("b")
    first = [one.between(1, 6) for _ in range(600)]
    assert first == [two.between(1, 6) for _ in range(600)]
    assert first != [other.between(1, 6) for _ in range(600)]
    assert all(60 < first.count(number) < 140 for number in range(1, 7))
    assert sorted(one.shuffled(range(9))) == list(range(9))
    assert len(set(one.sample("abcdef", 4))) == 4
    assert len(set(one.distinct(1, 40, 20))) == 20
    assert [fraction("x", 1), pick("abc", "k")] == [fraction("x", 1), pick("abc", "k")]
    assert 0.45 < sum([fraction("y", n) for n in range(900)]) / 900 < 0.55


@pytest.mark.parametrize("amount", [0, 5, 99, 100, -5, -99, -100, 123456, -123456])
def test_money_is_read_back(amount):
    assert cents(money(amount)) == amount


def test_amounts_of_people():
    assert [cents(text) for text in ("1,204.5", "12", "-3.20", "+7.05")] == [120450, 1200, -320, 705]


def test_an_edited_line_is_unique():
    for text in ("key: a\nold_key: a", "old_key: a\nkey: a\n", "key: a\nkey: a", "x\nkey: a\n"):
        lines = text.split("\n")
        for index, line in enumerate(lines):
            if line != "key: a":
                continue
            call = edit_line("f", text, index, "key: b")
            assert text.count(call.arguments["old_text"]) == 1
            changed = text.replace(call.arguments["old_text"], call.arguments["new_text"])
            assert changed.split("\n") == [*lines[:index], "key: b", *lines[index + 1 :]]


def test_a_set_of_a_package_is_found(tmp_path, monkeypatch):
    package = tmp_path / "chores-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: chores\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[treadle.tasks]\nchores = chores_of_a_test:make\nbroken = chores_of_a_test:gone\nfiles = no:no\n"
    )
    (tmp_path / "chores_of_a_test.py").write_text(
        "def make():\n    return [Task]\n\n\nclass Task:\n    task_id = 'sweep'\n    check = print\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [task.task_id for task in task_set("chores")] == ["sweep"]
    with pytest.raises(ConfigError, match=r"'broken' \(chores_of_a_test:gone\) cannot be loaded"):
        task_set("broken")
    with pytest.raises(ConfigError, match="did you mean 'chores'"):
        task_set("chore")


@pytest.mark.parametrize("is_first", [True, False])
def test_the_built_in_set_wins_over_a_package_of_the_same_name(tmp_path, monkeypatch, is_first):
    package = tmp_path / "chores-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: chores\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[treadle.tasks]\nfiles = no:no\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path] if is_first else [*sys.path, str(tmp_path)])
    assert Registry("task set", "treadle.tasks", {}).load("files") is TASK_SET
