"""The options that say what a new agent knows: a persona, a memory, skills and documents."""

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import typer
from msgspec import Struct
from msgspec.structs import replace

from treadle.cli.options.signature import make_parameter
from treadle.core.errors import ConfigError

_PANEL = "Knowledge"
_NO_PERSONA = Path("none")
_Persona: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--persona",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="The YAML file of a persona: who the agent is, and its tools, skills, documents and memory. 'none': "
        "no persona, although treadle.toml names one.",
    ),
]
_Memory: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--memory/--no-memory",
        rich_help_panel=_PANEL,
        help="Whether the agent remembers from one session to the next. Default: as the persona says.",
    ),
]
_User: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", rich_help_panel=_PANEL, help="The user whom the memories are about."
    ),
]
_Skills: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--skills",
        metavar="FOLDER",
        rich_help_panel=_PANEL,
        help="A folder of skills, or 'builtin' for those of Treadle. May be given several times.",
    ),
]
_Documents: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--document",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="A document that the agent knows. May be given several times.",
    ),
]
_Judge: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="NAME",
        rich_help_panel=_PANEL,
        help="What judges your messages before their turns: 'patterns', 'model:NAME' or 'none'. Default: as the "
        "persona or treadle.toml says.",
    ),
]


class KnowledgeOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a new agent knows. `None` means that an option was not given."""

    persona: Path | None = None
    memory: bool | None = None
    user: str | None = None
    skills: tuple[Path, ...] = ()
    documents: tuple[Path, ...] = ()
    judge: str | None = None

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """See `OptionGroup.parameters`."""
        kinds = {
            "persona": _Persona,
            "memory": _Memory,
            "user": _User,
            "skills": _Skills,
            "documents": _Documents,
            "judge": _Judge,
        }
        return [make_parameter(name, kind, None) for name, kind in kinds.items()]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """See `OptionGroup.from_values`."""
        if values["user"] is not None and not values["user"].strip():
            raise ConfigError("--user is empty; give the name of a user")
        return cls(
            persona=values["persona"],
            memory=values["memory"],
            user=values["user"],
            skills=tuple(values["skills"] or ()),
            documents=tuple(values["documents"] or ()),
            judge=values["judge"],
        )

    def over_file(self) -> "KnowledgeOptions":
        """Return the options with the section `chat` of treadle.toml for those that were not given.

        Raises: `ConfigError`.
        """
        from treadle.models.config.recipe import load_config

        config = load_config()
        chat = config.file.chat
        persona = self.persona
        if persona is None and chat.persona is not None:
            persona = config.resolve(chat.persona)
        return replace(
            self,
            persona=None if persona == _NO_PERSONA else persona,
            memory=chat.memory if self.memory is None else self.memory,
            user=self.user or os.environ.get("TREADLE_USER") or chat.user,
        )

    @property
    def is_given(self) -> bool:
        """True if one of the options was given."""
        return self != type(self)()
