"""Where an OpenAPI document comes from."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Json
from treadle.registry import require
from treadle.sync import run_blocking
from treadle.tools.http import GuardedHttp, Resolver, host_of

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
MAX_YAML_VALUES = 2_000_000
"""In a document, each counted as often as its aliases repeat it."""
MAX_YAML_DEPTH = 200
_ACCEPT = "application/json, application/yaml;q=0.9, */*;q=0.5"
_NAME = "the OpenAPI document"


class Loaded(Struct, frozen=True):
    """A decoded document."""

    raw: Json
    origin: str
    """How messages name it."""
    url: str | None = None
    """That it came from."""


def load(
    document: str | Path | Mapping[str, Json], *, allow_private: bool, resolver: Resolver | None
) -> Loaded:
    """The document at a path or a URL, in a text, or given as it is. Raises: `ConfigError`."""
    if isinstance(document, Mapping):
        return Loaded(dict(document), _NAME)
    text = str(document)
    if isinstance(document, str) and text.startswith(("http://", "https://")):
        return _fetch(text, allow_private=allow_private, resolver=resolver)
    if isinstance(document, str) and (text.lstrip().startswith("{") or "\n" in text):
        return Loaded(_decode(text.encode(), _NAME), _NAME)
    try:
        data = Path(text).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {_NAME} {text!r}: {why}") from error
    return Loaded(_decode(data, repr(text), is_json=text.endswith(".json")), repr(text))


def _fetch(url: str, *, allow_private: bool, resolver: Resolver | None) -> Loaded:
    http = GuardedHttp(
        [],
        named_by_user=[host_of(url)],
        allow_private=allow_private,
        max_response_bytes=MAX_DOCUMENT_BYTES,
        resolver=resolver,
    )
    # A query may hold a key.
    origin = repr(url.partition("?")[0])
    try:
        answer = run_blocking(http.request("GET", url, {"accept": _ACCEPT}))
    except ToolError as error:
        raise ConfigError(f"cannot read {_NAME} {origin}: {error}") from error
    if answer.status != 200:
        raise ConfigError(f"cannot read {_NAME} {origin}: HTTP {answer.status}")
    return Loaded(_decode(answer.body, origin), origin, answer.url)


def _decode(data: bytes, origin: str, *, is_json: bool = False) -> Json:
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        if is_json or data.lstrip().startswith((b"{", b"[")):
            return msgspec.json.decode(data)
        return _plain(_read_yaml(data, origin), [MAX_YAML_VALUES])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}") from error
    except RecursionError:
        raise ConfigError(f"{origin} is nested too deeply, or in itself") from None


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


def _plain(value: Any, budget: list[int]) -> Json:
    """What YAML read as JSON has it: texts as keys, no dates, no aliases."""
    budget[0] -= 1
    if budget[0] < 0:
        raise ConfigError(
            f"the OpenAPI document is too large: its aliases make more than {MAX_YAML_VALUES:,} values"
        )
    if isinstance(value, dict):
        return {str(key): _plain(item, budget) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, budget) for item in value]
    return value.isoformat() if isinstance(value, date) else value
