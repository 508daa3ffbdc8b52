"""Compare the verdicts on calls of BFCL with those of the leaderboard's own checker.

Run it with `python -m tests.tasks.bfcl_agreement 500`. The pairs are the possible answers of the package bfcl-eval
and changed forms of them, drawn with a seed. It prints the agreement and each disagreement.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from types import ModuleType, SimpleNamespace
from typing import Any

from treadle.tasks.foreign.bfcl_set import BfclTask, open_bfcl, plain_name

CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)


def load_checker() -> Any:
    """Return the package's checker, without the clients of models and the parsers of Java that it imports."""
    room = "bfcl_eval.eval_checker.ast_eval.type_convertor"
    names = ("bfcl_eval.constants.model_config", f"{room}.java_type_converter", f"{room}.js_type_converter")
    for name in names:
        sys.modules[name] = module = ModuleType(name)
        module.java_type_converter = module.js_type_converter = None  # type: ignore[attr-defined]
        module.MODEL_CONFIG_MAPPING = {"a": SimpleNamespace(underscore_to_dot=True)}  # type: ignore[attr-defined]
    try:
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    finally:
        for name in names:
            del sys.modules[name]

    def check(task: BfclTask, calls: list[tuple[str, Any]]) -> tuple[bool, str]:
        truth = task.owner.truth[task.task_id]["ground_truth"]
        given = [{name: arguments} for name, arguments in calls]
        found = ast_checker(task.entry["function"], given, truth, Language.PYTHON, task.owner.category, "a")
        return bool(found["valid"]), str(found.get("error", ""))[:200]

    return check


def right_calls(task: BfclTask, draw: random.Random) -> list[tuple[str, Any]]:
    """Return calls that the data says are right, each argument one of its possible values."""
    made = []
    for truth in task.owner.truth[task.task_id]["ground_truth"]:
        ((name, arguments),) = truth.items()
        chosen = {key: choose(draw.choice(listed), draw) for key, listed in arguments.items() if listed}
        schema = next(item for item in task.entry["function"] if item["name"] == name)["parameters"]
        made.append(
            (
                plain_name(name),
                {
                    key: value
                    for key, value in chosen.items()
                    if value != "" or (key in schema["required"] and "" not in arguments[key][1:])
                },
            )
        )
    return made


def choose(value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict):
        drawn = {
            key: choose(draw.choice(listed), draw) if isinstance(listed, list) else listed
            for key, listed in value.items()
        }
        return {key: item for key, item in drawn.items() if item != ""}
    return [choose(item, draw) for item in value] if isinstance(value, list) else value


def change(
    kind: str, calls: list[tuple[str, Any]], task: BfclTask, draw: random.Random
) -> list[tuple[str, Any]]:
    """Return the calls with one change of a kind; the same calls if it does not fit them."""
    at = draw.randrange(len(calls))
    name, arguments = calls[at][0], dict(calls[at][1])
    keys = sorted(arguments)
    key = draw.choice(keys) if keys else None
    value = arguments.get(key)
    if kind == "name":
        name = f"{name}_x"
    elif kind == "drop call":
        return calls[:at] + calls[at + 1 :]
    elif kind == "repeat call":
        return [*calls, calls[at]]
    elif kind == "reorder":
        return calls[::-1]
    elif key is None:
        return calls
    elif kind == "drop argument":
        del arguments[key]
    elif kind == "extra argument":
        arguments["unrelated"] = 1
    elif kind == "null":
        arguments[key] = None
    elif kind == "as text":
        arguments[key] = str(value)
    elif kind == "other value":
        arguments[key] = other_value(value)
    elif kind == "case" and isinstance(value, str):
        arguments[key] = value.upper()
    elif kind == "marks" and isinstance(value, str):
        arguments[key] = value.replace(" ", "-").replace(",", "")
    elif kind == "word" and isinstance(value, str):
        arguments[key] = f"{value} please"
    elif kind == "float" and type(value) is int:
        arguments[key] = float(value)
    elif kind == "order of a list" and isinstance(value, list):
        arguments[key] = value[::-1]
    elif kind == "all arguments":
        properties = next(spec for spec in task.specs() if spec.name == name).parameters["properties"]
        arguments.update({item: inner["default"] for item, inner in properties.items() if "default" in inner})
    return [*calls[:at], (name, arguments), *calls[at + 1 :]]


def other_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return [*value[:-1], other_value(value[-1])] if value else ["x"]
    if value is None:
        return "x"
    return {**value, **({min(value): other_value(value[min(value)])} if value else {"x": 1})}


KINDS = (
    "name",
    "drop call",
    "repeat call",
    "reorder",
    "drop argument",
    "extra argument",
    "null",
    "as text",
    "other value",
    "case",
    "marks",
    "word",
    "float",
    "order of a list",
    "all arguments",
)


def compare(changed: int, seed: int = 0) -> Iterator[tuple[str, bool, bool, BfclTask, Any, str]]:
    """Yield all possible answers, then `changed` changed ones: kind, both verdicts, task, calls, reasons."""
    check, draw = load_checker(), random.Random(seed)
    tasks: list[Any] = [task for category in CATEGORIES for task in open_bfcl(category)]
    pairs = [("possible answer", task, right_calls(task, draw)) for task in tasks]
    kinds = cycle(KINDS)
    while changed:
        task, kind = draw.choice(tasks), next(kinds)
        right = right_calls(task, draw)
        for _ in range(50):
            made = change(kind, right, task, draw)
            if repr(made) != repr(right):
                break
            task = draw.choice(tasks)
            right = right_calls(task, draw)
        pairs.append((kind, task, made))
        changed -= 1
    for kind, task, made in pairs:
        grade = task.grade_calls(made)
        theirs, why = check(task, made)
        yield kind, theirs, grade.reward == 1, task, made, f"checker: {why}; Treadle: {grade.detail}"


def main() -> None:
    counts: Counter[tuple[str, bool, bool]] = Counter()
    for kind, theirs, ours, task, made, detail in compare(int(sys.argv[1]) if sys.argv[1:] else 500):
        counts[kind, theirs, ours] += 1
        if theirs != ours:
            print(f"{kind}: {task.task_id}: checker {theirs}, Treadle {ours}: {detail}")
            print(f"    {made!r:.300}")
            print(f"    {task.owner.truth[task.task_id]['ground_truth']!r:.300}")
    for is_changed in (False, True):
        some = {key: n for key, n in counts.items() if (key[0] != "possible answer") == is_changed}
        same = sum(n for (_, theirs, ours), n in some.items() if theirs == ours)
        print("changed" if is_changed else "possible answers", f"{same} of {sum(some.values())} agree")
        for (kind, theirs, ours), n in sorted(some.items()):
            print(f"    {kind}: checker {theirs}, Treadle {ours}: {n}")


if __name__ == "__main__":
    main()
