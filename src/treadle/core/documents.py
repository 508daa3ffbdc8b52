"""JSON and YAML documents, from files and from strangers."""

from datetime import date
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.core.types import Json

MAX_YAML_VALUES = 2_000_000
"""In a document, each counted as often as its aliases repeat it."""
MAX_YAML_DEPTH = 200


def decode_document(data: bytes, origin: str, *, is_yaml: bool | None = None) -> Json:
    """The value of a document; without `is_yaml`, JSON if it begins like an object or a list of it.

    Of YAML there is only what JSON can hold: keys are texts, and so are dates.
    Raises: `ConfigError` that begins with `origin`.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if is_yaml is None:
        is_yaml = not data.lstrip().startswith((b"{", b"["))
    try:
        if is_yaml:
            return _Plain(origin).read(_read_yaml(data, origin))
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}") from error
    except RecursionError:
        raise ConfigError(f"{origin} is nested too deeply, or in itself") from None


def is_yaml_name(name: str) -> bool:
    """Whether a file's name says that it holds YAML."""
    return name.lower().endswith((".yaml", ".yml"))


def _read_yaml(data: bytes, origin: str) -> Any:
    yaml = require("yaml", "yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        # The fast loader ends the process where it is nested without end.
        for event in yaml.parse(data, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_YAML_DEPTH:
                raise RecursionError
        return yaml.load(data, Loader=loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{origin} is not valid YAML: {error}") from error


class _Plain:
    """What YAML read as JSON has it: texts as keys, no dates, no aliases."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._left = MAX_YAML_VALUES

    def read(self, value: Any) -> Json:
        self._left -= 1
        if self._left < 0:
            raise ConfigError(
                f"{self._origin} is too large: its aliases make more than {MAX_YAML_VALUES:,} values"
            )
        if isinstance(value, dict):
            return {self._key(key): self.read(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.read(item) for item in value]
        if isinstance(value, date):
            return value.isoformat()
        if value is None or isinstance(value, str | int | float):
            return value
        raise ConfigError(f"{self._origin} holds a {type(value).__name__}, which JSON has no place for")

    def _key(self, key: Any) -> str:
        # A key such as 200 can only have been meant as its text; `on` was read as true, and may have been `yes`.
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise ConfigError(f"{self._origin}: a key is no text, but {key!r}; put it in quotes")
        return str(key)
