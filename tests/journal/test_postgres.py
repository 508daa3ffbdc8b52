"""A journal in PostgreSQL: what is special about it. `tests/contract` tests what all journals have in common."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from tests.postgres.server import Server

from treadle import (
    Agent,
    ConfigError,
    JournalError,
    LeaseHeldError,
    LeaseLostError,
    Policy,
    RunExistsError,
    ScriptedModel,
    open_journal,
    tool,
)
from treadle.core import events as e
from treadle.core.inbox import Cancel
from treadle.core.types import FileDelta, Message, Role
from treadle.journal.check import Check
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource
from treadle.journal.run_info import QUEUE, RunFilter
from treadle.models.scripted import call

psycopg = pytest.importorskip("psycopg")
STARTED = e.RunStarted(at=1.0, version=e.VERSION, policy=Policy())
SECRET = "correct-horse-battery"


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=1.0, reward=0.0, name="note", detail=text)


def details(journal: Journal, run_id: str = "r") -> list[str | None]:
    events = journal.read(run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.body.detail for event in events if isinstance(event.body, e.Rewarded)]


def execute(url: str, sql: str, *values: object) -> Any:
    with psycopg.connect(url, autocommit=True) as db:
        cursor = db.execute(sql, values)
        return cursor.fetchall() if cursor.description is not None else None


@pytest.fixture
def journal(postgres_url: str) -> Iterator[Any]:
    with open_journal(postgres_url) as journal:
        yield journal


async def begin(journal: Journal, run_id: str = "r", *bodies: e.DurableBody) -> Any:
    writer = journal.create(run_id)
    writer.append([STARTED, *bodies])
    await writer.sync()
    return writer


async def test_a_writer_whose_lease_was_taken_over_is_refused(postgres_url: str) -> None:
    """Its owner was silent for as long as its leases last; what it appends next must not be stored."""
    with open_journal(postgres_url, lease_seconds=30) as first, open_journal(postgres_url) as second:
        lost = await begin(first)
        other = await begin(first, "other")
        with pytest.raises(LeaseHeldError, match=f"process {os.getpid()} "):
            await second.acquire("r")
        execute(postgres_url, "UPDATE treadle.owners SET lease_seconds = 0.01 WHERE lease_seconds = 30")
        await asyncio.sleep(0.05)
        taken = await second.acquire("r")
        lost.append([note("late")])
        other.append([note("kept")])
        with pytest.raises(LeaseLostError, match="taken over"):
            await lost.sync()
        await other.sync()
        taken.append([note("taken over")])
        await taken.sync()
        await lost.release()
        assert details(second) == ["taken over"]
        assert details(second, "other") == ["kept"]
        assert list(second.find_faults()) == []


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_step_of_the_servers_clock_ends_no_lease(postgres_url: str, hours: int) -> None:
    with open_journal(postgres_url, lease_seconds=2) as first, open_journal(postgres_url) as second:
        await begin(first)
        execute(postgres_url, f"UPDATE treadle.owners SET beat_at = beat_at - interval '{hours} hour'")
        with pytest.raises(LeaseHeldError):
            await asyncio.wait_for(second.acquire("r"), 30)


async def test_two_journals_never_claim_the_same_run(postgres_url: str) -> None:
    with open_journal(postgres_url) as first, open_journal(postgres_url) as second:
        for number in range(30):
            writer = first.create(f"r{number:02}")
            turn = e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, "go"))
            writer.append(
                [e.RunStarted(at=1.0, version=e.VERSION, policy=Policy(), metadata={QUEUE: "q"}), turn]
            )
            await writer.release()
        await writer.sync()
        claimed: list[str] = []

        async def work(journal: Journal) -> None:
            while (writer := await journal.claim("q")) is not None:
                claimed.append(writer.run_id)

        await asyncio.gather(*[work(item) for item in (first, second) * 3])
        assert sorted(claimed) == [f"r{number:02}" for number in range(30)]


class Proxy:
    """A server between client and PostgreSQL that can keep the answers to itself."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.target = target
        self.is_silent = False
        self.hides_commits = False
        """True to keep the answers to itself from the next commit of a single transaction on."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / ".s.PGSQL.5432"))
        self._listening.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and let new ones through."""
        self.is_silent = self.hides_commits = False
        found, self._open = self._open, []
        for item in found:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self.target / ".s.PGSQL.5432"))
                self._open += [client, server]
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.is_silent |= self.hides_commits and not is_answer and b"COMMIT" in data
                if not (is_answer and self.is_silent):
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(tmp_path: Path, postgres_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path, postgres_server.folder)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("is_claim", [False, True])
async def test_a_server_that_stops_answering_is_not_waited_for_without_limit(
    proxy: Proxy, tmp_path: Path, postgres_url: str, is_claim: bool
) -> None:
    """It may hang while its connections stay open. A statement that takes long is waited for."""
    url = f"{postgres_url.partition('?')[0]}?host={tmp_path}&connect_timeout=2&keepalives_idle=1"
    with open_journal(url) as journal:
        await begin(journal)
        slow = asyncio.to_thread(journal._reader.query, "SELECT count(*) FROM pg_sleep(1.5)")  # type: ignore[attr-defined]
        assert await slow == [(1,)]
        proxy.is_silent, before = True, len(proxy._open)
        asking = journal.claim("q") if is_claim else asyncio.to_thread(journal.runs)
        waiting = asyncio.ensure_future(asking)
        async with asyncio.timeout(60):
            while len(proxy._open) < before + 4:  # it has asked the server, and then connects anew
                await asyncio.sleep(0.05)
            proxy.cut()
            found = await waiting
        assert found is None if is_claim else len(found) == 1


class Late(Proxy):
    """A proxy that keeps back the answer to who looks for messages, until a notification of one comes with it."""

    _kept = b""
    _reader: socket.socket | None = None

    @property
    def has_kept(self) -> bool:
        """True if the answer was kept back."""
        return bool(self._kept)

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not is_answer and b"FROM inbox JOIN runs" in data and not self._kept:
                    self._reader = source
                if is_answer and target is self._reader:
                    data = self._kept = self._kept + data
                    if b"treadle_inbox" not in data:
                        continue
                    self._reader = None
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


async def test_a_message_that_comes_while_messages_are_looked_for_is_told(
    tmp_path: Path, postgres_server: Server, postgres_url: str
) -> None:
    """Rules out that a notification which comes with the answer to a statement is lost, and the run goes on
    until another message comes."""
    proxy = Late(tmp_path, postgres_server.folder)

    @tool(effect="pure")
    async def work() -> str:
        """Work until cancelled."""
        await asyncio.sleep(3600)
        return "done"

    url = f"{postgres_url.partition('?')[0]}?host={tmp_path}"
    with open_journal(url) as journal, open_journal(postgres_url) as other:
        agent = Agent(ScriptedModel([[call("work")]]), tools=[work], journal=journal)
        running = asyncio.ensure_future(agent.run("go", run_id="r"))
        async with asyncio.timeout(25):
            while not proxy.has_kept or not other.runs():
                await asyncio.sleep(0.01)
            other.post("r", Cancel("enough"))
            run = await running
        assert run.status == "paused"
        proxy.close()


CALM = 3600
"""Leases so long, in seconds, that no heartbeat waits for a silent server, before what is tested."""


class Pooler(Proxy):
    """A pooler that gives a client another connection to the server for each transaction."""

    _pool: ClassVar[list[socket.socket]] = []

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        started = client.recv(65536)
        server, greeting = self._connect(started)
        self._pool.append(server)
        process = greeting.index(b"K\0\0\0\x0c")
        client.sendall(greeting[: process + 5] + b"\0\0\0\1" + greeting[process + 9 :])
        held = None
        with contextlib.suppress(OSError):
            while (head := client.recv(5, socket.MSG_WAITALL)) and head[:1] != b"X":
                body = client.recv(int.from_bytes(head[1:], "big") - 4, socket.MSG_WAITALL)
                held = held or (self._pool.pop() if self._pool else self._connect(started)[0])
                held.sendall(head + body)
                if head[:1] in b"QS":
                    answer = self._read(held)
                    if answer.endswith(b"I"):
                        self._pool.append(held)
                        held = None
                    client.sendall(answer)

    def _connect(self, started: bytes) -> tuple[socket.socket, bytes]:
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self.target / ".s.PGSQL.5432"))
        server.sendall(started)
        return server, self._read(server)

    def _read(self, server: socket.socket) -> bytes:
        answer = b""
        while True:
            head = server.recv(5, socket.MSG_WAITALL)
            answer += head + server.recv(int.from_bytes(head[1:], "big") - 4, socket.MSG_WAITALL)
            if head[:1] in (b"Z", b""):
                return answer


def test_a_pooler_in_transaction_mode_is_refused(
    tmp_path: Path, postgres_server: Server, postgres_url: str
) -> None:
    pooler = Pooler(tmp_path, postgres_server.folder)
    with pytest.raises(
        JournalError, match=r"a pooler in transaction mode .*; give the address of the server"
    ):
        open_journal(f"{postgres_url.partition('?')[0]}?host={tmp_path}")
    pooler.close()


async def test_what_the_server_kept_without_answering_is_kept_once(
    proxy: Proxy, tmp_path: Path, postgres_url: str
) -> None:
    """Nobody knows then whether it was committed. New runs, appended events and leases are tested."""
    url = f"{postgres_url.partition('?')[0]}?host={tmp_path}"
    with open_journal(url, lease_seconds=CALM) as journal, open_journal(postgres_url) as witness:
        writer = await begin(journal)
        proxy.is_silent = True
        writer.append([note("1")])
        new = journal.create("new")
        new.append([STARTED, note("2")])
        waiting = asyncio.gather(writer.sync(), new.sync())
        async with asyncio.timeout(60):
            while "new" not in {info.run_id for info in witness.runs()} or not details(witness):
                await asyncio.sleep(0.01)
        assert not waiting.done()
        proxy.cut()
        await asyncio.wait_for(waiting, 60)
        writer.append([note("3")])
        new.append([note("4")])
        await asyncio.gather(writer.sync(), new.sync())
        assert (details(witness), details(witness, "new")) == (["1", "3"], ["2", "4"])
        await new.release()
        await new.sync()
        proxy.is_silent = True
        taking = asyncio.ensure_future(journal.acquire("new"))
        await asyncio.sleep(0.2)
        proxy.cut()
        again = await asyncio.wait_for(taking, 60)
        again.append([note("5")])
        await again.sync()
        assert details(witness, "new") == ["2", "4", "5"]


async def test_a_transaction_whose_answer_was_lost_has_its_result(
    proxy: Proxy, tmp_path: Path, postgres_url: str
) -> None:
    """It is committed, so it is not made again, and its caller is told what it did."""
    url = f"{postgres_url.partition('?')[0]}?host={tmp_path}"
    with open_journal(url, lease_seconds=CALM) as journal:
        writer = await begin(journal)
        await writer.release()
        await writer.sync()
        table = journal.resources
        table.add([Resource(kind="file", resource_id="x", created_at=1.0)], 1.0)

        async def lose_answer(function: Callable[[], Any]) -> Any:
            proxy.hides_commits = True
            doing = asyncio.ensure_future(asyncio.to_thread(function))
            async with asyncio.timeout(60):
                while not proxy.is_silent:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # the server commits
            proxy.cut()
            return await asyncio.wait_for(doing, 60)

        def change() -> bool:
            old = table.get("file", "x", 1.0)
            assert old is not None
            return table.replace(old, replace(old, state="in_progress"))

        assert await lose_answer(change)
        assert [item.version for item in table.unfinished("file")] == [2]
        assert await lose_answer(partial(table.delete, "file", "x"))
        assert await lose_answer(partial(journal.post, "r", Cancel("enough"))) == 1
        assert [posted.number for posted in journal.inbox("r")] == [1]
        again = await lose_answer(lambda: asyncio.run(journal.acquire("r")))
        again.append([note("1")])
        await again.sync()
        await again.release()
        await again.sync()
        await lose_answer(partial(journal.delete, "r"))
        assert journal.runs() == []


class Holding(Proxy):
    """A proxy that loses the connection that makes a transaction, while the server does not notice that."""

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.hides_commits and not is_answer and b"COMMIT" in data:
                    self.hides_commits = False
                    source.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "never ended"])
async def test_a_transaction_that_the_server_has_not_ended(
    tmp_path: Path, postgres_server: Server, postgres_url: str, is_ended: bool
) -> None:
    """It is made again when the server has ended it. A journal that is closed does not wait for that."""
    proxy = Holding(tmp_path, postgres_server.folder)
    journal = open_journal(f"{postgres_url.partition('?')[0]}?host={tmp_path}", lease_seconds=CALM)
    made = [Resource(kind="file", resource_id="x", created_at=1.0)]
    await begin(journal)
    proxy.hides_commits = True
    doing = asyncio.ensure_future(asyncio.to_thread(journal.resources.add, made, 1.0))
    async with asyncio.timeout(60):
        while proxy.hides_commits:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # the journal asks what became of it
        assert not doing.done()
        if is_ended:
            proxy.cut()
            await doing
            assert journal.resources.get("file", "x", 1.0) is not None
        await asyncio.to_thread(journal.close)
        if not is_ended:
            with pytest.raises(JournalError, match="is closed"):
                await doing
    proxy.close()


async def test_a_transaction_of_another_server_was_not_committed(postgres_url: str) -> None:
    """A standby that took over may never have got it."""
    with open_journal(postgres_url) as journal:
        await begin(journal)
        committer: Any = journal._committer  # type: ignore[attr-defined]
        [(number,)] = execute(postgres_url, "SELECT txid_current() + 1000000")
        with psycopg.connect(postgres_url, autocommit=True) as db:
            assert not committer._is_committed(db, number)


async def test_commits_that_are_made_again_stay_apart(
    proxy: Proxy, tmp_path: Path, postgres_url: str
) -> None:
    """Two commits are on their way when the connection is lost, and a run of the first has appended more."""
    url = f"{postgres_url.partition('?')[0]}?host={tmp_path}"
    with open_journal(url, lease_seconds=CALM) as journal, open_journal(postgres_url) as witness:
        first, second = await begin(journal, "first"), await begin(journal, "second")
        proxy.is_silent = True

        async def append(writer: Any, *bodies: e.DurableBody, blobs: Any = None) -> Any:
            writer.append(bodies, blobs)
            waiting = asyncio.ensure_future(writer.sync())
            await asyncio.sleep(0.2)
            return waiting

        digest = "a" * 64
        kept = e.SnapshotTaken(at=1.0, snapshot_id="s", delta=FileDelta(changed={"f": digest}))
        waiting = [
            await append(first, note("1")),
            await append(first, note("2")),
            await append(second, note("3"), kept, blobs={digest: b"content"}),
            await append(second, note("4")),
        ]
        proxy.cut()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert (details(witness, "first"), details(witness, "second")) == (["1", "2"], ["3", "4"])


async def test_a_run_that_the_server_refuses_harms_no_other(journal: Any) -> None:
    """The id and the name of the queue are in indexes, which have a limit."""
    for bad in (
        e.RunStarted(at=1.0, version=e.VERSION, policy=Policy(), metadata={QUEUE: random_text(9000)}),
        STARTED,
    ):
        run_id = "bad" if bad is not STARTED else random_text(9000)
        writers = [journal.create(name) for name in (f"a-{run_id[:3]}", run_id, f"b-{run_id[:3]}")]
        turn = e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, "go"))
        for writer in writers:
            writer.append([bad if writer is writers[1] else STARTED, turn])
        await asyncio.gather(writers[0].sync(), writers[2].sync())
        with pytest.raises(JournalError, match="index row"):
            await writers[1].sync()


def random_text(length: int) -> str:
    """Return a text that cannot be compressed much."""
    return random.Random(1).randbytes(length // 2).hex()


async def test_an_id_that_another_took_while_the_connection_was_lost_is_refused(
    proxy: Proxy, tmp_path: Path, postgres_url: str
) -> None:
    url = f"{postgres_url.partition('?')[0]}?host={tmp_path}"
    with open_journal(url) as journal, open_journal(postgres_url) as other:
        await begin(journal, "first")
        await begin(other, "r", note("theirs"))
        proxy.is_silent = True
        mine = journal.create("r")
        mine.append([STARTED, note("theirs")])
        waiting = asyncio.ensure_future(mine.sync())  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        proxy.cut()
        with pytest.raises(RunExistsError):
            await asyncio.wait_for(waiting, 60)


async def test_connections_that_the_server_ends_are_made_again(postgres_url: str, journal: Any) -> None:
    end = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid != pg_backend_pid()"
    )
    writer = await begin(journal)
    following = journal.follow("r", 1)
    coming = asyncio.ensure_future(anext(following))
    for number in range(1, 30):
        writer.append([note(str(number))])
        if number % 5 == 0:
            execute(postgres_url, end)
        await writer.sync()
    assert details(journal) == [str(number) for number in range(1, 30)]
    assert (await asyncio.wait_for(coming, 60)).seq == 2
    await following.aclose()


def test_the_password_is_in_no_message(
    postgres_server: Server, postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_journal(postgres_url):
        pass
    execute(postgres_url, f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'")
    caplog.set_level(logging.DEBUG)
    path = postgres_url.partition("@")[2]
    texts = []
    for url in (
        f"postgres://guest:{SECRET}@{path}",  # it may not read the tables
        f"postgres://nobody:{SECRET}@{path}",
        f"postgres://guest:{SECRET}@127.0.0.1:1/x",
        f"postgres://guest:{SECRET} and more@h/x",
        f"postgres://guest:{SECRET}@more@h.invalid/x",
        f"postgres://guest:{SECRET}@h:port/x?wrong=1",
        f"postgresql://guest@/x?host=/none&password={SECRET}",
    ):
        with pytest.raises((JournalError, ConfigError)) as caught:
            open_journal(url)
        found: BaseException | None = caught.value
        while found is not None:
            texts += [str(found), repr(found)]
            found = found.__cause__
    assert SECRET not in "".join(texts) + caplog.text
    assert "battery" not in "".join(texts)
    execute(postgres_url, "GRANT ALL ON SCHEMA treadle TO guest")
    execute(postgres_url, "GRANT ALL ON ALL TABLES IN SCHEMA treadle TO guest")
    execute(postgres_url, "GRANT ALL ON ALL SEQUENCES IN SCHEMA treadle TO guest")
    with open_journal(f"postgres://guest:{SECRET}@{path}") as journal:
        agent = Agent(ScriptedModel(["done"]), journal=journal)
        run = agent.run_sync("go")
        assert SECRET not in repr(journal) + repr(agent)
        kept = b"".join([event.raw or b"" for event in journal.read(run.run_id)])
        assert SECRET.encode() not in kept
    execute(postgres_url, "DROP OWNED BY guest")
    execute(postgres_url, "DROP ROLE guest")


async def test_any_text_is_kept(journal: Any) -> None:
    """PostgreSQL's texts have no NUL. The escape for it is kept too."""
    for run_id, text in (
        ("nul", "a\0b"),
        ("escape", "\ufffe0"),
        ("both", "\ufffe\0\ufffe1"),
        ("quotes", "'\"\\{}"),
    ):
        turn = e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, text))
        labelled = e.RunStarted(at=1.0, version=e.VERSION, policy=Policy(), metadata={text: text}, model=text)
        writer = journal.create(run_id)
        writer.append([labelled, turn])
        await writer.sync()
        (info,) = journal.runs(RunFilter(labels={text: text}))
        assert (info.run_id, info.input, info.model, info.labels) == (run_id, text, text, {text: text})
    unencodable, good = journal.create("\ud800"), journal.create("good")
    for writer in (unencodable, good):
        writer.append([STARTED])
    with pytest.raises(JournalError, match="cannot be stored"):
        await unencodable.sync()
    await good.sync()


async def test_damage_is_found(postgres_url: str, journal: Any) -> None:
    for run_id in ("body", "gone", "facts"):
        writer = await begin(journal, run_id, note("1"))
        writer.append([note("2")])
        await writer.sync()
        await writer.release()
        await writer.sync()
    execute(
        postgres_url,
        "UPDATE treadle.frames SET body = set_byte(body, 5, 0) FROM treadle.runs "
        "WHERE run = id AND run_id = 'body' AND seq = 3",
    )
    execute(
        postgres_url,
        "DELETE FROM treadle.frames USING treadle.runs WHERE run = id AND run_id = 'gone' AND seq = 1",
    )
    execute(
        postgres_url,
        "UPDATE treadle.heads SET steps = 7 FROM treadle.runs WHERE run = id AND run_id = 'facts'",
    )
    check = Check(journal)
    for run_id, problem in (("body", "other content"), ("gone", "is missing"), ("facts", "other content")):
        (found, *_) = check.check_run(run_id).problems
        assert problem in found
    assert len(journal.read("body", until_seq=2)) == 2
    execute(postgres_url, "DELETE FROM treadle.heads USING treadle.runs WHERE run = id AND run_id = 'gone'")
    assert len(list(check.check_store())) == 2


async def test_a_journal_that_was_copied_to_another_server_is_followed_in_order(postgres_url: str) -> None:
    """Transactions there may have numbers that this server has not reached."""
    with open_journal(postgres_url) as journal:
        writer = await begin(journal)
        for number in range(5):
            writer.append([note(str(number))])
            await writer.sync()
    execute(postgres_url, "UPDATE treadle.frames SET xact = xact + 1000000000000")
    with open_journal(postgres_url) as journal:
        writer = await journal.acquire("r")
        following = journal.follow(None)
        assert [(await anext(following)).seq for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        writer.append([note("new")])
        await writer.sync()
        assert (await asyncio.wait_for(anext(following), 60)).seq == 7
        await following.aclose()  # type: ignore[attr-defined]


async def test_a_content_that_another_run_begins_to_need_is_not_deleted(postgres_url: str) -> None:
    with open_journal(postgres_url) as first, open_journal(postgres_url) as second:
        digest = "a" * 64
        delta = FileDelta(changed={"f": digest})

        async def write(journal: Journal, run_id: str) -> Any:
            writer = journal.create(run_id)
            writer.append(
                [STARTED, e.SnapshotTaken(at=1.0, snapshot_id="s", delta=delta)], {digest: b"content"}
            )
            await writer.release()
            await writer.sync()

        await write(first, "kept-0")
        for number in range(10):
            deleting = asyncio.to_thread(first.delete, f"kept-{number}")
            await asyncio.gather(deleting, write(second, f"kept-{number + 1}"))
            assert second.read_stored(digest) == b"content"


def test_what_is_no_journal_is_refused(postgres_server: Server, postgres_url: str) -> None:
    with pytest.raises(JournalError, match="there is no journal in"):
        open_journal(postgres_url, must_exist=True)
    with pytest.raises(JournalError, match="does not exist"):
        open_journal(postgres_server.url("none_such"))
    with pytest.raises(ConfigError, match="'memory'; PostgreSQL has 'process' or 'power'"):
        open_journal(postgres_url, level="memory")
    open_journal(postgres_url).close()
    execute(postgres_url, "UPDATE treadle.meta SET version = 99")
    with pytest.raises(JournalError, match="newer Treadle"):
        open_journal(postgres_url)
    execute(postgres_server.url(), "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(JournalError, match="'LATIN1'; make one with UTF8"):
        open_journal(postgres_server.url("latin"))
    execute(postgres_server.url(), "DROP DATABASE latin WITH (FORCE)")


def test_the_strongest_level_stays(postgres_url: str) -> None:
    for level, expected in (("process", "process"), ("power", "power"), ("process", "power")):
        with open_journal(postgres_url, level=level) as journal:
            assert journal.level == expected  # type: ignore[attr-defined]


def test_what_a_database_cannot_do_is_told(journal: Any, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="pg_dump"):
        journal.backup(tmp_path / "copy.db")


async def test_a_forked_child_leaves_the_connections_alone(journal: Any) -> None:
    writer = await begin(journal)
    pid = os.fork()
    if not pid:
        try:
            journal.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    writer.append([note("goes on")])
    await writer.sync()
    assert details(journal) == ["goes on"]


def test_many_processes_make_the_tables_at_once(postgres_url: str) -> None:
    journals: list[Any] = []
    threads = [threading.Thread(target=lambda: journals.append(open_journal(postgres_url))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journals) == 8
    for journal in journals:
        journal.close()


async def test_idle_workers_hear_of_runs_that_wait_and_not_of_each_commit(postgres_url: str) -> None:
    with open_journal(postgres_url) as journal, open_journal(postgres_url) as other:
        news = other.news("q")
        while await news.wait(0.3):  # the listener begins
            pass
        writer = await begin(journal)
        for number in range(5):
            writer.append([note(str(number))])
            await writer.sync()
        assert not await news.wait(0.5)
        turn = e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, "go"))
        queued = journal.create("queued")
        queued.append([e.RunStarted(at=1.0, version=e.VERSION, policy=Policy(), metadata={QUEUE: "q"}), turn])
        await queued.release()
        assert await news.wait(30)
        assert await other.claim("q") is not None
