"""Answers that must fit a schema: how the driver asks for them, and how it checks them."""

from typing import TYPE_CHECKING

import msgspec

from treadle.core.answers import strip_answer
from treadle.core.decide import CheckAnswer, judge_answer
from treadle.core.events import DurableBody
from treadle.core.registry import load
from treadle.core.state import State
from treadle.core.types import OutputMode, Request, ToolSpec

if TYPE_CHECKING:
    from treadle.loop.driver import Driver


def make_request(driver: "Driver", *, has_tools: bool) -> Request:
    """What the model is asked next; without tools at a wrap-up."""
    state, specs = driver.state, driver.toolbox.specs
    output = state.output_spec
    if output is None:
        return Request(state.messages, specs if has_tools else ())
    if output.mode is not OutputMode.TOOL:
        schema = output.schema if output.mode is OutputMode.NATIVE else None
        return Request(state.messages, specs if has_tools else (), schema)
    if has_tools and len(specs) > 1:
        return Request(state.messages, specs)
    return Request(state.messages, _only(specs, output.tool), None, output.tool)


def _only(specs: tuple[ToolSpec, ...], name: str | None) -> tuple[ToolSpec, ...]:
    # The same tuple for as long as there is nothing to leave out: models keep what they made of it.
    return specs if len(specs) == 1 else tuple([spec for spec in specs if spec.name == name])


def check_answer(state: State, action: CheckAnswer) -> tuple[DurableBody, ...]:
    """What is to be recorded of an answer."""
    text = strip_answer(action.text)
    assert state.output_spec is not None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return judge_answer(state, text, f"it is not JSON ({error})").bodies
    fault = load("treadle.tools.schema.output:find_output_fault")(state.output_spec.schema, value)
    return judge_answer(state, text, fault).bodies
