"""The changes of a configuration since its job was begun, and the texts in it that may be secret."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.texts.masking import MASK, is_secret_name
from treadle.core.types import Json
from treadle.tools.toolset_parts import may_hold_secret

_DIGEST = re.compile(r"sha256:[0-9a-f]{16}")


class Change(Struct, frozen=True):
    """A key whose value has changed since the job was begun."""

    key: str
    before: Json
    """The earlier value; `None` if the key had no value."""
    after: Json

    @property
    def is_of_code(self) -> bool:
        """True if only the code of the same tools has changed."""
        before, after = [_DIGEST.sub("", _show(item, 10_000)) for item in (self.before, self.after)]
        return self.key.startswith("tools.use") and before == after

    def __str__(self) -> str:
        return f"{self.key} was {_show(self.before)} and is now {_show(self.after)}"


def _show(value: Json, max_chars: int = 80) -> str:
    if value is None:
        return "not set"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def find_changes(before: Json, after: Json, key: str = "") -> Iterator[Change]:
    """Yield each innermost value that differs, with dots between the keys that lead to it."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from find_changes(before.get(name), after.get(name), f"{key}.{name}".lstrip("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from find_changes(*pair, f"{key}[{number}]")
    else:
        yield Change(key, before, after)


def hide_toolset(item: Json) -> Json:
    """Return a toolset, which is a text or has settings, without what may be secret."""
    if isinstance(item, str):
        kind, colon, _ = item.partition(":")
        return f"{kind}{colon}{MASK}" if may_hold_secret(item) else item
    if not isinstance(item, dict):
        return item
    named = {key: hide_toolset(text) if key == "name" else text for key, text in item.items()}
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
    return hide_text(value) if is_secret or may_hold_secret(f"setting: {value}") else value


def hide_text(text: Json) -> Json:
    """Return the mask for a text, unless that names an environment variable as `${NAME}`."""
    return text if not isinstance(text, str) or "${" in text else MASK
