"""Options that override keys of a document."""

from collections.abc import Mapping

from treadle.core.documents import decode_document
from treadle.core.errors import ConfigError
from treadle.core.types import Json


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
