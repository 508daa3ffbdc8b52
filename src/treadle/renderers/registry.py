"""The renderers by name: `KIND`, `KIND:REST` or `KIND:REST?option=value&option=value`."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.core.texts.documents import decode_or
from treadle.core.types import Json

if TYPE_CHECKING:
    from treadle.renderers.protocol import Renderer

Maker: TypeAlias = Callable[[str, str, Mapping[str, Json]], "Renderer"]
"""A function that makes a renderer from its name, the part of the name after the kind, and its options."""

RENDERERS: Registry[Maker] = Registry(
    "renderer",
    "treadle.renderers",
    {
        "chatml": "treadle.renderers.chatml:make_chatml",
        "hf": "treadle.renderers.hf:make_hf",
        "family": "treadle.renderers.family_renderer:make_family",
    },
)
_MAX_KEPT = 32


@lru_cache(maxsize=_MAX_KEPT)
def load_renderer(name: str) -> "Renderer":
    """Return the renderer called `name`; the same object for the same name.

    Raises: `ConfigError` if there is no such renderer, or its files cannot be read.
    """
    rest, mark, query = name.partition("?")
    kind, _, rest = rest.partition(":")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        pairs = []
    if mark and not pairs:
        raise ConfigError(
            f"the renderer {name!r} has options that cannot be read; write ?option=value&option=value"
        )
    return RENDERERS.load(kind)(name, rest, {key: decode_or(value, value) for key, value in pairs})


def locate(name: str, folder: Path | None = None) -> str:
    """Return the name of a renderer with the path in it made absolute, so that another process finds the file.

    A relative path is relative to `folder`, or to the current one.
    """
    head, mark, query = name.partition("?")
    kind, _, rest = head.partition(":")
    before, place, path = rest.rpartition("@") if kind == "family" else ("", "", rest)
    if kind not in ("chatml", "hf", "family") or not path or (kind == "family" and not place):
        return name
    whole = (folder or Path.cwd()) / Path(path).expanduser()
    return f"{kind}:{before}{place}{os.path.normpath(whole)}{mark}{query}"
