"""The tokenizers of Hugging Face's files, through the package `tokenizers`."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.core.types import Json

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
            raise ConfigError(f"{where} is no tokenizer: {error}") from None
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
