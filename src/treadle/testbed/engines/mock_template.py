"""The chat template of the mock engines: ChatML, with tools, calls and results as Hermes and Qwen write them.

`render` turns a request into ids and `read` turns the ids of a prompt back into the request, so an engine that
gets only ids answers as the chat endpoint does. `Variant` lists the difficult properties of real templates that
this one can have.
"""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from importlib.resources import files

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, RequestError
from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.formats import parse, quote_result, render_tools
from treadle.formats.text_transcript import TranscriptWriter
from treadle.testbed.engines.bpe import END, START, Bpe
from treadle.testbed.textual import read_text_request

FORMAT = "hermes"
_THINK, _THOUGHT = "<think>\n", "\n</think>\n\n"


class Variant(StrEnum):
    """A property of a model, which is part of its name, as in `oracle+strip_thinking`."""

    STRIP_THINKING = "strip_thinking"
    """The template leaves out the reasoning of earlier answers."""
    PREFILL_THINKING = "prefill_thinking"
    """The prompt ends with the mark that begins reasoning."""
    SORT_ARGUMENTS = "sort_arguments"
    """The template writes the arguments of earlier calls in alphabetical order."""
    CANONICAL = "canonical"
    """The model samples only the ids that the tokenizer makes of a text."""
    BYTES = "bytes"
    """The ids are bytes, as with the renderer `chatml`."""


class Asked(Struct, frozen=True):
    """The request that a prompt expresses."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    begun: bytes
    """The beginning of the answer that is in the prompt already, with the text that the template begins with."""


class Template:
    """The template of a model."""

    def __init__(self, bpe: Bpe, variants: frozenset[Variant] = frozenset()) -> None:
        self.bpe = bpe
        self.variants = variants
        self.start, self.end = bpe.special_ids[START], bpe.special_ids[END]
        self.opening = _THINK if Variant.PREFILL_THINKING in variants else ""
        """The text with which every answer begins, and which the model does not sample."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids of a prompt, up to where the answer begins."""
        written = [
            Message(Role.ASSISTANT, self.write(message, is_history=True))
            if message.role is Role.ASSISTANT
            else message
            for message in messages
        ]
        ids: list[int] = []
        for turn in TranscriptWriter(FORMAT, tools)(written, is_first=True):
            text = f"{turn.role}\n{turn.content}"
            ids += [self.start, *self.bpe.encode(text), self.end, *self.bpe.encode("\n")]
        return [*ids, self.start, *self.bpe.encode(f"{Role.ASSISTANT}\n{self.opening}")]

    def write(self, message: Message, *, is_history: bool = False) -> str:
        """Return the text of an answer: as the model writes it, or as the template writes it in a prompt."""
        calls = [self._write_call(call, is_history=is_history) for call in message.tool_calls]
        text = "\n".join([message.content, *calls] if message.content else calls)
        reasoning = message.reasoning
        if is_history and Variant.STRIP_THINKING in self.variants:
            reasoning = None
        elif reasoning is None and self.opening:
            reasoning = ""
        return text if reasoning is None else f"{_THINK}{reasoning}{_THOUGHT}{text}"

    def _write_call(self, call: ToolCall, *, is_history: bool) -> str:
        is_sorted = is_history and Variant.SORT_ARGUMENTS in self.variants
        try:
            arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False, sort_keys=is_sorted)
        except ValueError:
            arguments = call.arguments
        name = json.dumps(call.name, ensure_ascii=False)
        return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'

    def read(self, ids: Sequence[int]) -> Asked:
        """Return the request that the ids of a prompt express. Any renderer of ChatML may have made them.

        Raises: `RequestError` if they do not end in an answer that has begun.
        """
        turns: list[tuple[str, bytes]] = []
        place = 0
        while True:
            try:
                place = ids.index(self.start, place) + 1
            except ValueError:
                break
            stop = next((at for at in range(place, len(ids)) if ids[at] in (self.end, self.start)), len(ids))
            try:
                role, _, content = self.bpe.content(ids[place:stop]).partition(b"\n")
            except ConfigError as error:
                raise RequestError(str(error), status=400) from None
            turns.append((role.decode("utf-8", "replace"), content))
            is_open = stop == len(ids)
            place = stop
        if not turns or turns[-1][0] != Role.ASSISTANT or not is_open:
            raise RequestError(
                f"the prompt does not end in an open answer: it has to end with {START + 'assistant'!r} and a "
                "line break, and then the part of the answer that exists already",
                status=400,
            )
        messages = [
            Message(_role_of(role), content.decode("utf-8", "replace")) for role, content in turns[:-1]
        ]
        messages = _merge_results(messages)
        text = read_text_request(messages)
        if text is not None:
            return Asked(text.messages, text.tools, turns[-1][1])
        return Asked(tuple(messages), (), turns[-1][1])

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Return the message in the text of an answer, as the parsers of the engines read it."""
        found = parse(text, FORMAT, tools, begins_in_reasoning=bool(self.opening))
        if not tools or any(not error.is_text for error in found.errors):
            rest = text if found.reasoning is None else text.partition(_THOUGHT.strip())[2].strip()
            return Message(Role.ASSISTANT, rest, reasoning=found.reasoning)
        calls = [
            ToolCall("", call.name, json.dumps(call.arguments, ensure_ascii=False))
            for call in found.tool_calls
        ]
        return Message(Role.ASSISTANT, found.content, tuple(calls), reasoning=found.reasoning)

    @property
    def jinja(self) -> str:
        """The template as Jinja, for Hugging Face's tokenizers. It writes the same text as `render`."""
        head, _, tail = render_tools((ToolSpec("PLACE", "", {}),), FORMAT).partition("<tools>\n")
        values: dict[str, Json] = {
            "HEAD": f"{head}<tools>\n",
            "TAIL": "\n</tools>" + tail.partition("\n</tools>")[2],
            "OPENING": self.opening,
            "ALWAYS": bool(self.opening),
            "KEEPS": Variant.STRIP_THINKING not in self.variants,
            "SORTED": Variant.SORT_ARGUMENTS in self.variants,
        }
        text = files(__package__).joinpath("chat_template.jinja").read_text("utf-8")
        return re.sub("|".join(values), lambda found: json.dumps(values[found[0]]), text)


def _role_of(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        raise RequestError(f"the prompt has a message of the role {name!r}", status=400) from None


def _merge_results(messages: list[Message]) -> list[Message]:
    """Return the messages with results of tools as Hermes sends them: those of a step in one user message."""
    merged: list[Message] = []
    is_result = False
    for message in messages:
        if message.role is not Role.TOOL:
            merged.append(message)
            is_result = False
            continue
        text = message.content
        if not text.startswith("<tool_response>"):
            text = quote_result(text, "", FORMAT)
        if is_result:
            merged[-1] = replace(merged[-1], content=f"{merged[-1].content}\n{text}")
        else:
            merged.append(Message(Role.USER, text))
        is_result = True
    return merged
