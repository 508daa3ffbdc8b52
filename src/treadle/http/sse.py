"""Server-sent events: bytes that arrive in any pieces, to the data of each event. No I/O.

Event names, ids, retry times and comments are skipped: model servers say all in the data. A lone carriage
return ends no line.
"""


class SseReader:
    """Takes bytes, gives events."""

    __slots__ = ("_data", "_partial")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        """Pieces of a line that has not ended."""
        self._data: list[bytes] = []
        """Data lines of an event that has not ended."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes."""
        if b"\n" not in chunk:
            self._partial.append(chunk)
            return []
        if self._partial:
            self._partial.append(chunk)
            chunk = b"".join(self._partial)
            self._partial.clear()
        *lines, rest = chunk.split(b"\n")
        if rest:
            self._partial.append(rest)
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removesuffix(b"\r").removeprefix(b" "))
            elif self._data and (not line or line == b"\r"):
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events

    def close(self) -> list[bytes]:
        """The last event, where the stream ended without the empty line after it."""
        return self.feed(b"\n\n")


class LineReader:
    """The same for servers that send one JSON object a line (Ollama)."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, empty ones left out."""
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._partial.append(chunk)
            return []
        lines = b"".join([*self._partial, head]).split(b"\n")
        self._partial = [rest] if rest else []
        return [line for line in lines if line.strip()]

    def close(self) -> list[bytes]:
        """The last line, where the stream ended without a newline."""
        return self.feed(b"\n")
