import pytest

from treadle.core.errors import ConfigError
from treadle.tools.schema.validation import MAX_PROBLEMS, ArgumentChecker

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
