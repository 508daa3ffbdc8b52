"""Answers that must fit a schema: the requests that ask for them, and the check of the model's answer."""

from collections.abc import Callable

import msgspec

from treadle.core.decide import CheckAnswer, judge_answer
from treadle.core.events import DurableBody
from treadle.core.state import State
from treadle.core.types import Json, OutputMode, Request, ToolSpec

FindFault = Callable[[dict[str, Json], Json], str | None]
"""A function of a JSON Schema and a value that says what in the value does not fit; `None` if it fits."""


def make_request(state: State, *, has_tools: bool) -> Request:
    """Return the next request to the model. With `has_tools` false it offers no tools except the answer tool."""
    output, specs = state.output_spec, state.tools
    prior = state.prior if state.prior is not None and state.prior.messages else None
    if output is None:
        return Request(state.messages, specs if has_tools else (), prior=prior)
    if output.mode is not OutputMode.TOOL:
        schema = output.schema if output.mode is OutputMode.NATIVE else None
        return Request(state.messages, specs if has_tools else (), schema, prior=prior)
    if has_tools and len(specs) > 1:
        return Request(state.messages, specs, prior=prior)
    return Request(state.messages, _only(specs, output.tool), None, output.tool, prior=prior)


def check_answer(state: State, action: CheckAnswer, find_fault: FindFault) -> tuple[DurableBody, ...]:
    """Return the events that follow from an answer, which `find_fault` checks against the schema."""
    text = strip_answer(action.text)
    assert state.output_spec is not None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return judge_answer(state, text, f"it is not JSON ({error})").bodies
    return judge_answer(state, text, find_fault(state.output_spec.schema, value)).bodies


def strip_answer(text: str) -> str:
    """Return an answer without surrounding white space and without a code fence that encloses all of it."""
    text = text.strip()
    first, _, rest = text.partition("\n")
    # Any other fence is inside a string of the JSON value, so removing the outer one is enough.
    is_fenced = first.startswith("```") and "`" not in first[3:] and rest.endswith("```")
    return rest[:-3].strip() if is_fenced else text


def _only(specs: tuple[ToolSpec, ...], name: str | None) -> tuple[ToolSpec, ...]:
    # If no tool is left out, return the same tuple: models cache what they encoded from it.
    return specs if len(specs) == 1 else tuple([spec for spec in specs if spec.name == name])
