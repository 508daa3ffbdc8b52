"""Readers of streams: lines, and the data of server-sent events. They do no I/O.

A line ends with a line feed, a carriage return, or both. Event names, ids, retry times and comments are skipped,
because model servers put everything into the data. Source: WHATWG HTML, section "Server-sent events".
"""

BOM = b"\xef\xbb\xbf"


class LineReader:
    """A reader of lines from bytes in pieces of any size, for servers that send one JSON object per line."""

    __slots__ = ("_after_cr", "_is_at_start", "_partial")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._after_cr = False
        """True if the last byte was a carriage return; a line feed that follows belongs to the same line end."""
        self._is_at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes, without blank ones."""
        return [line for line in self._lines(chunk) if line.strip()]

    def close(self) -> list[bytes]:
        """Return the last line, if the stream ended without a line end."""
        self._after_cr = False
        return self.feed(b"\n")

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr or b"\r" in chunk:
            chunk = self._unify(chunk)
        if b"\n" not in chunk:
            self._partial.append(chunk)
            return []
        if self._partial:
            self._partial.append(chunk)
            chunk = b"".join(self._partial)
            self._partial.clear()
        if self._is_at_start:
            self._is_at_start = False
            chunk = chunk.removeprefix(BOM)
        *lines, rest = chunk.split(b"\n")
        if rest:
            self._partial.append(rest)
        return lines

    def _unify(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class SseReader(LineReader):
    """A reader of server-sent events, from bytes in pieces of any size."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        super().__init__()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that `chunk` completes."""
        events = []
        for line in self._lines(chunk):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events

    def close(self) -> list[bytes]:
        """Return the last event, if the stream ended without the empty line after it."""
        self._after_cr = False
        return self.feed(b"\n\n")
