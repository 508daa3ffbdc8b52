"""The whole knowledge of one agent: its persona, memory, skills and documents."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from treadle.core.errors import ConfigError, UntrustedError
from treadle.core.spec import ContextSpec, MemorySpec, PartSpec
from treadle.core.types import Json, Recalled, StopReason
from treadle.journal.identity import Trust, read_trust, record_trust
from treadle.journal.memory import MemoryJournal
from treadle.journal.named_files import suggest_path
from treadle.journal.protocol import Clock, Journal
from treadle.knowledge.memory.protocol import LIBRARY
from treadle.knowledge.personas.persona import Persona, demands_of_persona, digest_of
from treadle.knowledge.personas.prompt_sections import BUDGETS, Item, assemble
from treadle.knowledge.protocol import CompletedTurn, PromptReport
from treadle.knowledge.skills.skill import Catalog
from treadle.knowledge.skills.use_skill import UseSkill
from treadle.models.config.known_models import demands_of_judge
from treadle.tools.protocol import Tool
from treadle.tools.resolve import demands_of_tools, resolve_tools

if TYPE_CHECKING:
    from treadle.knowledge.documents import LoadedDocuments
    from treadle.knowledge.memory import Memory, Recaller

PersonaLike: TypeAlias = Persona | Mapping[str, Json] | str | Path
"""A persona, a mapping with the keys of one, or the path of a file."""
MemoryLike: TypeAlias = MemorySpec | str | bool | None
"""The settings of a memory, the name of a persona that remembers, or whether the agent has a memory."""
RECALL_SECONDS = 30.0
"""How long a recall may take before the turn begins without it."""

_MAX_COUNTED = 1000
_HEADING_TOKENS = 50
_MAX_TOPICS = 200

_log = logging.getLogger("treadle")


def read_persona(given: PersonaLike | None, *, trust: bool = False) -> Persona | None:
    """Return the persona that was given. If `trust` is true, record that the user trusts its file.

    Raises: `ConfigError` that lists all mistakes of a file; `UntrustedError` for a file whose persona would start,
    import, open, ask or send something, unless the user has trusted it with just this content.
    """
    if given is None or isinstance(given, Persona):
        return given
    if isinstance(given, Mapping):
        return Persona.from_value(dict(given))
    if not isinstance(given, str | Path):
        raise ConfigError(f"persona is {given!r:.200}; give the path of a file, a mapping or a Persona")
    persona = Persona.load(given)
    demands = demands_of_persona(persona, Path(given).expanduser().parent)
    digest = digest_of(persona)
    if demands and trust:
        record_trust("persona", digest, Trust.TRUSTED, persona.name)
    elif demands and read_trust("persona", digest) is not Trust.TRUSTED:
        raise UntrustedError(f"the persona {str(given)!r}", demands, "would do more than work in its sandbox")
    return persona


def make_context_spec(
    persona: Persona | None,
    memory: MemoryLike,
    skills: Iterable[str | Path],
    documents: Iterable[str | Path],
    user: str | None = None,
    judge: PartSpec | None = None,
) -> ContextSpec | None:
    """Return the description of what an agent knows; `None` if it knows nothing.

    `skills` and `documents` come before those of the persona. `memory` counts in place of the persona's. `user` is
    the user whom the memories are about; `None`: as the memory says.
    """
    spec = None if persona is None else persona.memory_spec
    if isinstance(memory, MemorySpec):
        spec = memory
    elif isinstance(memory, str):
        spec = replace(spec or MemorySpec(writes_back=True), persona=memory)
    elif memory is True:
        spec = spec or MemorySpec(persona="default" if persona is None else persona.name, writes_back=True)
    elif memory is False:
        spec = None
    elif memory is not None:
        raise ConfigError(f"memory is {memory!r:.200}; give True, the name of a persona, or a MemorySpec")
    if user is not None and spec is not None:
        spec = replace(spec, user=user)
    value = {} if persona is None else persona.to_value()
    value.pop("tools", None)  # the agent spec has them without their secrets
    found = ContextSpec(
        persona=None if persona is None else value,
        memory=spec,
        skills=_paths("skills", skills),
        documents=_paths("documents", documents),
        judge=judge,
    )
    return None if found == ContextSpec() else found


def describe_persona(persona: Persona) -> tuple[str, PromptReport]:
    """Return the system message of an agent with this persona and its tools that are in the sandbox, and the report
    about it. Nothing is started, and no memory is opened.

    Raises: `ConfigError` for skills and documents that are not there.
    """
    spec = make_context_spec(persona, None, (), ())
    assert spec is not None
    memory = None if spec.memory is None else replace(spec.memory, embeddings=None)
    surroundings = Surroundings(replace(spec, memory=memory), MemoryJournal)
    text = surroundings.make_instructions(None, _harmless_tools(persona))
    return text or "", surroundings.report


def _harmless_tools(persona: Persona) -> list[str]:
    """Return the names of a persona's tools, without those of toolsets that start, import or ask something."""
    found = ["remember", "recall"] if persona.memory_spec is not None else []
    for part in persona.parts:
        if not demands_of_tools(part):
            with suppress(ConfigError):
                found += [tool.spec.name for tool in resolve_tools([part])]
    return found


class Surroundings:
    """The persona, memory, skills and documents of one agent."""

    def __init__(
        self,
        spec: ContextSpec,
        open_journal: Callable[[], Journal],
        *,
        clock: Clock = time,
        is_strict: bool = True,
    ) -> None:
        """Open what the agent of `spec` knows. Blocks.

        With `is_strict`, folders and documents that are not there are errors; otherwise they are notes of the
        report, as the run already has its system message. `open_journal` returns the journal with the memories.
        Raises: `ConfigError`, `JournalError`.
        """
        self.spec = spec
        self._persona = None if spec.persona is None else Persona.from_value(spec.persona)
        own = () if self._persona is None else self._persona.skills
        self._catalog = Catalog((*spec.skills, *own), is_strict=is_strict)
        self._notes = list(self._catalog.notices)
        self._documents = (*spec.documents, *(() if self._persona is None else self._persona.documents))
        missing = [path for path in self._documents if not Path(path).is_file()]
        if missing and is_strict:
            raise ConfigError(f"there is no document {missing[0]!r}{suggest_path(missing[0])}")
        self._loaded: LoadedDocuments | None = None
        self._is_strict = is_strict
        self._recaller: Recaller | None = None
        self.memory: Memory | None = None
        """The memory of earlier sessions; `None` if there is none."""
        self._library: Memory | None = None
        tools: list[Tool] = [UseSkill(self._catalog)] if self._catalog.skills else []
        if spec.memory is not None or self._documents:
            try:
                tools += self._open_memory(spec.memory, open_journal(), clock)
            except ConfigError as error:
                if is_strict:
                    raise
                self._notes.append(str(error))
        self.tools: tuple[Tool, ...] = tuple(tools)
        self.report = PromptReport((), tuple(self._notes))
        """The report about the newest system message: what is in it, and what was left out."""

    def _open_memory(self, spec: MemorySpec | None, journal: Journal, clock: Clock) -> Sequence[Tool]:
        """Open the memory, and return its tools. Without a memory, documents have one of their own, which can only
        be searched. Raises: `ConfigError`, `JournalError`."""
        from treadle.knowledge.memory import MemoryToolset, Recaller, open_memory

        if spec is None:
            name = hashlib.sha256("\0".join(self._documents).encode(errors="replace")).hexdigest()[:16]
            self._library = open_memory(journal, LIBRARY, name, clock=clock)
        else:
            self._library = self.memory = open_memory(
                journal, spec.persona, spec.user, embeddings=spec.embeddings, clock=clock
            )
        self._recaller = Recaller(self._library)
        tools = MemoryToolset(self._library).tools()
        return tools if spec is not None else [tool for tool in tools if tool.spec.name == "recall"]

    def _load_documents(self) -> "LoadedDocuments | None":
        """Return the documents that are whole in the prompt; the others are put into the memory in pieces."""
        if self._loaded is None and self._documents:
            from treadle.knowledge.documents import load_documents

            try:
                room = BUDGETS["documents"] - _HEADING_TOKENS
                self._loaded = load_documents(self._documents, self._library, max_tokens=room)
            except ConfigError as error:
                if self._is_strict:
                    raise
                self._notes.append(str(error))
        return self._loaded

    @property
    def writes_back(self) -> bool:
        """True if completed turns are remembered."""
        return self.memory is not None and self.spec.memory is not None and self.spec.memory.writes_back

    def make_instructions(self, given: str | None, tools: Iterable[str]) -> str | None:
        """Return the system message of a new run. Blocks. `tools` are the names of all tools of the agent."""
        names = tuple(tools)
        loaded = self._load_documents()
        text, self.report = assemble(
            self._persona,
            instructions=given,
            documents=[Item(loaded.text)] if loaded is not None and loaded.text else (),
            skills=[Item(entry, label=name) for name, entry in self._catalog.index(names)],
            has_data=bool(self._recaller or self._catalog.skills),
            notes=self._notes,
        )
        return text

    async def recall(
        self, text: str, *, turn_key: str, now: float, told: Mapping[str, int] | None = None
    ) -> Recalled | None:
        """Return what is recalled for a turn, without what the model has been `told` and still sees.

        It never fails: a failure is logged, and nothing is recalled.
        """
        if self._recaller is None:
            return None
        try:
            async with asyncio.timeout(RECALL_SECONDS):
                return await self._recaller.recall(text, turn_key=turn_key, now=now, told=told)
        except Exception as error:
            _log.warning("nothing was recalled for the turn %s: %s", turn_key, _name(error))
            return None

    async def write_back(self, turn: CompletedTurn) -> None:
        """Remember a completed turn. Doing it again changes nothing. It never fails: a failure is logged."""
        if self.memory is None or not self.writes_back:
            return
        try:
            await self.memory.write_back(
                turn.run_id, turn.number, turn.text, turn.answer, StopReason.COMPLETED, tools=turn.tools
            )
        except Exception as error:
            _log.warning("the turn %s was not remembered: %s", turn.key, _name(error))

    @property
    def topics(self) -> tuple[str, ...]:
        """The constraints and views of the persona, as texts."""
        if self._persona is None:
            return ()
        claims = [item if isinstance(item, str) else item.text for item in self._persona.worldview]
        return (*self._persona.constraints, *claims)[:_MAX_TOPICS]

    @property
    def has_documents(self) -> bool:
        """True if the agent knows documents."""
        return bool(self._documents)

    @property
    def greeting(self) -> list[str]:
        """Lines for a person who begins a chat: who answers, what it remembers, what it asks for. Blocks."""
        found = []
        if self._persona is not None:
            said = self._persona.greeting.strip()
            found.append(f"{self._persona.name}: {said}" if said else self._persona.name)
        spec = self.spec.memory
        if self.memory is not None and spec is not None:
            from treadle.knowledge.memory import REMEMBERED

            count = len(self.memory.store.entries(REMEMBERED, _MAX_COUNTED + 1))
            shown = f"more than {_MAX_COUNTED:,}" if count > _MAX_COUNTED else str(count or "no")
            kept = f"{shown} {'memory' if count == 1 else 'memories'}"
            about = "" if spec.user == MemorySpec().user else f" about {spec.user!r}"
            found.append(f"{kept}{about} from earlier conversations" if count else f"{kept}{about} yet")
        if self._loaded is not None and self._loaded.in_pieces:
            names = ", ".join([Path(path).name for path in self._loaded.in_pieces])
            found.append(f"too large to be put in whole, and recalled in pieces: {names}")
        for name, skill in self._catalog.skills.items():
            if skill.trust is Trust.UNTRUSTED:
                found.append(f"the skill {name!r} is not trusted yet; you are asked when it is used")
        return found


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _paths(name: str, given: Iterable[str | Path]) -> tuple[str, ...]:
    """Return absolute paths. The word `builtin` stays, for the skills of Treadle. Raises: `ConfigError`."""
    if isinstance(given, str | Path) or not isinstance(given, Iterable):
        example = repr(str(given)) if isinstance(given, str | Path) else "..."
        raise ConfigError(f"{name} is {given!r:.200}; give a list of paths: {name}=[{example}]")
    found = []
    for item in given:
        if not isinstance(item, str | Path) or not str(item):
            raise ConfigError(f"{name} has {item!r:.200}; give paths")
        is_word = name == "skills" and str(item) == "builtin"
        found.append(str(item) if is_word else str(Path(item).expanduser().absolute()))
    return tuple(found)


def demands_of_context(spec: ContextSpec) -> list[str]:
    """Return texts that say what an agent with this knowledge would read, write and send here."""
    try:
        persona = None if spec.persona is None else Persona.from_value(spec.persona)
    except ConfigError:
        persona = None
    skills = (*spec.skills, *(() if persona is None else persona.skills))
    documents = (*spec.documents, *(() if persona is None else persona.documents))
    found = [f"read the skills in the folder {path!r}" for path in skills]
    found += [f"read the document {path!r}" for path in documents]
    if spec.judge is not None:
        found += demands_of_judge(spec.judge)
    if spec.memory is not None:
        found.append(
            f"read and change the memories of the persona {spec.memory.persona!r} about the user "
            f"{spec.memory.user!r}"
        )
        if spec.memory.embeddings is not None:
            found.append(f"send memories and messages to the embeddings model {spec.memory.embeddings!r}")
    return found
