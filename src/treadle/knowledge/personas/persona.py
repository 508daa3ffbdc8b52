"""A persona: the keys that people write, the reading of its file, and what it would do here.

All mistakes in a file are reported together, each with its line. The file may come from elsewhere: reading it
starts, imports, opens and sends nothing.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from treadle.core.errors import ConfigError
from treadle.core.policy import Autonomy
from treadle.core.registry import did_you_mean
from treadle.core.spec import MemorySpec, PartSpec
from treadle.core.texts.mistakes import Keys
from treadle.core.texts.places import Document, KeyPath, Problem, parse_document
from treadle.core.types import Json
from treadle.journal.named_files import explain_unread
from treadle.models.config.described import Described
from treadle.models.config.known_models import demands_of_judge, demands_of_model
from treadle.tools.resolve import TOOLSETS, demands_of_tools, is_code, place_in

Line = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\n]*\S[^\n]*$")]
Text = Annotated[str, Field(max_length=100_000)]
Rule = Annotated[str, Field(min_length=1, max_length=2000)]


ASK = "ask"
"""The toolset with the tool `ask_user`."""


class PersonaSection(Described, BaseModel):
    """A part of a persona. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Fact(PersonaSection):
    """A fact about the persona."""

    text: Annotated[str, Field(min_length=1, max_length=10_000)]
    """The fact, in one or two sentences."""
    priority: int = 0
    """If not all facts fit into the prompt, those with the lowest priority are left out first."""


class Claim(Fact):
    """Something that the persona holds to be true."""

    epistemic: Literal["fact", "belief", "hypothesis", "contested"] = "belief"
    """How sure the claim is: a `fact`, a `belief`, a `hypothesis`, or `contested` among those who know."""


class ToolsetTable(PersonaSection):
    """A toolset with settings."""

    name: Line
    """The name of the toolset."""
    settings: dict[str, Json] = {}
    """Its settings, such as `component` of `spin`."""

    @property
    def part(self) -> PartSpec:
        """The toolset, for `resolve_tools`."""
        return PartSpec(name=self.name, settings=dict(self.settings) or None)


class MemoryTable(PersonaSection):
    """The settings of the memory."""

    user: Line = "default"
    """The user whom the memories are about. `--user` on the command line wins."""
    embeddings: Line | None = None
    """The model of an embeddings server, which finds memories by meaning; by default, their words find them."""
    writes_back: bool = True
    """Whether each turn is remembered as an episode."""


class Persona(PersonaSection):
    """Who an agent is: what it knows of itself, how it speaks, and what it works with."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\n]*\S[^\n]*$")]
    """The name of the persona. With the user, it is also the namespace of its memories."""
    role: Annotated[str, Field(max_length=1000)] = ""
    """What the persona is, such as "a careful research assistant"."""
    background: Text = ""
    """Where the persona comes from and what it can do, in any number of paragraphs."""
    constraints: Annotated[list[Rule], Field(max_length=100)] = []
    """Rules that always hold, such as "Never give medical advice". They are never left out of the prompt."""
    self_facts: Annotated[list[str | Fact], Field(max_length=10_000)] = []
    """Facts about the persona, the most important first."""
    worldview: Annotated[list[str | Claim], Field(max_length=10_000)] = []
    """What the persona holds to be true, each with how sure it is. A text alone is a belief."""
    tone: Text = ""
    """How the persona speaks."""
    language: Annotated[str, Field(max_length=100)] = ""
    """The language of its answers, such as "Norwegian"; by default, that of the user's message."""
    instructions: Text = ""
    """Further instructions, which come after the tone."""
    greeting: Annotated[str, Field(max_length=2000)] = ""
    """What the persona says at the beginning of a chat. The model does not see it."""
    autonomy: Autonomy | None = None
    """How often the persona may ask the user in one turn: `cautious` five times, `balanced` three times,
    `decisive` once. If it is given, the persona has the tool `ask_user`."""
    model: Line | None = None
    """The model, such as `openai:gpt-5-mini`, a name of treadle.toml, `tier:mid` or `auto`."""
    tools: list[Line | ToolsetTable] = []
    """Toolsets, such as `files` or `python`. Paths are relative to the file of the persona."""
    skills: list[Line] = []
    """Folders of skills, relative to the file of the persona."""
    documents: list[Line] = []
    """Documents that the persona knows, as paths relative to the file of the persona."""
    judge: Line | None = None
    """What judges a message before its turn: `patterns`, or `model:` and the name of a model."""
    memory: bool | MemoryTable = False
    """`true` if the persona remembers from one session to the next, or the settings of its memory."""

    @classmethod
    def load(cls, path: str | Path) -> "Persona":
        """Return the persona in a YAML or JSON file, with absolute paths.

        Raises: `ConfigError` that lists all mistakes, each with its line.
        """
        document, placed, problems = read_persona(path)
        try:
            persona = cls.model_validate(placed)
        except pydantic.ValidationError as error:
            problems = [*problems, *KEYS.explain(error.errors(include_url=False), document.value)]
        if problems:
            raise document.error(problems)
        return persona

    @classmethod
    def from_value(cls, value: dict[str, Json]) -> "Persona":
        """Return the persona that a mapping describes. Raises: `ConfigError` that lists all mistakes."""
        try:
            return cls.model_validate(value)
        except pydantic.ValidationError as error:
            problems = KEYS.explain(error.errors(include_url=False), value)
            told = "; ".join([f"{'.'.join(map(str, item.path))}: {item.text}" for item in problems])
            raise ConfigError(f"the persona cannot be used: {told}") from None

    @property
    def parts(self) -> tuple[PartSpec, ...]:
        """The toolsets, including the toolset `ask` if the persona has an `autonomy`."""
        from treadle.tools.resolve import TOOLSETS

        found = [PartSpec(name=item) if isinstance(item, str) else item.part for item in self.tools]
        if self.autonomy is not None and ASK in TOOLSETS and ASK not in [part.name for part in found]:
            found.append(PartSpec(name=ASK))
        return tuple(found)

    @property
    def memory_spec(self) -> MemorySpec | None:
        """The memory; `None` if the persona has none."""
        if self.memory is False:
            return None
        table = MemoryTable() if self.memory is True else self.memory
        return MemorySpec(
            persona=self.name,
            user=table.user,
            embeddings=table.embeddings,
            writes_back=table.writes_back,
        )

    def to_value(self) -> dict[str, Any]:
        """Return the persona as JSON, without the keys that have their defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


def persona_schema() -> dict[str, Json]:
    """Return the JSON Schema of a persona's file, with which editors complete and check it."""
    made = Persona.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "Treadle persona"}


KEYS = Keys(
    persona_schema,
    {
        ("self_facts", "*"): "a text, or a mapping with 'text' and 'priority'",
        ("worldview", "*"): "a text, or a mapping with 'text', 'epistemic' and 'priority'",
        ("tools", "*"): "the name of a toolset, or a mapping with 'name' and 'settings'",
        ("memory",): "true, false, or a mapping with 'user', 'embeddings' and 'writes_back'",
        ("model",): "the name of a model",
        ("judge",): "patterns, or model: and the name of a model",
        ("autonomy",): "cautious, balanced or decisive",
    },
)
"""The keys of a persona."""


MAX_BYTES = 1_000_000
"""The size limit of a persona's file."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def read_persona(path: str | Path) -> tuple[Document, dict[str, Json], list[Problem]]:
    """Return the content of a persona's file, the same content with absolute paths, and the mistakes that the
    pydantic models cannot find. Raises: `ConfigError` for a file that cannot be read, or that is not a mapping."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise explain_unread("the persona ", file, error) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"the persona {str(file)!r} has more than {MAX_BYTES:,} bytes; put long texts into `documents`"
        )
    document = parse_document(data, str(file))
    value = document.value
    problems = [*document.duplicates(), *_find_unprintable(value, ()), *_find_wrong_names(value)]
    return document, _place(value, file.parent.absolute()), problems


def _place(value: dict[str, Json], folder: Path) -> dict[str, Json]:
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
    tools = value.get("tools")
    for position, item in enumerate(tools if isinstance(tools, list) else ()):
        name = item.get("name") if isinstance(item, dict) else item
        if isinstance(name, str) and name.strip() and (fault := _check_toolset(name)):
            yield Problem(("tools", position), fault)


def _check_toolset(name: str) -> str | None:
    """Return what is wrong with the name of a toolset, without loading it; `None` if it may exist."""
    kind, colon, _ = name.partition(":")
    if name in TOOLSETS or (colon and f"{kind}:" in TOOLSETS) or is_code(name):
        return None
    known = [item.rstrip(":") for item in TOOLSETS.names()]
    return f"{name!r:.60} is not a toolset{did_you_mean(kind, known) or ';'} known are {', '.join(known)}"


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
