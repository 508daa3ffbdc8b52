"""Reports of what happens in a sample while it is made, for people who watch."""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeAlias

from treadle.core.log import Log
from treadle.core.types import Completion, Message, Request, Role
from treadle.models.protocol import Model, Watch
from treadle.models.wrappers.wrapper import Wrapper

OnStep: TypeAlias = Callable[[str, str], None]
"""A function that is called with the id of a sample and one line about its newest message, call or result."""

sample_id: ContextVar[str] = ContextVar("sample_id", default="")
"""The sample that the current task makes."""

_MAX_CHARS = 240


class ReportingModel(Wrapper):
    """An agent's model that reports each request's new messages and each answer. It is not a listener of the run,
    because a listener waits until every event is durable, and makes the model stream."""

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, on_step: OnStep) -> None:
        super().__init__(inner)
        self._on_step = on_step

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        self._report(_newest(request.messages))
        completion = await self.inner.infer(request, watch)
        self._report([completion.message])
        return completion

    def _report(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for line in _lines(message):
                self._on_step(sample_id.get(), line)


def _newest(messages: Log[Message]) -> list[Message]:
    """Return the messages after the last answer, without the system message."""
    found: list[Message] = []
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role in (Role.ASSISTANT, Role.SYSTEM):
            break
        found.append(messages[index])
    return found[::-1]


def _lines(message: Message) -> Iterator[str]:
    # Only the beginning is shown, and white space within it becomes shorter.
    text = " ".join(message.content[: 4 * _MAX_CHARS].split())
    if message.role is Role.TOOL:
        yield _cut(f"{message.name}: {'error: ' if message.is_error else ''}{text}")
    elif text:
        yield _cut(f"{message.role}: {text}")
    for call in message.tool_calls:
        yield _cut(f"{message.role}: {call.name}({call.arguments})")


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"
