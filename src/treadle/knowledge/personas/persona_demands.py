"""What a persona would do here. Finding it out starts nothing."""

import hashlib
import os
from pathlib import Path

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.knowledge.personas.persona import Persona
from treadle.models.config.model_demands import demands_of_judge, demands_of_model
from treadle.tools.resolve import demands_of_tools

_HARMLESS = ("files", "vfs", "python", "shell", "ask")
"""Toolsets that work only in the sandbox of the run, or only with the user."""


def digest_of(persona: Persona) -> str:
    """Return the hash of a persona's content, to which the user's trust is bound."""
    return hashlib.sha256(msgspec.json.encode(persona.to_value(), order="sorted")).hexdigest()


def demands_of_persona(persona: Persona, folder: Path | None = None) -> tuple[str, ...]:
    """Return what an agent with this persona would start, import, open, ask and send, beyond its sandbox.

    Documents within `folder`, the folder of the persona's file, are left out, and so are skills, each of which
    the user is asked for by itself. This function itself starts and sends nothing.
    """
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
