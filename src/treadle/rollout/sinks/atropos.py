"""The sink `atropos`: groups for the API server of Atropos, over HTTP.

The server keeps its queue in memory and does not recognise a group that it has got before. Three rules make up for
that:

- A group is posted only on the connection on which the server has just answered for this environment. A server that
  was started again in between therefore never gets data before its trainer has registered, which would block it.
- What is about to be posted is noted before. If the answer is lost, the server is asked for its latest group, and
  for the number of groups that it has had, before the group is posted again.
- A posted group is kept until the trainer has taken it. If the server has lost its queue, the rest is posted again.

The server says how many groups wait in its queue and not which. They are taken in order, and the sink never lets
more than `max_batches` of them wait, so that with one batch the count tells which groups were taken. Between the
last count and the death of a server the trainer may have taken a batch that the sink then posts again. Only the
trainer can tell: with `taken=FILE`, in which it writes each batch that it takes (`taken.TakenGroups`), nothing is
trained on twice.

Source: atroposlib 0.4.0, `api/server.py` and `envs/base.py`.
"""

import asyncio
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ExportError, TransportError
from treadle.core.texts.documents import UNREADABLE
from treadle.export.groups import Group
from treadle.export.token_exporter import LossMask
from treadle.export.token_formats.atropos_groups import FORMAT, MARK
from treadle.http.pinned import PinnedConnection
from treadle.http.transport_errors import Timeouts, origin_of
from treadle.rollout.sinks.protocol import Receipt, Sink, SinkCheck, SinkMemory
from treadle.rollout.sinks.registry import check_keys
from treadle.rollout.sinks.taken import read_taken


class AtroposSettings(Struct, frozen=True, kw_only=True):
    url: str
    group_size: int
    """How many rollouts a group has."""
    name: str = "treadle"
    """The name of the environment, to which the sink adds a random ending so that no other has it."""
    weight: float = 1.0
    """The share of this environment among others."""
    max_token_length: int = 32768
    """The length of a context in tokens. The server uses it to weigh environments."""
    max_batches: int = 1
    """How many batches may wait in the server's queue. With more, groups are older when trained on."""
    taken: str | None = None
    """The file in which the trainer records the groups that it takes; `None` if it writes no such file."""
    poll_seconds: float = 0.5
    """How often the server is asked while its queue is full."""
    lost_after_seconds: float = 600.0
    """A group that left the queue and that the trainer has not written down after this time is posted again. It has
    no effect without `taken`."""
    timeouts: Timeouts = Timeouts(silence=120.0)


class Env(Struct, frozen=True):
    """The environment that the sink has registered, with the server process where it is registered."""

    env_id: int
    calls: int
    """How many environments of this name the server has registered."""
    first_step: int
    """The server's step before the first group."""
    is_alone: bool
    """True if the server has no other environments, so that its counts are those of this sink."""


class Registered(Struct, frozen=True):
    """The answer to a registration."""

    env_id: int
    calls: int
    """How often the server had registered the name before."""
    starting_step: int


class AtroposCounts(Struct, frozen=True):
    """The server's counts of its queue, in groups."""

    step: int
    queued: int
    """The groups of all environments."""
    own: int
    """The groups of this environment."""
    usable: int
    """The groups that count against the limit: the own ones, and those of others that can fill the same batches."""


class AtroposSession:
    """A connection to one server process."""

    def __init__(self, connection: PinnedConnection, settings: AtroposSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._origin = origin_of(settings.url)
        self.is_closed = False
        self.is_new = False
        """True if this server process has not seen the environment before."""
        self.batch_size = self.max_token_len = -1
        self.env = Env(-1, 0, 0, False)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON answer to a request. Raises: `TransportError`; the connection is then closed."""
        raw = None if body is None else msgspec.json.encode(body)
        status, answer = await self._send(method, path, raw)
        if status != 200:
            self.close()
            raise TransportError(f"{self._origin}{path} answered with the status {status}")
        try:
            return msgspec.json.decode(answer)
        except UNREADABLE as error:
            self.close()
            raise TransportError(f"{self._origin}{path} did not answer in JSON: {error}") from error

    async def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        try:
            answer = await self._connection.ask(method, path, body)
        except BaseException:
            self.close()
            raise
        return answer.status, answer.body

    async def read_info(self) -> None:
        """Read the trainer's settings. Raises: `TransportError` if no trainer has registered."""
        info = await self.ask("GET", "/info")
        self.batch_size, self.max_token_len = info["batch_size"], info["max_token_len"]
        size = self._settings.group_size
        if self.batch_size <= 0:
            raise self.not_ready("no trainer has registered")
        if self.batch_size % size:
            raise ConfigError(
                f"the trainer at {self._origin} takes batches of {self.batch_size} sequences, which groups of "
                f"{size} never fill; choose a group size that divides it"
            )

    async def register(self, label: str) -> Registered | None:
        """Register the name once more, and return the answer; `None` if the trainer is not ready."""
        settings = self._settings
        answer = await self.ask(
            "POST",
            "/register-env",
            {
                "max_token_length": settings.max_token_length,
                "desired_name": label,
                "weight": settings.weight,
                "group_size": settings.group_size,
            },
        )
        if answer["status"] != "success":
            return None
        calls = int(str(answer["wandb_name"]).rpartition("_")[2])
        return Registered(answer["env_id"], calls, answer["starting_step"])

    def not_ready(self, why: str) -> TransportError:
        """Close the connection, and return the error for a server that takes no groups yet."""
        self.close()
        return TransportError(f"{self._origin} takes no groups yet: {why}")

    async def count(self) -> AtroposCounts:
        """Return the server's counts."""
        whole = await self.ask("GET", "/status")
        own = await self.ask("GET", "/status-env", {"env_id": self.env.env_id})
        return AtroposCounts(
            whole["current_step"], whole["queue_size"], own["self_queue_size"], own["queue_size"]
        )

    async def read_latest_key(self) -> str | None:
        """Return the key of the group that the server got last; `None` if Treadle did not send that group."""
        latest = await self.ask("GET", "/latest_example")
        params = latest.get("generation_params")
        mark = params.get(MARK) if isinstance(params, dict) else None
        return mark.get("key") if isinstance(mark, dict) else None

    async def post(self, rows: list[bytes]) -> None:
        """Post the parts of a group in one request.

        Raises: `ExportError` if the server refuses it; `TransportError` if it is not known whether it has it.
        """
        bodies = [b'{"env_id":%d,%s' % (self.env.env_id, row[1:]) for row in rows]
        if len(bodies) == 1:
            status, answer = await self._send("POST", "/scored_data", bodies[0])
        else:
            status, answer = await self._send("POST", "/scored_data_list", b"[" + b",".join(bodies) + b"]")
        if 400 <= status < 500:
            raise ExportError(f"{self._origin} refused the group with the status {status}: {answer[:500]!r}")
        if status != 200:
            self.close()
            raise TransportError(f"{self._origin} answered the group with the status {status}")

    def close(self) -> None:
        self.is_closed = True
        self._connection.close()


_OPTIONS = tuple(
    name for name in AtroposSettings.__struct_fields__ if name not in ("url", "group_size", "timeouts")
)
_POSTING, _ENV, _POSTED, _NAME, _LOST = "posting", "env", "posted", "name", "lost_calls"
"""The names of the sink's notes."""
_MIN_CALLS = 4


class _Posting(Struct, frozen=True):
    """A group that is being posted, with the counts before."""

    key: str
    parts: int
    step: int
    own: int
    """How many groups of this environment waited in the queue."""


class _Head(Struct, frozen=True):
    """The first line of an encoded group."""

    longest: int
    """The number of tokens of the longest sequence."""


class AtroposSink:
    def __init__(self, name: str, settings: AtroposSettings, mask: LossMask) -> None:
        self.name = name
        self._settings = settings
        self._mask = mask
        self._memory: SinkMemory | None = None
        self._session: AtroposSession | None = None
        self._label = ""
        """The name of the environment, and the beginning of the keys of all its groups."""
        self._read = 0
        """How much of the file of taken groups has been read."""
        self._parts: dict[str, set[int]] = {}
        """Which parts of groups the trainer has taken, of those that have several."""
        self._gone: dict[str, float] = {}
        """When a group was first seen to have left the queue."""

    def open(self, memory: SinkMemory) -> None:
        self._memory = memory
        label = memory.get(_NAME)
        if label is None:
            label = f"{self._settings.name}-{secrets.token_hex(4)}"
            memory.set({_NAME: label})
        self._label = label

    def encode(self, group: Group) -> bytes:
        size = self._settings.group_size
        if len(group.rollouts) != size:
            raise ExportError(
                f"group {group.group_id!r} has {len(group.rollouts)} rollouts, and the environment has registered "
                f"groups of {size}: the server would keep it until further groups fill a batch"
            )
        rows = FORMAT.write(group, self._mask)
        for row in rows:
            row["generation_params"][MARK]["key"] = f"{self._label}/{group.group_id}"
        head = _Head(max(len(ids) for row in rows for ids in row["tokens"]))
        return b"\n".join([msgspec.json.encode(item) for item in (head, *rows)])

    async def check(self) -> SinkCheck:
        memory = self._notes()
        sent = memory.sent()
        logged = self._read_log(sent)
        session = self._session
        if session is None or session.is_closed:
            session = await self._connect()
        if session.is_new:
            # Another process answers, which knows nothing of what was posted to the one before it.
            lost = [key for key, _ in sent if key not in logged]
            notes = {_ENV: _pack(session.env), _POSTED: "0", _POSTING: None, _LOST: "0"}
            session.is_new = False
            return SinkCheck(tuple(logged), tuple(lost), notes=notes)
        posting = memory.get(_POSTING)
        if posting is not None:
            return await self._resolve(session, msgspec.json.decode(posting, type=_Posting), logged)
        counts = await session.count()
        taken, lost = self._compare(sent, counts.own, logged)
        return SinkCheck(tuple(taken), tuple(lost))

    async def deliver(self, key: str, data: bytes) -> Receipt:
        memory, session, settings = self._notes(), self._session, self._settings
        if session is None or session.is_closed:
            raise TransportError(f"there is no connection to {origin_of(settings.url)}")
        head, *rows = data.split(b"\n")
        longest = msgspec.json.decode(head, type=_Head).longest
        if 0 < session.max_token_len <= longest:
            raise ExportError(
                f"a sequence has {longest} tokens, and the trainer takes fewer than {session.max_token_len}"
            )
        if len(self._parts.get(key, ())) >= len(rows):
            return Receipt()
        await self._anchor(session)
        counts = await self._wait_for_room(session)
        posting = _Posting(key, len(rows), counts.step, counts.own)
        memory.set({_POSTING: msgspec.json.encode(posting).decode()})
        await session.post(rows)
        posted = int(memory.get(_POSTED) or 0) + len(rows)
        return Receipt(is_final=False, note=str(len(rows)), notes={_POSTING: None, _POSTED: str(posted)})

    async def close(self) -> None:
        session, memory = self._session, self._memory
        if session is None or memory is None:
            return
        self._session = None
        if not session.is_closed and not memory.sent() and not memory.get(_POSTING):
            memory.set({_ENV: None})
            await session.ask("POST", "/disconnect-env", {"env_id": session.env.env_id})
        session.close()

    def _notes(self) -> SinkMemory:
        assert self._memory is not None, "open is called first"
        return self._memory

    async def _connect(self) -> AtroposSession:
        """Connect and register, and find out whether the same process answers as before."""
        memory, settings = self._notes(), self._settings
        known = memory.get(_ENV)
        before = None if known is None else msgspec.json.decode(known, type=Env)
        connection = await PinnedConnection.open(settings.url, settings.timeouts)
        session = AtroposSession(connection, settings)
        try:
            await session.read_info()
            lost_calls = self._begin_call()
            answer = await session.register(self._label)
            if answer is None:
                memory.set({_LOST: str(lost_calls)})
                raise session.not_ready("the trainer has not asked for a batch yet")
            # The server counts how often it has registered this name, and a new process begins at 0. What it has
            # counted and this sink has not are calls whose answers were lost.
            is_same = before is not None and answer.calls >= before.calls > lost_calls
            if is_same and before is not None:
                is_alone = before.is_alone and answer.env_id == answer.calls
                session.env = Env(before.env_id, answer.calls + 1, before.first_step, is_alone)
                memory.set({_ENV: _pack(session.env), _LOST: "0"})
                await session.ask("POST", "/disconnect-env", {"env_id": answer.env_id})
            else:
                is_alone = answer.env_id == answer.calls == 0
                session.env = Env(answer.env_id, answer.calls + 1, answer.starting_step, is_alone)
                session.is_new = True
        except BaseException:
            session.close()
            raise
        self._session = session
        return session

    def _begin_call(self) -> int:
        """Note that a registration begins, and return how many before it may have been lost."""
        lost_calls = int(self._notes().get(_LOST) or 0)
        self._notes().set({_LOST: str(lost_calls + 1)})
        return lost_calls

    async def _anchor(self, session: AtroposSession) -> None:
        """Register the name a few times more before anything is posted to a new process. A later registration whose
        answer is lost then cannot make an old process look like a new one."""
        while session.env.calls < _MIN_CALLS:
            self._begin_call()
            answer = await session.register(self._label)
            if answer is None or answer.calls < session.env.calls:
                raise session.not_ready("the trainer has not asked for a batch yet")
            session.env = replace(session.env, calls=answer.calls + 1)
            self._notes().set({_ENV: _pack(session.env), _LOST: "0"})
            await session.ask("POST", "/disconnect-env", {"env_id": answer.env_id})

    async def _resolve(self, session: AtroposSession, posting: _Posting, logged: set[str]) -> SinkCheck:
        """Find out whether a group arrived whose answer was lost."""
        settled = await self._settle(session)
        latest = await session.read_latest_key()
        posted = int(self._notes().get(_POSTED) or 0)
        if posting.key in logged or latest == f"{self._label}/{posting.key}":
            has_arrived = True
        elif settled.step == posting.step:
            # No batch was made, so that the queue has only grown.
            has_arrived = settled.own > posting.own
        elif session.env.is_alone:
            made = (settled.step - session.env.first_step) * session.batch_size // self._settings.group_size
            has_arrived = settled.queued + made > posted
        else:
            has_arrived = False
        notes: dict[str, str | None] = {_POSTING: None}
        if not has_arrived:
            return SinkCheck(tuple(logged), notes=notes)
        notes[_POSTED] = str(posted + posting.parts)
        arrived = {posting.key: str(posting.parts)}
        return SinkCheck(tuple(logged - {posting.key}), arrived=arrived, notes=notes)

    async def _settle(self, session: AtroposSession) -> AtroposCounts:
        """Return the server's counts when they no longer change: a request may still be on its way through it."""
        counts = await session.count()
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            again = await session.count()
            if again == counts:
                return again
            counts = again

    async def _wait_for_room(self, session: AtroposSession) -> AtroposCounts:
        """Wait until the server's queue lacks a group for its batches, and return its counts."""
        settings = self._settings
        room = settings.max_batches * session.batch_size // settings.group_size
        while True:
            counts = await session.count()
            if not counts.own or counts.usable < room:
                return counts
            await asyncio.sleep(settings.poll_seconds)

    def _read_log(self, sent: list[tuple[str, str]]) -> set[str]:
        """Return the keys of sent groups that the trainer has written down."""
        if self._settings.taken is None:
            return set()
        marks, self._read = read_taken(Path(self._settings.taken), self._read)
        for mark in marks:
            label, _, key = mark.key.partition("/")
            if label == self._label:
                self._parts.setdefault(key, set()).add(mark.part)
        posting = self._notes().get(_POSTING)
        expected = {key: int(note) for key, note in sent}
        if posting is not None:
            doubtful = msgspec.json.decode(posting, type=_Posting)
            expected[doubtful.key] = doubtful.parts
        return {key for key, parts in expected.items() if len(self._parts.get(key, ())) >= parts}

    def _compare(
        self, sent: list[tuple[str, str]], own: int, logged: set[str]
    ) -> tuple[list[str], list[str]]:
        """Return which groups were taken and which are lost, given how many wait in the queue."""
        left = sum(int(note) for _, note in sent) - own
        gone: list[str] = []
        for key, note in sent:
            left -= int(note)
            if left < 0:
                break
            gone.append(key)
        if self._settings.taken is None:
            return gone, []
        now = time.monotonic()
        waiting = [key for key in gone if key not in logged]
        self._gone = {key: self._gone.get(key, now) for key in waiting}
        last = max([index for index, key in enumerate(gone) if key in logged], default=-1)
        lost = [
            key
            for index, key in enumerate(gone)
            if key not in logged
            and (index < last or now - self._gone[key] >= self._settings.lost_after_seconds)
        ]
        return list(logged), lost


def make_atropos(name: str, target: str, options: dict[str, str], *, group_size: int, mask: LossMask) -> Sink:
    """Return the sink `atropos`. Its options are the fields of `AtroposSettings`."""
    check_keys(name, options, _OPTIONS)
    if not target.startswith(("http://", "https://")):
        raise ConfigError(
            f"the sink {name!r} needs the address of the server, such as atropos:http://localhost:8000"
        )
    try:
        settings = msgspec.convert(
            {**options, "url": target, "group_size": group_size}, AtroposSettings, strict=False
        )
    except msgspec.ValidationError as error:
        raise ConfigError(f"the sink {name!r} has a wrong option: {error}") from error
    return AtroposSink(name, settings, mask)


def _pack(env: Env) -> str:
    return msgspec.json.encode(env).decode()
