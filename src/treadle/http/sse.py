"""Readers of streams: the data of server-sent events, and lines. They do no I/O.

Source: WHATWG HTML, section "Server-sent events". Event names, ids, retry times and comments are skipped, because
model servers put everything into the data.
"""

_BOM = b"\xef\xbb\xbf"


class SseReader:
    """A reader of server-sent events, from bytes in pieces of any size."""

    __slots__ = ("_after_cr", "_data", "_is_at_start", "_partial")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._data: list[bytes] = []
        """The data lines of an event that has not ended."""
        self._after_cr = False
        """True if the last byte was a carriage return; a line feed that follows belongs to the same line end."""
        self._is_at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that `chunk` completes."""
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
            chunk = chunk.removeprefix(_BOM)
        *lines, rest = chunk.split(b"\n")
        if rest:
            self._partial.append(rest)
        events = []
        for line in lines:
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

    def _unify(self, chunk: bytes) -> bytes:
        """Return `chunk` with every line end replaced by a line feed."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class LineReader:
    """A reader of lines, for servers that send one JSON object per line (Ollama)."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes, without empty ones."""
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._partial.append(chunk)
            return []
        lines = b"".join([*self._partial, head]).split(b"\n")
        self._partial = [rest] if rest else []
        return [line for line in lines if line.strip()]

    def close(self) -> list[bytes]:
        """Return the last line, if the stream ended without a newline."""
        return self.feed(b"\n")
