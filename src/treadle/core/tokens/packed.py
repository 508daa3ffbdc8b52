"""Token ids and log probabilities as packed bytes, which is how events hold them.

Ids are 32-bit integers and log probabilities 32-bit floats, both little-endian. In JSON, msgspec writes bytes as
base64. Journals of event version 2.2 and older have lists of numbers; the functions that read accept those too.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from struct import error as struct_error
from struct import pack
from typing import Any, TypeAlias

PackedIds: TypeAlias = bytes | tuple[int, ...]
"""Token ids: packed, or a tuple from a journal of event version 2.2 or older."""
PackedLogprobs: TypeAlias = bytes | tuple[float, ...]
"""Natural logarithms of probabilities: packed, or a tuple from a journal of event version 2.2 or older."""

ID_BYTES = 4
"""The size of one packed id, and of one packed log probability."""
_IS_BIG_ENDIAN = sys.byteorder == "big"


def pack_ids(ids: Iterable[int]) -> bytes:
    """Return token ids as packed bytes.

    Raises: `OverflowError` or `TypeError` if one is not an integer of 31 bits: a negative number is no id.
    """
    # For the lists that decoders return, `struct` is faster than `array` by half.
    try:
        packed = pack(f"<{len(ids)}i", *ids)  # type: ignore[arg-type]
    except (struct_error, TypeError):
        packed = _to_bytes(array("i", ids))
    # The sign is the highest bit of each fourth byte.
    if not packed[3::ID_BYTES].isascii():
        raise OverflowError(f"{min(to_ids(packed))} is not a token id")
    return packed


def pack_logprobs(values: Iterable[float]) -> bytes:
    """Return log probabilities as packed bytes. NaN stands for a position whose log probability is not known."""
    try:
        return pack(f"<{len(values)}f", *values)  # type: ignore[arg-type]
    except (struct_error, TypeError, OverflowError):
        return _to_bytes(array("f", values))


def unpack_ids(value: PackedIds | None) -> tuple[int, ...]:
    """Return token ids as a tuple; empty for `None`."""
    if value is None or isinstance(value, tuple):
        return value or ()
    return tuple(view_ids(value))


def view_ids(packed: bytes) -> Sequence[int]:
    """Return packed token ids as a sequence that unpacks only the ids that are looked at."""
    return to_ids(packed) if _IS_BIG_ENDIAN else memoryview(packed).cast("i")


def list_ids(value: PackedIds) -> list[int]:
    return list(value) if isinstance(value, tuple) else view_ids(value).tolist()  # type: ignore[attr-defined]


def unpack_logprobs(value: PackedLogprobs | None) -> tuple[float, ...]:
    """Return log probabilities as a tuple; empty for `None`."""
    if value is None or isinstance(value, tuple):
        return value or ()
    return tuple(to_logprobs(value))


def to_ids(packed: bytes) -> "array[int]":
    """Return packed token ids as an array of 32-bit integers."""
    return _from_bytes("i", packed)


def to_logprobs(packed: bytes) -> "array[float]":
    """Return packed log probabilities as an array of 32-bit floats."""
    return _from_bytes("f", packed)


def as_packed(value: PackedIds | None) -> bytes:
    """Return token ids as packed bytes; empty for `None`."""
    if value is None:
        return b""
    return value if isinstance(value, bytes) else pack_ids(value)


def count_packed(value: PackedIds | PackedLogprobs | None) -> int:
    """Return how many ids or log probabilities `value` holds; 0 for `None`."""
    if value is None:
        return 0
    return len(value) // ID_BYTES if isinstance(value, bytes) else len(value)


def count_shared(one: bytes, other: bytes) -> int:
    """Return how many leading ids two packed sequences have in common."""
    if one.startswith(other):
        return len(other) // ID_BYTES
    size = min(len(one), len(other))
    if other.startswith(one):
        return size // ID_BYTES
    low, high = 0, size // ID_BYTES
    # Halve the range of the first difference: comparing bytes is much faster than comparing ids one by one.
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * ID_BYTES : middle * ID_BYTES] == other[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle
    return low


def _to_bytes(values: "array[int] | array[float]") -> bytes:
    if _IS_BIG_ENDIAN:
        values.byteswap()
    return values.tobytes()


def _from_bytes(code: str, data: bytes) -> "array[Any]":
    values: array[Any] = array(code)
    values.frombytes(data)
    if _IS_BIG_ENDIAN:
        values.byteswap()
    return values
