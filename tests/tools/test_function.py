import asyncio
import contextvars
import dataclasses
import datetime
import enum
import functools
import os
import threading
from typing import Annotated, Any

import msgspec
import pydantic_core
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from tests.forks.process import FORKS

from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect, Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import as_tool, tool
from treadle.tools.protocol import Attachment, Tool, ToolOutput
from treadle.tools.toolbox import Toolbox

CONTEXT = ToolContext("run", "call", 1)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    title: str
    price: float
    parts: list["Item"] = []


async def run(item: Tool, arguments: dict[str, Json]) -> str:
    fault = item.find_fault(arguments)
    assert fault is None, fault
    output = await item.call(arguments, CONTEXT)
    assert isinstance(output, str)
    return output


class TestSpec:
    def test_bare_decorator(self) -> None:
        @tool
        def search(query: str, limit: int = 10) -> str:
            """Search the shop.

            Args:
                query: What to look for.
            """
            return query * limit

        spec = search.spec
        assert (spec.name, spec.description, spec.effect) == ("search", "Search the shop.", Effect.ONCE)
        assert (spec.timeout_seconds, spec.is_concurrent, spec.max_result_chars) == (None, True, 100_000)
        assert spec.parameters == {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "limit": {"type": "integer", "default": 10},
            },
            "required": ["query"],
            "additionalProperties": False,
        }
        assert search("a", limit=2) == "aa"
        assert search.__name__ == "search"

    def test_options(self) -> None:
        @tool(
            name="go",
            description="Goes.",
            effect="pure",
            timeout_seconds=1.5,
            concurrent=False,
            max_result_chars=10,
        )
        async def other() -> None:
            """Not this."""

        spec = other.spec
        assert (spec.name, spec.description, spec.effect) == ("go", "Goes.", Effect.PURE)
        assert (spec.timeout_seconds, spec.is_concurrent, spec.max_result_chars) == (1.5, False, 10)

    def test_options_over_a_tool_add_to_its_own(self) -> None:
        @tool(effect="pure", name="first")
        def one() -> None: ...

        assert tool(one, name="second").spec.effect is Effect.PURE
        assert tool(one, name="second").spec.name == "second"
        assert one.spec.name == "first"

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"effect": "twice"}, "'twice'; use one of 'pure', 'idempotent', 'once'"),
            ({"efect": "pure"}, "tool has no option 'efect'; did you mean 'effect'"),
            ({"timeout_seconds": 0}, "timeout_seconds is 0"),
            ({"max_result_chars": -1}, "max_result_chars is -1"),
            ({"name": "a b"}, "'a b' cannot be the name of a tool"),
            ({"name": "a" * 65}, "cannot be the name"),
        ],
    )
    def test_options_that_make_no_sense(self, options: Any, why: str) -> None:
        def mine() -> None: ...

        with pytest.raises(ConfigError, match=why) as caught:
            tool(**options)(mine)
        assert "mine" in str(caught.value)

    def test_no_parameters(self) -> None:
        spec = tool(lambda: None, name="nothing").spec
        assert spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}

    def test_descriptions_in_the_signature_win(self) -> None:
        @tool
        def f(a: Annotated[int, Field(description="mine")], b: int = Field(1, description="too")) -> None:
            """F.

            :param a: not mine
            :param b: nor this
            """

        properties = f.spec.parameters["properties"]
        assert (properties["a"]["description"], properties["b"]["description"]) == ("mine", "too")

    def test_any_name_may_be_a_parameter(self) -> None:
        @tool
        async def f(copy: str, model_config: str, _x: str, title: str, self_: str, schema: str = "s") -> str:
            return copy + model_config + _x + title + self_ + schema

        names = ["copy", "model_config", "_x", "title", "self_", "schema"]
        assert list(f.spec.parameters["properties"]) == names
        assert asyncio.run(run(f, {name: name[0] for name in names[:5]})) == "cm_tss"


class TestContext:
    def test_it_is_given_and_not_shown(self) -> None:
        @tool
        async def f(a: int, where: ToolContext, maybe: ToolContext | None = None) -> str:
            return f"{a} {where.call_id} {maybe is where}"

        assert list(f.spec.parameters["properties"]) == ["a"]
        assert asyncio.run(run(f, {"a": 1})) == "1 call True"
        assert "unknown parameter 'where'" in (f.find_fault({"a": 1, "where": {}}) or "")

    @pytest.mark.parametrize("annotation", ["ToolContext", "ToolContext | None", "Annotated[ToolContext, 1]"])
    def test_as_text(self, annotation: str) -> None:
        async def f(where: Any) -> str:
            return where.call_id  # type: ignore[no-any-return]

        f.__annotations__["where"] = annotation
        assert asyncio.run(run(tool(f), {})) == "call"

    def test_as_text_where_only_type_checkers_import_it(self) -> None:
        names: dict[str, Any] = {"__name__": "elsewhere"}
        source = (
            "from __future__ import annotations\n"
            "async def f(c: ToolContext, n: int) -> Nowhere: return c.call_id"
        )
        exec(source, names)
        assert asyncio.run(run(tool(names["f"]), {"n": 1})) == "call"

    def test_local_types_as_text(self) -> None:
        class Local(enum.Enum):
            A = "a"

        @tool
        def plain(x: "Local") -> None: ...

        @tool(effect="pure")
        def with_options(x: "Local | None") -> None: ...

        assert plain.find_fault({"x": "b"})
        assert with_options.find_fault({"x": "a"}) is None
        assert Local.A


@dataclasses.dataclass
class Point:
    x: int
    at: datetime.date


class Row(msgspec.Struct):
    x: int


class TestResult:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ('say "hi"', 'say "hi"'),
            (None, ""),
            (3, "3"),
            (True, "true"),
            ({"é": [1, None]}, '{"é":[1,null]}'),
            (Item(title="t", price=1.5), '{"title":"t","price":1.5,"parts":[]}'),
            (Point(1, datetime.date(2024, 1, 1)), '{"x":1,"at":"2024-01-01"}'),
            ([Row(1)], '[{"x":1}]'),
            (datetime.date(2024, 1, 1), "2024-01-01"),
            (Color.RED, "red"),
            (float("nan"), "NaN"),
            ({"a": float("inf")}, '{"a":"Infinity"}'),
            ((1, 2), "[1,2]"),
        ],
    )
    async def test_as_text(self, value: Any, text: str) -> None:
        assert await tool(lambda: value, name="f").call({}, CONTEXT) == text

    @given(st.one_of(st.integers(), st.floats(), st.booleans()))
    @example(10**4999)
    @example(-(1 << 63))
    @example(1e-5)
    @example(1e16)
    async def test_a_number_is_written_as_pydantic_writes_it(self, value: float) -> None:
        as_pydantic = pydantic_core.to_json(value, inf_nan_mode="strings").decode().strip('"')
        assert await tool(lambda: value, name="f").call({}, CONTEXT) == as_pydantic

    async def test_a_whole_output_goes_through(self) -> None:
        output = ToolOutput("[image]", attachments=(Attachment("image", b"x", "image/png"),))
        assert await tool(lambda: output, name="f").call({}, CONTEXT) is output

    async def test_a_text_of_a_subclass_is_plain(self) -> None:
        class Loud(str, enum.Enum):  # noqa: UP042
            A = "a"

        result = await tool(lambda: Loud.A, name="f").call({}, CONTEXT)
        assert (result, type(result)) == ("a", str)

    @pytest.mark.parametrize("value", [object(), [object()], b"x"])
    async def test_without_a_text_form_it_says_what_to_return(self, value: Any) -> None:
        item = value[0] if isinstance(value, list) else value
        with pytest.raises(ToolError, match=r"mine returned .*return a str") as caught:
            await tool(lambda: value, name="mine").call({}, CONTEXT)
        assert type(item).__name__ in str(caught.value)

    async def test_a_circle_is_told(self) -> None:
        circle: list[Any] = []
        circle.append(circle)
        with pytest.raises(ToolError, match="Circular"):
            await tool(lambda: circle, name="f").call({}, CONTEXT)


class TestCall:
    async def test_coroutines_run_on_the_loop(self) -> None:
        @tool
        async def f() -> str:
            return threading.current_thread().name

        assert await f.call({}, CONTEXT) == threading.current_thread().name

    async def test_functions_run_beside_each_other_in_threads(self) -> None:
        barrier = threading.Barrier(8)

        @tool
        def f() -> str:
            barrier.wait(timeout=30)
            return threading.current_thread().name

        names = await asyncio.gather(*(f.call({}, CONTEXT) for _ in range(8)))
        assert len(set(names)) == 8
        assert all(name.startswith("treadle-tool") for name in names)

    async def test_threads_see_the_callers_context_variables(self) -> None:
        variable = contextvars.ContextVar("variable", default="unset")
        variable.set("set")
        assert await tool(lambda: variable.get(), name="f").call({}, CONTEXT) == "set"

    async def test_a_function_that_returns_a_coroutine_is_awaited(self) -> None:
        async def inner() -> str:
            return "inner"

        assert await tool(lambda: inner(), name="f").call({}, CONTEXT) == "inner"

    async def test_exceptions_pass_as_they_are(self) -> None:
        def f() -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await tool(f).call({}, CONTEXT)

    async def test_a_stray_stop_iteration_does_not_hang(self) -> None:
        def f() -> None:
            next(iter([]))

        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(tool(f).call({}, CONTEXT), 30)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        script = """
import asyncio, os
from treadle.tools.function.decorator import tool
from treadle.tools.context import ToolContext
item = tool(lambda: "ran", name="f")
run = lambda: asyncio.run(asyncio.wait_for(item.call({}, ToolContext("r", "c", 1)), 30))
assert run() == "ran"
child = os.fork()
if not child:
    os._exit(0 if run() == "ran" else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        assert FORKS.run("-c", script).returncode == 0

    async def test_leaving_the_process_is_an_error_of_the_tool(self) -> None:
        def in_thread() -> None:
            raise SystemExit(3)

        async def on_loop() -> None:
            raise SystemExit(3)

        for function in (in_thread, on_loop):
            with pytest.raises(ToolError, match=r"tried to exit the process \(code 3\)"):
                await tool(function).call({}, CONTEXT)  # type: ignore[arg-type]


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool(effect="pure")
    async def describe(self, detail: str) -> str:
        """Describe the shop."""
        return f"{self.name} {detail}"

    @tool
    @staticmethod
    def add(a: int, b: int) -> int:
        return a + b

    def sell(self, what: str) -> str:
        """Sell something."""
        return f"{self.name} sells {what}"

    async def __call__(self, a: int) -> int:
        return a


@tool
async def on_its_own(a: str) -> str:
    return a


class Borrower:
    borrowed = on_its_own


class TestMethods:
    async def test_a_tool_that_is_no_method_stays_what_it_is(self) -> None:
        assert Borrower().borrowed is on_its_own

    def test_in_the_class_the_instance_is_no_parameter(self) -> None:
        assert list(Shop.describe.spec.parameters["properties"]) == ["detail"]

    async def test_attributes_of_a_function_are_not_taken_over(self) -> None:
        async def f() -> str:
            return "mine"

        f.call = None  # type: ignore[attr-defined]
        assert await tool(f).call({}, CONTEXT) == "mine"

    async def test_bound_methods(self) -> None:
        item = tool(Shop("A").sell, effect="idempotent")
        assert (item.spec.name, item.spec.description) == ("sell", "Sell something.")
        assert await run(item, {"what": "x"}) == "A sells x"

    async def test_tools_in_a_class_belong_to_their_instance(self) -> None:
        one, two = Shop("A"), Shop("B")
        assert list(one.describe.spec.parameters["properties"]) == ["detail"]
        assert one.describe.spec.effect is Effect.PURE
        assert await run(one.describe, {"detail": "x"}) == "A x"
        assert await run(two.describe, {"detail": "x"}) == "B x"
        assert one.describe is one.describe
        assert await one.describe("y") == "A y"

    async def test_static_methods(self) -> None:
        assert await run(Shop("A").add, {"a": 1, "b": 2.0}) == "3"
        assert Shop.add(1, 2) == 3

    async def test_partials_and_callable_objects(self) -> None:
        def f(a: int, b: int) -> int:
            """Add."""
            return a + b

        part = tool(functools.partial(f, b=5))
        assert part.spec.name == "f"
        assert await run(part, {"a": 1}) == "6"
        assert await run(tool(Shop("A"), name="shop"), {"a": 1}) == "1"


def test_as_tool_wraps_functions_and_keeps_tools() -> None:
    def f() -> None: ...

    assert as_tool(f).spec.effect is Effect.ONCE
    mine = tool(f)
    assert as_tool(mine) is mine
    with pytest.raises(ConfigError, match="3 is neither"):
        as_tool(3)


def test_a_tool_says_whether_it_takes_a_context() -> None:
    def plain(a: int) -> int:
        return a

    def asking(a: int, context: ToolContext | None = None) -> int:
        return a

    tools = {item.__name__: tool(item) for item in (plain, asking)}
    assert {name: item.takes_context for name, item in tools.items()} == {"plain": False, "asking": True}
    assert Toolbox({**tools, "other": Bare()}).contextless == {"plain"}


class Bare:
    """A tool that says nothing about its context."""

    spec = ToolSpec("other", "", {})

    def find_fault(self, arguments: Json) -> str | None:
        return None

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        return context.run_id
