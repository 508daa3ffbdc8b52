"""The part of MCP servers: an object `mcpServers` as other clients use it, with `${NAME}` in place of secrets."""

import os
from collections.abc import Mapping
from typing import Any

from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.tools.mcp.target import Target
from treadle.tools.parts import OBJECT, REFERENCE_TO_VARIABLE, SECRET, may_hold_secret

_MIN_VALUE_CHARS = 4
"""The length from which a value is recognised as that of a variable. A shorter value may be equal by chance."""


def make_part(entries: Mapping[str, dict[str, Json] | str]) -> PartSpec:
    """Return the part that describes servers. Each is given by name, with its entry or with the reason why it has
    none."""
    for name, entry in entries.items():
        missing = entry if isinstance(entry, str) else _find_secret(entry)
        if missing is not None:
            return PartSpec(name="mcp", missing=f"of its server {name!r}: {missing}")
    return PartSpec(name="mcp", settings={"mcpServers": dict(entries)})


def write_entry(target: Target, options: Mapping[str, Json]) -> dict[str, Json] | str:
    """Return the configuration entry for a server, or a text that says why it cannot be written.

    A value of `env` or `headers` that equals an environment variable of this process is written as `${NAME}`.
    """
    if target.server is not None:
        return OBJECT
    where = {"command": target.command, "cwd": target.cwd, "url": target.url}
    entry: dict[str, Json] = {key: _escape(value) for key, value in where.items() if value is not None}
    if target.args:
        entry["args"] = [_escape(item) for item in target.args]
    if target.env:
        entry["env"] = {key: _refer(value, key) for key, value in target.env.items()}
    if target.headers:
        entry["headers"] = {key: _refer(value) for key, value in target.headers.items()}
    if target.transport == "sse":
        entry["type"] = "sse"
    texts = [*entry.get("args", ()), *(entry[key] for key in where if key in entry)]
    if any(secret in text for secret in target.secrets if secret for text in texts):
        return SECRET
    return {**entry, **options}


def _escape(text: str) -> str:
    return text.replace("${", "$${")


def _refer(value: str, name: str = "") -> str:
    """Return a reference to the environment variable that holds `value` or its last word, if there is one."""
    scheme, space, rest = value.rpartition(" ")
    for candidate in (name, *sorted(os.environ)):
        held = os.environ.get(candidate)
        if held is not None and len(held) >= _MIN_VALUE_CHARS and held in (value, rest):
            return f"${{{candidate}}}" if held == value else f"{scheme}{space}${{{candidate}}}"
    return value


def _find_secret(entry: Mapping[str, Any]) -> str | None:
    """Return why an entry must not be written down, or `None`."""
    for field in ("env", "headers"):
        for key, value in entry.get(field, {}).items():
            if not REFERENCE_TO_VARIABLE.fullmatch(value):
                return f"its {field} may hold a secret; write the value of {key} as ${{NAME}}"
    texts = " ".join([*(entry[key] for key in ("command", "url") if key in entry), *entry.get("args", ())])
    return SECRET if may_hold_secret(f"mcp:{texts}") else None
