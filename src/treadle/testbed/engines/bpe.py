"""The byte-level BPE tokenizer of the mock engines.

It stands in `tokenizer.json`, in the form of Hugging Face (tokenizers 0.21). It was trained once on texts of the
built-in tasks: the ids 0 to 255 are the bytes, the merges follow in the order in which they were learned, and then
the special tokens.
"""

import re
from functools import cache, cached_property
from importlib.resources import files

import msgspec

from treadle.core.types import Json
from treadle.renderers.tokenizer import CHATML_TOKENS, BpeTokenizer

START, END, _ = CHATML_TOKENS


class Bpe(BpeTokenizer):
    """A tokenizer that splits texts at spaces and line breaks."""

    @cached_property
    def max_bytes(self) -> int:
        """Return the length of the longest content of an id, in bytes."""
        return max(map(len, self.contents.values()))

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self.contents) + len(self.special_ids)

    def encode_bytes(self, content: bytes) -> list[int]:
        """Return the ids of a text as bytes, which may begin within a character."""
        # Words end at spaces and line breaks, and Latin-1 has one letter for each byte.
        words = self._words(content.decode("latin-1"))
        return [number for word in words for number in self.merge(word.encode("latin-1"))]

    def encode_marked(self, text: str) -> list[int]:
        """Return the ids of `text`, in which special tokens stand for themselves."""
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, self.special_ids))})", text):
            special = self.special_ids.get(part)
            ids += self.encode(part) if special is None else [special]
        return ids


@cache
def read_tokenizer_file(*, has_merges: bool = True) -> dict[str, Json]:
    """Return the content of the file `tokenizer.json` of the tokenizer, or of the one whose ids are bytes."""
    raw: dict[str, Json] = msgspec.json.decode(files(__package__).joinpath("tokenizer.json").read_bytes())
    if not has_merges:
        raw["model"]["vocab"] = {
            name: number for name, number in raw["model"]["vocab"].items() if number < 256
        }
        raw["model"]["merges"] = []
        for number, item in enumerate(raw["added_tokens"], 256):
            item["id"] = number
    return raw


@cache
def tokenizer() -> Bpe:
    return Bpe.from_json(read_tokenizer_file())


@cache
def byte_tokenizer() -> Bpe:
    """Return the tokenizer whose ids are bytes. The renderer `chatml` has the same tokenizer."""
    return Bpe.from_json(read_tokenizer_file(has_merges=False))
