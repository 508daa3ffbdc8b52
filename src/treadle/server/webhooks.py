"""Webhooks: requests that tell other programs that a turn is over, or that a run waits for somebody.

They are signed as Standard Webhooks says, which OpenAI's SDK verifies. What is to be sent follows from the journal:
a resource for each run and receiver says up to which event it was told, so that nothing is lost when a server dies.
A receiver may get an event twice, with the same `webhook-id`.

The resource is `in_progress` from the beginning of a turn until all was told.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError, RunNotFoundError, ToolError
from treadle.core.types import Json
from treadle.http.guarded import GuardedHttp, host_of, special_kind
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource
from treadle.journal.run_info import RunFilter
from treadle.models.config.tables import ServeTable, WebhookTable
from treadle.server.responses.response_fold import is_wait, status_after
from treadle.server.responses.response_ids import ResponseId

OWN = "run"
"""The name of the receiver that a client has given for its run."""
WEBHOOK = "webhook"
"""The kind of the resources that say what receivers know of a run."""
_PAUSES_SECONDS = (5.0, 30.0, 120.0, 600.0, 3600.0, 4 * 3600.0, 8 * 3600.0, 12 * 3600.0)
"""How long to wait after each failure. An event that failed once more is given up."""
_LEASE_SECONDS, _LOOK_SECONDS = 20.0, 5.0
_TIMEOUT_SECONDS = 15.0

_log = logging.getLogger("treadle.server")


class _Told(Struct, omit_defaults=True):
    """What a receiver was told of a run."""

    url: str
    seq: int = 0
    """The number of the newest event that it was told of."""
    attempts: int = 0
    due_at: float = 0.0
    """When the next attempt is due, or the lease of the process that makes one ends."""
    pause_seconds: float = _PAUSES_SECONDS[-1]
    """How long it was until then when that was stored."""

    def wait(self, seconds: float) -> None:
        """Let the next attempt be due in so many seconds."""
        self.due_at, self.pause_seconds = time.time() + seconds, seconds

    def is_due(self) -> bool:
        """Return whether the next attempt is due. If it seems further away than it ever was, the clock was set
        back."""
        return not 0.0 < self.due_at - time.time() <= self.pause_seconds


class Webhooks:
    """The receivers of a server, and the work of telling them. It is a hook of the server's agents."""

    def __init__(
        self, journal: Journal, table: ServeTable, pauses_seconds: Sequence[float] = _PAUSES_SECONDS
    ) -> None:
        """Read the secrets. Raises: `ConfigError` if one is missing, or if a receiver cannot be asked."""
        self._journal = journal
        self._tables = table.webhooks
        self._pauses = pauses_seconds
        secrets = {name: item.secret_env for name, item in table.webhooks.items()}
        if table.webhook_secret_env is not None:
            secrets[OWN] = table.webhook_secret_env
        if OWN in self._tables:
            raise ConfigError(f"serve.webhooks.{OWN} has the name of the webhooks of runs; take another one")
        for name, item in table.webhooks.items():
            _check_public(name, item)
        self._secrets = {name: _read_secret(variable) for name, variable in secrets.items()}
        self._news: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def __call__(self, event: e.Event) -> None:
        self.take(event.run_id, event.seq, (event.body,))

    def take(self, run_id: str, first_seq: int, bodies: Iterable[e.DurableBody]) -> None:
        """See `Hook`."""
        for body in bodies:
            if isinstance(body, e.TurnStarted | e.RunResumed):
                self._news.put_nowait((run_id, False))
            elif _kind_of(body) is not None:
                self._news.put_nowait((run_id, True))

    async def add(self, run_id: str, url: str) -> None:
        """Tell `url` of a run. Raises: `ConfigError` if it is no address of the public internet, or if no secret is
        configured for it."""
        if OWN not in self._secrets:
            raise ConfigError(
                "this server has no webhooks for runs; name a secret in serve.webhook_secret_env"
            )
        try:
            await self._http(OWN, url).check(url)
        except ToolError as error:
            raise ConfigError(f"webhook: {error}") from None
        await asyncio.to_thread(self._keep, run_id, OWN, url)

    def _keep(self, run_id: str, name: str, url: str) -> None:
        """Keep that a receiver is to be told of a run. Blocks."""
        now, resources = time.time(), self._journal.resources
        body, state = msgspec.json.encode(_Told(url)).decode(), "in_progress"
        made = Resource(kind=WEBHOOK, parent=run_id, resource_id=name, state=state, created_at=now, body=body)
        resources.add([made], now)
        found = resources.get(WEBHOOK, name, now, run_id)
        if found is not None and found.state != state:
            resources.replace(found, replace(found, state=state))

    def _begin(self, run_id: str) -> None:
        """Keep that all receivers are to be told of a turn that begins. Blocks."""
        for name, table in self._tables.items():
            self._keep(run_id, name, table.url)
        if OWN in self._secrets and (own := self._journal.resources.get(WEBHOOK, OWN, 0.0, run_id)):
            self._keep(run_id, OWN, msgspec.json.decode(own.body, type=_Told).url)

    async def work(self) -> None:
        """Tell the receivers until this is cancelled."""
        sending: set[asyncio.Task[None]] = set()
        look_at = 0.0
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, look_at - time.monotonic())):
                        run_id, is_due = await self._news.get()
                        with _logged(run_id):
                            await asyncio.to_thread(self._begin, run_id)
                        if is_due:
                            self._start(sending, [run_id])
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_SECONDS
                    with _logged("all"):
                        self._start(sending, await asyncio.to_thread(self._find_left))
        finally:
            for task in sending:
                task.cancel()
            if sending:
                await asyncio.wait(sending)

    def _find_left(self) -> list[str]:
        """Return the runs that nobody drives and of which a receiver is to be told now. Blocks."""
        left = self._journal.resources.unfinished(WEBHOOK)
        due = {item.parent for item in left if msgspec.json.decode(item.body, type=_Told).is_due()}
        driven = {info.run_id for info in self._journal.runs(RunFilter(run_ids=due, is_driven=True))}
        return sorted(due - driven)

    def _start(self, sending: set[asyncio.Task[None]], run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            task = asyncio.ensure_future(self._tell_all(run_id))
            sending.add(task)
            task.add_done_callback(sending.discard)

    async def _tell_all(self, run_id: str) -> None:
        with _logged(run_id):
            for name in self._secrets:
                found = await asyncio.to_thread(self._journal.resources.get, WEBHOOK, name, 0.0, run_id)
                if found is not None and found.state == "in_progress":
                    await self._tell(found)

    async def _tell(self, record: Resource) -> None:
        """Tell one receiver of the events that it does not know yet, if no other process does."""
        told, run_id = msgspec.json.decode(record.body, type=_Told), record.parent
        if not told.is_due():
            return
        told.wait(_LEASE_SECONDS)
        record = await self._save(record, told)
        try:
            events = await asyncio.to_thread(self._journal.read, run_id)
        except RunNotFoundError:
            if record.created_at < time.time() - _LEASE_SECONDS:  # it was deleted, and is not about to begin
                await asyncio.to_thread(self._journal.resources.delete, WEBHOOK, record.resource_id, run_id)
            return
        for seq, payload in _payloads(events):
            if seq <= told.seq or record.version < 0:
                continue
            if self._wants(record.resource_id, str(payload["type"])):
                fault = await self._send(record.resource_id, told.url, payload)
                if fault is not None and (told.attempts < len(self._pauses)):
                    _log.warning("webhook %r, event %s: %s", record.resource_id, payload["id"], fault)
                    await self._put_off(record, told)
                    return
            told.seq, told.attempts = seq, 0
            told.wait(_LEASE_SECONDS)
            record = await self._save(record, told)
        told.due_at = 0.0
        await self._save(record, told, "completed")
        # What was stored meanwhile, perhaps by another process, has found the resource still in progress.
        found = await asyncio.to_thread(self._journal.runs, RunFilter(run_ids=[run_id]))
        if found and found[0].events > len(events):
            await asyncio.to_thread(self._keep, run_id, record.resource_id, told.url)

    async def _put_off(self, record: Resource, told: _Told) -> None:
        pause = self._pauses[told.attempts]
        told.attempts += 1
        told.wait(pause)
        await self._save(record, told)
        asyncio.get_running_loop().call_later(pause, self._news.put_nowait, (record.parent, True))

    async def _save(self, record: Resource, told: _Told, state: str = "in_progress") -> Resource:
        """Store what a receiver knows. The version of the result is below 0 if another process was faster."""
        changed = replace(record, state=state, body=msgspec.json.encode(told).decode())
        is_ours = await asyncio.to_thread(self._journal.resources.replace, record, changed)
        return replace(changed, version=record.version + 1 if is_ours else -1)

    def _http(self, name: str, url: str) -> GuardedHttp:
        """Return the client that asks a receiver. Raises: `ConfigError` if `url` is not the URL of a server."""
        table = self._tables.get(name)
        return GuardedHttp(
            [host_of(url)],
            allow_private=table is not None and table.allow_private,
            max_response_bytes=65_536,
            timeout_seconds=_TIMEOUT_SECONDS,
        )

    def _wants(self, name: str, kind: str) -> bool:
        table: WebhookTable | None = self._tables.get(name)
        return table is None or not table.events or kind in table.events

    async def _send(self, name: str, url: str, payload: dict[str, Json]) -> str | None:
        """Send an event, and return why it failed; `None` if it was received."""
        body = msgspec.json.encode(payload)
        headers = {
            "content-type": "application/json",
            **sign(self._secrets[name], str(payload["id"]), body),
        }
        try:
            answer = await self._http(name, url).request("POST", url, headers, body)
        except (ToolError, ConfigError) as error:
            return str(error)
        return None if 200 <= answer.status < 300 else f"the receiver answered {answer.status}"


def sign(secret: bytes, event_id: str, body: bytes) -> Mapping[str, str]:
    """Return the headers that say who has sent an event. Source: Standard Webhooks 1.0."""
    at = str(int(time.time()))
    digest = hmac.new(secret, b".".join((event_id.encode(), at.encode(), body)), hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": event_id, "webhook-timestamp": at, "webhook-signature": signature}


def _check_public(name: str, table: WebhookTable) -> None:
    """Refuse a receiver of this machine or a private network, unless it may be one. Names of hosts are looked up
    when they are asked. Raises: `ConfigError`."""
    host = host_of(table.url).rpartition(":")[0].strip("[]")
    kind = "loopback" if host == "localhost" else special_kind(host)
    if kind not in (None, "malformed") and not table.allow_private:
        raise ConfigError(
            f"serve.webhooks.{name}: {table.url!r} is a {kind} address; give allow_private = true if that is meant"
        )


def _read_secret(variable: str) -> bytes:
    text = os.environ.get(variable, "")
    if not text:
        raise ConfigError(f"the secret of a webhook is missing: set the environment variable {variable}")
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ConfigError(f"the secret in {variable} is not whsec_ and base64") from None


def _kind_of(body: e.DurableBody) -> str | None:
    """Return the type of the event that receivers are told of; `None` if they are not."""
    if isinstance(body, e.TurnCompleted):
        return f"response.{status_after(body)}"
    return "run.waiting" if is_wait(body) else None


def _payloads(events: Iterable[e.Event]) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield what receivers are told of the events of a run, with the numbers of these events.

    They were told of the events that a fork has in common with another run when these happened.
    """
    turn = step = first_step = copied = 0
    for event in events:
        body = event.body
        if isinstance(body, e.RunStarted) and body.parent is not None:
            copied = body.parent.seq
        elif isinstance(body, e.TurnStarted):
            turn, first_step = body.turn, step
        elif isinstance(body, e.InferenceCompleted):
            step = body.step
        kind = _kind_of(body)
        if kind is not None:
            place = ResponseId(event.run_id, turn, first_step)
            first_step = step
            if event.seq <= copied:
                continue
            yield (
                event.seq,
                {
                    "object": "event",
                    "id": f"evt_{event.run_id}_{event.seq}",
                    "type": kind,
                    "created_at": int(body.at),
                    "data": {"id": str(place), "run_id": event.run_id, "turn": turn},
                },
            )


@contextlib.contextmanager
def _logged(run_id: str) -> Iterator[None]:
    """Log an error of the store: what is to be told stays known."""
    try:
        yield
    except JournalError as error:
        _log.warning("webhooks of run %r: %s", run_id, error)
