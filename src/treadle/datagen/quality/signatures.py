"""Signatures of requests: the words that say what is asked for, and their MinHash.

Numbers and names (capitalised words, quoted texts, paths, addresses) are left out, and so are filler words, so that
the same request about other things has the same words. The order of words does not count. `BandTable` finds the
signatures with an equal band.
"""

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache, reduce
from hashlib import blake2b, shake_128
from typing import TypeAlias

from msgspec import Struct

from treadle.datagen.quality.languages import is_german, word_lists

BANDS = 20
ROWS = 7
MIN_BANDS = 2
"""A request is a candidate if two of its bands are equal to those of another request in all values. With 20
bands of 7 values, this finds 94 % of the pairs that share 80 % of their words, 99.9 % of those that share 90 %,
and 1.1 % of those that share half."""
_BANDS = struct.Struct("<" + f"{ROWS * 4}s" * BANDS)
_TOPS = int.from_bytes(b"\0\0\0\x80" * (BANDS * ROWS), "little")
_VALUES = int.from_bytes(b"\xff\xff\xff\x7f" * (BANDS * ROWS), "little")
"""The hash values of a word are the 32-bit parts of one long number. The highest bit of each part is 0."""
_KEY = struct.Struct("<q")

_TOKEN = re.compile(
    r"([^\W\d_]++)(?=[\s,;:!?)]|\Z)"
    r"|(\"[^\"\n]{1,80}\"|“[^”\n]{1,80}”|`[^`\n]{1,80}`|(?<!\w)'[^'\n]{1,80}'(?!\w)"
    r"|(?:(?<![\w.+-])[\w.+-]++)?[/\\@](?:[.\\@:?=&%#+-]{0,40}+[\w/])*+|\w+(?:[.]\w+)+|[#$€£]?(?=[\w-]{0,60}\d)\w+(?:[.,:'-]\w+)*[%°]?)"
    r"|([^\W\d]+(?:['’][^\W\d]+)*)"
    r"|([.!?:;\n]+)"
    r"|(,)"
)
"""A plain word, which is tried first because most tokens are, a name, another word, an end, or a comma."""
_Token: TypeAlias = tuple[str, str, str, str]
"""A token as name, word, end of a sentence or comma; the others are empty."""
_NO_SPACES = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_MAX_NAME_SHARE = 0.6
"""If more of at least `_MIN_TITLE` words are capitalised, as in titles, capitals do not mark names."""
_MIN_TITLE = 6

_SILENT, _VERBS = word_lists("requests")["silent"], word_lists("requests")["verbs"]


class RequestSignature(Struct, frozen=True):
    """The properties of a request that are compared with those of other requests."""

    exact: int
    """A hash of the text without regard to case, spaces and punctuation."""
    words: frozenset[int]
    """Hashes of the words that say what is asked for."""
    keys: tuple[int, ...]
    """A hash of the set of words, then one for each band of its MinHash; empty if there are too few words."""


def make_signature(text: str, min_words: int) -> RequestSignature:
    """Return the signature of a request. Requests with fewer than `min_words` words are only compared exactly."""
    words = content_words(text)
    exact = hash_text(" ".join(re.findall(r"\w+", text.casefold())))
    keys = _keys(words) if len(words) >= min_words else ()
    return RequestSignature(exact, frozenset([_vector(word) & 0xFFFFFFFF for word in words]), keys)


def content_words(text: str) -> frozenset[str]:
    """Return the words that say what is asked for, in lower case and in the singular."""
    tokens: list[_Token] = [
        (name, plain or word, end, comma) for plain, name, word, end, comma in _TOKEN.findall(text)
    ]
    words = [word for _, word, _, _ in tokens if word]
    share = sum([word[0].isupper() for word in words]) / (len(words) or 1)
    is_title = len(words) >= _MIN_TITLE and share > _MAX_NAME_SHARE
    has_names = not is_title and not is_german(words)
    found: set[str] = set()
    is_start = True
    for position, (name, word, end, _) in enumerate(tokens):
        if word and not (has_names and word[0].isupper() and _is_name(tokens, position, is_start=is_start)):
            found.update(_split(word))
        is_start = bool(end) or (is_start and not word and not name)
    return frozenset(found) - _SILENT


def _is_name(tokens: list[_Token], position: int, *, is_start: bool) -> bool:
    """Return whether a capitalised word is a name, and not only at the beginning of a sentence."""
    token = tokens[position][1]
    if len(token) > 1 and token.isupper():
        return False
    if not is_start:
        return True
    _, after, _, comma = tokens[position + 1] if position + 1 < len(tokens) else ("", "", "", "")
    is_followed = after[:1].isupper() and not after.isupper()
    is_followed = is_followed and token.casefold() not in _VERBS
    return token.endswith(("'s", "’s")) or is_followed or (comma != "" and token.casefold() not in _SILENT)


@lru_cache(maxsize=4096)
def _split(token: str) -> tuple[str, ...]:
    word = token.casefold()
    if _NO_SPACES.match(word):
        return tuple([word[start : start + 2] for start in range(max(1, len(word) - 1))])
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return (word[:-1],)
    return (word,)


def hash_text(text: str) -> int:
    """Return a signed number of 64 bits, as SQLite keeps it."""
    return int(_KEY.unpack(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())[0])


def _keys(words: Iterable[str]) -> tuple[int, ...]:
    values = reduce(_least, map(_vector, words))
    bands = _BANDS.unpack(values.to_bytes(_BANDS.size, "little"))
    whole = hash_text("\x1f".join(sorted(words)))
    return whole, *[
        _KEY.unpack(blake2b(band, digest_size=8, salt=_SALTS[number]).digest())[0]
        for number, band in enumerate(bands)
    ]


_SALTS = [number.to_bytes(2, "little") for number in range(BANDS)]


def _least(one: int, other: int) -> int:
    """Return the smaller one of each pair of values, for all values at once."""
    # The highest bits are borrowed from where the other value is greater.
    tops = ((one | _TOPS) - other) & _TOPS
    return one ^ ((one ^ other) & (tops - (tops >> 31)))


@lru_cache(maxsize=4096)
def _vector(word: str) -> int:
    """Return the hash values of a word, one for each of the hash functions, as one number."""
    digest = shake_128(word.encode("utf-8", "replace")).digest(_BANDS.size)
    return int.from_bytes(digest, "little") & _VALUES


KEY_BITS = 40
NUMBER_BITS = 24
"""The size of a row's number in an entry. A table can have 16 million rows."""
_PART_BITS = 10
_SHIFT = KEY_BITS + NUMBER_BITS - _PART_BITS
_MASK = (1 << NUMBER_BITS) - 1


class BandTable:
    """Sorted entries, in parts that are small enough for insertions. An entry holds a key and a number."""

    def __init__(self, entries: Iterable[int] = ()) -> None:
        parts: list[array[int]] = [array("Q") for _ in range(1 << _PART_BITS)]
        for entry in entries:
            parts[entry >> _SHIFT].append(entry)
        self._parts = [array("Q", sorted(part)) for part in parts]

    def add(self, entries: Iterable[int]) -> None:
        for entry in entries:
            part = self._parts[entry >> _SHIFT]
            part.insert(bisect_left(part, entry), entry)

    def find(self, key: int, limit: int) -> list[int]:
        """Return the numbers of the first `limit` rows with a key, in order."""
        least = key << NUMBER_BITS
        part = self._parts[least >> _SHIFT]
        place = bisect_left(part, least)
        found = []
        for entry in part[place : place + limit]:
            if entry >> NUMBER_BITS != key:
                break
            found.append(entry & _MASK)
        return found


def make_entry(key: int, number: int) -> int:
    """Return the entry of a row under a key."""
    return key << NUMBER_BITS | number
