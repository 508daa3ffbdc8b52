"""The description of a model in the agent spec: its name and its options, without secrets."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from treadle.core.masking import hide_fields
from treadle.core.spec import PartSpec
from treadle.core.types import Json

_DEFAULTS = {
    "timeout_seconds": 600.0,
    "connect_timeout_seconds": 10.0,
    "total_timeout_seconds": 1800.0,
    "max_attempts": 6,
}
"""The default values of settings; a setting with its default is left out."""
_UNSAID = frozenset(("api_key", "headers", "transport"))
"""Options that are never part of the description."""


def describe_part(name: str, options: Mapping[str, Any]) -> PartSpec:
    """Return the part of a model that was made as `name` with `options`.

    An API key is left out, because the process that builds the model again has its own. If another option cannot be
    written as JSON, the part says in `missing` that the model cannot be built again.
    """
    settings: dict[str, Json] = {}
    missing: str | None = None
    for key, value in options.items():
        if value is None or _DEFAULTS.get(key) == value:
            continue
        if key in ("headers", "transport"):
            missing = missing or f"the option {key} was set by the program"
        elif key == "base_url" and is_secret_url(str(value)):
            missing = missing or (
                "its base URL holds a user, a password or a query, which are not recorded; name the model in "
                "treadle.toml"
            )
        elif key not in _UNSAID:
            plain = _to_json(value)
            if plain is None or hide_fields(plain) != plain:
                missing = missing or f"the option {key} may hold a secret or cannot be written as JSON"
            else:
                settings[key] = plain
    return PartSpec(name=name, settings=settings or None, missing=missing)


def is_secret_url(url: str) -> bool:
    """Return whether a URL has a user, a password or a query."""
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query)


def _to_json(value: object) -> Json:
    """Return `value` as JSON decodes it; `None` if it cannot be encoded."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
