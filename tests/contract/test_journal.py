"""The contract of every journal."""

import asyncio
import contextlib
import hashlib
import itertools
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.conftest import IS_FULL

from treadle import (
    Agent,
    JournalError,
    LeaseHeldError,
    Policy,
    RunExistsError,
    RunNotFoundError,
    ScriptedModel,
    open_journal,
)
from treadle.agent.overview import search_sessions
from treadle.core import events as e
from treadle.core.errors import ConfigError, LeaseLostError
from treadle.core.inbox import (
    Cancel,
    DecideCall,
    Enqueue,
    GiveAnswer,
    InboxMessage,
    Interrupt,
    Note,
    Steer,
    Withdraw,
    decode_message,
)
from treadle.core.lineage import Caller, Parent, TaskRef
from treadle.core.texts.patches import Version, store_next
from treadle.core.types import (
    Artifact,
    Completion,
    FileDelta,
    FinishReason,
    Message,
    Role,
    StopReason,
    ToolCall,
    Usage,
)
from treadle.journal.listing import facts_of
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal, RunWriter
from treadle.journal.registry import STORES
from treadle.journal.resources import Resource, ResourceFilter
from treadle.journal.run_info import QUEUE, RunFilter, RunInfo, RunOrder
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.journal.tables.journal import TableJournal
from treadle.models import call

KINDS = {"memory": ["memory"], "sqlite": ["process", "power"], "postgres": ["process", "power"]}
"""Store to the levels at which it is tested."""
USER = Message(Role.USER, "hello")
STARTED = e.RunStarted(at=1.0, version=e.VERSION, policy=Policy())


@pytest.fixture(params=[(store, level) for store, levels in KINDS.items() for level in levels], ids="-".join)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    """A function that opens the journal; another call opens the same journal again."""
    store, level = request.param
    if store == "memory":
        journal = open_journal("memory:")
        return lambda: journal
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
        return lambda: open_journal(url, level=level)
    return lambda: open_journal(tmp_path / "runs.db", level=level)


async def test_a_run_that_was_imported_is_trusted_when_the_user_says_so(
    reopen: Callable[[], Journal],
) -> None:
    journal = reopen()
    for name, is_imported in (("own", False), ("foreign", True)):
        writer = journal.create(name, is_imported=is_imported)
        writer.append([STARTED])
        await writer.release()
        await writer.sync()
    again = journal.create("own", is_imported=True)

    async def take_over() -> None:
        again.append([STARTED])
        await again.sync()

    with pytest.raises(RunExistsError):
        await take_over()
    assert (journal.is_trusted("own"), journal.is_trusted("foreign")) == (True, False)
    journal.trust("foreign")
    with pytest.raises(RunNotFoundError):
        journal.is_trusted("no such run")
    with pytest.raises(RunNotFoundError):
        journal.trust("no such run")
    journal.close()
    with reopen() as journal:
        assert journal.is_trusted("foreign")


def test_every_registered_store_is_tested_here() -> None:
    assert sorted(STORES.names()) == sorted({*KINDS, "postgresql"})


@pytest.fixture
def journal(reopen: Callable[[], Journal]) -> Any:
    with reopen() as journal:
        yield journal


def note(text: str) -> e.Rewarded:
    return e.Rewarded(at=2.0, reward=0.0, detail=text)


def details(journal: Journal, run_id: str = "r", after_seq: int = 0) -> list[str | None]:
    return [
        event.body.detail for event in journal.read(run_id, after_seq) if isinstance(event.body, e.Rewarded)
    ]


async def test_what_was_synced_is_read_in_order(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([note("1"), note("2")])
    writer.append([note("3")])
    await writer.sync()
    writer.append([note("é\n\u2028" + "x" * 1_000_000)])
    await writer.sync()
    events = journal.read("r")
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert events[3].body == note("é\n\u2028" + "x" * 1_000_000)
    assert details(journal, after_seq=1)[:2] == ["2", "3"]
    assert journal.read("r", after_seq=4) == []


async def test_a_run_is_there_once(journal: Journal) -> None:
    first = journal.create("r")
    first.append([STARTED])
    await first.sync()

    async def begin_again() -> None:
        second = journal.create("r")
        second.append([STARTED])
        await second.sync()

    with pytest.raises(RunExistsError, match="'r' exists already"):
        await begin_again()
    assert len(journal.read("r")) == 1


async def test_what_is_not_there_is_told(journal: Journal) -> None:
    with pytest.raises(RunNotFoundError, match="'x' not found"):
        journal.read("x")
    with pytest.raises(RunNotFoundError, match="'x' not found"):
        await journal.acquire("x")
    with pytest.raises(JournalError, match="'abc' is not in"):
        journal.read_blob("abc")
    assert journal.runs() == []


async def test_one_writer_at_a_time(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([note("1")])
    await writer.sync()
    with pytest.raises(LeaseHeldError):
        await journal.acquire("r")
    await writer.release()
    again = await journal.acquire("r")
    again.append([note("2")])
    await again.sync()
    assert details(journal) == ["1", "2"]


async def test_a_lease_is_taken_again_with_the_first_events_unless_the_run_has_changed(
    journal: Journal,
) -> None:
    async def leave(writer: RunWriter, text: str) -> Callable[[], RunWriter] | None:
        writer.append([note(text)])
        assert writer.renewal() is None  # it is not released
        await writer.release()
        await writer.sync()
        return writer.renewal()

    renew = await leave(journal.create("r"), "1")
    if renew is None:
        assert not isinstance(journal, SqliteJournal)
        return
    again = renew()
    again.append([note("2")])
    await again.sync()
    with pytest.raises(LeaseHeldError):
        await journal.acquire("r")
    renew = await leave(again, "3")
    assert renew is not None
    assert journal.driven.find("r") is not None
    del again
    async with asyncio.timeout(20):
        while journal.driven.find("r") is not None:
            await asyncio.sleep(0.01)

    async def refused(text: str) -> None:
        assert renew is not None
        writer = renew()
        writer.append([note(text)])
        with pytest.raises(LeaseHeldError, match="has changed"):
            await writer.sync()
        await writer.release()
        assert not journal.runs()[0].is_driven

    # Somebody else has driven the run, has sent it a message, drives it, or has deleted it.
    last = await leave(await journal.acquire("r"), "4")
    await refused("lost")
    renew = last
    await asyncio.wrap_future(journal.posting("r", Note({"a": "b"})))
    await refused("unread")
    taken = await journal.acquire("r")
    assert taken.driven.newest == 1
    taken.take_in(1)
    renew = await leave(taken, "5")
    assert renew is not None
    other = await journal.acquire("r")
    writer = renew()
    writer.append([note("twice")])
    with pytest.raises(LeaseHeldError):
        await writer.sync()
    other.append([note("6")])
    await other.sync()
    assert details(journal) == ["1", "2", "3", "4", "5", "6"]
    renew = await leave(other, "7")
    await asyncio.to_thread(journal.delete, "r")
    assert renew is not None
    gone = renew()
    gone.append([note("8")])
    with pytest.raises(LeaseHeldError):
        await gone.sync()
    assert journal.runs() == []


async def test_contents_are_kept_with_the_events_that_name_them(journal: Journal) -> None:
    content = b"\x00\xff" * 1000
    digest = hashlib.sha256(content).hexdigest()
    for name in ("a", "b"):
        writer = journal.create(name)
        delta = FileDelta(changed={"f": digest})
        writer.append([e.SnapshotTaken(at=1.0, snapshot_id="s", delta=delta)], {digest: content})
        await writer.sync()
    assert journal.read_blob(digest) == content


async def test_a_content_is_kept_as_a_patch_of_another(journal: Journal) -> None:
    """What came first under a hash stays, so that no patch can come to be made from itself."""
    first, second = b"a line\n" * 500, b"a line\n" * 500 + b"more\n"
    one, two = (hashlib.sha256(content).hexdigest() for content in (first, second))
    there, back = (
        store_next(Version(a), before, b, after)[1]
        for a, before, b, after in ((one, first, two, second), (two, second, one, first))
    )
    assert len(there) < 200 > len(back)
    writer = journal.create("r")
    writer.append([note("1")], {one: first})
    writer.append([note("2")], {two: there})
    writer.append([note("3")], {one: back})
    await writer.sync()
    assert (journal.read_stored(one), journal.read_stored(two)) == (first, there)
    assert (journal.read_blob(one), journal.read_blob(two)) == (first, second)
    await writer.release()


async def test_a_run_is_read_in_parts(journal: Journal) -> None:
    writer = journal.create("r")
    for number in range(1, 8):
        writer.append([note(str(number)), note(f"{number}b")])
        await writer.sync()
    await writer.release()
    events = journal.read("r")
    assert list(journal.scan("r")) == events
    for after in range(15):
        assert journal.read("r", after) == events[after:]
        for until in range(15):
            assert journal.read("r", after, until) == events[after:until]
    assert list(journal.find_faults()) == []


async def test_a_listing_says_where_runs_stand(journal: Journal) -> None:
    ended = e.RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)
    for name, bodies in {
        "new": [],
        "over": [ended],
        "paused": [e.RunPaused(at=3.0, reason="cancelled")],
    }.items():
        writer = journal.create(name)
        writer.append([STARTED, *bodies])
        await writer.sync()
        if name != "new":
            await writer.release()
            writer = await journal.acquire(name)
            await writer.release()
    await asyncio.sleep(0.1)
    infos = {info.run_id: info for info in journal.runs()}
    assert list(infos) == ["new", "over", "paused"]
    assert [(item.status, item.stop_reason) for item in infos.values()] == [
        ("running", None),
        ("finished", "completed"),
        ("paused", "interrupted"),
    ]
    assert infos["new"].is_driven
    assert infos["over"].events == 2


async def test_many_runs_at_once_and_a_cancelled_wait(journal: Journal) -> None:
    async def write(index: int) -> None:
        writer = journal.create(f"r{index}")
        for number in range(5):
            writer.append([note(str(number))])
            await writer.sync()
        await writer.release()

    tasks = [asyncio.ensure_future(write(index)) for index in range(200)]
    await asyncio.sleep(0)
    tasks[7].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for index in set(range(200)) - {7}:
        assert details(journal, f"r{index}") == list("01234")
    writer = journal.create("after")
    writer.append([note("x")])
    await writer.sync()


@pytest.mark.parametrize("bad", ["label", "number"])
async def test_what_cannot_be_kept_of_one_run_harms_no_other(journal: Journal, bad: str) -> None:
    """They are committed together. A store may keep such values; if not, only this run fails."""
    await write(journal, "known", STARTED, is_released=False)
    bodies: list[e.DurableBody] = [replace(STARTED, metadata={"a": "\ud800"})]
    if bad == "number":
        usage = Usage(input_tokens=2**64, output_tokens=1)
        answer = Completion(Message(Role.ASSISTANT, "hi"), FinishReason.STOP, usage=usage)
        bodies = [
            STARTED,
            e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, "go")),
            e.InferenceStarted(at=1.0, step=1, messages=1),
            e.InferenceCompleted(at=1.0, step=1, completion=answer),
        ]
    writers = {name: journal.create(name) for name in ("first", "bad", "last")}
    for name, writer in writers.items():
        with contextlib.suppress(JournalError):
            writer.append([STARTED, note(name)] if name != "bad" else bodies)
    async with asyncio.timeout(60):
        for name in ("first", "last"):
            await writers[name].sync()
        with contextlib.suppress(JournalError):
            await writers["bad"].sync()
        for name in ("first", "last"):
            writers[name].append([note("more")])
            await writers[name].sync()
            assert details(journal, name) == [name, "more"]
    await writers["bad"].release()


def test_several_loops_and_threads_share_one_journal(journal: Journal) -> None:
    async def write(name: str) -> None:
        for index in range(20):
            writer = journal.create(f"{name}-{index}")
            writer.append([note(name)])
            await writer.sync()

    threads = [threading.Thread(target=lambda name=name: asyncio.run(write(name))) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(journal.runs()) == 80


def test_closing_writes_what_was_appended(reopen: Callable[[], Journal]) -> None:
    journal = reopen()

    async def append() -> None:
        journal.create("r").append([note("last")])

    asyncio.run(append())
    journal.close()
    journal.close()
    with reopen() as again:
        assert details(again) == ["last"]


async def test_what_another_opened_later_reads_and_drives(reopen: Callable[[], Journal]) -> None:
    with reopen() as journal:
        agent = Agent(ScriptedModel([[call("list_files")], "done"]), tools=["files"], journal=journal)
        run = await agent.run("go")
    with reopen() as journal:
        again = await Agent(ScriptedModel([]), journal=journal).resume(run.run_id)
        assert (again.messages, again.state) == (run.messages, run.state)


@pytest.mark.parametrize("level", ["process", "power"])
async def test_journals_grow_with_their_steps_and_no_faster(level: str, tmp_path: Path) -> None:
    sizes = {}
    for steps in (400, 800):
        path = tmp_path / f"{steps}.db"
        with open_journal(path, level=level) as journal:
            answers: list[Any] = [[call("read_file", {"file_path": "a"})]] * steps
            agent = Agent(
                ScriptedModel([*answers, "done"]),
                tools=["files"],
                files={"a": "x" * 2000},
                journal=journal,
                policy=Policy(max_steps=None),
            )
            assert (await agent.run("go")).stop_reason == "completed"
        sizes[steps] = sum(file.stat().st_size for file in tmp_path.glob(f"{steps}.db*"))
    assert sizes[400] <= 2.5e6
    assert sizes[800] <= 2.1 * sizes[400]


async def test_use_after_closing_is_told(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "runs.db")
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.runs()
    with pytest.raises(JournalError, match="is closed"):
        await journal.acquire("r")
    with pytest.raises(JournalError, match="is closed"):
        journal.create("r").append([note("x")])


async def write(journal: Journal, run_id: str, *bodies: e.DurableBody, is_released: bool = True) -> None:
    writer = journal.create(run_id)
    writer.append(bodies)
    if is_released:
        await writer.release()
    await writer.sync()


async def test_sync_is_a_plain_function_that_returns_an_awaitable(journal: Journal) -> None:
    writer = journal.create("r")
    await writer.sync()
    writer.append([note("1")])
    await asyncio.gather(writer.sync(), writer.sync())
    waiting = asyncio.ensure_future(writer.sync())
    await asyncio.wait_for(waiting, 60)
    assert details(journal) == ["1"]


def start(number: int, **fields: Any) -> list[e.DurableBody]:
    return [
        e.RunStarted(at=float(number), version=e.VERSION, policy=Policy(), **fields),
        e.TurnStarted(at=number + 0.5, turn=1, message=Message(Role.USER, f"input {number}")),
    ]


async def write_varied(journal: Journal) -> None:
    """Write runs that differ in everything a filter can ask for."""
    finished = e.RunFinished(at=50.0, stop_reason=StopReason.COMPLETED)
    failed = e.RunFinished(at=50.0, stop_reason=StopReason.ERROR, error="boom")
    asked = e.QuestionAsked(at=6.0, question_id="q", text="?")
    turned = e.TurnCompleted(at=7.0, turn=1, stop_reason=StopReason.COMPLETED)
    await write(journal, "a1", *start(1, model="m", metadata={"team": "red", "x": "1"}), finished)
    await write(journal, "a2", *start(2, model="m", task=TaskRef("files", "t-1")), failed)
    await write(journal, "b1", *start(3, model="n", metadata={"team": "red"}), is_released=False)
    await write(journal, "b2", *start(4, is_session=True), e.RunPaused(at=9.0, reason="closed"))
    await write(journal, "b3", *start(5, parent=Parent("a1", 1)), asked)
    await write(journal, "a%_", *start(6, task=TaskRef("files", "t-2")), turned)
    told = {"note": '"treadle.caller":', '"treadle.caller": ': "x", "treadle.Caller": "treadle.caller"}
    await write(journal, "b4", *start(7, caller=Caller("a1", "c1")))
    await write(journal, "b5", *start(8, metadata=told))
    await write(journal, "\U0010ffff", *start(9))


async def test_a_listing_shows_the_facts_of_each_run(journal: Journal) -> None:
    await write_varied(journal)
    infos = journal.runs()
    assert [info.run_id for info in infos] == ["a1", "a2", "b1", "b2", "b3", "a%_", "b4", "b5", "\U0010ffff"]
    for info in infos:
        facts = facts_of([event.body for event in journal.read(info.run_id)])
        assert info == facts.info(info.run_id, is_driven=info.run_id == "b1")


def maybe(*values: Any) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(values)


filters = st.builds(
    RunFilter,
    id_prefix=maybe("", "a", "a1", "a%", "b", "c", "\U0010ffff"),
    status=maybe("running", "paused", "finished", "gone"),
    stop_reason=maybe("completed", "error", "closed"),
    model=maybe("m", "n"),
    task_set=maybe("files"),
    task_id=maybe("t-1"),
    parent_run_id=maybe("a1"),
    labels=st.sampled_from([{}, {"team": "red"}, {"team": "red", "x": "1"}, {"team": "blue"}, {"n'o": "x"}]),
    is_finished=maybe(True, False),
    is_driven=maybe(True, False),
    is_waiting=maybe(True, False),
    is_session=maybe(True, False),
    is_turn_open=maybe(True, False),
    is_called=maybe(True, False),
    created_since=maybe(0.0, 3.0, 99.0),
    created_before=maybe(0.0, 3.0, 99.0),
    updated_since=maybe(0.0, 9.0, 99.0),
)
fields = list(RunFilter.__struct_fields__)


@given(filter_=filters, chosen=st.sets(st.sampled_from(fields), max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_a_filter_finds_what_matches(filtered: Journal, filter_: RunFilter, chosen: set[str]) -> None:
    filter_ = RunFilter(**{name: getattr(filter_, name) for name in chosen})
    expected = [info for info in filtered.runs() if filter_.matches(info)]
    assert filtered.runs(filter_) == expected
    assert filtered.runs(filter_, newest_first=True, limit=2) == expected[::-1][:2]


@pytest.mark.parametrize("order", RunOrder)
@pytest.mark.parametrize("is_down", [False, True])
async def test_runs_are_sorted_by_a_figure_and_listed_in_pages(
    filtered: Journal, order: RunOrder, is_down: bool
) -> None:
    for number, cost in enumerate((0.5, None, 0.25, 0.5)):
        answer = Completion(Message(Role.ASSISTANT, "x"), FinishReason.STOP, Usage(number % 3, 5), cost, "m")
        await write(
            filtered,
            f"c{number}",
            *start(10 + number),
            e.InferenceCompleted(at=20.0, step=1, completion=answer),
        )
    expected = sorted(filtered.runs(), key=order.key_of)[:: -1 if is_down else 1]
    assert len({order.key_of(info) for info in expected}) > 1
    found: list[RunInfo] = []
    while page := filtered.runs(
        order=order, newest_first=is_down, limit=3, after=found[-1].run_id if found else None
    ):
        found += page
    assert found == expected


async def test_the_time_of_a_run_ends_with_its_turn(journal: Journal) -> None:
    """Notes and rewards that come later do not lengthen it."""
    end = e.RunFinished(at=5.0, stop_reason=StopReason.COMPLETED)
    late = [e.Noted(at=90.0, labels={"seen": "yes"}), e.Rewarded(at=95.0, reward=1.0)]
    await write(journal, "long", *start(1), replace(end, at=9.0))
    await write(journal, "noted", *start(1), end, *late)
    await write(journal, "paused", *start(1), e.RunPaused(at=4.0, reason="closed"), *late)
    await write(journal, "resumed", *start(1), e.RunPaused(at=4.0, reason="closed"), e.RunResumed(at=20.0))
    infos = journal.runs(order=RunOrder.DURATION)
    assert [info.run_id for info in infos] == ["paused", "noted", "long", "resumed"]
    assert [info.ended_at for info in infos] == [4.0, 5.0, 9.0, None]
    assert [info.duration_seconds for info in infos] == [3.0, 4.0, 8.0, 19.0]


@pytest.fixture
async def filtered(journal: Journal) -> Journal:
    await write_varied(journal)
    return journal


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_put_together_are_the_listing(journal: Journal, newest_first: bool) -> None:
    for number in range(11):
        await write(journal, f"r{number * 7 % 11}", *start(number, model="m" if number % 3 else "n"))
    whole = journal.runs(RunFilter(model="m"), newest_first=newest_first)
    assert len(whole) == 7
    found, after = [], None
    while page := journal.runs(RunFilter(model="m"), after=after, limit=3, newest_first=newest_first):
        assert len(page) <= 3
        found += page
        after = page[-1].run_id
        if len(found) < 6:
            await write(journal, f"later {len(found)}", *start(99, model="m"))
    assert [info for info in found if not info.run_id.startswith("later")] == whole
    assert journal.runs(limit=0) == []
    with pytest.raises(RunNotFoundError, match="'nobody' not found"):
        journal.runs(after="nobody")


async def collect(events: AsyncIterator[e.Event], count: int) -> list[tuple[str, int]]:
    """The first `count` events."""
    found = []
    async for event in events:
        found.append((event.run_id, event.seq))
        if len(found) == count:
            break
    await events.aclose()  # type: ignore[attr-defined]
    return found


async def test_following_a_run_gives_what_is_kept_and_what_comes(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([STARTED, note("1")])
    await writer.sync()
    await write(journal, "other", STARTED)
    found: list[e.Event] = []

    async def follow() -> None:
        found.extend([event async for event in journal.follow("r", 1)])

    task = asyncio.ensure_future(follow())
    for number in range(2, 30):
        writer.append([note(str(number))])
        await writer.sync()
        if number % 10 == 0:
            await asyncio.sleep(0.01)
    writer.append([e.RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)])
    await writer.sync()
    writer.append([note("graded")])
    await writer.release()
    await writer.sync()
    await asyncio.wait_for(task, 60)
    assert [event.seq for event in found] == list(range(2, 33))
    assert found == journal.read("r", 1)


async def test_following_all_runs_gives_each_run_in_order(journal: Journal) -> None:
    await write(journal, "before", STARTED, note("1"))
    following = asyncio.ensure_future(collect(journal.follow(None), 2 + 4 * 10))

    async def drive(name: str) -> None:
        writer = journal.create(name)
        for number in range(10):
            writer.append([note(str(number))])
            await writer.sync()

    await asyncio.gather(*[drive(name) for name in "abcd"])
    found = await asyncio.wait_for(following, 60)
    for name in "abcd":
        assert [seq for run_id, seq in found if run_id == name] == list(range(1, 11))
    assert found[:2] == [("before", 1), ("before", 2)]


async def test_following_from_now_on_leaves_out_what_is_kept(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([STARTED, note("1")])
    await writer.sync()
    one = asyncio.ensure_future(collect(journal.follow("r", None), 1))
    all_ = asyncio.ensure_future(collect(journal.follow(None, None), 1))
    await asyncio.sleep(0.3)
    writer.append([note("2")])
    await writer.sync()
    assert await asyncio.wait_for(asyncio.gather(one, all_), 60) == [[("r", 3)], [("r", 3)]]


async def test_a_follower_hears_of_an_event_only_once_it_is_kept(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([STARTED])
    await writer.sync()
    events = journal.follow("r")
    assert (await asyncio.wait_for(anext(events), 60)).seq == 1
    for number in itertools.count(2):
        if number == 6:
            break
        coming = asyncio.ensure_future(anext(events))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        writer.append([note(str(number))])
        assert not coming.done()
        await writer.sync()
        event = await asyncio.wait_for(coming, 60)
        assert event in journal.read("r")
    await events.aclose()  # type: ignore[attr-defined]


async def test_following_ends_when_the_journal_is_closed(reopen: Callable[[], Journal]) -> None:
    journal = reopen()
    await write(journal, "r", STARTED, is_released=False)
    following = [asyncio.ensure_future(collect(journal.follow(run_id), 99)) for run_id in ("r", None)]
    await asyncio.sleep(0.3)
    await asyncio.to_thread(journal.close)
    assert await asyncio.wait_for(asyncio.gather(*following), 60) == [[("r", 1)], [("r", 1)]]


async def test_following_a_run_that_is_not_there_is_told(journal: Journal) -> None:
    with pytest.raises(RunNotFoundError, match="'x' not found"):
        await anext(journal.follow("x"))


async def test_following_goes_on_across_a_restart(reopen: Callable[[], Journal]) -> None:
    with reopen() as journal:
        await write(journal, "r", STARTED, note("1"))
        first = await collect(journal.follow("r"), 2)
    with reopen() as journal:
        writer = await journal.acquire("r")
        writer.append([note("2"), e.RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)])
        await writer.release()
        await writer.sync()
        rest = [(event.run_id, event.seq) async for event in journal.follow("r", first[-1][1])]
    assert first + rest == [("r", seq) for seq in range(1, 5)]


async def test_a_long_backlog_is_followed_to_its_end(journal: Journal) -> None:
    writer = journal.create("r")
    for number in range(1200):
        writer.append([note(str(number))])
        await asyncio.sleep(0)  # each in a commit of its own
    await writer.sync()
    found = await asyncio.wait_for(collect(journal.follow(None), 1200), 60)
    assert found == [("r", seq) for seq in range(1, 1201)]


async def test_a_listing_is_right_where_tokens_must_be_estimated_anew(journal: Journal) -> None:
    """After a compaction, a server that counts no tokens leaves an estimate that needs the whole transcript."""
    writer = journal.create("r")
    summary = Message(Role.USER, "so far")
    completion = Completion(Message(Role.ASSISTANT, "x" * 40), FinishReason.STOP)
    answered = e.InferenceCompleted(at=3.0, step=1, completion=completion)
    writer.append([*start(1), e.ContextCompacted(at=2.0, messages=1, replacement=(summary,)), answered])
    await writer.sync()
    for _ in range(2):
        (info,) = journal.runs()
        assert info == facts_of([event.body for event in journal.read("r")]).info("r", is_driven=True)
        assert info.output_tokens == 10
        writer.append([note("more")])
        await writer.sync()
    await writer.release()
    await writer.sync()
    again = await journal.acquire("r")
    again.append([note("and more")])
    await again.sync()
    (info,) = journal.runs()
    assert info == facts_of([event.body for event in journal.read("r")]).info("r", is_driven=True)


async def test_a_deleted_run_is_gone_with_what_only_it_needs(reopen: Callable[[], Journal]) -> None:
    """A content stays if another run names it, or if what another run names is a patch of it."""
    journal = reopen()
    texts = [b"only mine", b"shared", b"base " * 500]
    mine, shared, base = [hashlib.sha256(text).hexdigest() for text in texts]
    changed = texts[2] + b"changed"
    patched = hashlib.sha256(changed).hexdigest()
    _, patch = store_next(Version(base), texts[2], patched, changed)
    for name, blobs in {
        "r": dict(zip((mine, shared, base), texts, strict=True)),
        "other": {shared: texts[1], patched: patch},
    }.items():
        writer = journal.create(name)
        taken = e.SnapshotTaken(at=1.0, snapshot_id="s", delta=FileDelta({item: item for item in blobs}))
        writer.append([STARTED, taken], blobs)
        await writer.sync()
        with pytest.raises(LeaseHeldError):
            await asyncio.to_thread(journal.delete, name)
        await writer.release()
    await asyncio.to_thread(journal.delete, "r")
    with pytest.raises(RunNotFoundError):
        journal.read("r")
    with pytest.raises(RunNotFoundError):
        await asyncio.to_thread(journal.delete, "r")
    assert [info.run_id for info in journal.runs()] == ["other"]
    with pytest.raises(JournalError):
        journal.read_blob(mine)
    assert (journal.read_blob(shared), journal.read_blob(patched)) == (texts[1], changed)
    assert list(journal.find_faults()) == []
    await asyncio.to_thread(journal.delete, "other")
    for digest in (shared, base, patched):
        with pytest.raises(JournalError):
            journal.read_blob(digest)
    await write(journal, "r", STARTED)  # its id is free again
    assert len(journal.read("r")) == 1
    journal.close()
    again = reopen()
    assert [info.run_id for info in again.runs()] == ["r"]
    again.close()


async def test_followers_of_all_runs_miss_nothing_after_a_deletion(journal: Journal) -> None:
    await write(journal, "a", STARTED)
    await write(journal, "b", STARTED, note("1"))
    events = journal.follow(None)
    assert [(await anext(events)).run_id for _ in range(3)] == ["a", "b", "b"]
    await asyncio.to_thread(journal.delete, "b")
    await write(journal, "c", STARTED)
    assert (await anext(events)).run_id == "c"


async def test_a_fork_outlives_the_run_that_it_was_made_from(journal: Journal) -> None:
    script = [[call("write_file", {"file_path": "a.txt", "content": "text " * 300})], "done", "again"]
    agent = Agent(ScriptedModel(script), tools=["files"], journal=journal)
    await agent.run("go", run_id="old")
    at = next(event.seq for event in journal.read("old") if event.type == "tool_completed")
    forked = await agent.fork("old", at, new_run_id="new")
    await asyncio.to_thread(journal.delete, "old")
    assert forked.files == {"a.txt": b"text " * 300}
    assert (await agent.replay("new")).is_exact


def queued(queue: str = "q", *, text: str = "go", caller: Caller | None = None) -> list[e.DurableBody]:
    """Return the first events of a run that waits in a queue."""
    started = e.RunStarted(at=1.0, version=e.VERSION, policy=Policy(), metadata={QUEUE: queue}, caller=caller)
    return [started, e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, text))]


async def put_in(journal: Journal, run_id: str, bodies: list[e.DurableBody], **options: Any) -> None:
    writer = journal.create(run_id, **options)
    writer.append(bodies)
    await writer.release()
    await writer.sync()


async def claim(journal: Journal, queue: str = "q", skip: tuple[str, ...] = ()) -> str | None:
    writer = await journal.claim(queue, skip)
    return None if writer is None else writer.run_id


async def test_waiting_runs_are_claimed_in_order_and_each_once(journal: Journal) -> None:
    assert await claim(journal) is None
    for run_id, queue in (("b", "q"), ("a", "q"), ("other", "p"), ("c", "q")):
        await put_in(journal, run_id, queued(queue))
    assert [await claim(journal) for _ in range(4)] == ["b", "a", "c", None]
    assert await claim(journal, "p") == "other"


async def test_many_callers_never_get_the_same_run(journal: Journal) -> None:
    for number in range(40):
        await put_in(journal, f"r-{number}", queued())
    found = await asyncio.gather(*[claim(journal) for _ in range(50)])
    assert sorted(filter(None, found)) == sorted(f"r-{number}" for number in range(40))


async def test_a_claimed_run_that_is_given_back_waits_again_and_a_finished_one_does_not(
    journal: Journal,
) -> None:
    await put_in(journal, "r", queued())
    writer = await journal.claim("q")
    assert writer is not None
    writer.append([e.RunPaused(at=2.0, reason="cancelled")])
    await writer.release()
    writer = await journal.claim("q")
    assert writer is not None
    ended: list[e.DurableBody] = [
        e.TurnCompleted(at=3.0, turn=1, output="", stop_reason=StopReason.ERROR, error="down"),
        e.RunFinished(at=3.0, stop_reason=StopReason.ERROR, error="down"),
    ]
    writer.append(ended)
    await writer.release()
    assert await claim(journal) is None
    again = await journal.acquire("r")
    again.append([e.RunResumed(at=4.0)])
    await again.release()
    assert await claim(journal) == "r"


async def test_a_run_that_waits_for_somebody_is_claimed_after_the_answer(journal: Journal) -> None:
    await put_in(journal, "r", [*queued(), e.QuestionAsked(at=2.0, question_id="1", text="Which?")])
    assert await claim(journal) is None
    writer = await journal.acquire("r")
    writer.append([e.QuestionAnswered(at=3.0, question_id="1", text="this")])
    await writer.release()
    assert await claim(journal) == "r"


async def test_a_session_is_claimed_only_while_a_turn_is_open(journal: Journal) -> None:
    started, opened = queued()
    done = e.TurnCompleted(at=2.0, turn=1, output="", stop_reason=StopReason.COMPLETED)
    await put_in(journal, "s", [replace(started, is_session=True), opened, done])
    assert await claim(journal) is None
    writer = await journal.acquire("s")
    writer.append([replace(opened, turn=2)])
    await writer.release()
    assert await claim(journal) == "s"


async def test_runs_that_were_imported_called_or_left_out_are_not_claimed(journal: Journal) -> None:
    """An imported run names models, keys and programs, and no worker may act on it because of its label."""
    await put_in(journal, "foreign", queued(), is_imported=True)
    journal.trust("foreign")
    await put_in(journal, "child", queued(caller=Caller("parent", "call")))
    await put_in(journal, "unlabelled", [STARTED])
    await put_in(journal, "skipped", queued())
    await put_in(journal, "last", queued())
    assert await claim(journal, skip=("skipped",)) == "last"
    assert await claim(journal, skip=("skipped",)) is None
    assert await claim(journal) == "skipped"


def lose(journal: TableJournal[Any]) -> None:
    """Make the process of a journal look as if it has ended."""

    def work(db: Any) -> None:
        values = (2**30, journal._leases.owner_id)
        journal._query_in(db)("UPDATE owners SET pid = ?, started = 'never' WHERE id = ?", values)

    journal._committer.submit(work).result()


async def test_runs_that_lost_their_drivers_are_claimed_last(reopen: Callable[[], Journal]) -> None:
    """A run that ends its drivers keeps no other from being driven, and a lease that is given back counts anew."""
    journal = reopen()
    if not isinstance(journal, TableJournal):
        return
    for run_id in ("poison", "good", "other"):
        await put_in(journal, run_id, queued())
    for losses in range(3):
        dying = reopen()
        writer = await dying.claim("q", skip=("good", "other"))
        assert writer is not None
        assert (writer.run_id, writer.losses) == ("poison", losses)
        lose(dying)
        with reopen() as looking:
            assert await claim(looking, skip=("good", "other", "poison")) is None
        dying.close()
    assert await claim(journal) == "good"
    assert await claim(journal) == "other"
    assert await journal.claim("q", max_losses=2) is None
    writer = await journal.claim("q")
    assert writer is not None
    assert (writer.run_id, writer.losses) == ("poison", 3)
    await writer.release()
    writer = await journal.claim("q")
    assert writer is not None
    assert writer.losses == 0
    dying = reopen()
    await put_in(dying, "named", queued())
    held = await dying.acquire("named")
    lose(dying)
    writer = await journal.acquire("named")
    assert writer.losses == 1
    dying.close()
    journal.close()
    del held


async def test_runs_of_others_do_not_hide_those_of_the_user(
    reopen: Callable[[], Journal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at once, and not taken one after another by each claim."""
    monkeypatch.setenv("TREADLE_SECRET", "maker " * 8)
    with reopen() as made:
        if not isinstance(made, TableJournal):
            return
    if (path := tmp_path / "runs.db").exists():  # a copy has no mark of the user who made it
        shutil.copyfile(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
    monkeypatch.setenv("TREADLE_SECRET", "other " * 8)
    with reopen() as theirs:
        for number in range(20):
            await put_in(theirs, f"theirs-{number}", queued())
    monkeypatch.setenv("TREADLE_SECRET", "mine " * 8)
    with reopen() as mine:
        assert isinstance(mine, TableJournal)
        await put_in(mine, "mine-1", queued())
        await put_in(mine, "mine-2", queued())
        assert await claim(mine) == "mine-1"
        count = "SELECT sum(token) FROM runs WHERE substr(run_id, 1, 6) = 'theirs'"
        before = mine._reader.query(count)
        assert await claim(mine) == "mine-2"
        assert await claim(mine) is None
        assert mine._reader.query(count) == before
        mine.trust("theirs-3")
        assert await claim(mine) == "theirs-3"


async def test_news_tell_what_was_kept_since_they_were_asked_last(journal: Journal) -> None:
    news = journal.news()
    assert not await news.wait(0)
    await put_in(journal, "r", queued())
    assert await news.wait(30)
    while await news.wait(0.2):  # a store may tell again what it told before
        pass
    waiting = asyncio.ensure_future(news.wait(30))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    writer = await journal.claim("q")
    assert writer is not None
    writer.append([note("1")])
    await writer.sync()
    assert await waiting


async def test_runs_are_listed_by_their_ids(journal: Journal) -> None:
    for run_id in ("a", "b", "c"):
        await put_in(journal, run_id, queued())
    found = journal.runs(RunFilter(run_ids=["c", "a", "x"]))
    assert [info.run_id for info in found] == ["a", "c"]
    assert journal.runs(RunFilter(run_ids=[])) == []


def texts(journal: Journal, run_id: str = "r", after: int = 0) -> list[tuple[int, str]]:
    """The notes in an inbox."""
    found = journal.inbox(run_id, after)
    return [(item.number, item.message.remark or "") for item in found if isinstance(item.message, Note)]


async def take(writer: RunWriter, number: int) -> None:
    """Take in the messages up to a number, as a driver does."""
    writer.append([e.Noted(at=5.0, inbox=number)])
    writer.take_in(number)
    await writer.sync()


async def test_messages_are_stored_at_once_and_in_order(reopen: Callable[[], Journal]) -> None:
    journal = reopen()
    writer = journal.create("r")
    writer.append([STARTED])  # a run that is only appended exists for those who write to it
    futures = [journal.posting("r", Note(remark=f"m{number}")) for number in range(1, 7)]
    assert [await asyncio.wrap_future(future) for future in futures] == [1, 2, 3, 4, 5, 6]
    assert writer.driven.newest == 6
    assert texts(journal) == [(number, f"m{number}") for number in range(1, 7)]
    assert texts(journal, after=4) == [(5, "m5"), (6, "m6")]
    if not isinstance(journal, MemoryJournal):
        journal.close()
        journal = reopen()
        assert len(texts(journal)) == 6
    journal.close()


async def test_every_kind_of_message_is_read_as_it_was_sent(journal: Journal) -> None:
    await write(journal, "r", STARTED)
    said = Message(Role.USER, "é\0\n", parts=(Artifact("image", hashlib.sha256(b"x").hexdigest()),))
    sent: list[InboxMessage] = [
        *(Steer(said), Enqueue(said), Interrupt(said), Withdraw(said)),
        *(GiveAnswer("q", "yes"), GiveAnswer("q", is_declined=True)),
        *(DecideCall("c", True), DecideCall("c", False, "no"), Cancel("stop"), Cancel()),
        Note(labels={"a": "b", "c": None}, remark="r", by="me"),
    ]
    for message in sent:
        journal.post("r", message, {hashlib.sha256(b"x").hexdigest(): b"x"})
    assert [item.message for item in journal.inbox("r")] == sent
    assert [item.number for item in journal.inbox("r")] == list(range(1, len(sent) + 1))
    assert journal.read_blob(hashlib.sha256(b"x").hexdigest()) == b"x"


async def test_a_message_may_be_nested_as_deep_as_other_json(journal: Journal) -> None:
    """A deeper one could be read or not, as the stack of its reader allows."""

    def say(levels: int) -> Steer:
        deep: dict[str, Any] = {"a": 1}
        for _ in range(levels - 1):
            deep = {"a": deep}
        call = ToolCall("1", "f", "{}", opaque=deep)
        return Steer(Message(Role.USER, "x", (call,), opaque=deep))

    await write(journal, "r", STARTED)
    journal.post("r", say(100))
    assert [item.message for item in journal.inbox("r")] == [say(100)]
    for levels in (102, 900):
        with pytest.raises(ConfigError, match="nested more than 100 levels deep"):
            journal.post("r", say(levels))
    assert "nested more than" in str(decode_message(1, b'{"type":"note","labels":' + b"[" * 105).fault)


async def test_a_message_to_no_run_is_refused(journal: Journal) -> None:
    with pytest.raises(RunNotFoundError, match="'r' not found"):
        journal.post("r", Cancel())
    with pytest.raises(RunNotFoundError, match="'r' not found"):
        await asyncio.wrap_future(journal.posting("r", Cancel()))
    with pytest.raises(RunNotFoundError, match="'r' not found"):
        journal.inbox("r")


async def test_a_message_is_forgotten_once_it_is_taken_in(reopen: Callable[[], Journal]) -> None:
    journal = reopen()
    writer = journal.create("r")
    writer.append([STARTED])
    await writer.sync()
    for number in range(1, 6):
        journal.post("r", Note(remark=f"m{number}"))
    await take(writer, 3)
    assert texts(journal) == [(4, "m4"), (5, "m5")]
    await take(writer, 5)
    assert texts(journal) == []
    # The numbers go on, also for another process.
    assert journal.post("r", Note(remark="m6")) == 6
    await take(writer, 6)
    await writer.release()
    await writer.sync()
    journal.close()
    with reopen() as journal:
        assert journal.post("r", Note(remark="m7")) == 7
        writer = await journal.acquire("r")
        assert writer.driven.newest == 7
        assert texts(journal) == [(7, "m7")]
        await writer.release()
        await writer.sync()


async def test_who_drives_a_run_is_told_of_messages_of_other_processes(reopen: Callable[[], Journal]) -> None:
    journal, other = reopen(), reopen()
    writer = journal.create("r")
    writer.append([STARTED])
    await writer.sync()
    heard: list[str] = []
    has_heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(kind: str) -> None:
        heard.append(kind)
        loop.call_soon_threadsafe(has_heard.set)

    writer.driven.attend(hear)
    for kind, message in (("cancel", Cancel()), ("note", Note(remark="n")), ("interrupt", Interrupt(USER))):
        has_heard.clear()
        await asyncio.to_thread(other.post, "r", message)
        await asyncio.wait_for(has_heard.wait(), 30)
        assert heard.pop() == kind
        assert not heard
    assert writer.driven.newest == 3
    await writer.release()
    await writer.sync()
    other.close()
    journal.close()


async def test_messages_of_many_processes_get_one_number_each(reopen: Callable[[], Journal]) -> None:
    journals = [reopen() for _ in range(3)]
    await write(journals[0], "r", STARTED)
    await write(journals[0], "s", STARTED)

    def send(journal: Journal) -> list[int]:
        return [journal.post("r" if number % 3 else "s", Note(remark="x")) for number in range(30)]

    numbers = await asyncio.gather(*[asyncio.to_thread(send, journal) for journal in journals])
    assert all(part[1::3] == sorted(part[1::3]) for part in numbers)
    assert [number for number, _ in texts(journals[1])] == list(range(1, 61))
    assert [number for number, _ in texts(journals[1], "s")] == list(range(1, 31))
    for journal in journals:
        journal.close()


@pytest.mark.sets(0)
async def test_many_messages(journal: Journal) -> None:
    count = 10_000 if IS_FULL else 500
    writer = journal.create("r")
    writer.append([STARTED])
    await writer.sync()
    futures = [journal.posting("r", Note(remark=str(number))) for number in range(count)]
    assert [await asyncio.wrap_future(future) for future in futures] == list(range(1, count + 1))
    assert [int(text) for _, text in texts(journal)] == list(range(count))
    await take(writer, count)
    assert texts(journal) == []


async def test_a_message_that_came_before_a_release_is_known_when_the_release_is_durable(
    reopen: Callable[[], Journal],
) -> None:
    journal, other = reopen(), reopen()
    writer = journal.create("r")
    writer.append([STARTED])
    await writer.sync()
    for number in range(1, 6):
        assert writer.driven.newest < number
        await asyncio.to_thread(other.post, "r", Note(remark="m"))
        await writer.release()
        await writer.sync()
        assert writer.driven.newest == number
        writer = await journal.acquire("r")
        await take(writer, number)
    await writer.release()
    await writer.sync()
    other.close()
    journal.close()


async def test_a_writer_that_lost_its_run_forgets_no_message(
    reopen: Callable[[], Journal],
) -> None:
    stale, other = reopen(), reopen()
    if not isinstance(other, TableJournal):
        pytest.skip("nobody takes a run over in memory")
    writer = stale.create("r")
    writer.append([STARTED])
    await writer.sync()
    other.post("r", Note(remark="m1"))
    take_over(other)
    with pytest.raises(LeaseLostError):
        await take(writer, 1)
    assert texts(other) == [(1, "m1")]
    await writer.release()
    stale.close()
    other.close()


def take_over(journal: TableJournal[Any]) -> None:
    """Give the leases of all runs higher tokens, as another process does that takes them over."""

    def work(db: Any) -> None:
        query = journal._query_in(db)
        query("UPDATE runs SET token = token + 1, owner = NULL", ())
        fence = (
            "meta SET takeovers = takeovers"
            if isinstance(journal, SqliteJournal)
            else "heads SET token = token"
        )
        query(f"UPDATE {fence} + 1", ())

    journal._committer.submit(work).result()


async def test_messages_are_numbered_after_those_that_were_copied(journal: Journal) -> None:
    copied = [e.Event("x", 1, STARTED), e.Event("x", 2, e.Noted(at=2.0, inbox=7))]
    writer = journal.create("r", is_imported=True)
    writer.append_events(copied)
    await writer.release()
    await writer.sync()
    assert journal.post("r", Note(remark="m")) == 8
    assert texts(journal) == [(8, "m")]


async def test_deleting_a_run_deletes_its_messages_and_keeps_what_others_need(journal: Journal) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    said = Message(Role.USER, "see", parts=(Artifact("image", digest),))
    for name in ("r", "s"):
        await write(journal, name, STARTED)
        journal.post(name, Enqueue(said), {digest: b"x"})
    journal.delete("r")
    with pytest.raises(RunNotFoundError):
        journal.inbox("r")
    await write(journal, "r", STARTED)
    assert journal.inbox("r") == []
    assert journal.read_blob(digest) == b"x"
    assert len(journal.inbox("s")) == 1


async def test_a_message_to_a_run_with_a_long_id_arrives(reopen: Callable[[], Journal]) -> None:
    with reopen() as journal, reopen() as other:
        run_id = "\ufffe" * 2000
        writer = journal.create(run_id)
        writer.append([STARTED])
        await writer.sync()
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()
        writer.driven.attend(lambda kind: loop.call_soon_threadsafe(arrived.set) and None)
        assert other.post(run_id, Note(remark="m")) == 1
        await asyncio.wait_for(arrived.wait(), 30)
        assert texts(journal, run_id) == [(1, "m")]
        await writer.release()


async def test_sessions_are_found_by_what_was_said(journal: Journal) -> None:
    """Only those that may have the text are read, however its characters are folded or were escaped."""
    said = ["plain TEXT", 'a "quoted\\path"', "Straße", "STRASSE", "5 \u212a", "tab\there", "ﬁne"]
    started = replace(STARTED, is_session=True)
    for number, text in enumerate(said):
        turn = e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, f"{text}\nsecond line"))
        await write(journal, str(number), started, turn)
    escaped = b'{"type":"turn_started","at":1.0,"turn":1,"message":{"role":"user","content":"caf\\u00e9"}}'
    event = e.Event("imported", 2, e.decode_body(escaped), escaped)
    writer = journal.create("imported", is_imported=True)
    writer.append_events([e.Event("imported", 1, started), event])
    await writer.release()
    await writer.sync()
    for text in (
        "Text",
        "QUOTED\\",
        "straSSE",
        "STRAßE",
        "5 k",
        "5 \u212a",
        "\t",
        "FINE",
        "CAFÉ",
        "second",
        "none",
    ):
        found = {match.run_id for match in search_sessions(journal, text)}
        wanted = text.casefold()
        right = {str(number) for number, item in enumerate(said) if wanted in item.casefold()}
        right |= {str(number) for number in range(len(said))} if text == "second" else set()
        assert found == (right | {"imported"} if text == "CAFÉ" else right), text
        if isinstance(journal, TableJournal):
            assert found <= set(journal.find_runs(text))
            assert text != "STRAßE" or len(journal.find_runs(text)) == 3  # the imported one is escaped


async def test_single_runs_are_found_by_what_was_said(journal: Journal) -> None:
    """A search of runs finds them too, and one of sessions alone does not."""
    await write(journal, "one", *start(1))
    await write(journal, "talk", *start(2, is_session=True))
    assert journal.find_runs("INPUT") == ["one", "talk"]
    assert {match.run_id for match in search_sessions(journal, "input")} == {"talk"}


async def test_labels_of_notes_are_listed(journal: Journal) -> None:
    await write(journal, "r", replace(STARTED, metadata={"a": "1", "b": "2"}))
    writer = await journal.acquire("r")
    writer.append([e.Noted(at=2.0, labels={"a": "3", "c": "4", "b": None}), e.Noted(at=3.0, remark="only")])
    await writer.release()
    await writer.sync()
    assert journal.runs()[0].labels == {"a": "3", "c": "4"}
    assert [info.run_id for info in journal.runs(RunFilter(labels={"c": "4"}))] == ["r"]
    assert journal.runs(RunFilter(labels={"b": "2"})) == []


async def test_a_run_that_was_cancelled_from_outside_is_not_claimed(journal: Journal) -> None:
    """Who follows it sees its end."""
    queued = replace(STARTED, metadata={QUEUE: "q"})
    turn = e.TurnStarted(at=2.0, turn=1, message=USER)
    writer = journal.create("r")
    writer.append([queued, turn, e.RunPaused(at=3.0, reason="cancelled", inbox=1)])
    await writer.release()
    await writer.sync()
    assert await journal.claim("q") is None
    async with asyncio.timeout(30):
        assert [event.type async for event in journal.follow("r")][-1] == "run_paused"
    writer = await journal.acquire("r")
    writer.append([e.RunResumed(at=4.0)])
    await writer.release()
    await writer.sync()
    claimed = await journal.claim("q")
    assert claimed is not None
    await claimed.release()


def test_resources_are_kept_beside_runs(reopen: Callable[[], Journal]) -> None:
    now = 1000.0
    with reopen() as journal:
        table = journal.resources
        for number in range(5):
            made = Resource(
                kind="file",
                resource_id=f"x{number}",
                owner="k\0m" if number % 2 else "",
                created_at=now + number,
                expires_at=now + 50 if number == 4 else None,
                body='{"a": "é"}',
            )
            table.add([made], now, b"\0%d" % number)
    with reopen() as journal:
        table = journal.resources

        def page(**chosen: Any) -> list[str]:
            found = table.page(ResourceFilter(kind="file", **chosen), now)
            return [item.resource_id for item in found]

        assert page() == ["x0", "x1", "x2", "x3", "x4"]
        assert page(limit=2, after="x1") == ["x2", "x3"]
        assert page(limit=2, before="x3") == ["x1", "x2"]
        assert page(limit=2, after="x3", newest_first=True) == ["x2", "x1"]
        assert page(limit=2, before="x1", newest_first=True) == ["x3", "x2"]
        assert page(owner="k\0m") == ["x1", "x3"]
        assert page(after="none") == []
        first = table.get("file", "x1", now)
        assert first is not None
        assert (first.body, first.owner, table.content(first)) == ('{"a": "é"}', "k\0m", b"\x001")
        assert table.get("file", "x4", now + 50) is None
        assert table.get("file", "\ud800\0", now) is None
        mark = table.tally("file", "").mark
        assert table.replace(first, replace(first, state="in_progress", size_bytes=7), b"new")
        assert not table.replace(first, first)  # another change came first
        assert table.content(first) == b"new"
        assert [item.version for item in table.unfinished("file")] == [2]
        tally = table.tally("file", "")
        assert (tally.counts, tally.size_bytes) == ({"completed": 4, "in_progress": 1}, 7)
        assert tally.mark != mark
        child = Resource(kind="child", parent="x0", resource_id="x1", created_at=now)
        table.add([child, replace(child, parent="x2"), child], now)
        assert table.delete("file", "x0", children=("child",))
        assert table.get("child", "x1", now, "x0") is None
        assert table.get("child", "x1", now, "x2") is not None
        assert table.delete("file", "x1", namesakes=("child",))
        assert table.get("child", "x1", now, "x2") is None
        assert not table.delete("file", "x1")
        table.add([replace(child, resource_id="new")], now + 60)
        assert page() == ["x2", "x3"]
        assert journal.runs() == []
