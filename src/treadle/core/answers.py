"""Answers that must fit a schema: how the model is asked for one, and what follows from the one that it gave."""

from collections.abc import Callable

import msgspec

from treadle.core.decide import CheckAnswer, judge_answer
from treadle.core.events import DurableBody
from treadle.core.state import State
from treadle.core.types import Json, OutputMode, Request, ToolSpec

FindFault = Callable[[dict[str, Json], Json], str | None]
"""Return what in a value breaks a JSON Schema, or `None`."""


def make_request(state: State, *, has_tools: bool) -> Request:
    """Return what the model is asked next. `has_tools` is false at a wrap-up, which offers only the answer tool."""
    output, specs = state.output_spec, state.tools
    if output is None:
        return Request(state.messages, specs if has_tools else ())
    if output.mode is not OutputMode.TOOL:
        schema = output.schema if output.mode is OutputMode.NATIVE else None
        return Request(state.messages, specs if has_tools else (), schema)
    if has_tools and len(specs) > 1:
        return Request(state.messages, specs)
    return Request(state.messages, _only(specs, output.tool), None, output.tool)


def check_answer(state: State, action: CheckAnswer, find_fault: FindFault) -> tuple[DurableBody, ...]:
    """Return what to record about an answer; `find_fault` is the validator."""
    text = strip_answer(action.text)
    assert state.output_spec is not None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return judge_answer(state, text, f"it is not JSON ({error})").bodies
    return judge_answer(state, text, find_fault(state.output_spec.schema, value)).bodies


def strip_answer(text: str) -> str:
    """Return an answer without surrounding white space and without a code fence around all of it."""
    text = text.strip()
    first, _, rest = text.partition("\n")
    # Any other fence is inside one of its strings: without the outer fence it would still not be JSON.
    is_fenced = first.startswith("```") and "`" not in first[3:] and rest.endswith("```")
    return rest[:-3].strip() if is_fenced else text


def _only(specs: tuple[ToolSpec, ...], name: str | None) -> tuple[ToolSpec, ...]:
    # Where nothing is left out this is the same tuple: models keep what they made of it.
    return specs if len(specs) == 1 else tuple([spec for spec in specs if spec.name == name])
