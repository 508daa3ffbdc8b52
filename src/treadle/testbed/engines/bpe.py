"""The byte-level BPE tokenizer of the mock engines: its training on texts of the built-in tasks, and its files for
Hugging Face.

The ids 0 to 255 are the bytes. The merges follow in the order in which they were learned, and then the special
tokens.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

from treadle.core.types import Json
from treadle.renderers.tokenizer import CHATML_TOKENS, BpeTokenizer, byte_letters
from treadle.tasks.files.task_set import FAMILIES, INSTRUCTIONS, TASK_SET

_WORD = r" ?[^ \n]+|\n+| +"
_find_words = re.compile(_WORD).findall


class Bpe(BpeTokenizer):
    """A tokenizer that splits texts at spaces and line breaks."""

    def __init__(self, merges: Sequence[tuple[int, int]] = ()) -> None:
        """Make a tokenizer. Merge number n, from 0, makes the id 256 + n of two smaller ids."""
        self.merges = tuple(merges)
        contents = [bytes([byte]) for byte in range(256)]
        for one, other in merges:
            contents.append(contents[one] + contents[other])
        special_ids = {text: len(contents) + index for index, text in enumerate(CHATML_TOKENS)}
        super().__init__(dict(enumerate(contents)), merges, special_ids, pattern=_WORD)
        self.max_bytes = max(map(len, contents))
        """The length of the longest content."""
        marks = "|".join(map(re.escape, special_ids))
        self._split_marks = re.compile(f"({marks})").split

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self.contents) + len(self.special_ids)

    def encode_bytes(self, content: bytes) -> list[int]:
        """Return the ids of a text as bytes, which may begin within a character."""
        # Words end at spaces and line breaks, and Latin-1 has one letter for each byte.
        words = _find_words(content.decode("latin-1"))
        return [number for word in words for number in self.merge(word.encode("latin-1"))]

    def encode_marked(self, text: str) -> list[int]:
        """Return the ids of `text`, in which special tokens stand for themselves."""
        ids: list[int] = []
        for part in self._split_marks(text):
            special = self.special_ids.get(part)
            ids += self.encode(part) if special is None else [special]
        return ids

    def to_hugging_face(self, template: str, end: str) -> dict[str, Json]:
        """Return the contents of the files of a tokenizer's folder, by name.

        `template` is the chat template in Jinja, and `end` the special token that ends an answer. Source:
        tokenizers 0.21 and transformers 4.57.
        """
        letters = byte_letters()
        names = ["".join([letters[byte] for byte in content]) for content in self.contents.values()]
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


def train(texts: Iterable[str], merges: int) -> Bpe:
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
    return Bpe(learned)


def _join(word: list[int], pair: tuple[int, int], number: int) -> list[int]:
    joined: list[int] = []
    for item in word:
        if joined and joined[-1] == pair[0] and item == pair[1]:
            joined[-1] = number
        else:
            joined.append(item)
    return joined


START, END, _ = CHATML_TOKENS
_MERGES = 765
_TASKS_PER_FAMILY = 3
_SAID = (
    INSTRUCTIONS,
    "<think>\n</think>\n\n",
    '<tool_call>\n{"name": "read_file", "arguments": {"file_path": "a.md"}}\n</tool_call>',
    '<tool_call>\n{"name": "write_file", "arguments": {"file_path": "b", "content": "c"}}\n</tool_call>',
    '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>',
    "<tool_response>\n</tool_response>",
    "Answer: ",
    "assistant\n",
    "user\n",
    "system\n",
)
"""Texts that every transcript has, which count for more than those of the tasks."""


@cache
def tokenizer() -> Bpe:
    """Return the tokenizer. It is trained on the first call, which takes about half a second."""
    texts = list(_SAID) * 100
    for family in FAMILIES:
        for number in range(_TASKS_PER_FAMILY):
            task = TASK_SET.get(f"{family.name}-{number:04d}")
            texts += [task.input, *[content.decode() for content in task.files.values()]]
    return train(texts, _MERGES)


@cache
def byte_tokenizer() -> Bpe:
    """Return the tokenizer whose ids are bytes. The renderer `chatml` has the same tokenizer."""
    return Bpe()
