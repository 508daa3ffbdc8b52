"""Tokenizers: byte-level BPE that needs no other package, and those of files in Hugging Face's form."""

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean, require
from treadle.core.types import Json

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_MAX_WORDS = 50_000
"""How many words a tokenizer keeps the ids of."""
_MAX_KEPT_CHARS = 64
"""The longest word that it keeps the ids of."""
_GONE = -1
"""What stands for an id that was merged with the one before it."""
_UNKNOWN = "\ufffd"
"""What stands for an id that is not in the vocabulary, such as one that pads it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which a text may have by itself, and which the package tokenizers refuses."""


class Tokenizer(Protocol):
    """The two directions between text and ids. Special tokens are never made from text."""

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The ids of the special tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids, special tokens included. Bytes that are not UTF-8, and each id that is not in the
        vocabulary, such as one that pads it, become U+FFFD."""

    def is_known(self, number: int, /) -> bool:
        """Return whether an id is in the vocabulary."""


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
        # With one group around the whole pattern, `split` returns the words too.
        self._pattern = None if pattern is None else re.compile(f"({pattern})")
        if self._pattern is not None and self._pattern.groups > 1:
            raise ConfigError(f"the pattern {pattern!r} has groups that capture; write them as (?:...)")
        self._encode_word = lru_cache(maxsize=_MAX_WORDS)(self._merge)

    @classmethod
    def from_json(cls, raw: Json) -> Self:
        """Return the tokenizer in the decoded content of a `tokenizer.json`, whose only rule beside the merges may
        be a regular expression for words. `FileTokenizer` reads any other.

        Source: the files of tokenizers 0.23, whose byte-level vocabularies write bytes as GPT-2 did.
        """
        model, steps = raw["model"], raw["pre_tokenizer"].get("pretokenizers", ())
        letters = {letter: byte for byte, letter in byte_letters().items()}
        added = {item["content"]: item["id"] for item in raw["added_tokens"]}
        vocabulary = {token: number for token, number in model["vocab"].items() if token not in added}
        contents = {
            number: bytes([letters[letter] for letter in token]) for token, number in vocabulary.items()
        }
        merges = [(vocabulary[one], vocabulary[other]) for one, other in model["merges"]]
        pattern = next((item["pattern"]["Regex"] for item in steps if item["type"] == "Split"), None)
        return cls(contents, merges, added, pattern=pattern)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""
        if len(text) <= _MAX_KEPT_CHARS:
            return [*chain.from_iterable(map(self._encode_word, self._words(text)))]
        ids: list[int] = []
        for word in self._words(text):
            ids += self._encode_word(word) if len(word) <= _MAX_KEPT_CHARS else self._merge(word)
        return ids

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids; see `Tokenizer.decode`."""
        return self.content(ids).decode(errors="replace")

    def is_known(self, number: int, /) -> bool:
        return number in self._contents

    def content(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, special tokens included; those of U+FFFD for an id that only the model has."""
        try:
            return b"".join(itemgetter(*ids)(self._contents))
        except (KeyError, TypeError):  # an unknown id, or fewer than two ids, for which there is no tuple
            unknown = _UNKNOWN.encode()
            return b"".join([self._contents.get(number, unknown) for number in ids])

    def _words(self, text: str) -> Iterable[str]:
        if self._pattern is None:
            return (text,) if text else ()
        # What the pattern does not match is a word too.
        return filter(None, self._pattern.split(text))

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


def byte_letters() -> dict[int, str]:
    """Return the letter that stands for each byte in files of byte-level tokenizers. Source: GPT-2."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def hash_vocabulary(tokenizer: Tokenizer) -> str:
    """Return a hash of the texts of all ids. Tokenizers with the same ids have the same hash."""
    count = max(tokenizer.special_ids.values(), default=-1) + 1
    special = sorted(tokenizer.special_ids.items())
    texts = [tokenizer.decode([number]) if tokenizer.is_known(number) else None for number in range(count)]
    return sha256(msgspec.json.encode([special, texts])).hexdigest()


_EXTRA = "train"
_HUB_SECONDS = 10
_MAX_IDS = 2**32
"""The package tokenizers has ids of 32 bits."""


class FileTokenizer:
    """The tokenizer of a `tokenizer.json`."""

    def __init__(self, data: bytes, where: str) -> None:
        """Load the tokenizer in `data`, which comes from `where`. Raises: `ConfigError` if it cannot be read."""
        self.data = data
        try:
            self._marked = self._load()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{where} is not a tokenizer: {error}") from None
        added = self._marked.get_added_tokens_decoder()
        self.special_ids = {token.content: number for number, token in added.items() if token.special}
        longest_first = sorted(self.special_ids, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._known: set[int] = set()
        """The ids that were seen to be in the vocabulary."""

    def _load(self) -> Any:
        """Return the tokenizer without the length that its file may set for models of embeddings."""
        made = require("tokenizers", _EXTRA).Tokenizer.from_buffer(self.data)
        made.no_truncation()
        made.no_padding()
        return made

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Return the tokenizer in a file. Raises: `ConfigError` if it cannot be read."""
        try:
            return cls(path.read_bytes(), repr(str(path)))
        except OSError as error:
            raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}{_find_near(path)}") from None

    @classmethod
    def from_hub(cls, model: str) -> Self:
        """Return the tokenizer of a model of the Hugging Face Hub. Raises: `ConfigError` if it cannot be loaded."""
        hub, utils = require("huggingface_hub", _EXTRA), require("huggingface_hub.utils", _EXTRA)
        try:
            # A download tries again for half a minute if there is no network.
            utils.get_session().head(hub.hf_hub_url(model, "tokenizer.json"), timeout=_HUB_SECONDS)
            found = require("tokenizers", _EXTRA).Tokenizer.from_pretrained(model)
        except ConfigError:
            raise
        except Exception as error:
            if isinstance(kept := hub.try_to_load_from_cache(model, "tokenizer.json"), str):
                return cls.from_file(Path(kept))
            raise ConfigError(
                f"the tokenizer of {model!r} is not on this machine, and cannot be loaded from the Hugging Face "
                f"Hub ({error}); connect to the network, or give the folder of a tokenizer.json, as "
                "family:NAME@FOLDER"
            ) from None
        return cls(found.to_str().encode(), repr(model))

    @cached_property
    def _plain(self) -> Any:
        made = self._load()
        made.encode_special_tokens = True
        return made

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""
        ids: list[int] = self._plain.encode(_SURROGATE.sub(_UNKNOWN, text), add_special_tokens=False).ids
        return ids

    def encode_marked(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text with special tokens, and where each begins and ends in the text."""
        encoding = self._marked.encode(_SURROGATE.sub(_UNKNOWN, text), add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids; see `Tokenizer.decode`."""
        if not self._known.issuperset(ids):
            self._known.update([number for number in set(ids) if self.is_known(number)])
        if self._known.issuperset(ids):
            return self._decode_known(ids)
        # The package leaves out what it does not know.
        parts = [
            self._decode_known([*group]) if is_known else _UNKNOWN * len([*group])
            for is_known, group in groupby(ids, self._known.__contains__)
        ]
        return "".join(parts)

    def _decode_known(self, ids: Sequence[int]) -> str:
        text: str = self._marked.decode(list(ids), skip_special_tokens=False)
        return text

    def is_known(self, number: int, /) -> bool:
        return 0 <= number < _MAX_IDS and self._marked.id_to_token(number) is not None

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


def _find_near(path: Path) -> str:
    """Return the end of the error about a file that cannot be read: the nearest name to the first part of its path
    that is not there."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    names = [item.name for item in missing.parent.iterdir()] if missing.parent.is_dir() else []
    if missing.name in names or (missing == path and path.name == "tokenizer.json"):
        names = []
    where = "" if missing == path else f"; there is no folder {str(missing)!r}"
    return where + did_you_mean(
        missing.name, names, "give the folder of a tokenizer that has a tokenizer.json"
    )


def _break(found: re.Match[str]) -> str:
    first, rest = found[0][0], found[0][1:]
    return ("&lt;" if first == "<" else f"&#{ord(first)};") + rest
