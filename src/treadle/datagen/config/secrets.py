"""Values of a configuration that may be secret, and that are not stored with a dataset."""

from typing import Any

from treadle.core.masking import MASK, is_secret_name
from treadle.core.types import Json
from treadle.models.config.description import is_secret_url
from treadle.tools.parts import may_hold_secret


def hide_secrets(value: dict[str, Json]) -> dict[str, Json]:
    """Return the JSON of a configuration without the texts that may be secret.

    These are headers and addresses of models, and toolsets whose text or settings may hold a key. A value that only
    names an environment variable, as `${NAME}`, is kept.
    """
    models, tools = value.get("models"), value.get("tools")
    hidden = dict(value)
    if isinstance(models, dict):
        hidden["models"] = {role: _hide_model(table) for role, table in models.items()}
    if isinstance(tools, dict) and isinstance(tools.get("use"), list):
        hidden["tools"] = {**tools, "use": [_hide_toolset(item) for item in tools["use"]]}
    return hidden


def _hide_model(table: Json) -> Json:
    if not isinstance(table, dict):
        return table
    found = dict(table)
    if isinstance(headers := table.get("headers"), dict):
        found["headers"] = {name: _hide_text(text) for name, text in headers.items()}
    if isinstance(url := table.get("base_url"), str) and is_secret_url(url):
        found["base_url"] = MASK
    return found


def _hide_toolset(item: Json) -> Json:
    if isinstance(item, str):
        kind, colon, _ = item.partition(":")
        return f"{kind}{colon}{MASK}" if may_hold_secret(item) else item
    if not isinstance(item, dict):
        return item
    named = {key: _hide_toolset(text) if key == "name" else text for key, text in item.items()}
    return {**named, "settings": _hide_settings(item.get("settings"))} if "settings" in item else named


def _hide_settings(value: Any, *, is_secret: bool = False) -> Json:
    if isinstance(value, dict):
        return {
            key: _hide_settings(item, is_secret=is_secret or key in ("env", "headers") or is_secret_name(key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_hide_settings(item, is_secret=is_secret) for item in value]
    if not isinstance(value, str):
        return value
    return _hide_text(value) if is_secret or may_hold_secret(f"setting: {value}") else value


def _hide_text(text: Json) -> Json:
    return text if not isinstance(text, str) or "${" in text else MASK
