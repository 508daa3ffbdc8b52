"""The messages of a transcript that a row shows, and those of them that are not trained on."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import TypeVar

from treadle.core.events import DurableBody, MessageInjected
from treadle.core.foreign import as_seen
from treadle.core.types import Message, Role, ToolResult

T = TypeVar("T")


class ShownMessages:
    """The messages of a transcript that a row shows.

    Treadle's own messages are left out: limits, nudges, schemas and rejections of answers. An answer that such a
    message rejects is left out with it, and the one that a limit asks for is not trained on.
    """

    def __init__(self, transcript: Iterable[Message], bodies: Sequence[DurableBody]) -> None:
        own = {
            id(body.message): body
            for body in bodies
            if isinstance(body, MessageInjected) and body.delivery is None
        }
        self.messages: list[Message] = []
        self._kept: list[bool] = []
        """For each answer of the run, whether the row shows it."""
        self._wrap_ups: list[int] = []
        is_wrap_up = False
        for message in transcript:
            if (body := own.get(id(message))) is not None:
                is_wrap_up = body.limit is not None
                if not body.tells_schema and self.messages[-1].role is Role.ASSISTANT:
                    self._kept[-1] = False
                    self.messages.pop()
                continue
            for seen in as_seen([message]):
                if seen.role is Role.ASSISTANT:
                    if is_wrap_up:
                        self._wrap_ups.append(len(self._kept))
                    self._kept.append(True)
                    is_wrap_up = False
                self.messages.append(seen)

    def keep(self, items: list[T]) -> list[T]:
        """Return those of the items, one for each answer of the run, whose answers the row shows."""
        return list(compress(items, self._kept)) if len(items) == len(self._kept) else items

    def find_untrained(self, results: Sequence[ToolResult]) -> Iterator[int]:
        """Yield the numbers of the answers that are not trained on."""
        failed = {result.call_id for result in results if result.is_models_fault}
        wrap_ups = self.keep([number in self._wrap_ups for number in range(len(self._kept))])
        said = [message for message in self.messages if message.role is Role.ASSISTANT]
        for number, (message, is_wrap_up) in enumerate(zip(said, wrap_ups, strict=True)):
            if is_wrap_up or any(call.call_id in failed for call in message.tool_calls):
                yield number
