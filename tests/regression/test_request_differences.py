"""How two requests differ, and how that is shown."""

import pytest

from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.types import Artifact, Log, Message, Request, Role, ToolCall, ToolSpec
from treadle.regression.request_differences import (
    Divergence,
    RequestDifference,
    compare_models,
    compare_policies,
    find_differences,
)

CALL = ToolCall("a", "find", '{"id": 7}')
MESSAGES = [
    Message(Role.SYSTEM, "Be kind."),
    Message(Role.USER, "Where is my order?"),
    Message(Role.ASSISTANT, "", tool_calls=(CALL,)),
    Message(Role.TOOL, '{"state": "sent"}', call_id="a", name="find"),
]
TOOL = ToolSpec("find", "Find an order.", {"type": "object", "properties": {"id": {"type": "integer"}}})


def request(*messages: Message, **options: object) -> Request:
    return Request(Log(messages or MESSAGES), **{"tools": (TOOL,), **options})  # type: ignore[arg-type]


def names(one: Request, other: Request) -> list[str]:
    return [item.what for item in find_differences(one, other, str)]


def show(before: str | None, after: str | None) -> list[str]:
    shown = list(Divergence("x", 1, (RequestDifference("what", before, after),)).lines())
    assert (shown[0], shown[-1]) == ("what", "")
    return shown[1:-1]


def test_equal_requests_do_not_differ() -> None:
    assert names(request(), request(*MESSAGES)) == []


@pytest.mark.parametrize(
    ("number", "message", "what"),
    [
        (0, Message(Role.SYSTEM, "Be short."), "the system prompt"),
        (1, Message(Role.USER, "Where?"), "the user's message 1"),
        (
            1,
            Message(Role.USER, MESSAGES[1].content, parts=(Artifact("image", "00"),)),
            "the user's message 1",
        ),
        (
            2,
            Message(Role.ASSISTANT, "", tool_calls=(ToolCall("a", "find", "{}"),)),
            "the assistant's message 2",
        ),
        (3, Message(Role.TOOL, "lost", call_id="a", name="find"), 'the result of find({"id": 7})'),
        (
            3,
            Message(Role.TOOL, '{"state": "sent"}', call_id="a", name="find", is_error=True),
            'the result of find({"id": 7})',
        ),
    ],
)
def test_a_message_that_differs_is_named(number: int, message: Message, what: str) -> None:
    assert names(request(), request(*MESSAGES[:number], message, *MESSAGES[number + 1 :])) == [what]


def test_messages_that_are_new_or_gone() -> None:
    more = request(*MESSAGES, Message(Role.USER, "Be quick."))
    (new,) = find_differences(request(), more, str)
    assert (new.what, new.before, new.after) == ("the user's message 4", None, "Be quick.")
    (gone,) = find_differences(more, request(), str)
    assert (gone.before, gone.after) == ("Be quick.", None)
    assert names(request(), request(*MESSAGES[1:])) == ["the system prompt"]


@pytest.mark.parametrize("field", ["description", "effect", "parameters", "output_schema"])
def test_each_field_of_a_tool_that_counts(field: str) -> None:
    values = {"description": "X", "effect": "pure", "parameters": {}, "output_schema": {"type": "string"}}
    fields = {name: getattr(TOOL, name) for name in TOOL.__struct_fields__}
    other = ToolSpec(**{**fields, field: values[field]})
    assert names(request(), request(tools=(other,))) == [f"the {field.replace('_', ' ')} of the tool 'find'"]


def test_what_the_model_must_do() -> None:
    assert names(request(), request(output_schema={})) == ["the schema of the answer"]
    assert names(request(), request(required_tool="find")) == ["the tool that must be called"]


def test_models_and_policies() -> None:
    one = AgentSpec(model=PartSpec(name="a", settings={"temperature": 0}), policy=Policy(max_steps=3))
    other = AgentSpec(model=PartSpec(name="a", settings={"temperature": 1}), policy=Policy(max_steps=9))
    (settings,) = compare_models(one, other)
    assert show(settings.before, settings.after) == ["  - temperature: 0", "  + temperature: 1"]
    (limit,) = compare_policies(one, other)
    assert (limit.what, limit.before, limit.after, limit.is_hint) == (
        "the policy's max_steps",
        "3",
        "9",
        True,
    )
    assert compare_models(one, one) == []


def test_what_is_normalised_is_no_difference() -> None:
    one, other = request(Message(Role.USER, "at 10:00")), request(Message(Role.USER, "at 11:30"))
    assert find_differences(one, other, lambda text: text[:3]) == []
    assert names(one, other) == ["the user's message 1"]


def test_texts_are_shown_by_their_lines() -> None:
    before = "\n".join(map(str, range(20)))
    shown = show(before, before.replace("\n10\n", "\nten\n"))
    assert shown == ["    8", "    9", "  - 10", "  + ten", "    11", "    12"]
    assert show(None, "new") == ["  + new"]
    assert show("old", None) == ["  - old"]


def test_long_lines_are_shown_around_the_change() -> None:
    shown = show("x" * 500 + "old" + "y" * 500, "x" * 500 + "new" + "y" * 500)
    assert [line[:31] for line in shown] == ["  - …" + "x" * 24 + "ol", "  + …" + "x" * 24 + "ne"]
    assert max(map(len, shown)) < 200


def test_objects_are_shown_by_their_keys() -> None:
    assert show('{"a": {"b": 1, "c": 2}}', '{"a": {"c": 3}, "d": null}') == [
        "  - a.b: 1",
        "  - a.c: 2",
        "  + a.c: 3",
        "  + d: null",
    ]
    # The values are equal, and the texts are not.
    assert show('{"a": 1}', '{"a":1}') == ['  - {"a": 1}', '  + {"a":1}']
    assert show('{"a": 1}', '{"a": true}') == ["  - a: 1", "  + a: true"]


def test_what_controls_a_terminal_is_not_shown() -> None:
    assert show("a\x1b[2Jb", "c") == ["  - a·[2Jb", "  + c"]


def test_many_lines_are_cut() -> None:
    shown = show(None, "\n".join(map(str, range(100))))
    assert len(shown) == 30
    assert shown[-1] == "    … 71 more lines"


def test_the_title_names_two_differences() -> None:
    found = tuple([RequestDifference(name, None, "x") for name in "abc"])
    hint = RequestDifference("h", "1", "2", is_hint=True)
    assert Divergence("request 1 of 2", 1, (*found, hint)).title == "request 1 of 2 differs: a, b and 1 more"
