"""The texts with which a built-in model may answer a prompt, each with its probability."""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.types import Message, ToolCall
from treadle.tasks.solver import WantedCall
from treadle.testbed.engines.mock_template import Asked, Template
from treadle.testbed.play import misspell, spoil

MISTAKES = 3
"""The number of different mistakes that an answer may have."""
_LINE_RATE = 0.1
"""The probability that a text ends with one more line break."""
_MARK = "Answer: "


class TextPlan(Struct, frozen=True):
    """A text with which the model may answer."""

    text: bytes
    """The text, without the beginning that the template writes."""
    weight: float
    """The probability of the text."""


def make_plans(
    answer: Callable[[Asked], Message], asked: Asked, template: Template, mistake_rate: float
) -> list[TextPlan]:
    """Return the plans for a prompt: the answer itself, and with `mistake_rate` versions of it with a mistake."""
    message = answer(asked)
    messages = [(message, 1.0 - mistake_rate)]
    if mistake_rate:
        key = f"{len(asked.messages)}/{message.content}"
        messages += [
            (_spoil(message, f"{key}/{index}"), mistake_rate / MISTAKES) for index in range(MISTAKES)
        ]
    plans: dict[bytes, float] = {}
    for said, weight in messages:
        text = template.write(said).removeprefix(template.opening).encode()
        for ending, share in ((b"", 1.0 - _LINE_RATE), (b"\n", _LINE_RATE)):
            plans[text + ending] = plans.get(text + ending, 0.0) + weight * share
    return [TextPlan(text, weight) for text, weight in plans.items() if weight]


def _spoil(message: Message, key: str) -> Message:
    """Return `message` with a mistake: in its first call, or in its answer."""
    if not message.tool_calls:
        head, mark, answer = message.content.rpartition(_MARK)
        return replace(message, content=head + mark + _spoil_answer(answer, key))
    first, *rest = message.tool_calls
    try:
        call = WantedCall(first.name, first.parsed, next(iter(_paths(first.parsed)), None))
    except ValueError:
        return message
    name, arguments = spoil(call, key)
    return replace(message, tool_calls=(ToolCall(first.call_id, name, arguments), *rest))


def _paths(arguments: object) -> Sequence[str]:
    return [name for name in arguments if name.endswith("path")] if isinstance(arguments, dict) else ()


def _spoil_answer(answer: str, key: str) -> str:
    """Return an answer with another number in it; with an extra letter if it has no number."""
    place = next((at for at in range(len(answer) - 1, -1, -1) if answer[at].isdecimal()), None)
    if place is None:
        return misspell(answer, key)
    digit = (int(answer[place]) + 1 + sum(key.encode()) % 8) % 10
    return f"{answer[:place]}{digit}{answer[place + 1 :]}"
