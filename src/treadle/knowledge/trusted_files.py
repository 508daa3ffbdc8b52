"""Which skills and personas from elsewhere the user trusts, and what a persona would do here.

An answer of the user is a file in his state folder, named after the kind of the file and the hash of its content.
A changed content has another hash, so he is asked again. Finding out what a persona would do starts nothing.
"""

import hashlib
import os
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.journal.identity import state_folder

if TYPE_CHECKING:
    from treadle.knowledge.personas.persona import Persona


class Trust(StrEnum):
    """The user's trust in a content."""

    UNTRUSTED = "untrusted"
    """The user has not decided about the content, and is asked before it is used."""
    ALLOWED = "allowed"
    """The user allowed the use of the content, and does not vouch for it: the model gets it as data."""
    TRUSTED = "trusted"
    """The user vouches for the content: the model gets it as instructions."""
    BUILTIN = "builtin"
    """The content is part of Treadle."""


def read_trust(kind: str, digest: str) -> Trust:
    """Return what the user has said about the content with this hash. `kind` is `skill` or `persona`."""
    try:
        said = _place_of(kind, digest).read_text("utf-8").partition(" ")[0]
    except (OSError, RuntimeError, UnicodeError):
        return Trust.UNTRUSTED
    return Trust(said) if said in (Trust.ALLOWED, Trust.TRUSTED) else Trust.UNTRUSTED


def record_trust(kind: str, digest: str, trust: Trust, name: str) -> None:
    """Record what the user says about the content with this hash. `name` is kept for readers of the file.

    Raises: `ConfigError` if it cannot be recorded.
    """
    try:
        place = _place_of(kind, digest)
        if trust is Trust.UNTRUSTED:
            place.unlink(missing_ok=True)
            return
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{trust} {name}\n")
        os.replace(path, place)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"the trust in the {kind} {name!r} cannot be recorded: {error}") from error


def _place_of(kind: str, digest: str) -> Path:
    return state_folder() / "trust" / f"{kind}-{digest}"


_HARMLESS = ("files", "vfs", "python", "shell", "ask")
"""Toolsets that work only in the sandbox of the run, or only with the user."""


def digest_of(persona: "Persona") -> str:
    """Return the hash of a persona's content, to which the user's trust is bound."""
    return hashlib.sha256(msgspec.json.encode(persona.to_value(), order="sorted")).hexdigest()


def demands_of_persona(persona: "Persona", folder: Path | None = None) -> tuple[str, ...]:
    """Return what an agent with this persona would start, import, open, ask and send, beyond its sandbox.

    Documents within `folder`, the folder of the persona's file, are left out, and so are skills, each of which
    the user is asked for by itself. This function itself starts and sends nothing.
    """
    from treadle.models.config.model_demands import demands_of_judge, demands_of_model
    from treadle.tools.resolve import demands_of_tools

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
