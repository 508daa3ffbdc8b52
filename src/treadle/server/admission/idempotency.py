"""Idempotency keys: a POST that is sent again with the same key has one effect, and gets the same answer.

A key belongs to the client that sends it, and is kept for a day after the answer. A request with a key goes on when
its client leaves, so that the client can ask for the answer again. What is kept of it is a resource of the journal.
If the server is killed before the answer, the same request finds the turn that was begun (`place`), or what was
made under its id (`new_id`). Only a message to an inbox is then sent again.
"""

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
from fastapi import Request
from msgspec import Struct, field
from msgspec.structs import replace

from treadle.core.errors import JournalError
from treadle.core.texts.hiding import hide_servers
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource
from treadle.runs.begin import make_run_id
from treadle.server.admission.access import (
    PRESENCE,
    ApiCaller,
    Receive,
    RequestRefused,
    Scope,
    Send,
    read_body,
    refuse,
)
from treadle.server.gateway.gateway_host import stopping
from treadle.server.run_host import RunHost

HEADER = b"idempotency-key"
_KIND = "request"
_KEPT_SECONDS = 24 * 3600.0
_UNANSWERED_SECONDS = 30 * 24 * 3600.0
"""How long a request without an answer is kept: its work may take days, and the clock may be set meanwhile."""
_BEAT_SECONDS, _STALE_SECONDS = 1.0, 5.0
"""How often a process says that it works on a request, and after which silence another one takes it over."""
_PATIENCE_SECONDS = 30.0
"""How long a request waits for the same one in another process."""
_MAX_KEY_CHARS = 255


class _Kept(Struct, omit_defaults=True):
    """What is kept of a request, besides the bytes of its answer."""

    run_id: str
    """The id for the run that the request begins, if it begins one."""
    nonce: str
    beat_at: float
    place: str | None = None
    """What an earlier try, whose process died, has begun or was about to begin; `None` if there was none."""
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)


class KeyedRequest:
    """A request with an idempotency key, for the routes that begin work."""

    def __init__(self, journal: Journal, record: Resource, kept: _Kept) -> None:
        self._journal = journal
        self.record = record
        self.kept = kept
        self.has_failed = False
        """True if the answer says that the request failed, whatever its status is."""
        self.is_answered = False
        """True if the answer is kept whatever its status is, because the turn of the request was driven."""
        self._lock = asyncio.Lock()

    async def note(self, place: str) -> None:
        """Keep what is about to be begun. Raises: `JournalError`."""
        self.kept.place = place
        await self.save()

    async def save(self, state: str = "in_progress", content: bytes | None = None) -> None:
        """Store what is kept. Raises: `JournalError` if another process has taken the request over."""
        async with self._lock:
            self.kept.beat_at = time.time()
            lasts = _KEPT_SECONDS if state == "completed" else _UNANSWERED_SECONDS
            changed = replace(
                self.record,
                state=state,
                expires_at=self.kept.beat_at + lasts,
                body=msgspec.json.encode(self.kept).decode(),
            )
            resources = self._journal.resources
            if not await asyncio.to_thread(resources.replace, self.record, changed, content):
                raise JournalError("another process of the server has taken the request over; ask again")
            self.record = replace(changed, version=self.record.version + 1)


def keyed_request(request: Request) -> KeyedRequest | None:
    """Return the request's idempotency key with what is kept under it; `None` if it has none."""
    found: KeyedRequest | None = getattr(request.state, "keyed", None)
    return found


def new_id(request: Request, prefix: str) -> str | None:
    """Return the id for what a request makes. The same request with the same key gets the same id.

    A request without a key gets `None`, so that any id will do.
    """
    keyed = keyed_request(request)
    return None if keyed is None else f"{prefix}{keyed.kept.nonce[:24]}"


def new_run_id(keyed: KeyedRequest | None) -> str:
    """Return the id for a run that a request begins. The same request with the same key gets the same id."""
    return make_run_id() if keyed is None else keyed.kept.run_id


class _Answer:
    """An answer while it is being made. Any number of clients read it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunks: list[bytes] = []
        self.is_over = False
        self._has_news = asyncio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        else:
            self.chunks.append(message.get("body", b""))
        self.tell()

    def tell(self) -> None:
        self._has_news.set()
        self._has_news = asyncio.Event()

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body once the head is there.

        Those of an answer that is no stream come when it is kept, so that its client never has another one than a
        later request with its key.
        """
        number = 0
        while True:
            news = self._has_news
            is_stream = all(name != b"content-length" for name, _ in self.headers)
            while number < len(self.chunks) and (is_stream or self.is_over):
                yield self.chunks[number]
                number += 1
            if self.is_over:
                return
            await news.wait()


class Idempotency:
    """ASGI middleware behind the gate."""

    def __init__(self, app: Any, host: RunHost) -> None:
        self._app = app
        self._host = host
        self._running: dict[tuple[str, str], _Answer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # Places that anybody may ask have no caller.
        if scope["type"] == "http" and scope["method"] == "POST" and "caller" in scope.get("state", {}):
            key = dict(scope["headers"]).get(HEADER)
            if key is not None:
                return self._keep(key, scope, receive, send)
        return self._app(scope, receive, send)  # type: ignore[no-any-return]

    async def _keep(self, key: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with a key."""
        try:
            await self._answer(scope, key.decode("latin-1"), await read_body(receive), send)
        except RequestRefused as refused:
            await refuse(send, refused)
        except JournalError as error:
            await refuse(send, RequestRefused(503, hide_servers(str(error)), "journal_error"))

    async def _answer(self, scope: Scope, key: str, body: bytes, send: Send) -> None:
        if not (key.isascii() and key.isprintable() and 0 < len(key) <= _MAX_KEY_CHARS):
            raise RequestRefused(
                400, "Idempotency-Key is not 1 to 255 printable characters", "invalid_request"
            )
        caller: ApiCaller = scope["state"]["caller"]
        head = f"{scope['path']}?{scope['query_string'].decode('latin-1')}\n".encode()
        # Clients draw a new boundary whenever they send a form.
        content = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        boundary = content.partition(b"boundary=")[2].strip(b'"')
        told = body.replace(boundary, b"") if boundary else body
        digest, entry = hashlib.sha256(head + told).hexdigest(), (caller.name, key)
        record, kept, is_ours = await asyncio.to_thread(self._claim, caller.name, key, digest)
        if record.label != digest:
            raise RequestRefused(
                422,
                "this Idempotency-Key was used for another request; take a new one",
                "idempotency_key_reused",
            )
        answer = self._running.get(entry)
        if answer is None and record.state != "completed" and not is_ours:
            record, kept = await self._await_other(record, kept)
            answer = self._running.get(entry)
        if answer is None and record.state == "completed":
            await self._replay(record, kept, send)
            return
        if answer is None:
            answer = self._running[entry] = _Answer()
            keyed = KeyedRequest(self._host.journal, record, kept)
            task = asyncio.ensure_future(self._work(scope, body, keyed, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._running.pop(entry, None))
        await _pass_on(answer, send)

    def _claim(self, owner: str, key: str, digest: str) -> tuple[Resource, _Kept, bool]:
        """Return what is kept under a key, made if there is nothing, and whether it was made now. Blocks."""
        now = time.time()
        kept = _Kept(make_run_id(), uuid.uuid4().hex, now)
        made = Resource(
            kind=_KIND,
            parent=owner,
            resource_id=key,
            owner=owner,
            label=digest,
            state="in_progress",
            created_at=now,
            expires_at=now + _UNANSWERED_SECONDS,
            body=msgspec.json.encode(kept).decode(),
        )
        resources = self._host.journal.resources
        resources.add([made], now)
        found = resources.get(_KIND, key, now, owner)
        if found is None:
            raise JournalError("the key has just expired; ask again")
        read = msgspec.json.decode(found.body, type=_Kept)
        return found, read, read.nonce == kept.nonce

    async def _await_other(self, record: Resource, kept: _Kept) -> tuple[Resource, _Kept]:
        """Wait until another process has the answer, or has stopped to work on it. Raises: `RequestRefused`."""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        resources = self._host.journal.resources
        # A beat in the future is one from before the clock was set back.
        while record.state != "completed" and abs(time.time() - kept.beat_at) < _STALE_SECONDS:
            if time.monotonic() > give_up_at:
                raise RequestRefused(
                    409, "the same request is under way", "idempotency_in_progress", {"retry-after": "5"}
                )
            await asyncio.sleep(0.1)
            found = await asyncio.to_thread(
                resources.get, _KIND, record.resource_id, time.time(), record.parent
            )
            if found is None:  # it failed there, so that it can be tried again
                raise RequestRefused(409, "the same request has failed; ask again", "idempotency_failed")
            record, kept = found, msgspec.json.decode(found.body, type=_Kept)
        return record, kept

    async def _replay(self, record: Resource, kept: _Kept, send: Send) -> None:
        content = await asyncio.to_thread(self._host.journal.resources.content, record)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers]
        headers.append((b"idempotency-replayed", b"true"))
        await send({"type": "http.response.start", "status": kept.status, "headers": headers})
        await send({"type": "http.response.body", "body": content or b""})

    async def _work(self, scope: Scope, body: bytes, keyed: KeyedRequest, answer: _Answer) -> None:
        """Make the answer to a request, whether its client waits for it or not, and keep it."""
        beating = asyncio.ensure_future(_beat(keyed))
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            return await asyncio.get_running_loop().create_future()

        scope = {**scope, "state": {**scope["state"], "keyed": keyed}}
        scope.pop(PRESENCE, None)  # the client never leaves
        try:
            await keyed.save()
            await self._app(scope, receive, answer.send)
            beating.cancel()
            await asyncio.wait([beating])
            is_good = 200 <= answer.status < 400 and not keyed.has_failed
            if (is_good or keyed.is_answered) and not self._host.is_closing:
                keyed.kept.status = answer.status
                keyed.kept.headers = [
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers
                ]
                await keyed.save("completed", b"".join(answer.chunks))
            elif answer.status < 500 and not self._host.is_closing:
                await self._forget(keyed)
        except Exception as error:
            if not answer.status:
                await refuse(answer.send, RequestRefused(503, hide_servers(str(error)), "journal_error"))
        finally:
            beating.cancel()
            answer.is_over = True
            answer.tell()

    async def _forget(self, keyed: KeyedRequest) -> None:
        record = keyed.record
        await asyncio.to_thread(self._host.journal.resources.delete, _KIND, record.resource_id, record.parent)


async def _beat(keyed: KeyedRequest) -> None:
    """Say from time to time that this process works on a request."""
    with contextlib.suppress(JournalError):  # another process works on it now
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            await keyed.save()


async def _pass_on(answer: _Answer, send: Send) -> None:
    has_begun = False
    async for part in answer.parts():
        if not has_begun:
            has_begun = True
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": part, "more_body": True})
    if not has_begun:
        raise stopping()
    await send({"type": "http.response.body", "body": b""})
