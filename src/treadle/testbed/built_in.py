"""The completions of the built-in models: their usage, their ids, and their pieces when they are streamed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from msgspec import Struct

from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.spec import PartSpec
from treadle.core.types import Completion, FinishReason, Json, Message, Request, Role, ToolSpec, Usage
from treadle.models.protocol import Watch

_CHUNK_CHARS = 24


def make_completion(
    message: Message, messages: Sequence[Message], model: str, response_id: str
) -> Completion:
    """Return the completion that answers `messages` with `message`. Its usage is an estimate, its cost is 0."""
    usage = Usage(
        sum(map(count_chars, messages)) // 4 + 1,
        count_chars(message) // 4 + 1,
        reasoning_tokens=len(message.reasoning or "") // 4,
    )
    reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    return Completion(message, reason, usage, 0.0, model, response_id)


def find_requests(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the user's messages, without those that the loop writes after tool results."""
    return [
        index
        for index, message in enumerate(messages)
        if message.role is Role.USER and (index == 0 or messages[index - 1].role is not Role.TOOL)
    ]


_REPAIR = "This answer cannot be used"
"""How the message of a generation begins that asks for the last answer again."""


def without_repairs(messages: Sequence[Message]) -> tuple[Sequence[Message], int]:
    """Return messages without repairs and what they replaced, and how many repairs the newest answer took."""
    shown: list[Message] = []
    repairs = 0
    for message in messages:
        if message.role is Role.USER and message.content.startswith(_REPAIR) and shown:
            shown.pop()
            repairs += 1
            continue
        if message.role is Role.USER and (not shown or shown[-1].role is not Role.TOOL):
            repairs = 0
        shown.append(message)
    return shown, repairs


def stream(message: Message) -> Iterator[TextDelta | ReasoningDelta | ToolCallDelta]:
    """Yield the message in pieces, as a server streams it."""
    for text in _chunks(message.reasoning or ""):
        yield ReasoningDelta(text)
    for text in _chunks(message.content):
        yield TextDelta(text)
    for index, call in enumerate(message.tool_calls):
        yield ToolCallDelta(index, call.call_id, call.name, "")
        for text in _chunks(call.arguments):
            yield ToolCallDelta(index, None, None, text)


class BuiltInRequest(Struct, frozen=True):
    """What a built-in model is asked for."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    max_calls: int | None = None
    """The largest number of calls in the answer."""
    schema: dict[str, Json] | None = None
    """The schema that a final answer fits."""
    required: str | None = None
    """The name of a tool that is called in any case."""

    @property
    def required_parameters(self) -> dict[str, Json] | None:
        """The parameters of the tool `required`; `None` if there is none."""
        return next((tool.parameters for tool in self.tools if tool.name == self.required), None)


class BuiltInModel(ABC):
    """A model that computes its answers from the transcript, here or behind the mock server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.part = PartSpec(name=name)
        """The description for the agent spec."""

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the next message, after passing it on in pieces if `watch` asks for them."""
        asked = BuiltInRequest(
            list(request.messages),
            request.tools,
            schema=request.output_schema,
            required=request.required_tool,
        )
        completion = self.answer(asked)
        if watch.on_delta is not None:
            for delta in stream(completion.message):
                watch.on_delta(delta)
        return completion

    @abstractmethod
    def answer(self, asked: BuiltInRequest) -> Completion:
        """Return the message that follows those of the request."""


def _chunks(text: str) -> Iterator[str]:
    for start in range(0, len(text), _CHUNK_CHARS):
        yield text[start : start + _CHUNK_CHARS]


def count_chars(message: Message) -> int:
    """Return the size of `message`, for estimates of its tokens."""
    count = len(message.content) + len(message.reasoning or "") + 12
    for call in message.tool_calls:
        count += len(call.name) + len(call.arguments) + 16
    return count


def digest(text: str) -> str:
    """Return 12 hexadecimal digits that depend only on `text`."""
    return blake2b(text.encode(), digest_size=6).hexdigest()
