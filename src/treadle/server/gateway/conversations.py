"""Which runs have the conversations that clients send: they are found by what was said in them.

A client sends the whole conversation with each request, and knows no run. Its digest names the runs with this
conversation; those of other processes, and from before the start, are found by the digest of its beginning, which
is a label of theirs.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from treadle.core.errors import JournalError
from treadle.core.state import State
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Message, Role, ToolCall
from treadle.journal.protocol import Journal, RunWriter
from treadle.journal.run_info import RunFilter
from treadle.runs.run import Run

OPENING = "treadle.opening"
"""The label with the digest of how a conversation began."""
_MAX_KNOWN = 10_000
"""How many conversations are known by their digests."""
_MAX_STATES = 1_000
"""How many states of runs are kept, so that their journals need not be read again."""
_MAX_STATES_CHARS = 64_000_000
"""How many characters the conversations of these states have together. A state has each of them several times."""
_MAX_FOUND = 16
"""How many runs that began like a conversation are looked at."""
_MAX_ALIKE = 1_000
"""How many runs with the same conversation are known."""
_encode = msgspec.json.Encoder().encode
# An attribute of an enum takes longer to look up than a global name.
_SYSTEM, _TOOL = Role.SYSTEM, Role.TOOL
Renewal: TypeAlias = Callable[[], RunWriter]
"""What `RunWriter.renewal` returns."""


class ConversationDigest:
    """A hash of what was said and called in a conversation, to which more can be added.

    Ids, reasoning, system messages and the text beside calls do not count, because clients change or drop them; nor
    does it whether the user's words came in one message or in several.
    """

    def __init__(self) -> None:
        self._found = hashlib.blake2b(digest_size=16)
        self.chars = 0
        """How many characters were said, contents that stand in the messages included."""
        self._last: Role | None = None

    def add(self, messages: Iterable[Message]) -> bytes:
        """Add messages to the conversation, and return its hash."""
        found, last, chars = self._found, self._last, 0
        for message in messages:
            role, content, calls = message.role, message.content, message.tool_calls
            chars += len(content)
            if role is _SYSTEM:
                continue
            if role is not last or role is _TOOL:
                found.update(b"\0" + role.encode())
                last = role
            if calls:
                found.update(_encode([[call.name, _normalize(call)] for call in calls]))
                chars += sum([len(call.arguments) for call in calls])
            else:
                found.update(b"".join(content.encode("utf-8", "surrogatepass").split()))
            for part in message.parts:
                found.update((part.digest or part.uri or "").encode())
                chars += len(part.data or "")
        self._last, self.chars = last, self.chars + chars
        return found.digest()


def digest_of(messages: Iterable[Message]) -> bytes:
    """Return the hash of a conversation; see `ConversationDigest`."""
    return ConversationDigest().add(messages)


def _normalize(call: ToolCall) -> str:
    """Return arguments in a form that is the same however a client writes the JSON."""
    try:
        value = decode_json(call.arguments or "{}")
        return msgspec.json.encode(value, order="deterministic").decode()
    except msgspec.DecodeError:
        return call.arguments


def opening_of(messages: Sequence[Message]) -> str:
    """Return the digest of a conversation up to the first answer of the model, for the label `OPENING`."""
    end = next((at for at, item in enumerate(messages) if item.role is Role.ASSISTANT), len(messages))
    return digest_of(messages[:end]).hex()


class Conversations:
    """The conversations of a server's clients."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._runs: OrderedDict[tuple[str, bytes], list[str]] = OrderedDict()
        """The runs with a conversation, the newest last, by the client and the digest."""
        self._states: OrderedDict[str, tuple[State, bytes, Renewal | None, int]] = OrderedDict()
        """The newest states of runs that nobody drives here, with the digests of their conversations, how their
        leases are taken again, and how many characters they have."""
        self._chars = 0
        """How many characters all of these states have."""

    def note(
        self,
        client: str,
        digest: bytes,
        run_id: str,
        state: State | None = None,
        renewal: Renewal | None = None,
        chars: int = 0,
    ) -> None:
        """Note that a run has the conversation with this digest, and is in `state`. See `RunWriter.renewal`.

        `chars` is the length of the conversation. A state that is `None` is not needed soon.
        """
        runs = self._runs.setdefault((client, digest), [])
        runs.append(run_id)
        del runs[:-_MAX_ALIKE]
        if len(self._runs) > _MAX_KNOWN:
            self._runs.popitem(last=False)
        if state is None:
            return
        self._pop(run_id)
        self._states[run_id] = state, digest, renewal, chars
        self._chars += chars
        while len(self._states) > _MAX_STATES or self._chars > _MAX_STATES_CHARS:
            self._pop(next(iter(self._states)))

    def _pop(self, run_id: str) -> tuple[State, bytes, Renewal | None, int] | None:
        """Take a state out; `None` if there is none of this run."""
        known = self._states.pop(run_id, None)
        self._chars -= 0 if known is None else known[3]
        return known

    def take(self, client: str, digest: bytes) -> str | None:
        """Return a run with this conversation, which is then no longer known; `None` if there is none."""
        found = self._runs.get((client, digest))
        if not found:
            return None
        run_id = found.pop()
        if not found:
            del self._runs[client, digest]
        return run_id

    async def find(
        self, messages: Sequence[Message], digests: Container[bytes], labels: Mapping[str, str]
    ) -> str | None:
        """Return a run of the journal that nobody drives and that has one of these conversations; else `None`.

        `labels` are those that the runs of the client have.
        """
        wanted = RunFilter(labels={**labels, OPENING: opening_of(messages)}, is_driven=False)
        infos = await asyncio.to_thread(self._journal.runs, wanted, limit=_MAX_FOUND, newest_first=True)
        for info in infos:
            found = await self.state_of(info.run_id)
            if found is not None and found[1] in digests:
                return info.run_id
        return None

    def renew(self, run_id: str) -> tuple[State, bytes, RunWriter] | None:
        """Return the state of a run, which is then the caller's, the digest of its conversation and a writer that
        takes the lease with its first events; `None` if the lease has to be acquired."""
        state, digest, renewal, _ = self._states.get(run_id, (None, b"", None, 0))
        if state is None or renewal is None:
            return None
        self._pop(run_id)
        return state, digest, renewal()

    async def state_of(self, run_id: str, writer: RunWriter | None = None) -> tuple[State, bytes] | None:
        """Return the state of a run, which is then the caller's, and the digest of its conversation; `None`
        if there is no such run.

        `writer` is given if the caller has the run's lease.
        """
        known = self._pop(run_id)
        if known is not None and writer is not None and writer.last_seq == known[0].seq:
            return known[:2]
        try:
            state = (await asyncio.to_thread(Run.load, run_id, self._journal)).state
        except JournalError:
            return None
        return state, digest_of(state.transcript)
