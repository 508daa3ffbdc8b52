"""A damaged file never changes in silence what is read: reads give what was written, or a JournalError."""

import asyncio
import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from treadle import Agent, JournalError, ScriptedModel, open_journal, tool
from treadle.core import events as e
from treadle.core.policy import Policy
from treadle.journal.check import Check
from treadle.journal.jsonl import import_lines
from treadle.journal.protocol import Journal
from treadle.journal.run_info import DAMAGED, RunInfo
from treadle.models import call
from treadle.tools.context import ToolContext

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
FLIPS = 5000 if IS_FULL else 30
PAGE = 4096
GOLDEN = sorted((Path(__file__).parent.parent / "data").glob("*.jsonl"))


class Written(NamedTuple):
    """What was written to the journal."""

    path: Path
    events: dict[str, list[bytes]]
    contents: dict[str, bytes]
    infos: dict[str, RunInfo]


@tool
def grow(context: ToolContext) -> str:
    """Make the file larger, and a state."""
    assert context.sandbox is not None
    content = context.sandbox.read("notes")
    context.sandbox.write("notes", content + b"a line that is new: %d\n" % len(content))
    context.sandbox.write_state("grow", b"%d" % len(content))
    return "grown"


async def write(path: Path) -> None:
    with open_journal(path) as journal:
        for golden in GOLDEN:
            await import_lines(journal, golden.read_bytes().splitlines())
        model = ScriptedModel([*[[call("grow")] for _ in range(12)], "done"])
        agent = Agent(model, tools=[grow], journal=journal, policy=Policy(max_steps=None))
        await agent.run("Grow it.", run_id="grown", files={"notes": b"the first line\n" * 60})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("whole") / "runs.db"
    asyncio.run(write(path))
    with open_journal(path) as journal:
        infos = {info.run_id: info for info in journal.runs()}
        events = {run_id: journal.read(run_id) for run_id in infos}
        named = {digest for run in events.values() for event in run for digest in e.digests_of(event.body)}
        return Written(
            path,
            {run_id: [event.raw or b"" for event in run] for run_id, run in events.items()},
            {digest: journal.read_blob(digest) for digest in named},
            infos,
        )


def told(read: Callable[[], object], right: object) -> bool:
    """Check that `read` returns `right` or raises a `JournalError`; return True if it raised."""
    try:
        found = read()
    except JournalError:
        return True
    assert found == right
    return False


def raws_of(journal: Journal, run_id: str) -> list[bytes]:
    return [event.raw or b"" for event in journal.read(run_id)]


def look(journal: Journal, written: Written) -> list[str]:
    """Read everything, check that nothing has changed in silence, and return what could not be read."""
    damaged = [
        run_id for run_id, raws in written.events.items() if told(partial(raws_of, journal, run_id), raws)
    ]
    for digest, content in written.contents.items():
        if told(partial(journal.read_blob, digest), content):
            damaged.append(digest)
    try:
        listed = journal.runs()
    except JournalError:
        return [*damaged, "the listing"]
    for info in listed:
        if info.status == DAMAGED:
            assert info.error
            damaged.append(info.run_id)
        else:
            assert info == written.infos[info.run_id]
    assert len(listed) >= len(written.infos)
    return damaged


def is_reported(journal: Journal, written: Written) -> bool:
    """Return whether a check of the journal finds something wrong."""
    check = Check(journal)
    return any(check.check_store()) or any(check.check_run(run_id).problems for run_id in written.events)


def outcome(path: Path, written: Written) -> str:
    """Return how the damage of a copy of the journal shows itself."""
    try:
        journal = open_journal(path)
    except JournalError:
        return "cannot be opened"
    with journal:
        damaged = look(journal, written)
        if damaged:
            assert is_reported(journal, written), damaged
            return "is damaged"
        return "is found by the check" if is_reported(journal, written) else "is harmless"


def test_the_whole_journal_is_whole(written: Written) -> None:
    assert outcome(written.path, written) == "is harmless"
    assert any(len(raws) > 40 for raws in written.events.values())


def spoil(written: Written, path: Path, change: Callable[[bytearray], object]) -> str:
    """Change a copy of the journal at `path`, and return how that shows itself."""
    content = bytearray(written.path.read_bytes())
    change(content)
    path.write_bytes(content)
    try:
        return outcome(path, written)
    finally:
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()


def flip(bit: int, content: bytearray) -> None:
    content[bit // 8] ^= 1 << bit % 8


def test_flipped_bits_change_nothing_in_silence(written: Written, tmp_path: Path) -> None:
    size, chance = written.path.stat().st_size, random.Random(7)
    found: Counter[str] = Counter()
    for _ in range(FLIPS):
        bit = chance.randrange(8 * size)
        try:
            found[spoil(written, tmp_path / "runs.db", partial(flip, bit))] += 1
        except Exception as error:
            error.add_note(f"bit {bit % 8} of byte {bit // 8} was flipped")
            raise
    assert found["is damaged"] > FLIPS / 4, found


def test_flipped_bits_in_the_headers_of_pages(written: Written, tmp_path: Path) -> None:
    """The first bytes of a page say where its rows are."""
    size = written.path.stat().st_size
    bits = [
        8 * byte + bit for page in range(0, size, PAGE) for byte in range(page, page + 20) for bit in range(8)
    ]
    for bit in bits if IS_FULL else random.Random(7).sample(bits, 50):
        spoil(written, tmp_path / "runs.db", partial(flip, bit))


def test_zeroed_pages_are_found(written: Written, tmp_path: Path) -> None:
    pages = range(0, written.path.stat().st_size, PAGE)
    for page in pages if IS_FULL else pages[::4]:

        def zero(content: bytearray, page: int = page) -> None:
            content[page : page + PAGE] = bytes(PAGE)

        assert spoil(written, tmp_path / "runs.db", zero) != "is harmless"


def test_a_zeroed_table_is_found(written: Written, tmp_path: Path) -> None:
    with sqlite3.connect(written.path) as db:
        roots = db.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0").fetchall()
    db.close()
    for name, root in roots:

        def zero(content: bytearray, begin: int = PAGE * (root - 1)) -> None:
            content[begin : begin + PAGE] = bytes(PAGE)

        assert spoil(written, tmp_path / "runs.db", zero) != "is harmless", name


def test_a_header_that_joins_two_columns_is_found(written: Written, tmp_path: Path) -> None:
    """One bit does it. All later columns are read one place too early, and there is no checksum."""
    shutil.copy(written.path, path := tmp_path / "runs.db")
    change(
        path,
        "UPDATE runs SET reward = has_failed, has_failed = checksum, checksum = NULL WHERE run_id = 'plain'",
    )
    with open_journal(path) as journal:
        assert "plain" in look(journal, written)
        assert is_reported(journal, written)


def test_a_file_that_was_cut_is_found(written: Written, tmp_path: Path) -> None:
    size = written.path.stat().st_size
    for cut in (1, 99, 300, 600, 3000, 5000, *range(PAGE, size, PAGE if IS_FULL else size // 12)):

        def shorten(content: bytearray, cut: int = cut) -> None:
            del content[cut:]

        assert spoil(written, tmp_path / "runs.db", shorten) != "is harmless"


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


FRAME_OF = "(SELECT frame FROM heads JOIN runs ON runs.id = run WHERE run_id = '{}')"


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE frames SET previous = id WHERE id = {plain}", "does not continue the one before it"),
        ("UPDATE frames SET previous = {grown} WHERE id = {plain}", "does not continue the one before it"),
        ("UPDATE frames SET run = 99 WHERE id = {plain}", "missing or belongs to another run"),
        ("UPDATE frames SET seq = seq + 1 WHERE id = {plain}", "missing or belongs to another run"),
        ("UPDATE frames SET count = 1 WHERE id = {plain}", "other content"),
        ("UPDATE frames SET at = 'x', body = body || x'0a' WHERE id = {plain}", "other content"),
        ("UPDATE frames SET body = CAST(body AS TEXT) WHERE id = {plain}", "other content"),
        ("DELETE FROM frames WHERE id = {plain}", "missing"),
        ("UPDATE heads SET frame = {grown} WHERE frame = {plain}", "another run"),
        (
            "UPDATE heads SET frame = (SELECT previous FROM frames WHERE id = {grown}) WHERE frame = {grown}",
            "of them were found",
        ),
        ("UPDATE heads SET steps = 7 WHERE frame = {plain}", "in the table `heads`"),
        ("DELETE FROM heads WHERE frame = {plain}", "in the table `heads`"),
        (
            "UPDATE frames SET (body, checksum, count) = (SELECT body, checksum, count FROM frames WHERE "
            "id = {tools}) WHERE id = {plain}",
            "other content",
        ),
    ],
)
def test_a_row_that_is_wrong_is_the_damage_of_its_run(
    written: Written, tmp_path: Path, statement: str, problem: str
) -> None:
    path = tmp_path / "runs.db"
    shutil.copy(written.path, path)
    frames = {name: FRAME_OF.format(name) for name in ("plain", "grown", "tools")}
    change(path, statement.format(**frames))
    with open_journal(path) as journal:
        damaged = look(journal, written)
        assert damaged
        run_id = damaged[0]
        with pytest.raises(JournalError, match=f"run '{run_id}' is damaged.*({problem})"):
            journal.read(run_id)
        assert set(damaged) == {run_id}
        assert is_reported(journal, written)


async def test_a_run_is_forked_before_its_damage(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    shutil.copy(written.path, path)
    change(path, f"UPDATE frames SET body = x'7b7d', previous = 1 WHERE id = {FRAME_OF.format('grown')}")
    with open_journal(path) as journal:
        checked = Check(journal).check_run("grown")
        assert checked.problems
        assert 0 < checked.events < len(written.events["grown"])
        found = journal.read("grown", until_seq=checked.events)
        assert [event.raw for event in found] == written.events["grown"][: checked.events]
        agent = Agent(ScriptedModel(["the end"]), tools=[grow], journal=journal)
        run = await agent.fork("grown", checked.events)
        assert run.output == "the end"
        assert Check(journal).check_run(run.run_id).problems == ()


async def test_a_damaged_run_is_not_driven(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    shutil.copy(written.path, path)
    change(
        path,
        "UPDATE runs SET input = 'x' WHERE run_id = 'in_doubt'",
        "UPDATE owners SET pid = 'x', beat_at = 'y'",
    )
    with open_journal(path) as journal:
        assert [info.run_id for info in journal.runs() if info.status == DAMAGED] == ["in_doubt"]
        with pytest.raises(JournalError, match="in the table `runs`"):
            await journal.acquire("in_doubt")
        assert raws_of(journal, "in_doubt") == written.events["in_doubt"]


def test_a_text_that_is_not_utf_8_hides_no_other_run(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    shutil.copy(written.path, path)
    change(path, "UPDATE runs SET input = CAST(x'ff' AS TEXT) WHERE run_id = 'plain'")
    with open_journal(path) as journal:
        assert look(journal, written) == ["plain"]


def test_an_event_that_is_not_utf_8_is_an_error_of_the_journal() -> None:
    good = GOLDEN[0].read_bytes().splitlines()[0]
    for broken in (good[:-1] + b',"instructions":"\xff"}', b'{"\xff":1}', b'{"a":' * 100_000):
        for decode in (e.decode_line, e.decode_body):
            with pytest.raises(JournalError):
                decode(broken)
