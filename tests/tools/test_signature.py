import asyncio
import datetime
import enum
import threading
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Json
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import FunctionTool, tool
from treadle.tools.protocol import Tool

CONTEXT = ToolContext("run", "call", 1)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Item(BaseModel):
    title: str
    price: float
    parts: list["Item"] = []


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    day: datetime.date
    pair: tuple[int, str]


async def run(item: Tool, arguments: dict[str, Json]) -> str:
    fault = item.find_fault(arguments)
    assert fault is None, fault
    return await item.call(arguments, CONTEXT)


def seen_by(annotation: Any, value: Json) -> Any:
    """Return what a function whose parameter has the annotation `annotation` receives for `value`."""
    seen: list[Any] = []

    async def take(x: Any) -> None:
        seen.append(x)

    take.__annotations__["x"] = annotation
    asyncio.run(run(tool(take), {"x": value}))
    return seen[0]


def schema_of(annotation: Any) -> Json:
    def take(x: Any) -> None: ...

    take.__annotations__["x"] = annotation
    return tool(take).spec.parameters["properties"]["x"]


class TestSchema:
    @pytest.mark.parametrize(
        ("annotation", "schema"),
        [
            (Any, {}),
            (Annotated[int, Field(ge=1, lt=5)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 5}),
            (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
            (
                int | list[str],
                {"anyOf": [{"type": "integer"}, {"items": {"type": "string"}, "type": "array"}]},
            ),
            (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
            (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
            (datetime.date, {"type": "string", "format": "date"}),
        ],
    )
    def test_whole_and_without_titles(self, annotation: Any, schema: Json) -> None:
        assert schema_of(annotation) == schema

    def test_definitions_stay_and_properties_called_title_too(self) -> None:
        @tool
        def f(item: Item, color: Color, default: Json = {"title": "kept"}) -> None: ...  # noqa: B006

        parameters = f.spec.parameters
        item = parameters["$defs"]["Item"]
        assert item["properties"]["title"] == {"type": "string"}
        assert "title" not in item
        assert parameters["$defs"]["Color"] == {"type": "string", "enum": ["red", "blue"]}
        assert parameters["properties"]["default"]["default"] == {"title": "kept"}

    def test_a_default_without_a_json_form_is_left_out(self, recwarn: pytest.WarningsRecorder) -> None:
        @tool
        async def f(x: Any = CONTEXT) -> str:
            return x.run_id  # type: ignore[no-any-return]

        assert f.spec.parameters["properties"] == {"x": {}}
        assert asyncio.run(run(f, {})) == "run"
        assert not recwarn.list

    def test_what_cannot_be_given_by_name_is_refused(self) -> None:
        def many(*values: int) -> None: ...
        def named(**values: int) -> None: ...
        def positional(value: int, /) -> None: ...

        for function, parameter in ((many, r"\*values"), (named, r"\*\*values"), (positional, "value")):
            with pytest.raises(ConfigError, match=rf"{function.__name__} cannot be a tool.*{parameter}"):
                tool(function)

    def test_what_is_no_function_is_refused(self) -> None:
        def generator() -> Any:
            yield 1

        for item, why in ((3, "not a function"), (Item, "is a class"), (generator, "is a generator")):
            with pytest.raises(ConfigError, match=why):
                tool(item)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="<lambda>"):
            tool(lambda: None)

    @pytest.mark.parametrize("annotation", [threading.Event, "Nope", 5])
    def test_types_without_a_json_form_name_the_parameter(self, annotation: Any) -> None:
        def f(good: int, bad: Any) -> None: ...

        f.__annotations__["bad"] = annotation
        with pytest.raises(ConfigError, match=r"f cannot be a tool: .*('bad'|'Nope')"):
            tool(f)


class TestConversion:
    @pytest.mark.parametrize(
        ("annotation", "value", "expected"),
        [
            (int, 1.0, 1),
            (float, 1, 1.0),
            (int | str, 2.0, 2),
            (int | None, None, None),
            (int | float, 1.0, 1.0),
            (list[int], [1.0], [1]),
            (Annotated[int, Field(ge=1)], 1.0, 1),
            (Color, "red", Color.RED),
            (Level, 2, Level.HIGH),
            (list[Color], ["blue"], [Color.BLUE]),
            (Literal[1, 2], 1.0, 1),
            (Literal["a"], "a", "a"),
            (Literal[Level.HIGH], 2, Level.HIGH),
            (datetime.date | None, "2024-02-29", datetime.date(2024, 2, 29)),
            (Decimal, "1.10", Decimal("1.10")),
            (Path, "/x", Path("/x")),
            (bytes, "é", "é".encode()),
            (set[str], ["a", "b"], {"a", "b"}),
            (dict[str, float], {"a": 1}, {"a": 1.0}),
            (dict[int, str], {"1": "a"}, {1: "a"}),
            (Item, {"title": "t", "price": 1}, Item(title="t", price=1.0)),
            (
                Strict,
                {"day": "2024-01-01", "pair": [1, "a"]},
                Strict(day=datetime.date(2024, 1, 1), pair=(1, "a")),
            ),
            (Annotated[str, BeforeValidator(str.upper)], "a", "A"),
            (list[dict[str, Any]], [{"a": [1, None]}], [{"a": [1, None]}]),
        ],
    )
    def test_the_function_gets_what_it_asks_for(self, annotation: Any, value: Json, expected: Any) -> None:
        seen = seen_by(annotation, value)
        assert seen == expected
        assert type(seen) is type(expected)
        if isinstance(seen, list | dict):
            assert repr(seen) == repr(expected)

    def test_plain_arguments_are_not_copied(self) -> None:
        value: Json = [{"a": "b"}]
        assert seen_by(list[dict[str, str]], value) is value

    def test_arguments_are_left_as_they_are(self) -> None:
        arguments = {"x": 1.0}

        async def f(x: int, context: ToolContext) -> str:
            return repr(x)

        assert asyncio.run(run(tool(f), arguments)) == "1"
        assert repr(arguments) == "{'x': 1.0}"

    def test_what_fits_the_schema_and_not_the_type_is_told(self) -> None:
        def f(items: list[datetime.date]) -> None: ...

        with pytest.raises(ToolError, match=r"- /items/1: .*day value is outside") as caught:
            asyncio.run(run(tool(f), {"items": ["2024-01-01", "2024-02-30"]}))
        assert "pydantic" not in str(caught.value)

    def test_a_number_too_large_for_a_float_is_told(self) -> None:
        def f(x: float) -> None: ...

        with pytest.raises(ToolError, match="/x: the number is too large"):
            asyncio.run(tool(f).call({"x": 10**400}, CONTEXT))

    def test_defaults_are_the_functions_own(self) -> None:
        marker: list[Color] = [Color.RED]

        @tool
        async def f(a: list[Color] = marker, b: int = Field(3, ge=1), c: str = "c") -> str:
            return f"{a is marker} {b} {c}"

        assert asyncio.run(run(f, {})) == "True 3 c"
        assert asyncio.run(run(f, {"b": 5.0, "c": "d"})) == "True 5 d"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NEAR = st.sampled_from(
    [
        1,
        1.0,
        -0.0,
        1e300,
        10**30,
        "red",
        "1",
        "2024-02-30",
        "2024-01-01T00:00:00",
        "P1D",
        "a",
        ["red"],
        [1.0],
        ["1", "a"],
    ]
) | st.fixed_dictionaries({"title": st.text(max_size=2), "price": st.integers() | st.floats(0, 1)})
ANNOTATIONS = [
    str,
    int,
    float,
    bool,
    None,
    Any,
    list,
    dict,
    Color,
    Level,
    Item,
    Strict,
    Decimal,
    bytes,
    datetime.date,
    datetime.datetime,
    datetime.timedelta,
    Path,
    int | str | None,
    float | list[int],
    list[Color],
    set[int],
    dict[str, float],
    dict[int, str],
    tuple[int, str],
    Literal["a", 1, None],
    Annotated[int, Field(ge=0, multiple_of=2)],
    Annotated[str, Field(max_length=2, pattern="^a")],
    Annotated[str, BeforeValidator(lambda text: text[0])],
]


def _tool_of(annotation: Any) -> FunctionTool[..., Any]:
    async def take(x: Any) -> str:
        return repr(x)

    take.__annotations__["x"] = annotation
    return tool(take)


TOOLS = [_tool_of(annotation) for annotation in ANNOTATIONS]


@given(st.integers(0, len(TOOLS) - 1), JSON | NEAR)
def test_checked_arguments_run_or_are_told_what_is_wrong(index: int, value: Json) -> None:
    item, annotation, text = TOOLS[index], ANNOTATIONS[index], ""
    if item.find_fault({"x": value}) is not None:
        return
    try:
        text = asyncio.run(item.call({"x": value}, CONTEXT))
    except ToolError as error:
        text = str(error)
        assert "/x" in text
        return
    except IndexError:
        assert value == ""
        return
    if annotation in (int, float, str, bool):
        assert type(eval(text)) is annotation


@given(st.dictionaries(st.sampled_from(["x", "y", ""]), JSON) | JSON)
def test_any_arguments_are_checked_without_a_crash(arguments: Json) -> None:
    for item in TOOLS:
        fault = item.find_fault(arguments)
        assert fault is None or "accepted parameters: x" in fault
