"""The text formats by name, and parsing and rendering of the text of a model that writes tool calls in one of them.

A format's module is imported when the format is first used.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache

from treadle.core.errors import ConfigError, FormatError
from treadle.core.prompts.fence import defuse
from treadle.core.registry import Registry
from treadle.core.texts.documents import read_data
from treadle.core.types import Message, ToolSpec
from treadle.formats.scanner.base import Format
from treadle.formats.scanner.markers import Reader
from treadle.formats.scanner.parsed import Parsed, Piece, ToolSchemas, schemas_of
from treadle.formats.scanner.values import arguments_of

FORMATS: Registry[type[Format]] = Registry(
    "format",
    "treadle.formats",
    {
        "hermes": "treadle.formats.hermes:Hermes",
        "qwen3_coder": "treadle.formats.element_formats:Qwen3Coder",
        "llama3_json": "treadle.formats.llama:Llama3Json",
        "llama3_pythonic": "treadle.formats.llama:Llama3Pythonic",
        "mistral": "treadle.formats.section_formats:Mistral",
        "deepseek_v3": "treadle.formats.section_formats:DeepSeekV3",
        "deepseek_v31": "treadle.formats.section_formats:DeepSeekV31",
        "deepseek_v32": "treadle.formats.element_formats:DeepSeekV32",
        "glm45": "treadle.formats.element_formats:Glm45",
        "kimi_k2": "treadle.formats.section_formats:KimiK2",
        "harmony": "treadle.formats.harmony:Harmony",
        "granite": "treadle.formats.section_formats:Granite",
        "xlam": "treadle.formats.xlam:Xlam",
        "minimax": "treadle.formats.element_formats:MiniMax",
        "functionary": "treadle.formats.functionary:Functionary",
    },
)
AUTO = "auto"
"""The name that stands for the format that `detect` finds."""


def _marks(kind: str) -> list[tuple[str, str]]:
    """Return the entries of a list of `marks.toml`: a mark, and the name of its format."""
    return [(mark, name) for mark, name in read_data(__package__, "marks")[kind]]


@cache
def find_format(name: str) -> Format:
    """Return the format with this name.

    Raises: `ConfigError` that names similar formats if there is no such format.
    """
    return FORMATS.load(name)()


def detect(model: str | None = None, *, chat_template: str | None = None, text: str | None = None) -> str:
    """Return the name of the format that a model writes.

    The chat template is tried first, then the name of the model, then a text that the model wrote.

    Raises: `ConfigError` if none of them identifies the format.
    """
    if chat_template is not None:
        for mark, name in _marks("templates"):
            if mark in chat_template:
                return name
    if model is not None:
        for pattern, name in _marks("models"):
            if re.search(pattern, model, re.IGNORECASE):
                return name
    if text is not None and (found := _detect_text(text)) is not None:
        return found
    raise ConfigError(
        f"cannot tell which format the model {model!r} writes; give one of {', '.join(FORMATS.names())}"
    )


def _detect_text(text: str) -> str | None:
    for mark, name in _marks("texts"):
        if mark in text:
            return name
    at = text.find("<tool_call>")
    if at != -1:
        behind = text[at + len("<tool_call>") :].lstrip()
        if behind.startswith("["):
            return "granite"
        if behind.startswith("<function="):
            return "qwen3_coder"
        return "hermes" if behind.startswith("{") or not behind[:1].isalpha() else "glm45"
    at = text.find("<function=")
    if at != -1:
        return "qwen3_coder" if "<parameter=" in text[at:] else "functionary"
    return None


_PLACE = "\x00"
"""A content that is looked for in its frame."""


def parse(
    text: str,
    format: str,
    tools: Iterable[ToolSpec] | None = None,
    *,
    begins_in_reasoning: bool | None = None,
) -> Parsed:
    """Parse the text that a model wrote into its reasoning, content, tool calls and errors.

    Some formats write every argument as plain text. The schemas of `tools` then say which type an argument has;
    without `tools` such arguments stay strings. `begins_in_reasoning` says whether the prompt ended with the tag
    that opens the reasoning; `None` means unknown.

    Raises: `ConfigError` if the format is unknown. No text raises an error.
    """
    found = find_format(format)
    if not begins_in_reasoning and (plain := found.read_plain(text)) is not None:
        return plain
    return found.read_text(text, schemas_of(tools), begins_in_reasoning)


class IncrementalParser:
    """A parser for a text that arrives in pieces. Its result is that of `parse`, wherever the text is cut."""

    def __init__(
        self,
        format: str,
        tools: Iterable[ToolSpec] | None = None,
        *,
        begins_in_reasoning: bool | None = None,
    ) -> None:
        """Make a parser for one text; the arguments are those of `parse`. Raises: `ConfigError` as it does."""
        self._reader = Reader(schemas_of(tools), begins_in_reasoning=begins_in_reasoning)
        self._steps = find_format(format).read_all(self._reader)
        self._unread: list[str] = []
        self._is_over = False
        self._result: Parsed | None = None

    @property
    def text(self) -> str:
        """The whole text. Complete only after `close`."""
        return self._reader.text

    def feed(self, chunk: str) -> list[Piece]:
        """Add `chunk` to the text and return the pieces that are now certain."""
        if self._result is not None:
            raise ValueError("the parser is closed; make a new one for another text")
        self._unread.append(chunk)
        # While the format waits for the end of the text, joining the chunks each time would be quadratic.
        if not self._reader.waits_for_all:
            self._read()
        return self._take()

    def close(self) -> Parsed:
        """End the text and return its result. The last pieces are in `pieces`. May be called again."""
        if self._result is None:
            self._reader.is_whole = True
            self._read()
            self.pieces = self._take()
            self._result = self._reader.result()
            self.pieces += self._take()
        return self._result

    pieces: list[Piece] = []  # noqa: RUF012
    """The pieces that became certain only at the end of the text."""

    def _read(self) -> None:
        reader = self._reader
        text, reader.text = reader.text, ""
        text += "".join(self._unread)
        reader.text = text
        self._unread.clear()
        del text
        if not self._is_over:
            self._is_over = next(self._steps, True) is True

    def _take(self) -> list[Piece]:
        taken = list(self._reader.pieces)
        self._reader.pieces.clear()
        return taken


def render(message: Message, format: str, tools: Iterable[ToolSpec] | None = None) -> str:
    """Return `message` as text in the format. `parse` of this text with the same tools gives `message` again.

    Raises: `ConfigError` if the format is unknown; `FormatError` if the format cannot express the message, for
    example because a value contains the tag that ends values.
    """
    found = find_format(format)
    text = found.render(message)
    _check(found, message, text, schemas_of(tools))
    return text


def _check(found: Format, message: Message, text: str, schemas: ToolSchemas) -> None:
    """Raise an error if parsing `text` does not give `message`. Raises: `FormatError`."""
    back = found.read_text(text, schemas)
    calls = [(call.name, arguments_of(call)) for call in message.tool_calls]
    got = [(call.name, call.arguments) for call in back.tool_calls]
    if back.errors:
        what = f"a call: {back.errors[0].reason}"
    elif len(calls) != len(got):
        what = "text that reads as a call" if len(got) > len(calls) else "a call that does not come back"
    elif calls != got or repr(calls) != repr(got):
        name = next(one[0] for one, other in zip(calls, got, strict=True) if repr(one) != repr(other))
        what = f"a name or an argument of {name!r} that does not come back as it was"
        if name not in schemas:
            what += "; give `tools`, whose schemas tell the types of values"
    elif back.content != message.content:
        what = "the content, which does not come back as it was"
    elif (back.reasoning or "") != (message.reasoning or ""):
        what = "the reasoning, which does not come back as it was"
    else:
        return
    raise FormatError(f"the format {found.name} cannot express {what}")


def render_tools(tools: Sequence[ToolSpec], format: str) -> str:
    """Return the text that describes tools in the system message of a model of the format."""
    return find_format(format).render_tools(tools)


def render_result(content: str, name: str, format: str, *, call_id: str | None = None) -> str:
    """Return the text that gives a tool's result to a model of the format."""
    return find_format(format).render_result(content, name, call_id)


def quote_result(content: str, name: str, format: str, *, call_id: str | None = None) -> str:
    """Return the text that gives a tool's result to a model of the format in a message of the user.

    Unlike the text of `render_result`, it always has marks around the content, and the content cannot end them:
    control tokens and marks in it are changed.
    """
    before, place, after = render_result(_PLACE, name, format, call_id=call_id).partition(_PLACE)
    if place and not after.strip():
        before, after = f"{before}<tool_response>\n", f"\n</tool_response>{after}"
    return f"{before}{defuse(content)}{after}"
