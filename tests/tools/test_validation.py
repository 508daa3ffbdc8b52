from typing import Any

import pytest

from treadle.core.errors import ConfigError
from treadle.tools.schema.validation import MAX_PROBLEMS, ArgumentChecker, OutputChecker

ITEM = {
    "type": "object",
    "properties": {"price": {"type": "number"}, "a/b": {"type": "string"}},
    "required": ["price"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string"},
        "items": {"type": "array", "items": ITEM},
        "limit": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        "mode": {"enum": ["r", "w"]},
        "any": {},
    },
    "required": ["file_path"],
    "additionalProperties": False,
}


def fault(arguments: object) -> str:
    found = ArgumentChecker(SCHEMA).find_fault(arguments)
    assert found is not None
    return found


def test_good_arguments_have_no_fault() -> None:
    checker = ArgumentChecker(SCHEMA)
    assert checker.find_fault({"file_path": "a"}) is None
    assert checker.find_fault({"file_path": "", "items": [{"price": 1}], "limit": None, "any": [{}]}) is None


def test_every_problem_is_told_with_its_path() -> None:
    lines = fault({"file_path": 1, "items": [{"price": "x"}, {"price": 1, "a/b": 2}, {}]}).split("\n")
    assert '- /file_path: 1 is not of type "string"' in lines
    assert '- /items/0/price: "x" is not of type "number"' in lines
    assert '- /items/1/a~1b: 2 is not of type "string"' in lines
    assert '- /items/2: "price" is a required property' in lines


def test_names_are_told_once_with_the_nearest() -> None:
    text = fault({"path": "a", "zzz": 1})
    assert text.split("\n")[1:4] == [
        "- missing parameter 'file_path'",
        "- unknown parameter 'path'; did you mean 'file_path'?",
        "- unknown parameter 'zzz'",
    ]
    assert "additional" not in text.lower()


def test_a_name_that_is_given_is_not_suggested() -> None:
    assert "did you mean" not in fault({"file_path": "a", "file_pat": "b"})


def test_the_accepted_parameters_are_listed() -> None:
    assert fault({}).split("\n")[-1] == (
        "accepted parameters: file_path (string, required), items (array), limit (integer or null), mode, any"
    )


def test_alternatives_say_why_each_does_not_fit() -> None:
    text = fault({"file_path": "a", "limit": "x"})
    assert '- /limit: fits none of the alternatives: "x" is not of type "integer"' in text
    assert '"x" is not of type "null"' in text


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ([], "an array"),
        ("x", "a string"),
        (1, "a number"),
        (1.5, "a number"),
        (None, "null"),
        (True, "a boolean"),
    ],
)
def test_what_is_no_object_is_a_fault(arguments: object, kind: str) -> None:
    assert fault(arguments).startswith(f"the arguments must be one JSON object, not {kind}\n")


def test_long_values_and_many_problems_are_cut() -> None:
    text = fault({"file_path": [["x" * 100_000]], "items": [{"price": "x"}] * 1000})
    assert len(text) < (MAX_PROBLEMS + 3) * 400
    assert 'is not of type "string"' in text
    assert f"and {1001 - MAX_PROBLEMS} more problems" in text
    assert f"and {1001 - MAX_PROBLEMS} more problems" in fault({f"n{i}" * 50: 1 for i in range(1000)})


def test_references_are_followed_and_may_go_in_circles() -> None:
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}, "x": {}},
        "required": ["node"],
    }
    assert "node" in (ArgumentChecker(schema).find_fault({}) or "")


def test_a_schema_that_is_none_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ConfigError, match="not a valid JSON Schema"):
        ArgumentChecker({"type": "no such type"}).find_fault({})


def test_a_schema_may_not_reach_outside_itself() -> None:
    with pytest.raises(ConfigError, match="which is outside it"):
        ArgumentChecker({"properties": {"a": {"$ref": "http://localhost:1/secret"}}}).find_fault({})


def chain(length: int, link: Any, name: str = "d{}", refer: str = "#/$defs/d{}") -> Any:
    """Return a schema of links, each of which mentions the next one several times, and the last one texts."""
    defs: Any = {name.format(n): link({"$ref": refer.format(n + 1)}, n) for n in range(length)}
    defs[name.format(length)] = {"type": "string", **({"$anchor": f"d{length}"} if "/" not in refer else {})}
    return {"$ref": refer.format(0), "$defs": defs}


CHAINS = {
    "anyOf": chain(9, lambda ref, _: {"anyOf": [ref] * 3}),
    "oneOf": chain(9, lambda ref, _: {"oneOf": [ref] * 3}),
    "allOf": chain(9, lambda ref, _: {"allOf": [ref] * 3}),
    "not": chain(9, lambda ref, _: {"not": {"not": {"anyOf": [ref] * 3}}}),
    "if": chain(10, lambda ref, _: {"if": ref, "then": ref, "else": ref}),
    "anchors": chain(9, lambda ref, n: {"$anchor": f"d{n}", "anyOf": [ref] * 3}, refer="#d{}"),
    "escapes": chain(9, lambda ref, _: {"anyOf": [ref] * 3}, "d/ {}", "#/$defs/d~1%20{}"),
    "addresses": {
        "$id": "http://schemas.example/a/b",
        "$ref": "../c/d0",
        "$defs": {
            **{f"d{n}": {"$id": f"../c/d{n}", "anyOf": [{"$ref": f"d{n + 1}"}] * 3} for n in range(9)},
            "d9": {"$id": "../c/d9", "type": "string"},
        },
    },
}


@pytest.mark.parametrize("schema", CHAINS.values(), ids=CHAINS)
def test_alternatives_that_multiply_are_not_checked(schema: Any) -> None:
    """Twenty links instead of nine would be checked for ever."""
    for value in (1, {"a": 1}, [1]):
        assert "too many alternatives" in str(OutputChecker(schema).find_fault(value))


def test_what_no_alternative_evaluates_is_refused_if_there_are_too_many() -> None:
    schema = chain(7, lambda ref, _: {"anyOf": [ref] * 3, "unevaluatedProperties": False})
    with pytest.raises(ConfigError, match="too many alternatives"):
        OutputChecker(schema).find_fault(1)
    few = {
        "anyOf": [{"properties": {"a": {}}}, {"$ref": "#/$defs/b"}],
        "$defs": {"b": {"properties": {"b": {}}}},
    }
    assert OutputChecker({**few, "unevaluatedProperties": False}).find_fault({"a": 1, "b": 2}) is None
    assert OutputChecker({**few, "unevaluatedProperties": False}).find_fault({"a": 1, "c": 2}) is not None


def test_a_wrong_leaf_of_a_tree_is_told_and_takes_no_longer_in_a_deep_one() -> None:
    node = {"$ref": "#/$defs/node"}
    kinds = [
        {
            "type": "object",
            "properties": {"op": {"const": op}, "left": node, "right": node},
            "required": ["op", "left", "right"],
        }
        for op in ("add", "sub", "mul", "div")
    ]
    schema: Any = {
        "type": "object",
        "properties": {"tree": node},
        "$defs": {"node": {"anyOf": [*kinds, {"type": "integer"}]}},
    }

    def tree(depth: int, leaf: Any) -> Any:
        return leaf if not depth else {"op": "mul", "left": tree(depth - 1, leaf), "right": 1}

    checker = ArgumentChecker(schema)
    for depth in (0, 1, 5, 60):
        assert checker.find_fault({"tree": tree(depth, 1)}) is None
    assert '/op: "add" was expected' in str(checker.find_fault({"tree": tree(2, "x")}))
    for depth in (5, 60):
        assert "- a value does not fit the schema" in str(checker.find_fault({"tree": tree(depth, "x")}))


def test_types_of_many_alternatives_are_not_listed() -> None:
    many: Any = {"anyOf": [{"anyOf": [{"type": "integer"}] * 3}] * 9}
    checker = ArgumentChecker({"type": "object", "properties": {"a": many}, "required": ["a"]})
    assert str(checker.find_fault({})).endswith("accepted parameters: a (required)")


def test_values_of_many_items_are_checked_whole() -> None:
    item = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = {"type": "array", "items": {"$ref": "#/$defs/item"}, "$defs": {"item": item}}
    assert OutputChecker(schema).find_fault([{"a": 1}] * 100_000) is None
    assert OutputChecker(schema).find_fault([{"a": 1}] * 2000 + [{"a": "x"}]) == (
        '/2000/a: "x" is not of type "integer"'
    )


@pytest.mark.parametrize("schema", [{"type": "string"}, {"enum": [1]}, {"uniqueItems": True}])
def test_values_that_are_nested_deeply_do_not_fit(schema: Any) -> None:
    """The validator converts a value that it describes or compares, and raises an error at 256 levels."""
    value: Any = []
    for _ in range(400):
        value = [value]
    value = [value, value]
    told = "the value is nested too deeply to check it"
    assert OutputChecker(schema).find_fault(value) == told
    checker = ArgumentChecker({"type": "object", "properties": {"k": schema}})
    assert f"- {told}\n" in (checker.find_fault({"k": value}) or "")
