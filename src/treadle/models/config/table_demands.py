"""Where the requests for a model go, and which keys go along: in words, and whether a found file may say so."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from treadle.core.spec import PartSpec
from treadle.http.transport import address_of
from treadle.models.config.bare import home_of, providers
from treadle.models.config.presets import find_preset, split_name
from treadle.models.config.tables import ModelTable

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def demand_of(part: PartSpec, table: ModelTable | None) -> str:
    """Return what a model of a table, or without one of `provider:name`, is sent and where, as a phrase that begins
    with a verb."""
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

    A server on this machine may be sent the usual key of the provider, and no other variable.
    """
    given: Mapping[str, Any] = table.model_dump(exclude_none=True) | table.options
    url = given.get("base_url")
    if url is None:
        return False
    preset, host = find_preset(split_name(table.model)[0]), urlsplit(str(url)).hostname
    if preset is not None and host == urlsplit(home_of(preset)).hostname and host not in _LOCAL:
        return False
    usual = ("", None if preset is None else preset.key_variable)
    is_usual = given.get("api_key_env", "") in usual and not _VARIABLE.search(str(given.get("headers", "")))
    return host not in _LOCAL or not is_usual
