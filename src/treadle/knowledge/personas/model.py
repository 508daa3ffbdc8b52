"""The persona as pydantic models. Field docstrings are the descriptions in the JSON Schema."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from treadle.core.errors import ConfigError
from treadle.core.mistakes import Keys
from treadle.core.policy import Autonomy
from treadle.core.spec import MemorySpec, PartSpec
from treadle.core.types import Json

Line = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\n]*\S[^\n]*$")]
Text = Annotated[str, Field(max_length=100_000)]
Rule = Annotated[str, Field(min_length=1, max_length=2000)]


ASK = "ask"
"""The toolset with the tool `ask_user`."""


class Section(BaseModel):
    """A part of a persona. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Fact(Section):
    """A fact about the persona."""

    text: Annotated[str, Field(min_length=1, max_length=10_000)]
    """The fact, in one or two sentences."""
    priority: int = 0
    """If not all facts fit into the prompt, those with the lowest priority are left out first."""


class Claim(Fact):
    """Something that the persona holds to be true."""

    epistemic: Literal["fact", "belief", "hypothesis", "contested"] = "belief"
    """How sure it is: a `fact`, a `belief`, a `hypothesis`, or `contested` among those who know."""


class ToolsetTable(Section):
    """A toolset with settings."""

    name: Line
    """The name of the toolset."""
    settings: dict[str, Json] = {}
    """Its settings."""


class MemoryTable(Section):
    """The settings of the memory."""

    user: Line = "default"
    """The user whom the memories are about. `--user` on the command line wins."""
    embeddings: Line | None = None
    """The model of an embeddings server, which finds memories by meaning; by default, their words find them."""
    writes_back: bool = True
    """Whether each turn is remembered as an episode."""


class Persona(Section):
    """Who an agent is: what it knows of itself, how it speaks, and what it works with."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\n]*\S[^\n]*$")]
    """The name of the persona. With the user, it is also the namespace of its memories."""
    role: Annotated[str, Field(max_length=1000)] = ""
    """What it is, such as "a careful research assistant"."""
    background: Text = ""
    """Where it comes from and what it can do, in any number of paragraphs."""
    constraints: Annotated[list[Rule], Field(max_length=100)] = []
    """Rules that always hold, such as "Never give medical advice". They are never left out of the prompt."""
    self_facts: Annotated[list[str | Fact], Field(max_length=10_000)] = []
    """Facts about the persona, the most important first."""
    worldview: Annotated[list[str | Claim], Field(max_length=10_000)] = []
    """What the persona holds to be true, each with how sure it is. A text alone is a belief."""
    tone: Text = ""
    """How it speaks."""
    language: Annotated[str, Field(max_length=100)] = ""
    """The language of its answers, such as "Norwegian"; by default, that of the user's message."""
    instructions: Text = ""
    """Further instructions, which come after the tone."""
    greeting: Annotated[str, Field(max_length=2000)] = ""
    """What it says at the beginning of a chat. The model does not see it."""
    autonomy: Autonomy | None = None
    """How often it may ask the user in one turn: `cautious` five times, `balanced` three times, `decisive` once. If
    it is given, the persona has the tool `ask_user`."""
    model: Line | None = None
    """The model, such as `openai:gpt-5-mini`, a name of treadle.toml, `tier:mid` or `auto`."""
    tools: list[Line | ToolsetTable] = []
    """Toolsets, such as `files` or `python`. Paths are relative to the file of the persona."""
    skills: list[Line] = []
    """Folders of skills, relative to the file of the persona."""
    documents: list[Line] = []
    """Documents that it knows, as paths relative to the file of the persona."""
    judge: Line | None = None
    """What judges a message before its turn: `patterns`, or `model:` and the name of a model."""
    memory: bool | MemoryTable = False
    """`true` if it remembers from one session to the next, or the settings of its memory."""

    @classmethod
    def load(cls, path: str | Path) -> "Persona":
        """Return the persona in a YAML or JSON file, with absolute paths.

        Raises: `ConfigError` that lists all mistakes, each with its line.
        """
        from treadle.knowledge.personas.load import read_persona

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
        """The toolsets, with that of `ask_user` if the persona has an autonomy."""
        from treadle.tools.resolve import TOOLSETS

        found = [
            PartSpec(name=item)
            if isinstance(item, str)
            else PartSpec(name=item.name, settings=dict(item.settings) or None)
            for item in self.tools
        ]
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
