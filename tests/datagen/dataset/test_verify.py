"""The verification of a dataset finds rows that are not what their runs say, and confirms those that are."""

import asyncio
import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.datagen.dataset import made

from treadle import Agent, JournalError, ScriptedModel, open_journal
from treadle.core.types import Message, Role
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import read_entries
from treadle.datagen.dataset.verification import CheckedRow, Totals, check_ledger, verify_rows
from treadle.export.row_files import open_writer
from treadle.export.rows import Row, load_row
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem
from treadle.models import call


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(made.real_folder(tmp_path_factory.mktemp("whole") / "d"))


async def verify(path: Path, journal: Path) -> dict[str, CheckedRow]:
    with open_journal(journal, must_exist=True) as opened:
        return {checked.row_id: checked async for checked in verify_rows(path, opened)}


async def test_every_row_that_claims_to_be_verified_is_confirmed(whole: Path) -> None:
    found = await verify(whole, DatasetFolder(whole).journal)
    assert len(found) == 6
    assert all(
        item.is_claimed and item.is_confirmed and item.matched == item.calls > 0 for item in found.values()
    )
    assert list(check_ledger(whole)) == []


def change_result(row: Row) -> Row:
    index = next(index for index, item in enumerate(row.messages) if item.role is Role.TOOL)
    messages = list(row.messages)
    messages[index] = replace(messages[index], content="something else")
    return replace(row, messages=tuple(messages))


def swap_results(row: Row) -> Row:
    messages = list(row.messages)
    places = [index for index, item in enumerate(messages) if item.role is Role.TOOL]
    one, two = places[0], places[-1]
    messages[one], messages[two] = (
        replace(messages[one], content=messages[two].content),
        replace(messages[two], content=messages[one].content),
    )
    return replace(row, messages=tuple(messages))


def drop_result(row: Row) -> Row:
    index = next(index for index, item in enumerate(row.messages) if item.role is Role.TOOL)
    return replace(row, messages=(*row.messages[:index], *row.messages[index + 1 :]))


def change_answer(row: Row) -> Row:
    return replace(row, messages=(*row.messages[:-1], Message(Role.ASSISTANT, "Something else.")))


def forget_tools(row: Row) -> Row:
    return replace(row, tools=())


def claim_reward(row: Row) -> Row:
    return replace(row, lineage=replace(row.lineage, reward=0.5))


def name_other_run(row: Row) -> Row:
    return replace(row, lineage=replace(row.lineage, run_id="s000099-1"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change_result, "result 1 ('something else') is not that of its run"),
        (swap_results, "is not that of its run"),
        (drop_result, "its transcript is faulty"),
        (change_answer, "is not that of its run"),
        (forget_tools, "its tools are not those of its run"),
        (claim_reward, "its reward is 0.5, but that of its run is 1.0"),
        (name_other_run, "its run 's000099-1' is not in the journal"),
    ],
)
async def test_a_row_that_is_not_what_its_run_says_is_found(
    whole: Path, tmp_path: Path, damage: Callable[[Row], Row], said: str
) -> None:
    """Results at the wrong call, missing results and changed texts cannot be in a dataset unnoticed."""
    rows = [entry.row for entry in read_entries(whole)]
    path = made.write_rows(tmp_path / "rows.jsonl", [damage(rows[0]), *rows[1:2]])
    found = await verify(path, DatasetFolder(whole).journal)
    assert any(said in problem for problem in found["s000001"].problems), found["s000001"].problems
    assert found["s000002"].is_confirmed


@pytest.mark.parametrize("format", ["deepfabric", "axolotl", "trl", "hermes", "sharegpt", "atif"])
async def test_a_row_of_another_format_is_held_against_what_the_format_shows(
    whole: Path, tmp_path: Path, format: str
) -> None:
    """No format but Treadle's has the effects of tools, so that every exported row seemed to be changed."""
    rows = [entry.row for entry in read_entries(whole)]
    with open_writer(format, tmp_path / "rows.jsonl") as writer:
        for row in (change_result(rows[0]), *rows[1:]):
            writer.write(row)
    found = await verify(tmp_path / "rows.jsonl", DatasetFolder(whole).journal)
    assert found.pop("s000001").problems == ("result 1 ('something else') is not that of its run",)
    assert len(found) == len(rows) - 1
    assert all(item.is_confirmed for item in found.values())


async def test_a_tool_that_gives_another_result_now_is_found(tmp_path: Path) -> None:
    """The results of a row come from tools that ran: a journal with a result that no tool gives is refused."""
    path = await made.real_folder(tmp_path / "d", 1)
    with open_journal(DatasetFolder(path).journal) as journal:
        events = journal.read("s000001-1")
        digests = set(re.findall(rb"[0-9a-f]{64}", b"".join(map(msgspec.json.encode, events))))
        blobs = {}
        for digest in map(bytes.decode, digests):
            with contextlib.suppress(JournalError):
                blobs[digest] = journal.read_stored(digest)
    bodies = []
    for event in events:
        forged = msgspec.json.encode(event.body).replace(b'"content":"', b'"content":"forged ', 1)
        is_result = event.type == "tool_completed"
        bodies.append(msgspec.json.decode(forged, type=type(event.body)) if is_result else event.body)
    with open_journal(tmp_path / "forged.db") as journal:
        writer = journal.create("s000001-1")
        writer.append(bodies, blobs)
        await writer.sync()
        await writer.release()
    found = await verify(path, tmp_path / "forged.db")
    problems = found["s000001"].problems
    assert any("a result differs" in problem for problem in problems), problems


async def test_a_simulated_result_is_never_verified(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tool = {
        "name": "price",
        "description": "Say a price.",
        "inputSchema": {"type": "object"},
        "mockResponse": "3",
    }
    tools.write_bytes(msgspec.json.encode({"tools": [tool]}))
    with open_journal(tmp_path / "journal.db") as journal:
        model = ScriptedModel([[call("price", {})], "3 EUR"])
        await Agent(model, tools=[f"mock:{tools}"], journal=journal).run("go", run_id="s000001-1")
        row = load_row(journal, "s000001-1")
    rows = [
        replace(row, lineage=replace(row.lineage, sample=made.info(1, is_verified=is_verified)))
        for is_verified in (True, False)
    ]
    (claimed,) = (await verify(made.write_rows(tmp_path / "a", rows[:1]), tmp_path / "journal.db")).values()
    assert "claims to be verified" in claimed.problems[0]
    assert "simulated" in claimed.problems[0]
    (honest,) = (await verify(made.write_rows(tmp_path / "b", rows[1:]), tmp_path / "journal.db")).values()
    assert honest.problems == ()
    assert not honest.is_confirmed


async def test_a_server_is_started_once_for_all_rows(tmp_path: Path) -> None:
    """A start for each row takes far longer than the calls."""
    starts, server = tmp_path / "starts", tmp_path / "server.py"
    small = Path(__file__).parents[2] / "tools/mcp/small_server.py"
    server.write_text(
        f"import runpy\nopen({str(starts)!r}, 'a').write('x')\nrunpy.run_path({str(small)!r})\n"
    )
    rows = []
    with open_journal(tmp_path / "journal.db") as journal:
        for number in (1, 2, 3):
            model = ScriptedModel([[call("add", {"a": 1, "b": number})], f"{1 + number}"])
            agent = Agent(model, tools=[f"mcp:{sys.executable} {server}"], journal=journal)
            run = await agent.run("go", run_id=f"s{number:06d}-1")
            row = load_row(journal, run.run_id)
            rows.append(replace(row, lineage=replace(row.lineage, sample=made.info(number))))
    starts.write_text("")
    found = await verify(made.write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "journal.db")
    assert all(item.is_confirmed and item.matched == 1 for item in found.values())
    assert len(found) == 3
    assert starts.read_text() == "x"


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("raise SystemExit(3)", "ended before it answered"),
        (
            "class Lines:\n    def __iter__(self):\n        for line in stdin:\n"
            "            if 'tools/call' in line: raise SystemExit(3)\n            yield line\n"
            "import sys\nstdin, sys.stdin = sys.stdin, Lines()",
            "its outcome is unknown",
        ),
    ],
)
async def test_a_server_that_does_not_answer_is_no_problem_of_a_row(
    tmp_path: Path, broken: str, told: str
) -> None:
    server = tmp_path / "server.py"
    run_small = (
        f"import runpy\nrunpy.run_path({str(Path(__file__).parents[2] / 'tools/mcp/small_server.py')!r})\n"
    )
    server.write_text(run_small)
    with open_journal(tmp_path / "journal.db") as journal:
        model = ScriptedModel([[call("add", {"a": 1, "b": 2})], "3"])
        run = await Agent(model, tools=[f"mcp:{sys.executable} {server}"], journal=journal).run("go")
        row = load_row(journal, run.run_id)
    rows = [replace(row, lineage=replace(row.lineage, sample=made.info(1)))]
    path = made.write_rows(tmp_path / "rows.jsonl", rows)
    server.write_text(f"{broken}\n{run_small}")
    (found,) = (await verify(path, tmp_path / "journal.db")).values()
    assert found.problems == ()
    assert told in found.faults[0]
    assert not found.is_confirmed
    totals = Totals()
    totals.add(found)
    assert (totals.faulty, totals.unreached, totals.confirmed) == (0, 1, 0)
    assert str(totals).endswith("a server did not answer for 1 row")


def test_rows_and_ledger_are_compared(tmp_path: Path) -> None:
    path = made.plain_folder(tmp_path / "d", 3)
    with Ledger(DatasetFolder(path).ledger) as ledger:
        for number in (1, 2, 4):
            ledger.plan(PlannedItem(number, "single", "t", {}))
            ledger.count(number, 1, lambda _: ItemOutcome(status=ItemStatus.KEPT))
    assert list(check_ledger(path)) == ["the rows lack s000004", "the ledger lacks s000003"]
    with DatasetFolder(path).rows.open("ab") as file:
        file.write(made.encode(made.plain_row(1)))
    assert next(check_ledger(path)) == "the id 's000001' occurs twice"
