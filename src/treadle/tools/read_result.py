"""The tool `read_result`. With it, a model reads again the results that its context no longer holds as a whole."""

from treadle.core.errors import ToolError
from treadle.core.types import Effect, Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.schema.validation import ArgumentChecker

NAME = "read_result"
_PAGE_CHARS = 4_000
"""How many characters are read if no end is given."""
_MOST_CHARS = 20_000
_DESCRIPTION = (
    "Read the result of an earlier tool call again. Use it if a result was cut and you need what was in it."
)
_PARAMETERS: dict[str, Json] = {
    "type": "object",
    "properties": {
        "call_id": {
            "type": "string",
            "description": "The id of the call, as the line that stands for the result says.",
        },
        "start": {
            "type": "integer",
            "minimum": 0,
            "description": "The first character to read, counted from 0. Default: 0.",
        },
        "end": {
            "type": "integer",
            "minimum": 1,
            "description": f"The character before which to stop. Default: a page of {_PAGE_CHARS:,} characters.",
        },
    },
    "required": ["call_id"],
    "additionalProperties": False,
}


class ReadResult:
    """The tool that returns the whole result of an earlier call of the run, in pages."""

    spec = ToolSpec(NAME, _DESCRIPTION, _PARAMETERS, Effect.PURE, max_result_chars=_MOST_CHARS + 200)

    def __init__(self) -> None:
        self.find_fault = ArgumentChecker(_PARAMETERS).find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        """See `Tool.call`. Raises: `ToolError` if there is no such result, or it is shorter."""
        call_id, start = arguments["call_id"], arguments.get("start", 0)
        found = await context.find_result(call_id)
        if found is None:
            raise ToolError(
                f"there is no result of a call {call_id!r}; give the id from the line about the cut result"
            )
        text = found.content
        if start >= max(1, len(text)):
            raise ToolError(f"the result has {len(text):,} characters, so it ends before character {start:,}")
        end = max(start + 1, arguments.get("end", start + _PAGE_CHARS))
        stop = min(len(text), end, start + _MOST_CHARS)
        if start == 0 and stop == len(text):
            return text
        more = f"; go on with start={stop}" if stop < len(text) else ""
        return f"[characters {start:,} to {stop:,} of {len(text):,}{more}]\n{text[start:stop]}"


def is_reader(spec: ToolSpec) -> bool:
    """Return whether `spec` defines the tool `read_result`, and not another tool with the same name."""
    return spec.name == NAME and spec.description.startswith(_DESCRIPTION)
