"""The serving half of the Responses API: its answers are written. Its requests are read where files and vector
stores are known (`treadle.server.responses`, and `treadle.server.gateway.response_wire` for the gateway).

Source: OpenAI API reference, Responses, 2026.
"""

import time
from collections.abc import Iterator

from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import Completion, FinishReason, Json, Usage
from treadle.models.protocol import pass_on
from treadle.models.wire.served import ServedRequest, text_of_call

_INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}
_NO_ANSWER: dict[str, Json] = {"error": None, "incomplete_details": None, "usage": None}


class ResponseStream:
    """The events of one streamed answer. Calls may overlap; of the other items, one is open at a time."""

    @classmethod
    def of(cls, answer_id: str, asked: ServedRequest) -> "ResponseStream":
        """Return the stream of the answer to a request."""
        return cls(answer_id, asked.model, asked.echo, asked.text_tools)

    def __init__(self, answer_id: str, model: str, echo: dict[str, Json], texts: frozenset[str]) -> None:
        """Begin a stream. `texts` are the names of the tools that take a text."""
        self._texts = texts
        self._id = answer_id
        head = {"id": f"resp_{answer_id}", "object": "response", "created_at": int(time.time())}
        self._response = {**echo, **head, **_NO_ANSWER, "model": model, "status": "in_progress"}
        self._items: list[dict[str, Json]] = []
        self._text: tuple[int, str] | None = None
        """The number and the type of the open item with a text; `None` if there is none."""
        self._calls: dict[int, int] = {}
        """The numbers of the items of calls, by their positions."""
        self._count = 0

    def begin(self) -> list[dict[str, Json]]:
        """Return the first events."""
        told = {**self._response, "output": []}
        return [self._event("created", response=told), self._event("in_progress", response=told)]

    def add(self, piece: Delta) -> list[dict[str, Json]]:
        """Return the events for a piece of the answer."""
        if isinstance(piece, TextDelta | ReasoningDelta):
            return list(self._add_text(piece.text, "text" if isinstance(piece, TextDelta) else "reasoning"))
        return list(self._add_call(piece)) if isinstance(piece, ToolCallDelta) else []

    def end(self, completion: Completion) -> list[dict[str, Json]]:
        """Return the last events."""
        events = [*self._close_text()]
        for number in self._calls.values():
            events += self._end_call(number)
        reason = _INCOMPLETE.get(completion.finish_reason)
        status = "completed" if reason is None else "incomplete"
        response = {**self._response, "status": status, "output": self._items}
        response["incomplete_details"] = None if reason is None else {"reason": reason}
        response["usage"] = write_usage(completion.usage) if completion.usage.is_reported else None
        return [*events, self._event(status, response=response)]

    def _end_call(self, number: int) -> Iterator[dict[str, Json]]:
        item = self._items[number]
        where: dict[str, Json] = {"item_id": item["id"], "output_index": number}
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("function_call_arguments.done", **where, **told)
        else:
            text = item["input"] = text_of_call(item["input"])
            yield self._event("custom_tool_call_input.delta", **where, delta=text)
            yield self._event("custom_tool_call_input.done", **where, input=text)
        yield from self._done(number)

    def _event(self, kind: str, **fields: Json) -> dict[str, Json]:
        self._count += 1
        return {"type": f"response.{kind}", "sequence_number": self._count - 1, **fields}

    def _open(self, prefix: str, **item: Json) -> dict[str, Json]:
        number = len(self._items)
        self._items.append({"id": f"{prefix}_{self._id}_{number}", "status": "in_progress", **item})
        return self._event("output_item.added", output_index=number, item={**self._items[number]})

    def _done(self, number: int) -> Iterator[dict[str, Json]]:
        item = self._items[number]
        item["status"] = "completed"
        yield self._event("output_item.done", output_index=number, item=item)

    def _add_text(self, text: str, kind: str) -> Iterator[dict[str, Json]]:
        if self._text is None or self._text[1] != kind:
            yield from self._close_text()
            self._text = len(self._items), kind
            if kind == "text":
                yield self._open("msg", type="message", role="assistant", content=[])
            else:
                yield self._open("rs", type="reasoning", summary=[], content=[])
            self._items[-1]["content"] = [_part_of(kind, "")]
            yield self._event("content_part.added", **self._place(), part=_part_of(kind, ""))
        part = self._items[self._text[0]]["content"][0]
        part["text"] += text
        more: dict[str, Json] = {"logprobs": []} if kind == "text" else {}
        yield self._event(f"{part['type']}.delta", **self._place(), delta=text, **more)

    def _close_text(self) -> Iterator[dict[str, Json]]:
        if self._text is None:
            return
        number, kind = self._text
        part = self._items[number]["content"][0]
        more: dict[str, Json] = {"logprobs": []} if kind == "text" else {}
        yield self._event(f"{part['type']}.done", **self._place(), text=part["text"], **more)
        yield self._event("content_part.done", **self._place(), part=part)
        yield from self._done(number)
        self._text = None

    def _place(self) -> dict[str, Json]:
        """Return where the open text is."""
        assert self._text is not None
        number = self._text[0]
        return {"item_id": self._items[number]["id"], "output_index": number, "content_index": 0}

    def _add_call(self, piece: ToolCallDelta) -> Iterator[dict[str, Json]]:
        number = self._calls.get(piece.index)
        if number is None:
            yield from self._close_text()
            number = self._calls[piece.index] = len(self._items)
            named: dict[str, Json] = {"call_id": piece.call_id or "", "name": piece.name or ""}
            if named["name"] in self._texts:
                yield self._open("ctc", type="custom_tool_call", **named, input="")
            else:
                yield self._open("fc", type="function_call", **named, arguments="")
        item = self._items[number]
        item["call_id"], item["name"] = piece.call_id or item["call_id"], piece.name or item["name"]
        is_function = item["type"] == "function_call"
        item["arguments" if is_function else "input"] += piece.arguments
        if piece.arguments and is_function:
            where = {"item_id": item["id"], "output_index": number}
            yield self._event("function_call_arguments.delta", **where, delta=piece.arguments)


def write_answer(answer_id: str, completion: Completion, asked: ServedRequest) -> dict[str, Json]:
    """Return the body of the answer to a request."""
    stream = ResponseStream.of(answer_id, asked)
    pass_on(completion.message, stream.add)
    response: dict[str, Json] = stream.end(completion)[-1]["response"]
    return response


def _part_of(kind: str, text: str) -> dict[str, Json]:
    if kind == "text":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def write_usage(usage: Usage) -> dict[str, Json]:
    """Return the tokens of a response."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
