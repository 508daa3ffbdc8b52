"""The experts that a mixture-of-experts model sent each token to, as engines return and events hold them."""

from array import array
from ast import literal_eval
from base64 import b64decode
from collections.abc import Iterable

from msgspec import Struct

_WIDTHS = {"|u1": 1, "<u2": 2, "<i4": 4}
"""The bytes of one number by the types of numpy that vLLM writes."""
_MAGIC = b"\x93NUMPY"


class RoutedExperts(Struct, frozen=True, gc=False):
    """The experts of successive tokens of a sequence: a row for each token that was sent through the model."""

    start: int
    """The position of the first row in the prompt and the answer."""
    layers: int
    chosen: int
    """How many experts each layer chose for a token."""
    width: int
    """The bytes of the number of an expert, 1 or 2, which is unsigned and little-endian."""
    data: bytes
    """The numbers, shape [rows, layers, chosen]."""

    @property
    def row_bytes(self) -> int:
        """The size of one row in bytes."""
        return self.layers * self.chosen * self.width

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


def read_npy(text: str) -> RoutedExperts:
    """Return the experts in numpy's file format as base64, as vLLM returns them.

    Raises: `ValueError` or `LookupError` for anything else. Source: vLLM 0.32, `numpy2base64`; NumPy 2.3, NEP 1.
    """
    raw = b64decode(text, validate=True)
    if not raw.startswith(_MAGIC):
        raise ValueError("routed experts are not in the file format of numpy")
    begin = 10 if raw[6] == 1 else 12
    end = begin + int.from_bytes(raw[8:begin], "little")
    head = literal_eval(raw[begin:end].decode("latin-1"))
    rows, layers, chosen = head["shape"]
    if head["fortran_order"]:
        raise ValueError("routed experts are in the order of Fortran")
    return RoutedExperts.of(rows, layers, chosen, _WIDTHS[head["descr"]], raw[end:])


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
