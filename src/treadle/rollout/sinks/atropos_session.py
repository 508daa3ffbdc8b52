"""The requests of the sink `atropos` to one process of the API server of Atropos, on one connection.

Source: atroposlib 0.4.0, `api/server.py`.
"""

from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ExportError, TransportError
from treadle.export.token_formats.atropos_groups import MARK
from treadle.http.pinned import PinnedConnection
from treadle.http.transport_errors import Timeouts, origin_of


class AtroposSettings(Struct, frozen=True, kw_only=True):
    """The settings of the sink."""

    url: str
    group_size: int
    """How many rollouts a group has."""
    name: str = "treadle"
    """The name of the environment. The sink adds a random ending, so that no other environment has the same
    name."""
    weight: float = 1.0
    """The share of this environment among others."""
    max_token_length: int = 32768
    """The length of a context in tokens. The server uses it to weigh environments."""
    max_batches: int = 1
    """How many batches may wait in the server's queue. With more batches, the groups are older when they are
    trained on."""
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
        except msgspec.DecodeError as error:
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
        """Close the connection."""
        self.is_closed = True
        self._connection.close()
