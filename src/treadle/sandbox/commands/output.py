"""What a command prints, of which the beginning and the end are kept, however much comes."""


class Output:
    """Bytes as they come, at most about `max_bytes` of them."""

    def __init__(self, max_bytes: int) -> None:
        self._head_bytes = max_bytes * 2 // 3
        self._tail_bytes = max_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Keep `data`, or leave it out if it comes to lie in the middle."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_bytes + 65536:
                del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def text(self) -> str:
        """All that is kept, with a note of what is not. Bytes that are not UTF-8 are replaced."""
        left_out = self.total_bytes - len(self._head) - self._tail_bytes
        if left_out <= 0:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = (
            self._head.decode(errors="replace"),
            self._tail[-self._tail_bytes :].decode(errors="replace"),
        )
        return f"{head}\n[… {left_out:,} of {self.total_bytes:,} bytes left out …]\n{tail}"

    @property
    def last_line(self) -> str:
        """The last line of which something has come, or its end."""
        end = bytes((self._tail or self._head)[-1000:]).decode(errors="replace").rstrip()
        return end.rpartition("\n")[2][-200:]
