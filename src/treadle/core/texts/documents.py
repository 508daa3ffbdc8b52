"""JSON and YAML documents, which may come from untrusted sources, changes of them, and the package's data files."""

import tomllib
from collections.abc import Mapping
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.texts.json_text import MAX_DEPTH, decode_json, is_deep
from treadle.core.types import Json

MAX_YAML_VALUES = 2_000_000
"""The most values in a YAML document. A value that aliases repeat counts each time."""
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""The exceptions of a decoder for JSON that is malformed, is not UTF-8, or is nested too deeply."""


@cache
def read_data(package: str, name: str) -> dict[str, Any]:
    """Return the content of the data file `NAME.toml` in the folder of a package."""
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))


def decode_document(data: bytes, origin: str, *, is_yaml: bool | None = None) -> Json:
    """Return the value of a JSON or YAML document.

    If `is_yaml` is `None`, a document that begins with `{` or `[` is JSON, and any other is YAML. The value of
    a YAML document is converted to values that JSON can hold: keys and dates become strings.

    Raises: `ConfigError`, whose message begins with `origin`, if the document is damaged, nested too deeply, too
    large, or holds something that JSON cannot.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if is_yaml is None:
        is_yaml = not data.lstrip().startswith((b"{", b"["))
    try:
        if is_yaml:
            return _to_plain(_read_yaml(data, origin), origin)
        if is_deep(data):
            raise RecursionError
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}") from error
    except RecursionError:
        raise ConfigError(f"{origin} is nested too deeply, or contains itself") from None


def decode_or(text: str | bytes, otherwise: Json = None) -> Json:
    """Return the value of a JSON text; `otherwise` if it is not JSON."""
    try:
        return decode_json(text)
    except UNREADABLE:
        return otherwise


def is_yaml_name(name: str) -> bool:
    """Return whether a file's name ends in `.yaml` or `.yml`."""
    return name.lower().endswith((".yaml", ".yml"))


def _read_yaml(data: bytes, origin: str) -> Any:
    import yaml  # takes 15 ms

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        # The fast loader crashes the process on a document that is nested too deeply.
        for event in yaml.parse(data, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise RecursionError
        value = yaml.load(data, Loader=loader)
    except (yaml.YAMLError, ValueError) as error:
        # The newer of the fast loaders has a limit of its own, below the one here.
        if "nesting depth" in str(error):
            raise RecursionError from error
        raise ConfigError(f"{origin} is not valid YAML: {error}") from error
    if _count(value, {}) > MAX_YAML_VALUES:
        raise ConfigError(f"{origin} is too large: its aliases make more than {MAX_YAML_VALUES:,} values")
    return value


def _to_plain(value: Any, origin: str) -> Json:
    """Return the values of JSON for those of YAML, with strings for keys and dates, and without aliases."""
    if isinstance(value, dict):
        for key in value:
            # A key 200 can only mean "200"; a key that was read as true may have been written as `on` or as `yes`.
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise ConfigError(f"{origin}: the key {key!r} is not a text; put it in quotes")
        return {str(key): _to_plain(item, origin) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_plain(item, origin) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float):
        return value
    raise ConfigError(f"{origin} holds a {type(value).__name__}, which JSON cannot express")


def _count(value: Any, known: dict[int, int]) -> int:
    """Return how many values a document has if those that aliases repeat count each time."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum([_count(item, known) for item in items])
    return known[id(value)]


def read_change(text: str) -> tuple[str, Json]:
    """Return the key and the value in `KEY=VALUE`, where the value is written as in YAML. Raises: `ConfigError`."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {text!r} is not KEY=VALUE; write for example --set retries.attempts=3")
    return key.strip(), decode_document(value.encode(), f"the value of {key.strip()!r}", is_yaml=True)


def apply_changes(value: dict[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Return `value` with the values of `changes`, whose keys have dots between sections.

    A model that is only a name becomes a section with this name, so that its settings can be changed.
    """
    for key, new in changes.items():
        *sections, last = key.split(".")
        value = table = dict(value)
        for name in sections:
            below = table.get(name)
            inner: dict[str, Json] = dict(below) if isinstance(below, dict) else {}
            if isinstance(below, str) and sections[0] in ("model", "models"):
                inner = {"model": below}
            table[name] = inner
            table = inner
        table[last] = new
    return value
