"""Where a model's server is, and which key and headers it is sent: as given, or as the environment says."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from treadle.core.errors import ConfigError
from treadle.models.config.keys import find_key
from treadle.models.config.presets import DIALECTS, find_preset
from treadle.models.wire.preset import Preset

if TYPE_CHECKING:
    from treadle.models.config.build import ModelConfig


def connect(preset: Preset, provider: str, config: "ModelConfig") -> dict[str, Any]:
    """Return the options of an `HttpEndpoint`: the name, the address, the key, the headers and the transport.

    Raises: `ConfigError` if a key is missing.
    """
    from treadle.http.transport import HttpTransport

    home = home_of(preset)
    base_url = given_url(preset, config.base_url) or home
    is_home = urlsplit(base_url).hostname == urlsplit(home).hostname
    variable = preset.key_variable if config.api_key_env is None else config.api_key_env
    api_key = config.api_key
    if api_key is None and variable:
        # A stored key is the provider's, and goes to no other server.
        api_key = find_key(variable) if is_home else os.environ.get(variable) or None
    headers = {
        header: value
        for header, variable in preset.header_variables.items()
        if (value := os.environ.get(variable))
    }
    headers |= {name.lower(): value for name, value in (config.headers or {}).items()}
    stem, slash, rest = config.name.partition("/")
    if is_home and provider == "openai" and slash and find_preset(stem) is not None:
        raise ConfigError(
            f"{home} has no model {config.name!r}; did you mean {f'{stem}:{rest}'!r}? A model with this name on "
            "another server needs its address: --base-url, or base_url= in Python"
        )
    if api_key is None and preset.needs_key and is_home and not _has_key(headers):
        raise ConfigError(
            f"no API key for {config.name!r} at {home}: set the environment variable "
            f"{variable or preset.key_variable}, or store the key with `treadle models set-key {provider}`. If the "
            "model is on another server, give its address: --base-url, or base_url= in Python"
        )
    return {
        "name": f"{provider}:{config.name}",
        "base_url": base_url,
        "api_key": api_key,
        "headers": headers,
        "key_variable": variable or preset.key_variable,
        "transport": config.transport
        or HttpTransport(
            timeout_seconds=config.timeout_seconds,
            connect_timeout_seconds=config.connect_timeout_seconds,
            total_timeout_seconds=config.total_timeout_seconds,
        ),
    }


def home_of(preset: Preset) -> str:
    """Return the URL of the provider's own server."""
    return preset.base_url or DIALECTS.load(preset.dialect).BASE_URL


def given_url(preset: Preset, base_url: str | None) -> str | None:
    """Return the base URL that the caller or the environment gives; `None` if neither does."""
    variable = preset.base_url_variable
    return base_url or (os.environ.get(variable) if variable else None) or None


def _has_key(headers: Iterable[str]) -> bool:
    return any(name in ("authorization", "x-api-key", "api-key", "x-goog-api-key") for name in headers)
