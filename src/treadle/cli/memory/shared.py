"""What the commands of `treadle memory` share: options, the opening of a memory, and how entries are shown."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import typer
from msgspec import Struct

from treadle.cli.jobs.journals import open_existing, open_or_make
from treadle.cli.options.shared import Journal
from treadle.cli.options.signature import make_parameter
from treadle.cli.terminal.output import shorten, stdout
from treadle.core.errors import ConfigError
from treadle.knowledge.memory.protocol import Entry, Store

if TYPE_CHECKING:
    from treadle.knowledge.memory import Memory

_Persona: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--persona",
        metavar="NAME",
        help="The persona that remembers. Default: that of [chat] in treadle.toml.",
        envvar="TREADLE_PERSONA",
    ),
]
_User: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        help="The user whom the memories are about. Default: that of [chat] in treadle.toml.",
        envvar="TREADLE_USER",
    ),
]
Id: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a memory, such as episodic-17.", show_default=False)
]
Stores: TypeAlias = Annotated[
    list[Store] | None,
    typer.Option("--store", help="Only memories of this kind. May be given several times."),
]
Embeddings: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--embeddings",
        metavar="MODEL",
        help="A model of embeddings, which also finds memories by their meaning: provider:name, or a name of "
        "treadle.toml.",
    ),
]


class Place(Struct, frozen=True):
    """Whose memory a command works on, and where it is: `--persona`, `--user` and `--journal`."""

    persona: str
    user: str
    journal: str | None

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """See `OptionGroup.parameters`."""
        return [
            make_parameter("persona", _Persona, None),
            make_parameter("user", _User, None),
            make_parameter("journal", Journal, None),
        ]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """See `OptionGroup.from_values`."""
        return cls(*_usual_names(values["persona"], values["user"]), values["journal"])

    @contextmanager
    def opened(self, embeddings: str | None = None, *, is_made: bool = False) -> Iterator["Memory"]:
        """Open the memory for the block. If `is_made`, a journal that does not exist is made.

        Raises: `JournalError`, `ConfigError`.
        """
        from treadle.knowledge.memory import open_memory

        store = open_or_make(self.journal, "process") if is_made else open_existing(self.journal)
        with closing(store):
            yield open_memory(store, self.persona, self.user, embeddings=embeddings)


def _usual_names(persona: str | None, user: str | None) -> tuple[str, str]:
    """Return the persona and the user, by default those with whose memory `treadle chat` begins a session.

    Raises: `ConfigError`.
    """
    from treadle.models.config.recipe import load_config

    config = load_config()
    chat, own_user = config.file.chat, None
    if persona is None and chat.persona is not None:
        from treadle.knowledge.personas.model import Persona

        found = Persona.load(config.resolve(chat.persona))
        persona = found.name
        own_user = found.memory_spec.user if found.memory_spec is not None else None
    return persona or "default", user or chat.user or own_user or "default"


def find(memory: "Memory", entry_id: str) -> Entry:
    """Return an entry. Raises: `ConfigError`."""
    entry = memory.store.get(entry_id)
    if entry is None:
        raise ConfigError(
            f"there is no memory {entry_id!r} of this --persona and --user; `treadle memory list` lists them"
        )
    return entry


def print_entry(entry: Entry, note: str = "") -> None:
    """Print an entry in one line."""
    tag = f" {entry.epistemic.value}" if entry.epistemic else ""
    text = f"{entry.entry_id:<14} {write_day(entry.written_at)} {entry.author.value}{tag}{note}  "
    stdout().print(text + shorten(entry.text, 160), soft_wrap=True)


def write_day(at: float) -> str:
    """Return a time as a local date and time."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")
