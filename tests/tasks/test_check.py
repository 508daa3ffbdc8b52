"""Grading: the reward is full only if the answer and the files are right, whatever text surrounds the answer."""

import pytest

from treadle.tasks.files import TASK_SET
from treadle.tasks.files.grading import Items, Number, grade

NAMES = [family.name for family in TASK_SET.templates]


def solved(name: str, seed: int):
    """Return the task, its correct files and its correct answer, from the case and not from the oracle."""
    task = TASK_SET.get(f"{name}-{seed:04d}")
    case = task._drawn[0].goal
    files = dict(task.files)
    for path, text in case.changes.items():
        if text is None:
            del files[path]
        else:
            files[path] = text.encode()
    expected = case.expected
    answer = expected.value if isinstance(expected, Number) else ", ".join(expected.wanted)
    return task, case, files, answer


@pytest.mark.parametrize("name", NAMES)
def test_right_is_one_and_nothing_is_zero(name):
    for seed in range(12):
        task, case, files, answer = solved(name, seed)
        for output in (
            f"Answer: {answer}",
            f"I looked at everything.\n\n**Answer:** `{answer}`",
            f"Here it is.\nAnswer: {answer}.\n",
            f"It is {answer}.",
        ):
            assert task.check(output, files).reward == 1.0, (task.task_id, output)
        assert task.check("", task.files).reward == 0.0
        assert task.check("I do not know.", task.files).reward == 0.0
        assert task.check("", files).reward < (1.0 if case.changes else 0.01)
        if case.changes:
            assert task.check(f"Answer: {answer}", task.files).reward <= 0.4


@pytest.mark.parametrize("name", NAMES)
def test_a_near_miss_of_the_answer_costs(name):
    for seed in range(12):
        task, case, files, answer = solved(name, seed)
        expected = case.expected
        wrong = [f"not {answer}9", "Answer: 0.001"]
        if isinstance(expected, Number):
            wrong += [f"Answer: {answer}1", f"Answer: -{answer.lstrip('-') or 1}9", f"Answer: 7 or {answer}"]
            wrong.append("It may be " + " or ".join([answer, *map(str, range(20))]))
        else:
            more = next((item for item in expected.others if item not in expected.wanted), None)
            wrong += [f"Answer: {answer}-x", "Answer: " + ", ".join(expected.wanted[1:])]
            if more is not None:
                wrong += [f"Answer: {answer}, {more}", f"Answer: {more}", f"{answer} and {more}"]
        for output in wrong:
            grade_ = task.check(output, files)
            assert grade_.reward < 1.0, (task.task_id, output)
            assert "answer" in grade_.detail


@pytest.mark.parametrize("name", NAMES)
def test_a_near_miss_in_the_files_costs(name):
    for seed in range(12):
        task, case, files, answer = solved(name, seed)
        output = f"Answer: {answer}"
        for path, text in case.changes.items():
            kept = {**files, path: task.files.get(path, b"")}
            assert task.check(output, kept).reward < 1.0
            if text is not None:
                assert task.check(output, {**files, path: files[path][:-2] + b"~"}).reward < 1.0
                assert task.check(output, {**files, path: files[path] + b"more"}).reward < 1.0
                without = {other: content for other, content in files.items() if other != path}
                assert task.check(output, without).reward < 1.0
        for path in task.files.keys() - case.changes.keys():
            assert task.check(output, {**files, path: b"x" + files[path]}).reward < 1.0
            without = {other: content for other, content in files.items() if other != path}
            assert task.check(output, without).reward < 1.0
        assert task.check(output, {**files, "scratch.txt": b""}).reward < 1.0


@pytest.mark.parametrize(
    ("value", "output", "is_right"),
    [
        ("1234.50", "Answer: 1,234.50", True),
        ("1234.50", "Answer: $1234.5", True),
        ("1234.50", "Answer: 1234.50 EUR in 12 rows", True),
        ("1234.50", "The total is 1'234.50.", True),
        ("-3.20", "Answer: −3.20", True),
        ("-3.20", "Answer: 3.20", False),
        ("12", "Answer: 120", False),
        ("12", "Answer: 1.12", False),
        ("12", "Answer: 12.5", False),
        ("12", "Answer: v12", False),
        ("12", "answer = **12**", True),
        ("12", "Answer: 11\nNo, that is wrong.\nAnswer: 12", True),
        ("12", "Answer: 12\nNo, that is wrong.\nAnswer: 11", False),
        ("12", "Answer: twelve", False),
        ("0", "Answer:", False),
    ],
)
def test_numbers(value, output, is_right):
    assert (grade(output, Number(value), {}, {}, {}).reward == 1.0) is is_right


@pytest.mark.parametrize(
    ("wanted", "output", "is_right"),
    [
        (("docs/a.md",), "Answer: docs/a.md", True),
        (("docs/a.md",), "Answer: ./docs/a.md.", True),
        (("docs/a.md",), "Answer: /docs/a.md", True),
        (("docs/a.md",), "Answer: `docs/a.md` (renamed)", True),
        (("docs/a.md",), "Answer: old/docs/a.md", False),
        (("docs/a.md",), "Answer: docs/a.md.bak", False),
        (("docs/a.md",), "Answer: docs/a.md/x", False),
        (("docs/a.md",), "Answer: docs/a", False),
        (("docs/a.md",), "Answer: docs/a.md and docs/b.md", False),
        (("docs/a.md", "docs/b.md"), "Answer: docs/b.md, docs/a.md", True),
        (("docs/a.md", "docs/b.md"), "Answer: docs/b.md", False),
        (("limits",), "Answer: Rate Limits", False),
        (("rate limits",), "Answer: Rate Limits", True),
        (("rate limits", "limits"), "Answer: Rate Limits", False),
    ],
)
def test_items(wanted, output, is_right):
    others = ("docs/a.md", "docs/b.md", "limits", "rate limits")
    assert (grade(output, Items(wanted, others), {}, {}, {}).reward == 1.0) is is_right


def test_files_are_compared_by_what_they_say():
    def reward(path: str, text: str | None, content: bytes) -> float:
        return grade("Answer: 1", Number("1"), {}, {path: text}, {path: content}).reward

    assert reward("a.json", '{"a": 1, "b": [1.5]}', b'{"b":[1.50],\n"a":1}\n') == 1.0
    assert reward("a.json", '{"a": 1}', b'{"a": true}') < 1.0
    assert reward("a.json", '{"a": 1}', b'{"a": "1"}') < 1.0
    assert reward("a.json", '{"a": 1}', b'{"a": 1') < 1.0
    assert reward("a.json", "[1, 2]", b"[2, 1]") < 1.0
    assert reward("a.json", "[1, 2]", b"[" * 100_000) < 1.0
    assert reward("a.txt", "one\ntwo\n", b"one  \ntwo") == 1.0
    assert reward("a.txt", "one\ntwo\n", b"one\r\ntwo\r\n") == 1.0
    assert reward("a.txt", "one\ntwo\n", b"one\n\ntwo\n") < 1.0
    assert reward("a.txt", "one\n", b"\xff\xfe") < 1.0
    assert reward("a.txt", None, b"") < 1.0


def test_collateral_never_makes_it_negative():
    after = {f"{index}": b"" for index in range(20)}
    assert grade("Answer: 1", Number("1"), {}, {}, after).reward == 0.0
