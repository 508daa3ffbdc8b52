"""A byte-level BPE tokenizer: its training, its two directions, and its files for Hugging Face.

The ids 0 to 255 are the bytes, then come the merges in the order in which they were learned, and then the special
tokens.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

from treadle.core.types import Json

_WORD = r" ?[^ \n]+|\n+| +"
_find_words = re.compile(_WORD).findall


class Bpe:
    """A tokenizer. It is deterministic, but an id sequence need not be what `encode` makes of its text."""

    def __init__(self, merges: Sequence[tuple[int, int]], specials: Sequence[str]) -> None:
        self.merges = tuple(merges)
        self.specials = tuple(specials)
        contents = [bytes([byte]) for byte in range(256)]
        for one, other in merges:
            contents.append(contents[one] + contents[other])
        self.contents = tuple(contents)
        """The bytes of each id that is not special."""
        self.special_ids = {text: len(contents) + index for index, text in enumerate(self.specials)}
        self.ids: dict[bytes, int] = {}
        """The first id of each sequence of bytes."""
        for number, content in enumerate(contents):
            self.ids.setdefault(content, number)
        self.max_bytes = max(map(len, contents))
        """The length of the longest content."""
        self._ranks = {pair: 256 + index for index, pair in enumerate(self.merges)}
        self._encode_word = lru_cache(maxsize=50_000)(self._merge)

    def __len__(self) -> int:
        return len(self.contents) + len(self.specials)

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, in which special tokens are ordinary text."""
        return self.encode_bytes(text.encode("utf-8", "surrogatepass"))

    def encode_bytes(self, content: bytes) -> list[int]:
        """Return the ids of a text as bytes, which may begin within a character."""
        # Words end at spaces and line breaks, and Latin-1 has one letter for each byte.
        return [
            number for word in _find_words(content.decode("latin-1")) for number in self._encode_word(word)
        ]

    def encode_marked(self, text: str) -> list[int]:
        """Return the ids of `text`, in which special tokens stand for themselves."""
        ids: list[int] = []
        for part in self._specials_pattern.split(text):
            special = self.special_ids.get(part)
            ids += self.encode(part) if special is None else [special]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, special tokens included. Bytes that are no text become U+FFFD."""
        return self.content(ids).decode("utf-8", "replace")

    def content(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of `ids`, special tokens included. Raises: `ValueError` for an unknown id."""
        known, count = self.contents, len(self.contents)
        try:
            return b"".join([known[i] if 0 <= i < count else self.specials[i - count].encode() for i in ids])
        except IndexError:
            raise ValueError(f"an id is not below {self.size}, the size of the vocabulary") from None

    @cached_property
    def _specials_pattern(self) -> re.Pattern[str]:
        return re.compile("(" + "|".join(map(re.escape, self.specials)) + ")")

    def _merge(self, word: str) -> tuple[int, ...]:
        ids = list(word.encode("latin-1"))
        ranks = self._ranks
        while len(ids) > 1:
            rank, at = min((ranks.get(pair, 1 << 30), at) for at, pair in enumerate(itertools.pairwise(ids)))
            if rank == 1 << 30:
                break
            ids[at : at + 2] = [rank]
        return tuple(ids)

    def to_hugging_face(self, template: str, end: str) -> dict[str, Json]:
        """Return the contents of the files of a tokenizer's folder, by name.

        `template` is the chat template in Jinja, and `end` the special token that ends an answer. Source:
        tokenizers 0.21 and transformers 4.57.
        """
        names = [_to_letters(content) for content in self.contents]
        added = [
            {"id": number, "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for text, number in self.special_ids.items()
        ]
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        split = {"type": "Split", "pattern": {"Regex": _WORD}, "behavior": "Isolated", "invert": False}
        model = {
            "type": "BPE",
            "vocab": {name: number for number, name in enumerate(names)},
            "merges": [[names[one], names[other]] for one, other in self.merges],
            "byte_fallback": False,
            "ignore_merges": False,
        }
        tokenizer: dict[str, Json] = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": None,
            "decoder": byte_level,
            "model": model,
        }
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "model_max_length": 1 << 20,
            "clean_up_tokenization_spaces": False,
        }
        return {
            "tokenizer.json": tokenizer,
            "tokenizer_config.json": config,
            "chat_template.jinja": template,
        }


def train(texts: Iterable[str], merges: int, specials: Sequence[str]) -> Bpe:
    """Return a tokenizer with the `merges` most frequent merges of `texts`. Equal texts give an equal tokenizer."""
    counts = Counter([word for text in texts for word in _find_words(text)])
    words = [list(word.encode()) for word in counts]
    weights = list(counts.values())
    frequency: Counter[tuple[int, int]] = Counter()
    places: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for index, word in enumerate(words):
        for pair in itertools.pairwise(word):
            frequency[pair] += weights[index]
            places[pair].add(index)
    learned: list[tuple[int, int]] = []
    contents = [bytes([byte]) for byte in range(256)]
    while len(learned) < merges and frequency:
        best = max(frequency.items(), key=lambda item: (item[1], item[0]))[0]
        content = contents[best[0]] + contents[best[1]]
        if content in contents:
            # Files of tokenizers cannot have two ids with the same content.
            del frequency[best]
            continue
        number = len(contents)
        contents.append(content)
        learned.append(best)
        for index in places.pop(best):
            word = words[index]
            for pair in itertools.pairwise(word):
                frequency[pair] -= weights[index]
            words[index] = word = _join(word, best, number)
            for pair in itertools.pairwise(word):
                frequency[pair] += weights[index]
                places[pair].add(index)
        del frequency[best]
    return Bpe(learned, specials)


def _join(word: list[int], pair: tuple[int, int], number: int) -> list[int]:
    joined: list[int] = []
    for item in word:
        if joined and joined[-1] == pair[0] and item == pair[1]:
            joined[-1] = number
        else:
            joined.append(item)
    return joined


def _letters() -> dict[int, str]:
    """Return the letter that stands for each byte in files of byte-level tokenizers. Source: GPT-2."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


_LETTERS = _letters()


def _to_letters(content: bytes) -> str:
    return "".join([_LETTERS[byte] for byte in content])
