"""The reading of a persona's file. All mistakes in it are reported together, each with its line.

The file may come from elsewhere. Reading it starts, imports, opens and sends nothing; `demands_of_persona` says
what using it would do.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pydantic

from treadle.context.judging import demands_of_judge
from treadle.context.personas.model import KEYS, Persona, check_toolset
from treadle.core.errors import ConfigError
from treadle.core.places import KeyPath, Problem, parse_document
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.tools.resolve import place_in

MAX_BYTES = 1_000_000
"""The size limit of a persona's file."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_HARMLESS = ("files", "vfs", "python", "shell", "ask")
"""Toolsets that work only in the sandbox of the run, or only with the user."""


def load_persona(path: str | Path) -> Persona:
    """Return the persona in a file; see `Persona.load`."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the persona {str(file)!r}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"the persona {str(file)!r} has more than {MAX_BYTES:,} bytes; put long texts into `documents`"
        )
    document = parse_document(data, str(file))
    value = document.value
    problems = [*document.duplicates(), *_find_unprintable(value, ())]
    placed = _place(value, file.parent.absolute())
    try:
        persona = Persona.model_validate(placed)
    except pydantic.ValidationError as error:
        problems += KEYS.explain(error.errors(include_url=False), value)
    problems += _find_wrong_names(value)
    if problems:
        raise document.error(problems)
    return persona


def digest_of(persona: Persona) -> str:
    """Return the hash of a persona's content, to which the user's trust is bound."""
    return hashlib.sha256(msgspec.json.encode(persona.to_value(), order="sorted")).hexdigest()


def demands_of_persona(persona: Persona, folder: Path | None = None) -> tuple[str, ...]:
    """Return what an agent with this persona would start, import, open, ask and send, beyond its sandbox.

    Documents within `folder`, that of the persona's file, are left out, and so are skills, each of which the user
    is asked for by itself. Finding it out starts and sends nothing.
    """
    from treadle.models.config.demands import demands_of_model
    from treadle.tools.demands import demands_of_tools

    found: list[str] = []
    if persona.model is not None:
        try:
            found += demands_of_model(PartSpec(name=persona.model))
        except ConfigError as error:
            found.append(f"ask the model {persona.model!r} ({error})")
    for part in persona.parts:
        if part.name not in _HARMLESS:
            found += demands_of_tools(part)
        elif part.settings:
            found.append(f"use the toolset {part.name!r} with the settings {part.settings!r:.500}")
    found += [f"read the document {path!r}" for path in persona.documents if not _is_within(path, folder)]
    if persona.judge is not None:
        found += demands_of_judge(PartSpec(name=persona.judge))
    memory = persona.memory_spec
    if memory is not None and memory.embeddings is not None:
        found.append(f"send memories and messages to the embeddings model {memory.embeddings!r}")
    return tuple(found)


def _is_within(path: str, folder: Path | None) -> bool:
    """Return whether a path, with its symlinks followed, lies in `folder`."""
    if folder is None:
        return False
    root = os.path.realpath(folder)
    return Path(os.path.realpath(path)).is_relative_to(root)


def _place(value: dict[str, Json], folder: Path) -> dict[str, Json]:
    """Return `value` with its paths relative to `folder`."""
    placed = dict(value)
    if isinstance(tools := value.get("tools"), list):
        placed["tools"] = [place_in(item, folder) for item in tools]
    for key in ("skills", "documents"):
        if isinstance(paths := value.get(key), list):
            placed[key] = [
                str(folder / Path(item).expanduser()) if isinstance(item, str) and item else item
                for item in paths
            ]
    return placed


def _find_unprintable(value: Json, path: KeyPath) -> Iterator[Problem]:
    """Yield a problem for each text that has control characters, or is not valid Unicode."""
    if isinstance(value, str) and (found := _UNPRINTABLE.search(value)):
        yield Problem(path, f"the character {found[0]!r} cannot be used in a text; delete it")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _find_unprintable(item, (*path, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _find_unprintable(item, (*path, position))


def _find_wrong_names(value: dict[str, Json]) -> Iterator[Problem]:
    """Yield a problem for each toolset that does not exist."""
    tools = value.get("tools")
    for position, item in enumerate(tools if isinstance(tools, list) else ()):
        name = item.get("name") if isinstance(item, dict) else item
        if isinstance(name, str) and name.strip() and (fault := check_toolset(name)):
            yield Problem(("tools", position), fault)
