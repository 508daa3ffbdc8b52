"""The way in: which formats there are, which one a model writes, and parsing and rendering by name."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from treadle.core.errors import ConfigError, FormatError
from treadle.core.types import Message, Role, ToolCall
from treadle.formats.deepseek import DeepSeekV3, DeepSeekV31, DeepSeekV32
from treadle.formats.engine.base import Format
from treadle.formats.engine.reader import Reader
from treadle.formats.engine.rendering import arguments_of
from treadle.formats.engine.types import Parsed, Piece, Schemas, ToolLike, schemas_of, to_json
from treadle.formats.functionary import Functionary
from treadle.formats.glm45 import Glm45
from treadle.formats.granite import Granite
from treadle.formats.harmony import Harmony
from treadle.formats.hermes import Hermes
from treadle.formats.kimi_k2 import KimiK2
from treadle.formats.llama import Llama3Json, Llama3Pythonic
from treadle.formats.minimax import MiniMax
from treadle.formats.mistral import Mistral
from treadle.formats.qwen3_coder import Qwen3Coder
from treadle.formats.xlam import Xlam

FORMATS: dict[str, Format] = {
    made.name: made
    for made in (
        Hermes(),
        Qwen3Coder(),
        Llama3Json(),
        Llama3Pythonic(),
        Mistral(),
        DeepSeekV3(),
        DeepSeekV31(),
        DeepSeekV32(),
        Glm45(),
        KimiK2(),
        Harmony(),
        Granite(),
        Xlam(),
        MiniMax(),
        Functionary(),
    )
}
"""Name to format."""
AUTO = "auto"

_MODELS = (
    (r"qwen.?3.*coder|qwen.?3\.[5-9]|nemotron.?3|step.?3\.5", "qwen3_coder"),
    (r"deepseek.*v3\.2|deepseek.*v4", "deepseek_v32"),
    (r"deepseek.*v3\.1", "deepseek_v31"),
    (r"deepseek.*(?:v3|r1)", "deepseek_v3"),
    (r"glm.?(?:4\.[5-9]|[5-9])", "glm45"),
    (r"kimi.?k2", "kimi_k2"),
    (r"gpt.?oss", "harmony"),
    (r"granite.?4", "hermes"),
    (r"granite", "granite"),
    (r"xlam", "xlam"),
    (r"minimax", "minimax"),
    (r"functionary", "functionary"),
    (r"toolace|llama.?4|llama.?3\.2.?[13]b", "llama3_pythonic"),
    (r"llama.?3", "llama3_json"),
    (r"mi[sx]tral|magistral|devstral|codestral|ministral", "mistral"),
    (r"hermes|qwen|qwq", "hermes"),
)
_TEMPLATES = (
    ("<｜DSML｜", "deepseek_v32"),
    ("'<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "deepseek_v3"),
    ("<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>", "deepseek_v3"),
    ("<｜tool▁call▁begin｜>", "deepseek_v31"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|constrain|>", "harmony"),
    ("<minimax:tool_call>", "minimax"),
    ("<arg_key>", "glm45"),
    ("<function=example_function_name>", "qwen3_coder"),
    ("<parameter=", "qwen3_coder"),
    ("[TOOL_CALLS]", "mistral"),
    (">>>all", "functionary"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "llama3_pythonic"),
    ("<|python_tag|>", "llama3_json"),
)
_TEXTS = (
    ("<｜DSML｜", "deepseek_v32"),
    ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "deepseek_v3"),
    ("<｜tool▁call▁begin｜>", "deepseek_v31"),
    ("<|tool_call_begin|>", "kimi_k2"),
    ("<|channel|>", "harmony"),
    ("<minimax:tool_call>", "minimax"),
    ("<invoke name=", "minimax"),
    ("<tool_calls>", "minimax"),
    ("[TOOL_CALLS]", "mistral"),
    ("<arg_key>", "glm45"),
    ("<parameter=", "qwen3_coder"),
    ("<|python_start|>", "llama3_pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ("<|tool_call|>", "granite"),
    ("<function_call>", "granite"),
)


def find_format(name: str) -> Format:
    """Raises: `ConfigError` for an unknown name, with the nearest known one."""
    found = FORMATS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the formats are {', '.join(FORMATS)}"
        raise ConfigError(f"there is no format {name!r}; {hint}")
    return found


def detect(model: str | None = None, *, chat_template: str | None = None, text: str | None = None) -> str:
    """The format that a model writes, by its chat template, by its name, or by what it wrote.

    Raises: `ConfigError` if none of them tells.
    """
    if chat_template is not None:
        for mark, name in _TEMPLATES:
            if mark in chat_template:
                return name
    if model is not None:
        for pattern, name in _MODELS:
            if re.search(pattern, model, re.IGNORECASE):
                return name
    if text is not None and (found := _detect_text(text)) is not None:
        return found
    raise ConfigError(
        f"cannot tell which format the model {model!r} writes; give one of {', '.join(FORMATS)}"
    )


def _detect_text(text: str) -> str | None:
    for mark, name in _TEXTS:
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


def parse(
    text: str,
    format: str,
    tools: Iterable[ToolLike] | None = None,
    *,
    model: str | None = None,
    chat_template: str | None = None,
    begins_in_reasoning: bool | None = None,
) -> Parsed:
    """What a model's text says: its thinking, its content, its calls, and what was meant as one and is none.

    `tools` tell the types of values that a format writes as texts; without them such values are texts. With the
    format `auto` the chat template, the model's name or the text itself decides. `begins_in_reasoning` says whether
    the prompt ended with the opener of thinking; `None`: it may have.

    Raises: `ConfigError` for an unknown format; nothing else, whatever the text is.
    """
    if format == AUTO:
        try:
            format = detect(model, chat_template=chat_template, text=text)
        except ConfigError:
            if model is not None or chat_template is not None:
                raise
            # A text without any mark of a format is just text.
            return Parsed(content=text)
    found = find_format(format)
    reader = Reader(schemas_of(tools), begins_in_reasoning=begins_in_reasoning)
    reader.text, reader.is_whole = text, True
    for _ in found.read_all(reader):
        raise AssertionError("a text that is whole needs no more")
    return reader.result()


class IncrementalParser:
    """The same for a text that comes in pieces: however it is cut, the result is that of `parse`."""

    def __init__(
        self,
        format: str,
        tools: Iterable[ToolLike] | None = None,
        *,
        model: str | None = None,
        chat_template: str | None = None,
        begins_in_reasoning: bool | None = None,
    ) -> None:
        """Raises: `ConfigError` for an unknown format, or if nothing tells which one `auto` is."""
        name = detect(model, chat_template=chat_template) if format == AUTO else format
        self._reader = Reader(schemas_of(tools), begins_in_reasoning=begins_in_reasoning)
        self._steps = find_format(name).read_all(self._reader)
        self._unread: list[str] = []
        self._is_over = False
        self._result: Parsed | None = None

    @property
    def text(self) -> str:
        """All that was fed, once it is closed."""
        return self._reader.text

    def feed(self, chunk: str) -> list[Piece]:
        """What has become certain with `chunk`: pieces of content and thinking, calls, errors."""
        if self._result is not None:
            raise ValueError("the parser is closed; make another for another text")
        self._unread.append(chunk)
        # A text that waits for its end is not put together for every piece.
        if not self._reader.waits_for_all:
            self._read()
        return self._take()

    def close(self) -> Parsed:
        """The whole of the text. Its last pieces are in `pieces`. May be called again."""
        if self._result is None:
            self._reader.is_whole = True
            self._read()
            self.pieces = self._take()
            self._result = self._reader.result()
            self.pieces += self._take()
        return self._result

    pieces: list[Piece] = []  # noqa: RUF012
    """What became certain only with the end."""

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


def render(
    message: Message | Parsed | Mapping[str, Any], format: str, tools: Iterable[ToolLike] | None = None
) -> str:
    """The text that a model of the format would have written; `parse` with the same tools gives `message` again.

    A message may be ours, what `parse` gave, or a mapping as OpenAI has it.

    Raises: `FormatError` for what the format cannot carry, as a value that holds the mark that ends values.
    """
    found = find_format(format)
    schemas = schemas_of(tools)
    if isinstance(message, Message):
        whole = message
    else:
        whole = _to_message(message) if isinstance(message, Parsed) else _read_message(message)
    text = found.render(whole)
    _check(found, whole, text, schemas)
    return text


def _to_message(parsed: Parsed) -> Message:
    calls = [ToolCall(call.call_id or "", call.name, call.arguments_text) for call in parsed.tool_calls]
    return Message(Role.ASSISTANT, parsed.content, tuple(calls), reasoning=parsed.reasoning)


def _read_message(raw: Mapping[str, Any]) -> Message:
    """Raises: `FormatError` for what is no message."""
    try:
        calls = []
        for call in raw.get("tool_calls") or ():
            inner = call.get("function", call)
            arguments = inner["arguments"]
            text = arguments if isinstance(arguments, str) else to_json(arguments)
            calls.append(ToolCall(call.get("id") or "", inner["name"], text))
        reasoning = raw.get("reasoning_content") or raw.get("reasoning")
        read = Message(Role.ASSISTANT, raw.get("content") or "", tuple(calls), reasoning=reasoning)
        return msgspec.convert(msgspec.to_builtins(read), Message)
    except (AttributeError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise FormatError(f"it is no message of an assistant: {error!r}") from None


def _check(found: Format, message: Message, text: str, schemas: Schemas) -> None:
    """Raises: `FormatError` if reading `text` gives something else."""
    reader = Reader(schemas)
    reader.text, reader.is_whole = text, True
    for _ in found.read_all(reader):
        raise AssertionError("a text that is whole needs no more")
    back = reader.result()
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
    raise FormatError(f"the format {found.name} cannot carry {what}")


def render_tools(tools: Sequence[ToolLike], format: str) -> str:
    """How tools are told to a model of the format, in its system message."""
    return find_format(format).render_tools(tools)


def render_result(content: str, name: str, format: str, *, call_id: str | None = None) -> str:
    """How a tool's answer is told to a model of the format."""
    return find_format(format).render_result(content, name, call_id)
