"""Journals as JSON lines: export and import give the same journal, and an invalid file is refused as a whole."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Agent, RunExistsError, RunNotFoundError, ScriptedModel
from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.parts import make_part
from treadle.core.policy import Policy
from treadle.core.types import FileDelta, Message, Role, StopReason
from treadle.journal.jsonl import Imported, export_run, import_lines
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.models.scripted import call

Json = Any


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _line(body: dict[str, Json], seq: int = 1, run_id: str = "r") -> bytes:
    return json.dumps({"run_id": run_id, "seq": seq, **body}, separators=(",", ":")).encode()


STARTED = {"type": "run_started", "at": 1.0, "policy": {}, "version": "1.0"}
TURN = {"type": "turn_started", "at": 2.0, "turn": 1, "message": {"role": "user", "content": "hi"}}


def _snapshot(files: dict[str, bytes], **changes: Json) -> dict[str, Json]:
    """Return a snapshot of files, by name, with their contents."""
    return {
        "type": "snapshot_taken",
        "at": 2.0,
        "snapshot_id": "s",
        "delta": {"changed": {name: _digest(content) for name, content in files.items()}},
        "contents": {_digest(content): base64.b64encode(content).decode() for content in files.values()},
        **changes,
    }


@pytest.fixture(params=["memory", "sqlite"])
def make_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    count = iter(range(100))
    return lambda: open_journal("memory:" if request.param == "memory" else tmp_path / f"{next(count)}.db")


_texts = st.text(max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_contents = st.dictionaries(st.sampled_from(["a", "b/c", "ü"]), st.binary(max_size=40), min_size=1)


@st.composite
def _runs(draw: st.DrawFn) -> list[tuple[list[e.DurableBody], dict[str, bytes]]]:
    """Return a strategy for runs: their events, and the contents that the events name."""
    runs = []
    for _ in range(draw(st.integers(1, 3))):
        bodies: list[e.DurableBody] = [
            e.RunStarted(at=1.0, policy=Policy(), version=e.VERSION, metadata={"x": draw(_json)})
        ]
        blobs: dict[str, bytes] = {}
        for at in range(draw(st.integers(0, 5))):
            if draw(st.booleans()):
                files = draw(_contents)
                blobs |= {_digest(content): content for content in files.values()}
                delta = FileDelta({name: _digest(content) for name, content in files.items()})
                bodies.append(e.SnapshotTaken(at=float(at), snapshot_id="s", delta=delta))
            else:
                message = Message(Role.USER, draw(_texts), opaque={"o": draw(_json)})
                bodies.append(e.MessageInjected(at=draw(st.floats(0, 1e12)), message=message))
        runs.append((bodies, blobs))
    return runs


@given(_runs(), st.dictionaries(st.text("xyz", min_size=1, max_size=3), _json, max_size=2))
async def test_export_import_export_is_the_identity(
    runs: list[tuple[list[e.DurableBody], dict[str, bytes]]], unknown: dict[str, Json]
) -> None:
    first, second = MemoryJournal(), MemoryJournal()
    for number, (bodies, blobs) in enumerate(runs):
        # A newer minor version could have written this.
        raws = [json.dumps({**json.loads(e.encode_body(body)), **unknown}).encode() for body in bodies]
        writer = first.create(f"run {number}")
        events = [e.Event("", 0, body, raw) for body, raw in zip(bodies, raws, strict=True)]
        writer.append_events(events, blobs)
        await writer.release()
    run_ids = [f"run {number}" for number in range(len(runs))]
    lines = [line for run_id in run_ids for line in export_run(first, run_id)]
    assert list((await import_lines(second, lines)).added) == run_ids
    again = [line for run_id in run_ids for line in export_run(second, run_id)]
    # The first import drops white space between fields; after that, every byte is kept.
    assert [json.loads(line) for line in again] == [json.loads(line) for line in lines]
    third = MemoryJournal()
    await import_lines(third, again)
    assert [line for run_id in run_ids for line in export_run(third, run_id)] == again
    for run_id, (bodies, blobs) in zip(run_ids, runs, strict=True):
        assert [event.body for event in second.read(run_id)] == bodies
        assert all(second.read_blob(digest) == content for digest, content in blobs.items())


async def test_a_run_comes_back_whole(make_journal: Callable[[], Journal]) -> None:
    source, target = make_journal(), make_journal()
    script = [[call("write_file", {"file_path": "b.txt", "content": "two"})], "done"]
    agent = Agent(ScriptedModel(script), tools=["files"], journal=source, files={"a.txt": "one"})
    run = await agent.run("go", run_id="r")
    lines = list(export_run(source, "r"))
    assert await import_lines(target, lines) == Imported(("r",), ())
    assert list(export_run(target, "r")) == lines
    assert [event.to_json() for event in target.read("r")] == [event.to_json() for event in source.read("r")]
    info = target.runs()[0]
    assert (info.status, info.stop_reason, info.is_driven) == ("finished", "completed", False)
    forked = await Agent(ScriptedModel(["again"]), journal=target).fork("r", text="more", trust=True)
    assert forked.files == run.files == {"a.txt": b"one", "b.txt": b"two"}
    source.close()
    target.close()


async def test_the_files_of_a_history_travel_and_stay(make_journal: Callable[[], Journal]) -> None:
    journal, other, old = make_journal(), make_journal(), make_journal()
    part, blobs = make_part(b"\x89PNG" * 30_000, "image/png")
    digest = str(part.digest)
    history = [Message(Role.USER, "look", parts=(part,)), Message(Role.ASSISTANT, "nice")]
    agent = Agent(ScriptedModel(["one", "two"]), journal=journal)
    async with agent.session("r", history=history, begins_with_message=True) as session:
        await session.send("more", blobs=blobs)
    lines = list(export_run(journal, "r"))
    await import_lines(other, lines)
    assert other.read_blob(digest) == blobs[digest]
    # Lines that an earlier version has exported lack it.
    bare_line = json.loads(lines[0])
    assert bare_line.pop("contents") == {digest: base64.b64encode(blobs[digest]).decode()}
    del bare_line["export"]
    await import_lines(old, [json.dumps(bare_line).encode()])
    assert old.runs()[0].run_id == "r"


async def test_an_unfinished_run_can_be_resumed_elsewhere(make_journal: Callable[[], Journal]) -> None:
    journal = make_journal()
    await import_lines(journal, [_line(STARTED), _line(TURN, 2)])
    assert journal.runs()[0].status == "running"
    run = await Agent(ScriptedModel(["hello"]), journal=journal).resume("r", trust=True)
    assert (run.stop_reason, run.output) == (StopReason.COMPLETED, "hello")
    journal.close()


async def test_what_is_not_known_is_kept_byte_for_byte(make_journal: Callable[[], Journal]) -> None:
    journal = make_journal()
    lines = [
        b'{"run_id":"r","seq":1,"type":"run_started","at":1.0,"policy":{},"version":"1.9","n":{"b": 1.50,"a":[ ]}}',
        b'{"run_id":"r","seq":2,"type":"turn_started","at":2,"turn":1,"message":{"role":"user","extra":1e2}}',
    ]
    await import_lines(journal, lines)
    assert [bare(line) for line in export_run(journal, "r")] == lines
    journal.close()


def bare(line: bytes) -> bytes:
    """Return a line as an older Treadle exported it, without its checksum."""
    return re.sub(rb',"export":\{[^}]*\}\}$', b"}", line)


async def test_what_was_changed_after_the_export_is_refused(make_journal: Callable[[], Journal]) -> None:
    source = make_journal()
    for run_id in ("r", "q"):
        turns = [_line({**TURN, "turn": number}, number + 1, run_id) for number in (1, 2, 3)]
        await import_lines(source, [_line(STARTED, run_id=run_id), *turns])
    lines, others = list(export_run(source, "r")), list(export_run(source, "q"))
    spaced = [json.dumps(dict(reversed(json.loads(line).items())), indent=None).encode() for line in lines]
    for whole in ([*lines, *others], [bare(line) for line in lines], spaced):
        await import_lines(MemoryJournal(), whole)
    moved = [line.replace(b'"run_id":"q"', b'"run_id":"r"') for line in others]
    changed = lines[2].replace(b'"turn":2', b'"turn":7')
    for broken in (
        lines[:3],
        lines[:1],
        [*lines[:2], changed, lines[3]],
        [*lines[:2], bare(changed), lines[3]],
        [*lines[:2], moved[2], lines[3]],
        [lines[0], *moved[1:]],
        [bare(lines[0]), *lines[1:]],
        [lines[0].replace(b'"events":4', b'"events":5'), *lines[1:]],
        [lines[0].replace(b'"checksum":', b'"checksum":"x'), *lines[1:]],
    ):
        target = make_journal()
        with pytest.raises(JournalError):
            await import_lines(target, broken)
        target.close()
    source.close()


async def test_runs_may_be_mixed_and_lines_end_in_any_way(make_journal: Callable[[], Journal]) -> None:
    journal = make_journal()
    lines = [
        _line(STARTED, run_id="a") + b"\r\n",
        b"\n",
        _line(STARTED, run_id="b") + b"\n",
        _line(TURN, 2, run_id="a").replace(b'"at":', b'"at":\r'),
        _line({**TURN, "message": {"role": "user", "x": [1]}}, 2, "b").replace(b"[1]", b"[\r1]"),
    ]
    assert await import_lines(journal, lines) == Imported(("a", "b"), ())
    assert [(event.seq, event.type) for event in journal.read("b")] == [
        (1, "run_started"),
        (2, "turn_started"),
    ]
    journal.close()


async def test_stored_events_carry_no_contents(make_journal: Callable[[], Journal]) -> None:
    journal = make_journal()
    await import_lines(journal, [_line(STARTED), _line(_snapshot({"a": b"one", "b": b"one"}), 2)])
    body = journal.read("r")[1].body
    assert isinstance(body, e.SnapshotTaken)
    assert body.contents is None
    assert b"contents" not in (journal.read("r")[1].raw or b"")
    assert journal.read_blob(_digest(b"one")) == b"one"
    journal.close()


async def test_a_content_travels_once_a_run(make_journal: Callable[[], Journal]) -> None:
    journal = make_journal()
    lines = [_line(STARTED), _line(_snapshot({"a": b"one"}), 2)]
    later = _snapshot({"b": b"one", "c": b"two"})
    del later["contents"][_digest(b"one")]
    await import_lines(journal, [*lines, _line(later, 3)])
    assert [list(json.loads(line).get("contents", {})) for line in export_run(journal, "r")] == [
        [],
        [_digest(b"one")],
        [_digest(b"two")],
    ]
    journal.close()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b"not json"], "line 1: not a line of a Treadle journal"),
        ([b"[]"], "line 1: not a line of a Treadle journal"),
        (
            [_line(STARTED), b"", _line({"type": "cake_baked", "at": 1}, 2)],
            "line 3: unknown event type 'cake_baked'",
        ),
        ([_line({**STARTED, "version": "3.0"})], "line 1: this run was written by a newer Treadle"),
        ([_line(STARTED), _line(TURN, 3)], "line 2: event 3 of run 'r' stands where event 2 is expected"),
        ([_line(STARTED), _line(TURN, 1)], "line 2: event 1 of run 'r' stands where event 2 is expected"),
        ([_line(STARTED, 2)], "line 1: event 2 of run 'r' stands where event 1 is expected"),
        ([_line(TURN)], "line 1: event 1 of run 'r' is turn_started; a run begins with run_started"),
        ([_line(STARTED), _line(STARTED, 2)], "line 2: event 2 of run 'r' is run_started"),
        ([_line(STARTED), _line({**TURN, "turn": "one"}, 2)], "line 2: a damaged event"),
        ([_line(STARTED), _line(_snapshot({"a": b"x"}, contents={_digest(b"x"): "!"}), 2)], "is not base64"),
        ([_line(STARTED), _line(_snapshot({"a": b"x"}, contents={_digest(b"x"): "eQ=="}), 2)], "is damaged"),
        ([_line(STARTED), _line(_snapshot({"a": b"x"}, contents={}), 2)], "of 'a' is missing"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_kept(
    make_journal: Callable[[], Journal], lines: list[bytes], message: str
) -> None:
    journal = make_journal()
    with pytest.raises(JournalError) as caught:
        await import_lines(journal, [_line(STARTED, run_id="good"), *lines])
    expected = message
    if message.startswith("line "):
        number, _, rest = message.removeprefix("line ").partition(":")
        expected = f"line {int(number) + 1}:{rest}"
    assert expected in str(caught.value)
    assert journal.runs() == []
    journal.close()


async def test_a_run_that_is_there_is_imported_once(make_journal: Callable[[], Journal]) -> None:
    journal = make_journal()
    await import_lines(journal, [_line(STARTED), _line(TURN, 2)])
    again = await import_lines(journal, [_line(STARTED, run_id="new"), _line(STARTED), _line(TURN, 2)])
    assert again == Imported(("new",), ("r",))
    shorter = await import_lines(journal, [_line(STARTED)])
    assert shorter == Imported((), ("r",)), "the journal may have more events of the run"
    assert [info.events for info in journal.runs()] == [2, 1]
    journal.close()


@pytest.mark.parametrize(
    ("lines", "seq"),
    [
        ([_line({**STARTED, "at": 5.0})], 1),
        ([_line(STARTED), _line(TURN, 2), _line({**TURN, "turn": 2}, 3)], 3),
    ],
)
async def test_a_run_that_differs_is_refused(
    make_journal: Callable[[], Journal], lines: list[bytes], seq: int
) -> None:
    journal = make_journal()
    await import_lines(journal, [_line(STARTED), _line(TURN, 2)])
    with pytest.raises(
        RunExistsError, match=f"run 'r' is in this journal already, and its event {seq} differs"
    ):
        await import_lines(journal, [_line(STARTED, run_id="new"), *lines])
    assert [info.run_id for info in journal.runs()] == ["r"]
    journal.close()


def test_a_run_that_is_not_there_is_told(make_journal: Callable[[], Journal]) -> None:
    journal = make_journal()
    with pytest.raises(RunNotFoundError):
        list(export_run(journal, "r"))
    journal.close()
