"""The parts of a transcript that filters look at: turns, calls with their results, texts."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from treadle.core.types import Json, Message, Role, ToolCall
from treadle.export.rows import Row

_NAMES = {
    Role.SYSTEM: "system message",
    Role.USER: "user message",
    Role.ASSISTANT: "step",
    Role.TOOL: "result",
}
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


class Exchange(Struct, frozen=True):
    """A call with its result."""

    index: int
    """The position of the message that has the call."""
    turn: int
    """The turn of the call, from 0."""
    call: ToolCall
    result: Message
    result_index: int


def exchanges(messages: Sequence[Message]) -> Iterator[Exchange]:
    """Yield each call with its result, in order of the calls. A call without a result is left out."""
    results = {item.call_id: index for index, item in enumerate(messages) if item.role is Role.TOOL}
    turn = -1
    for index, message in enumerate(messages):
        turn += message.role is Role.USER
        for call in message.tool_calls:
            if (found := results.get(call.call_id)) is not None:
                yield Exchange(index, max(turn, 0), call, messages[found], found)


def answers(messages: Sequence[Message]) -> list[int]:
    """Return the position of the final answer of each turn: its last message, if it has no calls."""
    return [
        index
        for index, message in enumerate(messages)
        if message.role is Role.ASSISTANT
        and not message.tool_calls
        and (index + 1 == len(messages) or messages[index + 1].role is Role.USER)
    ]


def name_message(messages: Sequence[Message], index: int) -> str:
    """Return the name of a message in a reason: `answer 2` or `user message 1`, with its first words."""
    role, ends = messages[index].role, answers(messages)
    if index in ends:
        name = f"answer {ends.index(index) + 1}"
    else:
        number = sum([message.role is role for message in messages[: index + 1]])
        name = f"{_NAMES[role]} {number}"
    return f"{name} ({quote(messages[index].content, 40)})"


def find_missing_thought(messages: Sequence[Message]) -> str | None:
    """Return a sentence about the first step that has calls and no thought before them; `None` if there is no such
    step. A thought is a text or reasoning."""
    steps = [message for message in messages if message.role is Role.ASSISTANT]
    for number, message in enumerate(steps, 1):
        if message.tool_calls and not (message.content.strip() or (message.reasoning or "").strip()):
            names = ", ".join(call.name for call in message.tool_calls)
            return f"step {number} calls {names} without the reasoning that was asked for"
    return None


def count_turns(messages: Sequence[Message]) -> int:
    """Return the number of turns. A user message that the loop adds after a tool result does not begin a turn."""
    return sum(
        message.role is Role.USER and (index == 0 or messages[index - 1].role is not Role.TOOL)
        for index, message in enumerate(messages)
    )


def leaves_of(value: Json) -> Iterator[Json]:
    """Yield the texts, numbers, flags and nulls in a JSON value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(item)
    else:
        yield value


def user_words(row: Row) -> str:
    """Return the texts of all user messages, one after another."""
    return "\n".join([item.content for item in row.messages if item.role is Role.USER])


_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""The letters of Chinese, Japanese, Thai, Lao, Burmese and Khmer, which are written without spaces."""


def count_words(text: str) -> int:
    """Return the number of words in a text. Two letters of a language without spaces count as a word."""
    rest, letters = _UNSPACED.subn(" ", text)
    return sum(1 for _ in WORD.finditer(rest)) + (letters + 1) // 2


def quote(text: str, limit: int = 60) -> str:
    """Return a text in quotation marks for a reason, cut to `limit` characters."""
    return repr(text if len(text) <= limit else f"{text[: limit - 1]}…")
