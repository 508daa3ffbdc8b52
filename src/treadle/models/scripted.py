"""A deterministic model for tests and demonstrations: it answers from a list or by a function."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.events import Delta, TextDelta
from treadle.core.types import Completion, FinishReason, Json, Message, Request, Role, ToolCall, Usage
from treadle.models.protocol import Watch, pass_on

Answer: TypeAlias = "str | Message | Completion | BaseException | list[ToolCall]"
"""An answer of a script: a final text, calls, a whole message or completion, or an error to raise."""


def call(name: str, arguments: Json = None, *, call_id: str | None = None) -> ToolCall:
    """Return a tool call for a script. `arguments` may be a value, or a text that is used unchanged."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return ToolCall(call_id or "", name, text)


class ScriptedModel:
    """A model that answers from a list, the n-th request with the n-th item, or that calls a function.

    After the last item it raises `ConfigError`, because a script that is too short is a mistake of its author.
    """

    def __init__(
        self,
        answers: Iterable[Answer] | Callable[[Request], Answer],
        *,
        name: str = "scripted",
        delay_seconds: float = 0.0,
        chunk_chars: int = 8,
        keeps_requests: bool = True,
    ) -> None:
        if isinstance(answers, str) or not (callable(answers) or isinstance(answers, Iterable)):
            raise ConfigError(
                f"answers is {answers!r:.200}; give a list of answers, or a function of the request"
            )
        self.name = name
        self.requests: list[Request] = []
        """The requests so far, in order."""
        self._answer = answers if callable(answers) else None
        self._answers = [] if callable(answers) else list(answers)
        self._delay_seconds = delay_seconds
        self._chunk_chars = chunk_chars
        self._keeps_requests = keeps_requests
        self._asked = 0

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the next answer, streamed in pieces of `chunk_chars` characters if the caller wants deltas."""
        position = self._asked
        self._asked += 1
        if self._keeps_requests:
            self.requests.append(request)
        answer = self._answers[position] if position < len(self._answers) else self._call(request)
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        if isinstance(answer, BaseException):
            raise answer
        completion = _complete(answer, request)
        if watch.on_delta is not None:
            self._stream(completion.message, watch)
        return completion

    def _call(self, request: Request) -> Answer:
        if self._answer is not None:
            return self._answer(request)
        count = len(self._answers)
        last = request.messages[-1] if len(request.messages) else None
        asked = "is empty" if last is None else f"ends with the {last.role} message {last.content!r:.200}"
        raise ConfigError(
            f"the script of the model {self.name!r} has {count} answer{'s' * (count != 1)}, and request "
            f"{self._asked} has none: it {asked}; add an answer, or give a function of the request"
        )

    def _stream(self, message: Message, watch: Watch) -> None:
        on_delta, size = watch.on_delta, self._chunk_chars
        assert on_delta is not None

        def pass_pieces(delta: Delta) -> None:
            if not isinstance(delta, TextDelta):
                on_delta(delta)
                return
            for start in range(0, len(delta.text), size):
                on_delta(TextDelta(delta.text[start : start + size]))

        pass_on(msgspec.structs.replace(message, reasoning=None), pass_pieces)


def _complete(answer: Answer, request: Request) -> Completion:
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        answer = Message(Role.ASSISTANT, answer)
    elif isinstance(answer, list):
        answer = Message(Role.ASSISTANT, tool_calls=tuple(answer))
    if not isinstance(answer, Message):
        raise ConfigError(
            f"a script has {answer!r:.200}; give a str, a list of calls such as [call('name')], a Message, a "
            "Completion or an exception"
        )
    reason = FinishReason.TOOL_CALLS if answer.tool_calls else FinishReason.STOP
    usage = Usage(input_tokens=10 * len(request.messages), output_tokens=10)
    return Completion(answer, reason, usage, cost_usd=0.0)
