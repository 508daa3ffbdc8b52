"""The reader of answers in pieces, which splits a body into events, joins them, and checks that none is missing.

Each piece is passed on when it arrives. An answer is incomplete if its body ends before the server said that the
answer is complete, with a finish reason or the end mark of the wire format. The first bytes of a body decide how
it is read, and not its content type, which is wrong for many servers and gateways.
"""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn

import msgspec

from treadle.core.errors import ProviderError, ServerError, TransportError, retold
from treadle.core.events import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json
from treadle.http.sse import BOM, LineReader, SseReader
from treadle.http.transport import StreamedAnswer
from treadle.models.wire.server import Server, explain_error, find_error

_DRAIN_SECONDS = 0.25
_SHOWN_BYTES = 2048
"""The length of the beginning of a body that is kept for error messages."""
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""The beginnings of lines of server-sent events."""


class StreamCollector(ABC):
    """A builder of a whole answer's raw object from a dialect's events."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        """Make a collector for one answer; `on_delta` is called with each piece as it arrives."""
        self.is_done = False
        """True if the server has marked the end of the stream."""
        self._on_delta = on_delta
        self._server = server

    def listen(self, on_delta: Callable[[Delta], None]) -> None:
        """Call `on_delta` with each further piece."""
        self._on_delta = on_delta

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """True if the server has given its finish reason, so that only details can be missing."""

    @abstractmethod
    def add(self, event: Json) -> None:
        """Add one decoded event, an object.

        Raises: `ProviderError` for an error in it; `LookupError`, `TypeError`, `AttributeError` or `ValueError`
        for an event that makes no sense.
        """

    def add_whole(self, raw: Json) -> None:
        """Add the answer of a server that did not stream. By default it is read as one chunk."""
        self.add(raw)

    def end(self) -> None:
        """Handle the end mark `[DONE]`, which is not part of most wire formats."""
        return

    @abstractmethod
    def raw(self) -> Json:
        """Return the raw object of the whole answer. Called once, when the stream is over and `is_complete`."""


class BodyReader:
    """A reader of a body that may be server-sent events, lines of JSON, or one JSON document."""

    def __init__(
        self,
        collector_type: type[StreamCollector],
        on_delta: Callable[[Delta], None],
        server: Server,
        shape: Callable[[Json, bytes], Json],
        *,
        has_lines: bool,
    ) -> None:
        """Make a reader for one answer.

        `shape` returns an event, decoded from the given bytes, in the form that the collector reads. With
        `has_lines`, the dialect streams lines of JSON.
        """
        self.collector = collector_type(on_delta, server)
        self._on_delta = on_delta
        self._whole_deltas: WholeDeltas | None = None
        """The function that is called with deltas if strings may contain surrogates."""
        self._server = server
        self._shape = shape
        self._has_lines = has_lines
        self._reader: LineReader | None = None
        """The reader that splits the body into events; `None` for a document, or if the form is not known yet."""
        self._unread: list[bytes] = []
        """The pieces of a document, or those before the first event."""
        self._is_document = False
        self.begin = b""
        """The beginning of the body, for error messages."""

    def feed(self, chunk: bytes) -> bool:
        """Add a piece of the body. Return true if the answer is complete, so that the rest can be ignored.

        Raises: `ProviderError` for an error in it, or if it makes no sense.
        """
        if len(self.begin) < _SHOWN_BYTES:
            self.begin += chunk[:_SHOWN_BYTES]
        if self._reader is None or self._unread:
            self._unread.append(chunk)
        if self._reader is None:
            if self._is_document or not self._find_form():
                return False
            chunk = b"".join(self._unread)
        assert self._reader is not None
        for event in self._reader.feed(chunk):
            try:
                raw = _decode(event)
            except UNREADABLE:
                raw = None
            if type(raw) is dict and not self._unread:
                # This is what nearly all events are.
                self._take(self._shape(raw, event), event)
                continue
            self._add(event)
            if self._is_document:
                break
        return self.collector.is_done

    def _find_form(self) -> bool:
        """Decide how to read the body by its first bytes. Return false if it is a document, or not known yet."""
        begin = b"".join(self._unread)
        if len(begin) < len(BOM) and BOM.startswith(begin):
            return False
        begin = begin.removeprefix(BOM).lstrip()
        if not begin or any(field.startswith(begin) for field in _FIELDS):
            return False
        is_json = begin.startswith((b"{", b"["))
        if is_json and (not self._has_lines or begin.startswith(b"[")):
            self._is_document = True
            return False
        self._reader = LineReader() if is_json else SseReader()
        return True

    def close(self) -> Json:
        """Return the raw object of the answer, after the end of the body.

        Raises: `ProviderError` for an error in it, `TransportError` if it is incomplete.
        """
        rest = () if self._reader is None else self._reader.close()
        for event in [item for events in rest for item in self._split(events)]:
            # An incomplete event at the end is not a separate error: the answer is incomplete.
            if _is_end(event) or self._read(event) is not None:
                self._add(event)
            elif self._unread and type(self._reader) is LineReader:
                self._is_document = True
        if self._is_document:
            self._add_document(b"".join(self._unread))
        return self.finish()

    def finish(self) -> Json:
        """Return the raw object of the answer. Raises: as `close`."""
        collector = self.collector
        if not collector.is_done and not collector.is_complete:
            begin = self.begin.removeprefix(BOM).lstrip()
            if self._reader is not None and self._unread and not begin.startswith((*_FIELDS, b"{", b"[")):
                self._refuse("is neither JSON nor a stream of events")
            raise TransportError(
                f"the answer of {self._server.origin} ended before it was complete: {self.received()}"
            )
        try:
            raw = collector.raw()
            if self._whole_deltas is None:
                return raw
            self._whole_deltas.end()
            return mend(raw)
        except (TypeError, LookupError, AttributeError, ValueError, RecursionError):
            self._refuse("makes no sense together")

    def received(self) -> str:
        """Return the beginning of the body, for an error message."""
        shown = self._server.excerpt(self.begin)
        return f"it begins with {shown}" if shown else "it is empty"

    def _refuse(self, what: str) -> NoReturn:
        raise ServerError(
            f"the answer of {self._server.origin} {what}: {self.received()}", status=200
        ) from None

    def _read(self, event: bytes) -> Json:
        try:
            return self._shape_all(_decode(event), event)
        except UNREADABLE:
            pass
        try:
            raw = self._shape_all(decode_damaged(event))
        except UNREADABLE:
            return None
        if self._whole_deltas is None:
            self._whole_deltas = WholeDeltas(self._on_delta)
            self.collector.listen(self._whole_deltas)
        return raw

    def _shape_all(self, raw: Json, body: bytes | None = None) -> Json:
        """Return an event, or each event of a list, in the form that the collector reads. `body` is what `raw` was
        decoded from, if that is JSON."""
        if isinstance(raw, list):
            return [self._shape_all(item) for item in raw]
        return self._shape(raw, json.dumps(raw).encode() if body is None else body)

    def _add(self, event: bytes) -> None:
        if self.collector.is_done:
            return
        if _is_end(event):
            self.collector.end()
            return
        raw = self._read(event)
        if raw is None:
            self._add_odd(event)
        elif isinstance(raw, list):
            for item in raw:
                self._take(item, event)
        else:
            self._take(raw, event)
        if self._unread and not self._is_document:
            self._unread.clear()

    def _add_odd(self, event: bytes) -> None:
        """Add an event that is not JSON: an empty one, several in one, or a part of a document."""
        if not event.strip():
            return
        if self._unread and type(self._reader) is LineReader:
            # The first line is not JSON, so it may belong to a document of several lines.
            self._is_document, self._reader = True, None
            return
        lines = self._split(event)
        if len(lines) > 1:
            for line in lines:
                self._add(line)
            return
        raise ServerError(
            f"{self._server.origin} streamed something that is not JSON: {self._server.excerpt(event)}",
            status=200,
        )

    def _split(self, event: bytes) -> list[bytes]:
        """Return the lines of `event` if they are events without the empty lines between them, else `[event]`."""
        lines = event.split(b"\n")
        is_several = len(lines) > 1 and self._read(event) is None and self._read(lines[0]) is not None
        return lines if is_several else [event]

    def _add_document(self, body: bytes) -> None:
        raw = self._read(body)
        if raw is None:
            lines = LineReader()
            events = [*lines.feed(body), *lines.close()]
            if len(events) < 2 or self._read(events[0]) is None:
                self._refuse("is not JSON")
            for event in events:
                if _is_end(event) or self._read(event) is not None:
                    self._add(event)
        elif isinstance(raw, list):
            for item in raw:
                self._take(item, body)
        else:
            self._take(raw, body, is_whole=True)

    def _take(self, raw: Json, event: bytes, *, is_whole: bool = False) -> None:
        collector = self.collector
        if collector.is_done:
            return
        try:
            # All dialects have errors in these forms, whatever their own.
            if raw.get("error") or ("message" in raw and "error" in (raw.get("object"), raw.get("type"))):
                raise explain_error(self._server, 200, find_error(raw) or raw)
            if is_whole:
                collector.add_whole(raw)
                collector.is_done = True
            else:
                collector.add(raw)
        except ProviderError:
            raise
        except (TypeError, LookupError, AttributeError, ValueError):
            error = find_error(raw)
            if error is not None:
                raise explain_error(self._server, 200, error) from None
            raise ServerError(
                f"an event of {self._server.origin} makes no sense: {self._server.excerpt(event)}", status=200
            ) from None


async def read_stream(answer: StreamedAnswer, reader: BodyReader) -> Json:
    """Return the raw object of a streamed answer.

    Raises: `ProviderError` for an error in the stream, `TransportError` for a stream that was cut off.
    """
    try:
        async for chunk in answer.chunks:
            if reader.feed(chunk):
                await _drain(answer)
                return reader.finish()
    except TransportError as error:
        # After the finish reason nothing essential can be missing.
        if reader.collector.is_complete:
            return reader.finish()
        raise retold(error, f"{error}; {reader.received()}") from None
    return reader.close()


async def _drain(answer: StreamedAnswer) -> None:
    """Read the end of the body, so that the connection can be used again, but do not wait long for it."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in answer.chunks:
                pass
    except (TransportError, TimeoutError):
        pass


def _is_end(event: bytes) -> bool:
    return len(event) < 64 and event.strip() == b"[DONE]"


_DATA = frozenset(("arguments", "args", "input", "logprobs", "logprobsResult"))
"""Fields whose values are the model's, so that nothing is left out of them."""
_FRAMES = frozenset(("message", "delta", "usage", "usageMetadata"))
"""Fields that say something even if they are empty."""


_BLANK = re.compile(
    rb'\{\s*+(?:"(?:[^"\\]|\\.)*+"\s*+:\s*+(?:""|\[\s*+\]|\{\s*+\}|null|false|0(?:\.0*+)?)\s*+,?\s*+)++\}|\{\s*+\}(?<=[\[,]\{\})'
)
"""An object in JSON whose fields are all empty, or an empty object in a list."""


def drop_blanks(raw: Json, body: bytes) -> Json:
    """Return `raw`, decoded from `body`, without the objects in it whose fields are all empty.

    Some servers write what they have nothing for: `"function_call": {"name": "", "arguments": ""}`. Empty texts,
    lists and objects stay, because they may have to be sent back.
    """
    has_some = b'""' in body or b"{}" in body or b"[]" in body
    if has_some and _BLANK.search(body) is not None and isinstance(raw, dict | list):
        _drop_in(raw)
    return raw


def _drop_in(value: Json) -> None:
    is_list = isinstance(value, list)
    for key, item in reversed(list(enumerate(value) if is_list else value.items())):
        if key not in _DATA and (
            isinstance(item, dict) or (isinstance(item, list) and item and isinstance(item[0], dict))
        ):
            was_full = bool(item) or is_list
            _drop_in(item)
            if was_full and key not in _FRAMES and is_blank(item):
                del value[key]


def is_blank(value: Json) -> bool:
    """Return whether a value is false, or an object or a list of objects without any other value."""
    if isinstance(value, dict):
        return all(map(is_blank, value.values()))
    if isinstance(value, list):
        return all([isinstance(item, dict) and is_blank(item) for item in value])
    return not value


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_decode = msgspec.json.Decoder().decode


def decode_damaged(body: bytes) -> Json:
    """Return the value of JSON that the strict decoder refused. Its strings may contain surrogates.

    Raises: one of `UNREADABLE` if it is not JSON.
    """
    # Bytes that are not UTF-8 become replacement characters, as in a browser.
    body = body.removeprefix(BOM).decode(errors="replace").encode()
    try:
        return _decode(body)
    except UNREADABLE:
        if _SURROGATE.search(body) is None:
            raise
        try:
            return json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass
        raise


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def mend(value: Json) -> Json:
    """Return `value` with the surrogates in its strings mended as by `mend_text`.

    Raises: `ValueError` or `RecursionError` for a value that is not JSON.
    """
    return _decode(mend_text(json.dumps(value, ensure_ascii=False)))


def mend_text(text: str) -> str:
    """Return `text` with surrogates joined to characters, or replaced if their other half is missing."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class WholeDeltas:
    """A function that passes deltas on, and keeps the first half of a character until the second one arrives."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._halves: dict[tuple[type[Delta], int], Delta] = {}

    def __call__(self, delta: Delta) -> None:
        """Pass `delta` on, without surrogates."""
        key = (type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0)
        before = self._halves.pop(key, None)
        text = ("" if before is None else _text_of(before)) + _text_of(delta)
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[key] = _with_text(delta, text[-1])
            text = text[:-1]
        if text or not _text_of(delta):
            self._on_delta(_with_text(delta, mend_text(text)))

    def end(self) -> None:
        """Pass on a replacement for each half whose other half never arrived."""
        for delta in self._halves.values():
            self._on_delta(_with_text(delta, mend_text(_text_of(delta))))
        self._halves.clear()


def _text_of(delta: Delta) -> str:
    if isinstance(delta, TextDelta | ReasoningDelta):
        return delta.text
    return delta.arguments if isinstance(delta, ToolCallDelta) else ""


def _with_text(delta: Delta, text: str) -> Delta:
    field = "arguments" if isinstance(delta, ToolCallDelta) else "text"
    return msgspec.structs.replace(delta, **{field: text}) if hasattr(delta, field) else delta
