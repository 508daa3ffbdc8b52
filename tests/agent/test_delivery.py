"""Messages that the user sends while a turn of a session is running."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.loop.test_loop import Gate

from treadle import Agent, Policy, ScriptedModel, tool
from treadle.agent.session import Session
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.events.narrowing import Item
from treadle.core.inbox import Cancel, kind_of
from treadle.core.types import Completion, Delivery, Request, StopReason, ToolErrorKind
from treadle.export import load_row
from treadle.journal.memory import MemoryJournal
from treadle.knowledge.protocol import CompletedTurn
from treadle.models import call
from treadle.models.protocol import Watch
from treadle.models.scripted import Answer
from treadle.runs.run import Run


class Lab:
    """A session whose tool `wait` runs until the test lets it end."""

    def __init__(self, *script: Answer, policy: Policy | None = None) -> None:
        self.gate = Gate()
        self.journal = MemoryJournal()
        self.model = ScriptedModel(script)

        @tool(effect="pure")
        async def wait() -> str:
            await self.gate.pass_through()
            return "waited"

        self.agent = Agent(self.model, tools=[wait], journal=self.journal, policy=policy)

    @property
    def session(self) -> Session:
        return self.agent.session("s")

    def bodies(self, *kinds: type) -> list[e.DurableBody]:
        return [event.body for event in self.journal.read("s") if isinstance(event.body, kinds)]

    async def check(self) -> None:
        """Check that the run replays exactly, and that each call has its result."""
        found = await self.agent.replay("s")
        assert found.is_exact, found.divergence


def texts(run: Run) -> list[str]:
    return [f"{message.role}: {message.content}" for message in run.messages]


async def start(session: Session, text: str, gate: Gate) -> "asyncio.Task[Run]":
    """Return the task of a turn that has reached the gate."""
    task = asyncio.ensure_future(session.send(text))
    await gate.reached.wait()
    return task


async def test_a_queued_message_is_stored_at_once_and_begins_the_next_turn() -> None:
    lab = Lab([call("wait")], "to a", "to b", "to c")
    async with lab.session as session:
        first = await start(session, "a", lab.gate)
        others = [asyncio.ensure_future(session.send(text)) for text in "bc"]
        await asyncio.sleep(0)
        assert [message.content for message in session.queued] == ["b", "c"]
        stored = [item.message for item in lab.journal.inbox("s")]
        assert [(kind_of(item), item.message.content) for item in stored] == [("queue", "b"), ("queue", "c")]
        lab.gate.opened.set()
        runs = await asyncio.gather(first, *others)
    assert [run.output for run in runs] == ["to a", "to b", "to c"]
    assert [run.state.turn.number for run in runs] == [1, 2, 3]
    started = lab.bodies(e.TurnStarted)
    seqs = [event.seq for event in lab.journal.read("s") if isinstance(event.body, e.MessageInjected)]
    assert [body.queued_seq for body in started] == [None, *seqs]
    await lab.check()


async def test_concurrent_messages_do_not_interleave() -> None:
    """Rules out the defect that a session without a lock mixes the messages of concurrent calls."""
    lab = Lab(*[f"answer {number}" for number in range(8)])
    async with lab.session as session:
        runs = await asyncio.gather(*[session.send(f"question {number}") for number in range(8)])
    assert [run.output for run in runs] == [f"answer {number}" for number in range(8)]
    assert texts(runs[-1]) == [
        text for number in range(8) for text in (f"user: question {number}", f"assistant: answer {number}")
    ]


async def test_a_steering_message_is_seen_at_the_next_step() -> None:
    lab = Lab([call("wait")], "done")
    async with lab.session as session:
        first = await start(session, "a", lab.gate)
        steering = asyncio.ensure_future(session.send("b", delivery="steer"))
        await asyncio.sleep(0)
        lab.gate.opened.set()
        run, steered = await asyncio.gather(first, steering)
    assert run.state.turn.number == steered.state.turn.number == 1
    assert steered.output == "done"
    assert texts(steered) == ["user: a", "assistant: ", "tool: waited", "user: b", "assistant: done"]
    assert [message.content for message in lab.model.requests[1].messages][-1] == "b"
    await lab.check()


async def test_a_message_that_comes_with_the_answer_is_answered_in_the_same_turn() -> None:
    """The model has answered while the user steered, so it is asked again."""
    gate = Gate()

    class Slow(ScriptedModel):
        async def infer(self, request: Request, watch: Watch):
            if len(request.messages) == 1:
                await gate.pass_through()
            return await super().infer(request, watch)

    journal = MemoryJournal()
    agent = Agent(Slow(["first", "second"]), journal=journal)
    async with agent.session("s") as session:
        first = await start(session, "a", gate)
        steering = asyncio.ensure_future(session.send("b", delivery=Delivery.STEER))
        await asyncio.sleep(0)
        gate.opened.set()
        assert (await first).output == (await steering).output == "second"
        assert texts(await first) == ["user: a", "assistant: first", "user: b", "assistant: second"]
    assert (await agent.replay("s")).is_exact


async def test_a_steering_message_that_comes_too_late_begins_the_next_turn() -> None:
    """After the last step there is only the wrap-up, which can do nothing about a message."""
    lab = Lab([call("wait")], "wrapped up", "to b", policy=Policy(max_steps=1))
    async with lab.session as session:
        first = await start(session, "a", lab.gate)
        steering = asyncio.ensure_future(session.send("b", delivery="steer"))
        await asyncio.sleep(0)
        lab.gate.opened.set()
        run, steered = await asyncio.gather(first, steering)
    assert (run.state.turn.number, run.stop_reason, run.output) == (1, StopReason.MAX_STEPS, "wrapped up")
    assert (steered.state.turn.number, steered.output) == (2, "to b")
    await lab.check()


async def test_an_interrupt_stops_the_turn_and_begins_the_next() -> None:
    lab = Lab([call("wait")], "to c", "to b")
    heard: list[str] = []
    async with lab.session as session:
        first = asyncio.ensure_future(session.send("a", on_event=lambda item: heard.append(item.type)))
        await lab.gate.reached.wait()
        queued = asyncio.ensure_future(session.send("b"))
        await asyncio.sleep(0)
        interrupting = asyncio.ensure_future(session.send("c", delivery="interrupt"))
        run, second, third = await asyncio.gather(first, queued, interrupting)
    assert (run.stop_reason, run.state.turn.number) == (StopReason.CANCELLED, 1)
    assert [result.is_error for result in run.results] == [True]
    assert (third.output, third.state.turn.number) == ("to c", 2)
    # The tool is pure, so that nothing is in doubt.
    said = ("Not finished, and without effect: the turn was ended.", ToolErrorKind.NOT_RUN)
    assert [(result.content, result.error_kind) for result in run.results] == [said]
    assert (second.output, second.state.turn.number) == ("to b", 3)
    assert heard[-2:] == ["tool_completed", "turn_completed"]
    await lab.check()


async def test_interrupts_and_steers_keep_the_order_of_arrival() -> None:
    """Rules out the defect that later messages overtake those that wait for the end of the turn."""
    lab = Lab([call("wait")], *["ok"] * 6)
    async with lab.session as session:
        tasks = [await start(session, "m1", lab.gate)]
        for number, way in enumerate(("steer", "interrupt", "interrupt", "queue", "interrupt", "steer"), 2):
            tasks.append(asyncio.ensure_future(session.send(f"m{number}", delivery=way)))  # type: ignore[arg-type]
            await asyncio.sleep(0)
        runs = await asyncio.gather(*tasks)
    said = [message.content for message in runs[-1].messages if message.role == "user"]
    assert said == ["m1", "m2", "m3", "m4", "m6", "m5", "m7"]
    await lab.check()


class Slow:
    """A memory that works until the test lets it end."""

    topics: tuple[str, ...] = ()
    has_documents = False
    writes_back = True

    def __init__(self) -> None:
        self.recalling, self.writing = Gate(), Gate()
        self.kept: list[str] = []
        self.recalling.opened.set()
        self.writing.opened.set()

    def make_instructions(self, told: str | None, tools: object) -> str | None:
        return told

    async def recall(self, text: str, **_: object) -> None:
        await self.recalling.pass_through()

    async def write_back(self, turn: CompletedTurn) -> None:
        await self.writing.pass_through()
        if turn.text not in self.kept:
            self.kept.append(turn.text)


def remembering(*script: Answer) -> tuple[Agent, Slow, MemoryJournal]:
    known, journal = Slow(), MemoryJournal()
    agent = Agent(ScriptedModel(script), journal=journal)
    agent.known = known  # type: ignore[assignment]
    return agent, known, journal


async def test_a_message_is_stored_before_anything_is_recalled_for_it() -> None:
    agent, known, journal = remembering("to a", "to b")
    async with agent.session() as session:
        known.recalling.opened.clear()
        sent = asyncio.ensure_future(session.send("a"))
        await known.recalling.reached.wait()
        kept = [event.body for event in journal.read(str(session.run_id))]
        assert [body.message.content for body in kept if isinstance(body, e.MessageInjected)] == ["a"]
        known.recalling.opened.set()
        assert (await sent).output == "to a"


async def test_a_message_is_stored_before_an_interrupted_turn_is_finished() -> None:
    lab = Lab([call("wait")], "to a", "to b")
    async with lab.agent.session("s", pauses_when_cancelled=True) as session:
        first = await start(session, "a", lab.gate)
        first.cancel()
        await asyncio.wait([first])
    async with lab.session as again:
        assert again.is_turn_open
        sent = asyncio.ensure_future(again.send("b"))
        await asyncio.sleep(0)
        assert [message.content for message in again.queued] == ["b"]
        lab.gate.opened.set()
        assert (await sent).output == "to b"
    await lab.check()


@pytest.mark.parametrize("way", ["interrupt", "cancel"])
async def test_a_turn_whose_writing_back_is_stopped_is_remembered(way: str) -> None:
    agent, known, _ = remembering("to a", "to b")
    async with agent.session() as session:
        known.writing.opened.clear()
        first = asyncio.ensure_future(session.send("a"))
        await known.writing.reached.wait()
        if way == "cancel":
            first.cancel()
            await asyncio.wait([first])
        second = asyncio.ensure_future(session.send("b", delivery="interrupt"))
        await asyncio.sleep(0.01)
        known.writing.opened.set()
        await second
    assert known.kept == ["a", "b"]


async def test_an_interrupt_ends_a_turn_for_which_something_is_recalled() -> None:
    agent, known, _ = remembering("to b")
    async with agent.session("s") as session:
        known.recalling.opened.clear()
        first = asyncio.ensure_future(session.send("a"))
        await known.recalling.reached.wait()
        second = asyncio.ensure_future(session.send("b", delivery="interrupt"))
        assert (await first).stop_reason is StopReason.CANCELLED
        known.recalling.opened.set()
        assert (await second).output == "to b"
    assert (await agent.replay("s")).is_exact


async def test_an_interrupt_stops_a_running_inference() -> None:
    lab = Lab("never", "to b")
    lab.model._delay_seconds = 3600.0
    async with lab.session as session:
        first = asyncio.ensure_future(session.send("a"))
        while not lab.model.requests:
            await asyncio.sleep(0)
        lab.model._delay_seconds = 0.0
        interrupted = await session.send("b", delivery="interrupt")
        assert (await first).stop_reason is StopReason.CANCELLED
        assert (interrupted.output, interrupted.state.turn.number) == ("to b", 2)
    await lab.check()


@pytest.mark.parametrize("way", ["interrupt", "cancel", "post"])
async def test_the_transcript_has_what_the_user_saw_of_a_stopped_answer(way: str) -> None:
    """Rules out that the model does not know what the user answers to, and that rows are made of half an answer."""

    class Slow(ScriptedModel):
        async def infer(self, request: Request, watch: Watch) -> Completion:
            if len(self.requests) == 0 and watch.on_delta is not None:
                self.requests.append(request)
                watch.on_delta(e.TextDelta("The river rises"))
                watch.on_delta(e.TextDelta(" in the"))
                await asyncio.sleep(3600)
            return await super().infer(request, watch)

    model, heard = Slow(lambda _: "In the hills."), list[str]()
    agent = Agent(model, journal=MemoryJournal())
    async with agent.session("s") as session:
        first = asyncio.ensure_future(session.send("Tell me", on_event=lambda item: heard.append(item.type)))
        while heard.count("text_delta") < 2:
            await asyncio.sleep(0)
        if way == "interrupt":
            run = await session.send("in the what?", delivery="interrupt")
        elif way == "post":
            agent.journal.post("s", Cancel())
            await first
            run = await session.send("in the what?")
        else:
            first.cancel()
            await asyncio.wait([first])
            run = await session.send("in the what?", delivery="interrupt")
    seen = ["user: Tell me", "assistant: The river rises in the", "user: in the what?"]
    assert [f"{message.role}: {message.content}" for message in model.requests[-1].messages] == seen
    assert texts(run) == [*seen, "assistant: In the hills."]
    assert [message.content for message in load_row(agent.journal, "s").messages] == [
        "Tell me",
        "in the what?",
        "In the hills.",
    ]
    assert (await agent.replay("s")).is_exact


async def test_a_stopped_answer_does_not_say_what_the_one_before_said() -> None:
    """Rules out that the text of a finished answer is recorded for the next, which was stopped before it began."""
    model = ScriptedModel(["Hello."])
    agent = Agent(model, journal=MemoryJournal())

    async def stop(item: Item) -> None:
        if item.type == "inference_started" and len(model.requests) == 1:
            agent.journal.post("s", Cancel())
            await asyncio.sleep(0.05)

    async with agent.session("s") as session:
        await session.send("Hi", on_event=lambda _: None)
        run = await session.send("And now?", on_event=stop)
    assert run.stop_reason is StopReason.CANCELLED
    assert texts(run) == ["user: Hi", "assistant: Hello.", "user: And now?"]


async def test_an_interrupted_task_can_still_be_cancelled() -> None:
    """The task that drives the stopped turn is not left with a cancellation that nobody asked for."""
    lab = Lab([call("wait")], "to b")
    async with lab.session as session:

        async def send() -> Run:
            run = await session.send("a")
            await asyncio.sleep(0)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            return run

        first = asyncio.ensure_future(send())
        await lab.gate.reached.wait()
        await session.send("b", delivery="interrupt")
        assert (await first).stop_reason is StopReason.CANCELLED


async def test_an_interrupt_ends_a_turn_that_waits_for_a_decision() -> None:
    lab = Lab([call("wait")], "to b", policy=Policy(approve={"wait": "ask"}))
    async with lab.session as session:
        assert (await session.send("a")).approvals
        with pytest.raises(ConfigError, match=r"session\.finish_turn"):
            await session.send("b")
        run = await session.send("b", delivery="interrupt")
        assert (run.output, run.state.turn.number) == ("to b", 2)
    await lab.check()


async def test_a_turn_with_a_question_and_a_lost_call_is_replayed_after_an_interrupt() -> None:
    """Rules out a replay that takes the withdrawal of the question for an answer to it."""
    lab, acting = Lab(), asyncio.Event()

    @tool(effect="once")
    async def act() -> str:
        acting.set()
        await asyncio.sleep(3600)
        return ""

    model = ScriptedModel([[call("ask_user", {"question": "Which?"}), call("act")], "to b"])
    agent = Agent(model, tools=["ask", act], journal=lab.journal)
    async with agent.session("s", pauses_when_cancelled=True) as session:
        first = asyncio.ensure_future(session.send("a"))
        await acting.wait()
        first.cancel()
        await asyncio.wait([first])
    async with agent.session("s") as session:
        assert (await session.send("b", delivery="interrupt")).output == "to b"
    await lab.check()


async def test_a_message_whose_sender_gave_up_is_answered_all_the_same() -> None:
    lab = Lab([call("wait")], "to a", "to b", "to c")
    async with lab.session as session:
        first = await start(session, "a", lab.gate)
        queued = asyncio.ensure_future(session.send("b"))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert [message.content for message in session.queued] == ["b"]
        lab.gate.opened.set()
        assert (await first).output == "to a"
        assert (await session.send("c")).output == "to c"
    assert [body.message.content for body in lab.bodies(e.TurnStarted)] == ["a", "b", "c"]
    await lab.check()


@pytest.mark.parametrize("way", ["resume", "finish_turn", "send"])
async def test_messages_that_were_left_are_answered_later(way: str) -> None:
    lab = Lab([call("wait")], "to a", "to b", "to c")
    session = await lab.session.open()
    first = await start(session, "a", lab.gate)
    queued = asyncio.ensure_future(session.send("b"))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    results = await asyncio.gather(first, queued, closing, return_exceptions=True)
    assert isinstance(results[1], ConfigError)
    assert "kept" in str(results[1])
    lab.model._answers.pop(1)
    if way == "resume":
        run = await lab.agent.resume("s")
    else:
        async with lab.session as again:
            assert [message.content for message in again.queued] == ["b"]
            run = await (again.finish_turn() if way == "finish_turn" else again.send("c"))
    assert run.output == ("to c" if way == "send" else "to b")
    assert not run.state.queued
    await lab.check()


async def test_a_queued_message_keeps_its_file(tmp_path: Path) -> None:
    lab = Lab([call("wait")], "to a", "to b")
    lab.model.check_part = lambda part: None  # type: ignore[attr-defined]
    (tmp_path / "dot.png").write_bytes(b"pixels" * 10_000)
    async with lab.session as session:
        first = await start(session, "a", lab.gate)
        queued = asyncio.ensure_future(session.send("b", attach=[tmp_path / "dot.png"]))
        while not session.queued:
            await asyncio.sleep(0)
        (tmp_path / "dot.png").unlink()
        lab.gate.opened.set()
        await first
        part = (await queued).messages[-2].parts[0]
    assert part.digest is not None
    assert lab.journal.read_blob(part.digest) == b"pixels" * 10_000
    assert lab.model.requests[-1].contents[part.digest] == b"pixels" * 10_000


def test_another_thread_sends_a_message() -> None:
    lab = Lab([call("wait")], "to a", "to b")
    outputs: list[str] = []

    async def drive() -> None:
        async with lab.session as session:
            first = await start(session, "a", lab.gate)
            thread = threading.Thread(target=lambda: outputs.append(session.send_sync("b").output))
            thread.start()
            while not session.queued:
                await asyncio.sleep(0.001)
            lab.gate.opened.set()
            outputs.append((await first).output)
            await asyncio.to_thread(thread.join)

    asyncio.run(drive())
    assert outputs == ["to a", "to b"]


def test_threads_share_a_blocking_session() -> None:
    lab = Lab("to a", "to b")
    with lab.session as session:
        outputs: list[str] = []
        threads = [
            threading.Thread(target=lambda text=text: outputs.append(session.send_sync(text).output))  # type: ignore[misc]
            for text in "ab"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(outputs) == ["to a", "to b"]


@pytest.mark.parametrize("is_session", [False, True])
async def test_a_stream_can_be_steered(is_session: bool) -> None:
    lab = Lab([call("wait")], "done")
    async with lab.session as session:
        stream = session.stream("a") if is_session else lab.agent.stream("a", run_id="r")
        if not is_session:
            with pytest.raises(ConfigError, match="has not begun"):
                stream.steer("b")
        async for item in stream:
            if item.type == "tool_started":
                stream.steer("b")
                lab.gate.opened.set()
        assert stream.run is not None
        assert texts(stream.run)[-2:] == ["user: b", "assistant: done"]
        if not is_session:
            with pytest.raises(ConfigError, match="is over"):
                stream.steer("c")


async def test_a_wrong_delivery_is_refused() -> None:
    async with Lab("x").session as session:
        with pytest.raises(ConfigError, match=r"did you mean .queue."):
            await session.send("a", delivery="queu")  # type: ignore[arg-type]
