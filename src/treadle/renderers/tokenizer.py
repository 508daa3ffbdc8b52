"""Tokenizers that need no other package: bytes as ids, and byte-level BPE from a file in Hugging Face's form."""

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.core.types import Json

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_MAX_WORDS = 50_000
"""How many words a tokenizer keeps the ids of."""
_MAX_KEPT_CHARS = 64
"""The longest word that it keeps the ids of."""
_GONE = -1
"""What stands for an id that was merged with the one before it."""


class Tokenizer(Protocol):
    """The two directions between text and ids. Special tokens are never made from text."""

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The ids of the special tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids, special tokens included. Bytes that are not UTF-8 become U+FFFD."""
        ...


class BpeTokenizer:
    """Byte-level BPE: the ids of bytes, and merges of two ids in the order of their rank."""

    def __init__(
        self,
        contents: Mapping[int, bytes],
        merges: Iterable[tuple[int, int]] = (),
        special_ids: Mapping[str, int] | None = None,
        *,
        pattern: str | None = None,
    ) -> None:
        """Make a tokenizer.

        `contents` has the bytes of each id that is not special, the 256 single bytes included. `pattern` is a
        regular expression for the words that merges do not cross; `None`: they cross everything.
        """
        self.special_ids = dict(special_ids or {})
        """The ids of the special tokens."""
        self.contents = contents
        """The bytes of each id that is not special."""
        self._contents = {**contents, **{number: text.encode() for text, number in self.special_ids.items()}}
        self.by_content: dict[bytes, int] = {}
        """The first id of each sequence of bytes."""
        for number, content in contents.items():
            self.by_content.setdefault(content, number)
        missing = [byte for byte in range(256) if bytes([byte]) not in self.by_content]
        if missing:
            raise ConfigError(
                f"the vocabulary has no token for the byte {missing[0]:#04x}; it is not byte-level"
            )
        self._bytes = [self.by_content[bytes([byte])] for byte in range(256)]
        self._ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (one, other) in enumerate(merges):
            joined = self.by_content.get(contents[one] + contents[other])
            if joined is None:
                raise ConfigError(f"the vocabulary has no token for the merge of {one} and {other}")
            self._ranks.setdefault((one, other), (rank, joined))
        self._split = None if pattern is None else re.compile(pattern).finditer
        self._encode_word = lru_cache(maxsize=_MAX_WORDS)(self._merge)

    @classmethod
    def from_json(cls, raw: Json) -> Self:
        """Return the tokenizer in the decoded content of a `tokenizer.json`.

        Raises: `ConfigError`, `LookupError` or `TypeError` if it is no byte-level BPE. Source: the files of
        tokenizers 0.23, whose byte-level vocabularies write bytes as GPT-2 did.
        """
        model = raw["model"]
        if model["type"] != "BPE" or raw.get("normalizer") is not None or model.get("ignore_merges"):
            raise ConfigError("its model is not plain BPE, or it changes texts before it splits them")
        letters = {letter: byte for byte, letter in byte_letters().items()}
        added = {item["content"]: item["id"] for item in raw.get("added_tokens") or ()}
        if odd := [item["content"] for item in raw.get("added_tokens") or () if not item["special"]]:
            raise ConfigError(f"it has the token {odd[0]!r}, which is not special and not in the vocabulary")
        vocabulary = {token: number for token, number in model["vocab"].items() if token not in added}
        contents = {
            number: bytes([letters[letter] for letter in token]) for token, number in vocabulary.items()
        }
        pairs = [item.split(" ") if isinstance(item, str) else item for item in model["merges"]]
        merges = [(vocabulary[one], vocabulary[other]) for one, other in pairs]
        return cls(contents, merges, added, pattern=_read_pattern(raw["pre_tokenizer"]))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""
        ids: list[int] = []
        for word in self._words(text):
            ids += self._encode_word(word) if len(word) <= _MAX_KEPT_CHARS else self._merge(word)
        return ids

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids; see `Tokenizer.decode`. Raises: as `content` does."""
        return self.content(ids).decode(errors="replace")

    def content(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, special tokens included. Raises: `ConfigError` for an unknown id."""
        try:
            return b"".join(map(self._contents.__getitem__, ids))
        except KeyError as error:
            raise ConfigError(
                f"the id {error.args[0]} is not in the vocabulary of {len(self._contents)} ids; is this the "
                "tokenizer of the model?"
            ) from None

    def _words(self, text: str) -> Iterable[str]:
        if self._split is None:
            return (text,) if text else ()
        words: list[str] = []
        end = 0
        for found in self._split(text):
            # What the pattern does not match is a word too.
            words += [text[end : found.start()], found[0]]
            end = found.end()
        return [word for word in (*words, text[end:]) if word]

    def _merge(self, word: str) -> tuple[int, ...]:
        return self.merge(word.encode(errors="surrogatepass"))

    def merge(self, word: bytes) -> tuple[int, ...]:
        """Return the ids of a word: of all pairs that can be merged, the one of the lowest rank goes first."""
        ids = [self._bytes[byte] for byte in word]
        if not self._ranks:
            return tuple(ids)
        after = [*range(1, len(ids) + 1)]
        before = [*range(-1, len(ids) - 1)]
        heap: list[tuple[int, int, int, int, int]] = []

        def offer(at: int) -> None:
            if at < 0 or after[at] >= len(ids):
                return
            one, other = ids[at], ids[after[at]]
            found = self._ranks.get((one, other))
            if found is not None:
                heapq.heappush(heap, (found[0], at, one, other, found[1]))

        for at in range(len(ids)):
            offer(at)
        while heap:
            _, at, one, other, joined = heapq.heappop(heap)
            following = after[at]
            if ids[at] != one or following >= len(ids) or ids[following] != other:
                continue
            ids[at], ids[following] = joined, _GONE
            after[at] = after[following]
            if after[at] < len(ids):
                before[after[at]] = at
            offer(at)
            offer(before[at])
        return tuple([number for number in ids if number != _GONE])


def byte_tokenizer() -> BpeTokenizer:
    """Return the tokenizer whose ids are the bytes, followed by the special tokens of ChatML."""
    return BpeTokenizer(
        {byte: bytes([byte]) for byte in range(256)},
        special_ids={text: 256 + index for index, text in enumerate(CHATML_TOKENS)},
    )


def load_bpe(path: Path) -> BpeTokenizer:
    """Return the byte-level BPE tokenizer in a `tokenizer.json`.

    Raises: `ConfigError` if the file cannot be read, or needs what only the package `tokenizers` can do.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the tokenizer {str(path)!r}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{str(path)!r} is not JSON: {error}") from None
    try:
        return BpeTokenizer.from_json(raw)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        said = error if isinstance(error, ConfigError) else repr(error)
        raise ConfigError(
            f"{str(path)!r} is not a byte-level BPE tokenizer that Treadle reads by itself ({said}); use "
            "hf:FOLDER, which reads any tokenizer.json"
        ) from None


def _read_pattern(raw: Json) -> str | None:
    """Return the regular expression of words; `None` if there is none. Raises: `ConfigError` for other rules."""
    steps = raw["pretokenizers"] if raw["type"] == "Sequence" else [raw]
    *splits, last = steps
    if last["type"] != "ByteLevel" or last.get("use_regex", True) or last.get("add_prefix_space", True):
        raise ConfigError("it splits texts into words by other rules than a regular expression")
    if not splits:
        return None
    (split,) = splits
    if split["type"] != "Split" or split["behavior"] != "Isolated" or split.get("invert"):
        raise ConfigError(f"it splits texts by {split['type']}")
    pattern = str(split["pattern"]["Regex"])
    try:
        re.compile(pattern)
    except re.error:
        raise ConfigError(f"Python cannot read its pattern {pattern!r}") from None
    return pattern


def byte_letters() -> dict[int, str]:
    """Return the letter that stands for each byte in files of byte-level tokenizers. Source: GPT-2."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def hash_vocabulary(tokenizer: Tokenizer) -> str:
    """Return a hash of the texts of all ids. Tokenizers with the same ids have the same hash."""
    count = max(tokenizer.special_ids.values(), default=-1) + 1
    special = sorted(tokenizer.special_ids.items())
    texts = [_decode_one(tokenizer.decode, number) for number in range(count)]
    return sha256(msgspec.json.encode([special, texts])).hexdigest()


def _decode_one(decode: Callable[[Sequence[int]], str], number: int) -> str | None:
    try:
        return decode([number])
    except (ValueError, LookupError):
        return None


_EXTRA = "train"


class FileTokenizer:
    """The tokenizer of a `tokenizer.json`."""

    def __init__(self, data: bytes, where: str) -> None:
        """Load the tokenizer in `data`, which comes from `where`. Raises: `ConfigError` if it cannot be read."""
        self.data = data
        self._load = require("tokenizers", _EXTRA).Tokenizer.from_buffer
        try:
            self._marked = self._load(data)
        except Exception as error:
            raise ConfigError(f"{where} is not a tokenizer: {error}") from None
        added = self._marked.get_added_tokens_decoder()
        self.special_ids = {token.content: number for number, token in added.items() if token.special}
        longest_first = sorted(self.special_ids, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Return the tokenizer in a file. Raises: `ConfigError` if it cannot be read."""
        try:
            return cls(path.read_bytes(), repr(str(path)))
        except OSError as error:
            raise ConfigError(
                f"cannot read {str(path)!r}: {error.strerror}; give the folder of a tokenizer that has a "
                "tokenizer.json"
            ) from None

    @classmethod
    def from_hub(cls, model: str) -> Self:
        """Return the tokenizer of a model of the Hugging Face Hub. Raises: `ConfigError` if it cannot be loaded."""
        try:
            found = require("tokenizers", _EXTRA).Tokenizer.from_pretrained(model)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the tokenizer of {model!r} cannot be loaded from the Hugging Face Hub: {error}; give the folder "
                "of a tokenizer.json, as family:NAME@FOLDER"
            ) from None
        return cls(found.to_str().encode(), repr(model))

    @cached_property
    def _plain(self) -> Any:
        made = self._load(self.data)
        made.encode_special_tokens = True
        return made

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_marked(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text with special tokens, and where each begins and ends in the text."""
        encoding = self._marked.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids, special tokens included."""
        text: str = self._marked.decode(list(ids), skip_special_tokens=False)
        return text

    def find(self, token: str) -> int | None:
        """Return the id of a token; `None` if there is none."""
        number: int | None = self._marked.token_to_id(token)
        return number

    def break_marks(self, value: Json) -> Json:
        """Return `value` with the special tokens in its texts broken, so that no text begins or ends a message."""
        if isinstance(value, str):
            return self._marks.sub(_break, value)
        if isinstance(value, dict):
            return {key: self.break_marks(item) for key, item in value.items()}
        return [self.break_marks(item) for item in value] if isinstance(value, list) else value


def _break(found: re.Match[str]) -> str:
    first, rest = found[0][0], found[0][1:]
    return ("&lt;" if first == "<" else f"&#{ord(first)};") + rest
