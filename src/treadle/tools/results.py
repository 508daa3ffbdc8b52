"""The tool `read_result`, with which a model reads results again that its context no longer holds whole."""

from typing import Annotated

from pydantic import Field

from treadle.core.errors import ToolError
from treadle.core.types import ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.function.tool import tool

PAGE_CHARS = 4_000
"""How many characters are read if no end is given."""
MOST_CHARS = 20_000


@tool(effect="pure", max_result_chars=MOST_CHARS + 200)
async def read_result(
    context: ToolContext,
    call_id: str,
    start: Annotated[int, Field(ge=0)] = 0,
    end: Annotated[int | None, Field(ge=1)] = None,
) -> str:
    """Read the result of an earlier tool call again. Use it if a result was cut and you need what was in it.

    Args:
        call_id: The id of the call, as the line that stands for the result says.
        start: The first character to read, counted from 0.
        end: The character before which to stop. Default: a page of 4,000 characters.
    """
    found = await context.find_result(call_id)
    if found is None:
        raise ToolError(
            f"there is no result of a call {call_id!r}; give the id from the line that says it was cut"
        )
    text = found.content
    if start >= max(1, len(text)):
        raise ToolError(f"the result has {len(text):,} characters, so there is none at {start:,}")
    stop = min(len(text), start + MOST_CHARS, start + PAGE_CHARS if end is None else max(end, start + 1))
    if start == 0 and stop == len(text):
        return text
    more = f"; go on with start={stop}" if stop < len(text) else ""
    return f"[characters {start:,} to {stop:,} of {len(text):,}{more}]\n{text[start:stop]}"


def is_reader(spec: ToolSpec) -> bool:
    """Return whether `spec` defines this tool, and not another tool with the same name."""
    return spec.name == read_result.spec.name and spec.description.startswith(read_result.spec.description)
