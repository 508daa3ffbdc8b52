"""What is said of a model without asking it: its part of the agent spec, and where its requests and keys go."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from treadle.core.spec import PartSpec
from treadle.core.texts.masking import hide_fields
from treadle.core.types import Json
from treadle.http.transport import address_of
from treadle.models.config.bare import home_of, providers
from treadle.models.config.presets import find_preset, split_name
from treadle.models.config.tables import ModelTable

_DEFAULTS = {name: field.default for name, field in ModelTable.model_fields.items()}
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


_VARIABLE = re.compile(r"\$\{(\w+)\}")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def demand_of(part: PartSpec, table: ModelTable | None) -> str:
    """Return a phrase that says what a model, of a table or `provider:name`, is sent and where."""
    settings = part.settings or {}
    provider, _ = split_name(part.name if table is None else table.model)
    preset = find_preset(provider)
    if preset is None:
        where = providers().get(provider, "which is not installed")
        return f"load the provider {provider!r} ({where}) and ask its model {part.name!r}"
    variable = preset.base_url_variable
    url = settings.get("base_url") or (table.base_url if table is not None else None)
    url = url or (os.environ.get(variable) if variable else None) or home_of(preset)
    key = settings.get(
        "api_key_env", (table.api_key_env if table is not None else None) or preset.key_variable
    )
    keys = [key, *[name for name in preset.header_variables.values() if os.environ.get(name)]]
    for value in (table.headers or {}).values() if table is not None else ():
        keys += _VARIABLE.findall(value)
    renderer = settings.get("renderer") or (table.renderer if table is not None else None)
    sent = ", ".join(dict.fromkeys(str(name) for name in keys if name))
    return (
        f"send the conversation to {address_of(str(url))!r} for the model {part.name!r}"
        f"{f', with the keys in {sent}' if sent else ''}"
        f"{f', and load the renderer {renderer!r}' if renderer else ''}"
    )


def needs_trust(table: ModelTable) -> bool:
    """Return whether a table sends the conversation, or a key, to others than its provider.

    The provider may be sent its usual key, or one of a variable with the provider's name in it. A server on this
    machine may be sent the usual key of the provider, and no other variable.
    """
    given: Mapping[str, Any] = table.model_dump(exclude_none=True) | table.options
    provider = table.model.partition(":")[0] if ":" in table.model else "openai"
    preset = find_preset(provider)
    usual = "" if preset is None or preset.key_variable is None else preset.key_variable
    key = str(given.get("api_key_env", ""))
    has_variables = bool(_VARIABLE.search(f"{table.headers} {table.options}"))
    url = given.get("base_url")
    if url is None or (preset is not None and _place_of(str(url)) == _place_of(home_of(preset))):
        stems = {provider.upper(), usual.partition("_")[0]} - {""}
        return has_variables or not (key in ("", usual) or any(stem in key.upper() for stem in stems))
    return _place_of(str(url))[1] not in _LOCAL or has_variables or key not in ("", usual)


def _place_of(url: str) -> tuple[str, str | None]:
    """Return the scheme and the host of a URL; nothing for one that is not valid, to which nothing is sent."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", None
    return parts.scheme, parts.hostname
