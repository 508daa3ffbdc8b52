"""What the commands of `treadle memory` share: options, the opening of a memory, and how entries are shown."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from treadle.cli.terminal.output import shorten, stdout
from treadle.cli.work.journals import open_existing
from treadle.context.memory.protocol import Entry, Store
from treadle.core.errors import ConfigError
from treadle.journal.protocol import Journal

if TYPE_CHECKING:
    from treadle.context.memory import Memory

Persona: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--persona",
        metavar="NAME",
        help="The persona that remembers. Default: that of [chat] in treadle.toml.",
        envvar="TREADLE_PERSONA",
    ),
]
User: TypeAlias = Annotated[
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


@contextmanager
def opened(
    journal: str | None,
    persona: str | None,
    user: str | None,
    embeddings: str | None = None,
    *,
    made: Journal | None = None,
) -> Iterator["Memory"]:
    """Open a memory for the block. Raises: `JournalError`, `ConfigError`."""
    from treadle.context.memory import open_memory

    with closing(made or open_existing(journal)) as store:
        names = _usual_names(persona, user)
        yield open_memory(store, *names, embeddings=embeddings)


def _usual_names(persona: str | None, user: str | None) -> tuple[str, str]:
    """Return the persona and the user, by default those with whose memory `treadle chat` begins a session.

    Raises: `ConfigError`.
    """
    from treadle.models.config.file import load_config

    config = load_config()
    chat, own_user = config.file.chat, None
    if persona is None and chat.persona is not None:
        from treadle.context.personas.load import load_persona

        found = load_persona(config.resolve(chat.persona))
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
