"""The experts that a mixture-of-experts model sent each token to, as engines return and events hold them."""

from array import array
from collections.abc import Iterable

from msgspec import Struct


class RoutedExperts(Struct, frozen=True, gc=False):
    """The experts of successive tokens of a sequence: a row for each token that was sent through the model."""

    start: int
    """The position of the first row in the prompt and the answer."""
    layers: int
    """0 if the engine did not say how many: SGLang does not."""
    chosen: int
    """How many experts each layer chose for a token; if `layers` is 0, how many all layers chose together."""
    width: int
    """The bytes of the number of an expert, 1 or 2, which is unsigned and little-endian."""
    data: bytes
    """The numbers, shape [rows, layers, chosen]; [rows, chosen] if `layers` is 0."""

    @property
    def row_bytes(self) -> int:
        return max(1, self.layers) * self.chosen * self.width

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + len(self.data) // self.row_bytes

    def after(self, begin: int) -> "RoutedExperts":
        """Return the rows from a position on."""
        if begin <= self.start:
            return self
        data = self.data[(begin - self.start) * self.row_bytes :]
        return RoutedExperts(begin, self.layers, self.chosen, self.width, data)

    @classmethod
    def of(cls, rows: int, layers: int, chosen: int, width: int, data: bytes) -> "RoutedExperts":
        """Return the experts of the first tokens of a sequence. Numbers of 4 bytes are packed into 2.

        Raises: `ValueError` if `data` has another size; `OverflowError` for a number that is no expert's.
        """
        if min(layers, chosen) < 1 or len(data) != rows * layers * chosen * width:
            raise ValueError(
                f"routed experts of the shape [{rows}, {layers}, {chosen}] have {len(data)} bytes"
            )
        if width == 4:
            width, data = 2, array("H", memoryview(data).cast("i").tolist()).tobytes()
        return cls(0, layers, chosen, width, data)


def join_experts(parts: Iterable[RoutedExperts | None], size: int) -> RoutedExperts | None:
    """Return the experts of a sequence of `size` tokens; `None` if those of a token are not known.

    Of a token in several `parts`, the last one counts. The last token was not sent through the model and has none.
    """
    whole: RoutedExperts | None = None
    for part in parts:
        if part is None:
            continue
        if whole is None:
            whole = part
            continue
        form = whole.layers, whole.chosen, whole.width
        if part.start > whole.end or form != (part.layers, part.chosen, part.width):
            return None
        kept = whole.data[: max(0, part.start - whole.start) * whole.row_bytes]
        whole = RoutedExperts(whole.start, *form, kept + part.data)
    return whole if whole is not None and whole.start == 0 and whole.end >= size - 1 else None
