"""The events and the live output of a run for any number of listeners."""

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.forks.process import FORKS, Started

from treadle import Agent, ScriptedModel, ToolContext, open_journal, tool
from treadle.core.errors import RunNotFoundError
from treadle.core.events import VERSION, Ephemeral, Event, Noted, RunFinished, RunStarted
from treadle.core.events.body import TextDelta, ToolProgress
from treadle.core.events.narrowing import Item
from treadle.core.policy import Policy
from treadle.core.types import Completion, FinishReason, Message, Request, Role, StopReason, Usage
from treadle.journal.hub import KEPT_DELTAS, SENT_BYTES, listen, listen_together
from treadle.journal.protocol import Journal
from treadle.models import call
from treadle.models.protocol import Watch

WORDS = ("one ", "two ", "two ", "x" * 5000, " four", " \0\ufffe\n", "🚀")


@pytest.fixture(params=["memory:", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return open_journal(tmp_path / "runs.db" if request.param == "file" else request.param)


async def gather(journal: Journal, until: str, *, after_seq: int | None = 0, slow: float = 0) -> list[Item]:
    """Return what a listener gets until an event of a type."""
    found: list[Item] = []
    async with asyncio.timeout(60):
        async for item in listen(journal, "r", after_seq):
            found.append(item)
            await asyncio.sleep(slow)
            if item.type == until:
                break
    return found


def check(found: list[Item], journal: Journal, text: str, *, after_seq: int = 0) -> None:
    events = [item for item in found if isinstance(item, Event)]
    assert [item.seq for item in events] == list(range(after_seq + 1, events[-1].seq + 1))
    assert events == journal.read("r", after_seq)[: len(events)]
    said = [item.body.text for item in found if isinstance(item.body, TextDelta)]
    assert "".join(said) == text
    for before, item in pairwise(found):
        if isinstance(item.body, TextDelta):
            assert isinstance(before, Ephemeral) or before.type == "inference_started"


async def test_each_listener_gets_everything(journal: Journal) -> None:
    @tool(effect="pure")
    async def work(context: ToolContext) -> str:
        context.progress("half")
        await asyncio.sleep(0)
        return "done"

    agent = Agent(ScriptedModel(["ready", [call("work")], "one two three"]), tools=[work], journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        kept = len(journal.read("r"))
        listeners = [
            asyncio.ensure_future(gather(journal, "turn_completed", after_seq=after, slow=slow))
            for after, slow in ((kept, 0), (kept, 0.01), (None, 0))
        ]
        await asyncio.sleep(0.2)
        heard: list[Item] = []
        await session.send("go", on_event=heard.append)
        assert (
            "".join([item.body.text for item in heard if isinstance(item.body, TextDelta)]) == "one two three"
        )
        found = await asyncio.gather(*listeners)
        for items in found:
            check(items, journal, "one two three", after_seq=kept)
            assert [item.body.text for item in items if isinstance(item.body, ToolProgress)] == ["half"]
        assert journal.driven.find("r") is not None
        assert not journal.driven.find("r").listeners  # type: ignore[union-attr]


async def test_a_slow_listener_loses_deltas_and_no_event(journal: Journal) -> None:
    words = " ".join(["word"] * (KEPT_DELTAS * 2))
    agent = Agent(ScriptedModel(["ready", words]), journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        kept = len(journal.read("r"))
        slow = listen(journal, "r", kept - 1)
        found = [await anext(slow)]  # it listens
        await session.send("go")
        async with asyncio.timeout(60):
            async for item in slow:
                found.append(item)
                if item.type == "turn_completed":
                    break
        events = [item.seq for item in found if isinstance(item, Event)]
        assert events == list(range(kept, len(journal.read("r")) + 1))
    assert 0 < len(found) - len(events) <= KEPT_DELTAS


async def test_listeners_share_items_and_need_no_task_for_each(journal: Journal) -> None:
    agent = Agent(ScriptedModel(["ready", "one two three"]), journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        kept = len(journal.read("r"))
        before = len(asyncio.all_tasks())
        listeners = [
            asyncio.ensure_future(gather(journal, "turn_completed", after_seq=kept)) for _ in range(40)
        ]
        await asyncio.sleep(0)
        [channel] = journal.driven.channels.values()
        await asyncio.shield(channel.opening)
        assert len(channel.inlets) == 40
        assert len(asyncio.all_tasks()) <= before + 42
        await session.send("go")
        found = await asyncio.gather(*listeners)
    for items in found:
        check(items, journal, "one two three", after_seq=kept)
    assert len({id(item) for items in found for item in items}) == len(found[0])
    assert not journal.driven.channels


async def test_a_listener_that_comes_later_gets_what_it_lacks(journal: Journal) -> None:
    agent = Agent(ScriptedModel(["ready", *["word"] * 150, "the end"]), journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        first = asyncio.ensure_future(gather(journal, "run_paused"))
        for _ in range(150):
            await session.send("go")
        late = [
            asyncio.ensure_future(gather(journal, "run_paused", after_seq=after)) for after in (0, 5, 600)
        ]
        await session.send("go")
    for after, items in zip((0, 0, 5, 600), [await first, *[await task for task in late]], strict=True):
        events = [item for item in items if isinstance(item, Event)]
        assert [item.seq for item in events] == list(range(after + 1, events[-1].seq + 1))


async def test_a_listener_that_falls_far_behind_reads_the_journal(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([RunStarted(at=1.0, version=VERSION, policy=Policy())])
    await writer.sync()
    slow = listen(journal, "r")
    found = [await anext(slow)]
    for number in range(3 * KEPT_DELTAS):
        writer.append([Noted(at=1.0, remark=str(number))])
        if number % 100 == 0:
            await writer.sync()
            await asyncio.sleep(0.01)
    writer.append([RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)])
    await writer.release()
    await writer.sync()
    async with asyncio.timeout(60):
        found += [item async for item in slow]
    assert found == journal.read("r")


async def test_large_events_are_read_few_at_a_time_and_small_ones_many(journal: Journal) -> None:
    writer = journal.create("r")
    large = ["x" * (SENT_BYTES // 4)] * 50
    writer.append([RunStarted(at=1.0, version=VERSION, policy=Policy())])
    writer.append([Noted(at=1.0, remark=text) for text in (*large, *["small"] * 500, *large)])
    writer.append([RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)])
    await writer.release()
    await writer.sync()
    async with asyncio.timeout(60):
        groups = [[heard.item for heard in group] async for group in listen_together(journal, "r")]
    assert [item for group in groups for item in group] == journal.read("r")
    sizes = [sum([len(event.raw) for event in group]) for group in groups]  # type: ignore[arg-type, union-attr]
    assert max(sizes[: len(large) // 5]) <= 2 * SENT_BYTES  # before anything small was read
    assert max(map(len, groups)) == 100


async def test_a_run_that_does_not_exist(journal: Journal) -> None:
    with pytest.raises(RunNotFoundError):
        await anext(listen(journal, "nobody"))
    assert not journal.driven.channels


class SlowModel:
    """A model that calls the tool `work` if it has it and then says a word every 0.1 seconds."""

    name = "slow"

    async def infer(self, request: Request, watch: Watch) -> Completion:
        if request.tools and request.messages[-1].role is Role.USER:
            return Completion(
                Message(Role.ASSISTANT, tool_calls=(call("work"),)), FinishReason.TOOL_CALLS, Usage()
            )
        for word in WORDS:
            if watch.on_delta is not None:
                watch.on_delta(TextDelta(word))
            await asyncio.sleep(0.1)
        return Completion(Message(Role.ASSISTANT, "".join(WORDS)), FinishReason.STOP, Usage())


_DRIVER = """
import asyncio, sys
from tests.journal.test_hub import SlowModel
from treadle import Agent, ToolContext, open_journal, tool

@tool(effect="pure")
async def work(context: ToolContext) -> str:
    context.progress("half")
    await asyncio.sleep(0.3)
    return "done"

async def main() -> None:
    with open_journal(sys.argv[1]) as journal:
        async with Agent(SlowModel(), tools=[work], journal=journal).session("r") as session:
            while text := sys.stdin.readline().strip():
                await session.send(text)
                print(text, flush=True)

asyncio.run(main())
"""


class Driver:
    """Another process that drives the run `r`."""

    process: Started

    async def __aenter__(self) -> "Driver":
        return self

    async def start(self, address: str) -> None:
        self.process = FORKS.start("-c", _DRIVER, address, stdin=PIPE, stdout=PIPE)

    async def send(self, text: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(self.process.stdout.readline) == f"{text}\n"

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await asyncio.to_thread(self.process.wait)


@pytest.mark.parametrize("store", ["file", "postgres"])
async def test_a_listener_hears_what_another_process_drives(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(tmp_path / "runs.db") if store == "file" else request.getfixturevalue("postgres_url")
    async with Driver() as driver:
        await driver.start(address)
        await driver.send("begin")
        with open_journal(address) as journal:
            kept = len(journal.read("r"))
            listening = asyncio.ensure_future(gather(journal, "turn_completed", after_seq=kept))
            # The driver looks ten times a second who listens; a server tells it.
            await asyncio.sleep(1)
            await driver.send("go")
            found = await listening
            check(found, journal, "".join(WORDS), after_seq=kept)
            assert [item.body.text for item in found if isinstance(item.body, ToolProgress)] == ["half"]
        assert not [path for path in tmp_path.iterdir() if "listeners" in path.name]


async def test_a_listener_that_was_killed_leaves_nothing(tmp_path: Path) -> None:
    address = str(tmp_path / "runs.db")
    with open_journal(address) as journal:
        agent = Agent(ScriptedModel(["ready", "one", "two"]), journal=journal)
        async with agent.session("r") as session:
            await session.send("begin")
            program = (
                "import asyncio, sys; from treadle import open_journal; from treadle.journal.hub import listen\n"
                "async def main():\n"
                "    async for item in listen(open_journal(sys.argv[1]), 'r'): print(item.type, flush=True)\n"
                "asyncio.run(main())"
            )
            listener = FORKS.start("-c", program, address, stdout=PIPE)
            assert listener.stdout is not None
            assert await asyncio.to_thread(listener.stdout.readline) == "run_started\n"
            run = journal.driven.find("r")
            assert run is not None
            async with asyncio.timeout(60):
                while not run.listeners:
                    await asyncio.sleep(0.05)
                await session.send("go")
                os.kill(listener.pid, signal.SIGKILL)
                await asyncio.to_thread(listener.wait)
                await session.send("go on")
                while run.listeners:
                    await asyncio.sleep(0.05)
            assert not (tmp_path / "runs.db-listeners").exists()


async def test_a_folder_that_cannot_be_written_costs_the_output_only(tmp_path: Path) -> None:
    (tmp_path / "runs.db-listeners").write_text("no folder")
    address = str(tmp_path / "runs.db")
    async with Driver() as driver:
        await driver.start(address)
        await driver.send("begin")
        with open_journal(address) as journal:
            listening = asyncio.ensure_future(gather(journal, "turn_completed", after_seq=5))
            await driver.send("go")
            assert all([isinstance(item, Event) for item in await listening])


async def test_who_comes_in_the_middle_of_an_answer_gets_its_beginning(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    with open_journal(path) as journal, open_journal(path) as other:
        listening: list[asyncio.Future[list[Item]]] = []
        said: list[str] = []

        def on_event(item: Item) -> None:
            if isinstance(item.body, TextDelta):
                said.append(item.body.text)
                # In this process, in another one, and later than another listener.
                if len(said) > 1 and len(listening) < 4:
                    place = (journal, other)[len(said) % 2]
                    listening.append(asyncio.ensure_future(gather(place, "inference_completed")))

        await Agent(SlowModel(), journal=journal).run("go", run_id="r", on_event=on_event)
        assert len(listening) == 4
        for found in await asyncio.gather(*listening):
            check(found, other, "".join(WORDS))
