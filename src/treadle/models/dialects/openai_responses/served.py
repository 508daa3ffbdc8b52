"""The serving half of the Responses API: its answers are written. Its requests are read where files and vector
stores are known (`treadle.server.responses`, and `treadle.server.gateway.response_wire` for the gateway).

Source: OpenAI API reference, Responses, 2026.
"""

import time

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Completion, FinishReason, Json, Usage
from treadle.models.dialects.openai_responses.response_writer import (
    ResponseEvent,
    ResponseItem,
    ResponseWriter,
    client_call,
)
from treadle.models.protocol import pass_on
from treadle.models.wire.served import ServedRequest

_INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}
_NO_ANSWER: dict[str, Json] = {"error": None, "incomplete_details": None, "usage": None}


class ResponseStream(ResponseWriter):
    """The events of one streamed answer. Its calls may overlap, and end together."""

    @classmethod
    def of(cls, answer_id: str, asked: ServedRequest) -> "ResponseStream":
        return cls(answer_id, asked.model, asked.echo, asked.text_tools)

    def __init__(self, answer_id: str, model: str, echo: dict[str, Json], texts: frozenset[str]) -> None:
        """Begin a stream. `texts` are the names of the tools that take a text."""
        super().__init__(answer_id, {})
        self._texts = texts
        head = {"id": f"resp_{answer_id}", "object": "response", "created_at": int(time.time())}
        self._response = {**echo, **head, **_NO_ANSWER, "model": model, "status": "in_progress"}
        self._calls: dict[int, ResponseItem] = {}
        """The items of calls, by their positions."""

    def begin(self) -> list[ResponseEvent]:
        told = {**self._response, "output": []}
        self._say("created", response=told)
        self._say("in_progress", response=told)
        return self._taken()

    def add(self, piece: Delta) -> list[ResponseEvent]:
        if isinstance(piece, TextDelta | ReasoningDelta):
            self._add_text(piece.text, is_reasoning=isinstance(piece, ReasoningDelta))
        elif isinstance(piece, ToolCallDelta):
            self._add_call(piece)
        return self._taken()

    def end(self, completion: Completion) -> list[ResponseEvent]:
        self._close_text()
        for item in self._calls.values():
            item.item["status"] = "completed"
            self._end_client_call(item, item.text)
        reason = _INCOMPLETE.get(completion.finish_reason)
        status = "completed" if reason is None else "incomplete"
        response = {**self._response, "status": status, "output": [item.item for item in self._items]}
        response["incomplete_details"] = None if reason is None else {"reason": reason}
        response["usage"] = write_usage(completion.usage) if completion.usage.is_reported else None
        self._say(status, response=response)
        return self._taken()

    def _add_call(self, piece: ToolCallDelta) -> None:
        item = self._calls.get(piece.index)
        if item is None:
            self._close_text()
            name = piece.name or ""
            made = client_call(piece.call_id or "", name, takes_text=name in self._texts)
            prefix = "ctc" if name in self._texts else "fc"
            item = self._calls[piece.index] = self._add(prefix, {**made, "status": "in_progress"})
        told = {"call_id": piece.call_id, "name": piece.name}
        item.item |= {key: value for key, value in told.items() if value}
        if item.item["type"] == "custom_tool_call":
            item.text += piece.arguments
        elif piece.arguments:
            self._add_arguments(item, piece.arguments)


def write_answer(answer_id: str, completion: Completion, asked: ServedRequest) -> dict[str, Json]:
    """Return the body of the answer to a request."""
    stream = ResponseStream.of(answer_id, asked)
    pass_on(completion.message, stream.add)
    response: dict[str, Json] = stream.end(completion)[-1]["response"]
    return response


def write_usage(usage: Usage) -> dict[str, Json]:
    """Return the tokens of a response."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
