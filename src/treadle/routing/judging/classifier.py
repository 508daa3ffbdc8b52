"""The trained classifier: linear scores over the features of a text, with calibrated confidence.

The weights are made from labelled messages by `python -m benchmarks.train_judging`, and stand in `weights/`: a line
of JSON (`Header`), and the compressed rows. A row has a small number for each output, and all numbers of a row are
kept in one integer, so that one addition adds all of them.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from math import exp, sqrt

import msgspec
from msgspec import Struct

from treadle.routing.judging.features import ROWS

NONE = "none"
"""The output of a head for a text to which none of its other outputs applies."""
_ZERO = 128
"""The number that stands for the weight 0, because the numbers of a row are not negative."""
_AT_ONCE = 256
"""How many rows can be added before a number takes more than its 16 bits."""


class Threshold(Struct, frozen=True):
    """How the score of a head becomes a confidence, and when it is worth saying."""

    slope: float
    offset: float
    """The confidence is the logistic function of `slope * score + offset`."""
    least: float
    """The least confidence with which something is said."""

    def confidence(self, score: float) -> float:
        """Return how likely a judgement with a score is right."""
        return 1 / (1 + exp(-max(-60.0, min(60.0, self.slope * score + self.offset))))


class Header(Struct, frozen=True):
    """What the weights belong to."""

    heads: dict[str, list[str]]
    """The outputs of each head, in the order of the numbers of a row."""
    thresholds: dict[str, Threshold]
    step: float
    """The weight of a number 1."""
    known: float
    """The value of the feature of a known wording. The value of n other features is 1 / sqrt(n)."""
    bias: list[float]
    trained_on: str
    """The digest of the messages that the weights were made from."""


class Scores(Struct, frozen=True, eq=False):
    """The scores of one text."""

    _header: Header
    _places: dict[tuple[str, str], int]
    _values: Sequence[float]

    def __contains__(self, head: object) -> bool:
        return head in self._header.heads

    def __getitem__(self, place: tuple[str, str]) -> float:
        """Return the score of an output of a head."""
        return self._values[self._places[place]]

    def names(self, head: str) -> list[str]:
        """Return the outputs of a head."""
        return self._header.heads[head]

    def best(self, head: str, names: Iterable[str]) -> str:
        """Return the output of a head with the highest score among `names`."""
        return max(names, key=lambda name: self[head, name])

    def find(self, head: str) -> list[tuple[str, float]]:
        """Return the outputs of a head that are likely enough and their confidence, the likeliest first."""
        least, limit = self[head, NONE], self._header.thresholds[head]
        outputs = [name for name in self.names(head) if name != NONE]
        found = [(name, limit.confidence(self[head, name] - least)) for name in outputs]
        found = [item for item in found if item[1] >= limit.least]
        return sorted(found, key=lambda item: -item[1])

    def is_found(self, head: str) -> bool:
        """Return whether a head that has one output applies."""
        limit = self._header.thresholds[head]
        return limit.confidence(self[head, head]) >= limit.least


class LinearClassifier:
    """Weights that were trained."""

    def __init__(self, content: bytes) -> None:
        line, _, packed = content.partition(b"\n")
        self.header = msgspec.json.decode(line, type=Header)
        outputs = [(head, name) for head, names in self.header.heads.items() for name in names]
        self._places = {place: number for number, place in enumerate(outputs)}
        width = len(outputs)
        rows = zlib.decompress(packed)
        bits, cells = rows[: ROWS // 8], rows[ROWS // 8 :]
        self._rows = [_widen(bytes([_ZERO]) * width)] * ROWS
        position = 0
        for row in range(ROWS):
            if bits[row >> 3] >> (row & 7) & 1:
                self._rows[row] = _widen(cells[position : position + width])
                position += width
        self._unpack = struct.Struct(f"<{width}H")

    def score(self, rows: Sequence[int], known: Sequence[int]) -> Scores:
        """Return the scores of a text by the rows of its features and of its known wordings."""
        scale, header = self.header.step / sqrt(max(1, len(rows))), self.header
        sums = self._sum(rows)
        lift = _ZERO * len(rows)
        values = [(one - lift) * scale + bias for one, bias in zip(sums, header.bias, strict=True)]
        if known:
            scale, lift = header.step * header.known, _ZERO * len(known)
            added = self._sum(known)
            values = [one + (more - lift) * scale for one, more in zip(values, added, strict=True)]
        return Scores(header, self._places, values)

    def _sum(self, rows: Sequence[int]) -> list[int]:
        """Return the sums of the numbers of some rows."""
        table, unpack = self._rows, self._unpack
        parts = [
            unpack.unpack(
                sum([table[row] for row in rows[at : at + _AT_ONCE]]).to_bytes(unpack.size, "little")
            )
            for at in range(0, max(1, len(rows)), _AT_ONCE)
        ]
        return [sum(numbers) for numbers in zip(*parts, strict=True)] if len(parts) > 1 else [*parts[0]]


def _widen(cells: bytes) -> int:
    """Return one integer with 16 bits for each number."""
    wide = bytearray(2 * len(cells))
    wide[::2] = cells
    return int.from_bytes(wide, "little")


def pack_rows(numbers: Sequence[Sequence[int]]) -> bytes:
    """Return the compressed form of rows of numbers from -127 to 127. A row of zeros takes no room."""
    bits, cells = bytearray(ROWS // 8), bytearray()
    for row, cell in enumerate(numbers):
        if any(cell):
            bits[row >> 3] |= 1 << (row & 7)
            cells += bytes([number + _ZERO for number in cell])
    return zlib.compress(bytes(bits + cells), 9)


@cache
def classifier(name: str) -> LinearClassifier:
    """Return the classifier called `name`, a file of `weights/`."""
    return LinearClassifier(files(__package__).joinpath("weights", f"{name}.bin").read_bytes())
