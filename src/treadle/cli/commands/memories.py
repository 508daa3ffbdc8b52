"""`treadle memory`: what a persona remembers about a user."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import open_existing
from treadle.cli.options.option_groups import OptionGroup
from treadle.cli.terminal.output import print_json, print_line, print_note, shorten
from treadle.core.errors import ConfigError
from treadle.core.texts.documents import is_yaml_name
from treadle.journal.registry import open_journal
from treadle.knowledge.memory.protocol import (
    LIBRARY,
    REMEMBERED,
    Author,
    Draft,
    Epistemic,
    MemoryEntry,
    Outcome,
    Store,
)

if TYPE_CHECKING:
    from treadle.knowledge.memory import Memory

_SIMILAR_FIT = 0.8
"""How well a memory must fit the text of a forgotten one, so that the user is told of it."""


class MemoryPlace(OptionGroup, frozen=True, kw_only=True):
    """Whose memory a command works on, and where it is: `--persona`, `--user` and `--journal`."""

    persona: str | None = None
    user: str | None = None
    journal: str | None = None

    @contextmanager
    def opened(self, embeddings: str | None = None, *, is_made: bool = False) -> Iterator["Memory"]:
        """Open the memory for the block. If `is_made`, a journal that does not exist is made.

        Raises: `JournalError`, `ConfigError`.
        """
        from treadle.knowledge.memory import open_memory

        names = self.names()
        store = open_journal(self.journal) if is_made else open_existing(self.journal)
        with store:
            yield open_memory(store, *names, embeddings=embeddings)

    def names(self) -> tuple[str, str]:
        """Return the persona and the user, by default those with whose memory `treadle chat` begins a session.

        Raises: `ConfigError`.
        """
        from treadle.models.config.recipe import load_config

        config = load_config()
        chat, persona, own_user = config.file.chat, self.persona, None
        if persona is not None:
            file = Path(persona) if is_yaml_name(persona) else None
        else:
            file = None if chat.persona is None else config.resolve(chat.persona)
        if file is not None:
            from treadle.knowledge.personas.persona import Persona

            found = Persona.load(file)
            persona = found.name
            own_user = found.memory_spec.user if found.memory_spec is not None else None
        return persona or "default", self.user or chat.user or own_user or "default"


def find(memory: "Memory", entry_id: str) -> MemoryEntry:
    """Return an entry. Raises: `ConfigError`."""
    entry = memory.store.get(entry_id)
    if entry is None:
        raise ConfigError(
            f"there is no memory {entry_id!r} of this --persona and --user; `treadle memory list` lists them"
        )
    return entry


def print_entry(entry: MemoryEntry, note: str = "") -> None:
    tag = f" {entry.epistemic.value}" if entry.epistemic else ""
    day = datetime.fromtimestamp(entry.said_at).astimezone().strftime("%Y-%m-%d %H:%M")
    text = f"{entry.entry_id:<14} {day} {entry.author.value}{tag}{note}  "
    print_line(text + shorten(entry.text, 160))


def list_memories(
    place: MemoryPlace, store: list[Store] | None = None, limit: int = 50, is_json: bool = False
) -> None:
    """List memories, the newest first.

    Examples:
        treadle memory list
        treadle memory list --persona ada --user kim --store self_facts --json
    """
    with place.opened() as memory:
        found = memory.store.entries(store or (), limit or None, newest_first=True)
        owners = memory.store.owners()
    if is_json:
        print_json(*found)
        return
    for entry in found:
        print_entry(entry)
    if not found:
        others = [
            f"--persona {shlex.quote(who)} --user {shlex.quote(whom)}"
            for who, whom in owners
            if who != LIBRARY
        ]
        more = f"; this journal has memories of: {', '.join(others)}" if others else ""
        where = " in these stores" if store else ""
        persona, user = place.names()
        print_note(f"{persona!r} has no memories about {user!r}{where}{more}")


def search(
    text: str,
    place: MemoryPlace,
    store: list[Store] | None = None,
    limit: int = 8,
    embeddings: str | None = None,
    is_json: bool = False,
) -> None:
    """Search memories and documents by their words, and by their meaning with --embeddings.

    Examples:
        treadle memory search 'what may Kim not eat?'
        treadle memory search 'allergies' --embeddings ollama:nomic-embed-text --limit 3
    """
    with place.opened(embeddings) as memory:
        found = execute(memory.search(text, stores=store or (), limit=limit))
    if found.note:
        print_note(found.note)
    if is_json:
        print_json(*found.hits)
        return
    for hit in found.hits:
        print_entry(hit.entry, f" {hit.score:.4f}")
    if not found.hits:
        print_note("nothing was found")


def add(
    text: str,
    place: MemoryPlace,
    store: Store = Store.SELF_FACTS,
    epistemic: Epistemic | None = None,
    reason: str | None = None,
    replaces: str | None = None,
) -> None:
    """Write a memory, as the user.

    Examples:
        treadle memory add 'Kim is allergic to nuts.'
        treadle memory add 'Trains are never late.' --store worldview --epistemic contested
    """
    draft = Draft(store=store, text=text, epistemic=epistemic, reason=reason)
    with place.opened(is_made=True) as memory:
        written = execute(memory.write(draft, replaces=replaces))
    assert written.entry is not None
    if written.outcome is Outcome.MERGED:
        print_note("a memory says the same already; it is stronger now")
    print_entry(written.entry)


def forget(entry_ids: list[str], place: MemoryPlace) -> None:
    """Delete memories with all their versions.

    The texts are overwritten in the file. Transcripts of runs in which they were said are kept.

    Examples:
        treadle memory forget self_facts-3
        treadle memory forget episodic-17 episodic-18 --persona ada --user kim
    """
    with place.opened() as memory:
        forget_entries(memory, entry_ids)


def forget_entries(memory: "Memory", entry_ids: list[str]) -> None:
    """Delete entries, and print those that still say something similar. Raises: `ConfigError` for an unknown id."""
    texts = [find(memory, entry_id).text for entry_id in entry_ids]
    now = memory.clock.time()
    for entry_id in entry_ids:
        memory.store.forget(entry_id, Author.USER, now)
    found = [hit for text in texts for hit in memory.store.search(text, now, stores=REMEMBERED)]
    left = {hit.entry.entry_id: hit.entry for hit in found if hit.fit >= _SIMILAR_FIT}
    print_note(f"{len(entry_ids):,} forgotten" + ("; these say something similar:" if left else ""))
    for entry in left.values():
        print_entry(entry)
