"""Calls that a tool makes of the run's other tools: they are journalled as calls of their own, and safe to
repeat."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loop.test_loop import Lab, kinds, lab, results

from treadle import Agent, Policy, Run, ScriptedModel, ToolContext, tool
from treadle.core import events as e
from treadle.core.errors import ToolError
from treadle.core.types import Effect, Message, Role, StopReason, ToolCall, ToolErrorKind
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.resolve import resolve_tools
from treadle.trajectory.run_verification import verify_run

__all__ = ["lab"]


class World:
    """What the tools did, and the point at which one of them waits."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.hold: str | None = None
        self.held = asyncio.Event()

    def tools(self) -> list[Any]:
        @tool(effect="once")
        async def send(to: str) -> str:
            self.sent.append(to)
            if self.hold == f"sent {to}":
                self.held.set()
                await asyncio.sleep(60)
            return f"sent to {to}"

        @tool(effect="idempotent", concurrent=False)
        async def program(context: ToolContext, steps: list[list[str]]) -> list[str]:
            """Call `send` for each name, noting it in a file; `stop` holds it."""
            said = []
            for name, argument in steps:
                if name == "stop":
                    if self.hold == argument:
                        self.held.set()
                        await asyncio.sleep(60)
                    continue
                arguments = {"file_path": argument} if name == "read_file" else {"to": argument}
                if name == "write_file":
                    arguments = {"file_path": argument, "content": argument}
                output = await context.call_tool(name, arguments)
                said.append(("! " if output.is_error else "") + output.content)
            return said

        return [send, program, "files"]


def program(*steps: tuple[str, str]) -> Any:
    return call("program", {"steps": [list(step) for step in steps]})


async def interrupted(world: World, agent: Agent, hold: str) -> None:
    """Begin the run `r`, and cancel it where a tool waits."""
    world.hold = hold
    task = asyncio.ensure_future(agent.run("go", run_id="r"))
    await world.held.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    world.hold = None


async def test_they_are_journalled_within_the_call_that_makes_them(lab: Lab) -> None:
    world = World()
    agent = lab.agent(
        [program(("send", "a"), ("write_file", "f"), ("read_file", "f"))], "ok", tools=world.tools()
    )
    run = await agent.run("go", files={"seed": "s"})
    assert results(run) == [("program", '["sent to a","wrote 1 bytes to f","f"]')]
    started = [event.body for event in run.events if isinstance(event.body, e.ToolStarted)]
    assert [(item.call_id, item.name, item.parent_call_id) for item in started] == [
        ("call_1_0", "program", None),
        ("call_1_0/1", "send", "call_1_0"),
        ("call_1_0/2", "write_file", "call_1_0"),
        ("call_1_0/3", "read_file", "call_1_0"),
    ]
    assert started[1].arguments == '{"to":"a"}'
    assert run.state.turn.spent.tool_calls == 4
    # Files of inner calls are kept with the outer call, which is run again as a whole or not at all.
    kinds_of = [event.type for event in run.events]
    assert kinds_of.count("snapshot_taken") == 2
    assert kinds_of[-6:-3] == ["snapshot_taken", "tool_completed", "inference_started"]
    assert run.files["f"] == b"f"


async def test_one_that_fails_is_told_to_the_code(lab: Lab) -> None:
    world = World()
    steps = [("nope", "a"), ("read_file", "absent"), ("program", "x")]
    run = await lab.agent([program(*steps)], "ok", tools=world.tools()).run("go")
    text = results(run)[0][1]
    assert "There is no tool 'nope'" in text
    assert "there is no file 'absent'" in text
    assert text.count("! ") == 3


async def test_a_tool_that_is_called_from_another_calls_no_further(lab: Lab) -> None:
    @tool(effect="pure")
    async def again(context: ToolContext) -> str:
        return (await context.call_tool("again", {})).content

    run = await lab.agent([call("again")], "ok", tools=[again]).run("go")
    assert results(run) == [("again", "'again' cannot be called from here")]


async def test_limits_and_refusals_hold_for_them(lab: Lab) -> None:
    world = World()
    steps = [("send", "a"), ("send", "b"), ("read_file", "f")]
    agent = lab.agent([program(*steps)], "ok", tools=world.tools(), max_tool_calls=2, max_steps=3)
    run = await agent.run("go", files={"f": "text"})
    assert world.sent == ["a"]
    assert ToolErrorKind.NOT_RUN in kinds(run)
    world.sent.clear()
    agent = lab.agent(
        [program(*steps)], "ok", tools=world.tools(), approve={"send": "never", "read_file": "ask"}
    )
    run = await agent.run("go", files={"f": "text"})
    assert (world.sent, run.stop_reason) == ([], StopReason.COMPLETED)
    assert kinds(run).count(ToolErrorKind.REFUSED) == 3
    assert "only if you call it directly" in results(run)[0][1]


async def test_somebody_who_is_there_is_asked_about_them(lab: Lab) -> None:
    world = World()
    agent = lab.agent(
        [program(("send", "a"), ("send", "b"))],
        "ok",
        tools=world.tools(),
        approve={"send": "ask"},
        approver=lambda request: request.call.parsed == {"to": "b"},
    )
    run = await agent.run("go")
    assert world.sent == ["b"]
    assert results(run) == [("program", '["! Not run: the user refused it.","sent to b"]')]


@pytest.mark.parametrize(
    ("hold", "expected"),
    [
        ("before", '["sent to a","wrote 1 bytes to f","sent to b"]'),
        ("after a", '["sent to a","wrote 1 bytes to f","sent to b"]'),
        ("after f", '["sent to a","wrote 1 bytes to f","sent to b"]'),
        ("after b", '["sent to a","wrote 1 bytes to f","sent to b"]'),
        ("sent a", "unknown"),
    ],
)
async def test_a_call_that_is_made_again_repeats_no_effect_of_what_it_called(
    lab: Lab, hold: str, expected: str
) -> None:
    world = World()
    steps = [
        ("stop", "before"),
        ("send", "a"),
        ("stop", "after a"),
        ("write_file", "f"),
        ("stop", "after f"),
        ("send", "b"),
        ("stop", "after b"),
    ]
    agent = lab.agent([program(*steps)], "ok", tools=world.tools())
    await interrupted(world, agent, hold)
    run = await agent.resume("r")
    assert world.sent == ["a", "b"]
    assert run.files == {"f": b"f"}
    assert expected in results(run)[0][1]
    attempts = [
        event.body.attempt
        for event in run.events
        if isinstance(event.body, e.ToolStarted) and event.body.call_id == "call_1_0"
    ]
    assert attempts == [1, 2]


async def test_code_that_calls_something_else_the_second_time_is_in_doubt(lab: Lab) -> None:
    """A `once` call was made the first time: another one, under the same key, would be a second effect."""
    world = World()
    names = iter(["a", "b"])

    @tool(effect="idempotent")
    async def fickle(context: ToolContext) -> str:
        name = next(names)
        said = await context.call_tool("send", {"to": name})
        if name == "a":
            world.held.set()
            await asyncio.sleep(60)
        return said.content

    agent = lab.agent([call("fickle")], "ok", tools=[fickle, *world.tools()])
    await interrupted(world, agent, "")
    run = await agent.resume("r")
    assert world.sent == ["a"]
    assert "outcome of this call is unknown" in results(run)[0][1]
    assert kinds(run)[-1] is ToolErrorKind.IN_DOUBT


Steps = tuple[tuple[str, str], ...]
READ_A, READ_B, SEND = ("read", "a"), ("read", "b"), ("send", "x")
HANG = ("hang", "")


@pytest.mark.parametrize(
    ("attempts", "sent", "calls", "is_in_doubt"),
    [
        # The third attempt begins with what the first one did second.
        (((READ_A, SEND, HANG), (READ_A, HANG), (SEND,)), ["x"], 3, True),
        # The second attempt did something else in the place of the first one, and the third is like the first.
        (((READ_A, HANG), (SEND, HANG), (READ_A, SEND)), ["x"], 3, True),
        (((READ_A, HANG), (READ_B, SEND, HANG), (READ_A, SEND)), ["x"], 4, False),
        # The code goes on after the call that it may not make.
        (((SEND, HANG), (("send", "y"), ("send", "z"))), ["x"], 2, True),
        # The code does not come to the call that it made.
        (((READ_A, SEND, HANG), (READ_A,)), ["x"], 3, True),
        # A call that was not run counts once, however often it is made again.
        (((("nope", ""), HANG), (("nope", ""), READ_A)), [], 3, False),
        (((READ_A, ("held", ""), HANG), (READ_A, ("held", ""))), [], 3, False),
    ],
)
async def test_no_effect_is_repeated_whatever_code_does_when_it_runs_again(
    lab: Lab, attempts: tuple[Steps, ...], sent: list[str], calls: int, is_in_doubt: bool
) -> None:
    world = World()
    plans = iter(attempts)
    is_first = True

    @tool(effect="pure")
    async def read(to: str) -> str:
        return to

    @tool(effect="pure")
    async def held(to: str) -> str:
        nonlocal is_first
        if is_first:
            is_first = False
            world.held.set()
            await asyncio.sleep(60)
        return to

    @tool(effect="idempotent")
    async def fickle(context: ToolContext) -> str:
        for name, argument in next(plans):
            if name == "hang":
                world.held.set()
                await asyncio.sleep(60)
            else:
                await context.call_tool(name, {"to": argument})
        return "done"

    agent = lab.agent([call("fickle")], "ok", tools=[fickle, read, held, *world.tools()])
    for number in range(len(attempts) - 1):
        world.held.clear()
        task = asyncio.ensure_future(agent.resume("r") if number else agent.run("go", run_id="r"))
        await world.held.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    run = await agent.resume("r")
    assert world.sent == sent
    assert run.state.turn.spent.tool_calls == calls
    assert ("outcome of this call is unknown" in results(run)[0][1]) is is_in_doubt


async def test_verifying_makes_them_again_but_for_those_that_are_once(lab: Lab) -> None:
    world = World()
    steps = [("write_file", "f"), ("read_file", "f"), ("send", "a")]
    run = await lab.agent([program(*steps)], "ok", tools=world.tools()).run("go")
    done = await verify_run(lab.journal, run.run_id, world.tools())
    assert world.sent == ["a"]
    assert (done.matched, done.skipped, done.differences) == (3, 1, ())
    assert done.skips == ("send (call_1_0/3): its effect is once",)
    others = [Liar(item) if item.spec.name == "read_file" else item for item in resolve_tools(["files"])]
    done = await verify_run(lab.journal, run.run_id, [*world.tools()[:2], *others])
    assert {item.call for item in done.differences} == {"read_file (call_1_0/2)", "program (call_1_0)"}


class Liar:
    """A tool that takes the place of another and answers differently."""

    def __init__(self, inner: Any) -> None:
        self.spec = inner.spec
        self.find_fault = inner.find_fault

    async def call(self, arguments: Any, context: ToolContext) -> str:
        return "something else"


async def test_a_policy_with_limits_counts_them_by_tool(lab: Lab) -> None:
    from treadle import ToolLimits

    world = World()
    agent = lab.agent(
        [program(("send", "a"), ("send", "b"))],
        "ok",
        tools=world.tools(),
        tool_limits={"send": ToolLimits(max_calls=1)},
    )
    run = await agent.run("go")
    assert world.sent == ["a"]
    assert kinds(run)[1] is ToolErrorKind.OVER_LIMIT
    assert Policy().limits_of("send") == ()
    assert Effect.ONCE in [tool.effect for tool in run.state.tools]


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_call_that_outlives_its_outer_call_is_stopped(lab: Lab, is_begun: bool) -> None:
    world = World()
    left: list[asyncio.Future[Any]] = []

    @tool(effect="pure")
    async def wait() -> str:
        world.held.set()
        await asyncio.sleep(60)
        return ""

    @tool(effect="idempotent")
    async def leave(context: ToolContext) -> str:
        left.append(asyncio.ensure_future(context.call_tool("wait", {})))
        if is_begun:
            await world.held.wait()
        return "left"

    agent = lab.agent([call("leave")], [call("send", {"to": "a"})], "ok", tools=[leave, wait, *world.tools()])
    run = await agent.run("go")
    await asyncio.wait(left, timeout=10)
    error = (await asyncio.gather(*left, return_exceptions=True))[0]
    assert isinstance(error, asyncio.CancelledError if is_begun else ToolError)
    assert run.stop_reason is StopReason.COMPLETED
    assert results(run)[0] == ("leave", "left")
    assert [event.body.name for event in run.events if isinstance(event.body, e.ToolStarted)] == [
        "leave",
        *(["wait"] if is_begun else []),
        "send",
    ]


programs = st.lists(
    st.tuples(st.sampled_from(["once", "idempotent", "pure", "nope"]), st.sampled_from(["a", "b", "hang"])),
    max_size=4,
)
call_ids = st.sampled_from(["", "c", "c/1", "c/1~2", "c~2", "c-1_1_1", "call_1_0", "call_1_0/1"])


@given(st.lists(programs, min_size=1, max_size=4), st.lists(call_ids, min_size=3, max_size=3))
def test_a_key_stands_for_one_payload_and_a_once_call_is_made_once(
    attempts: list[list[tuple[str, str]]], ids: list[str]
) -> None:
    """Code does something else each time it runs again, may be killed within a call, and ids are of any form."""

    async def check() -> None:
        made: dict[str, list[tuple[str, str]]] = {}
        plans = iter(attempts)
        is_last = len(attempts) == 1
        held = asyncio.Event()

        async def act(name: str, to: str, context: ToolContext) -> str:
            made.setdefault(context.idempotency_key, []).append((name, to))
            if to == "hang" and not is_last:
                held.set()
                await asyncio.sleep(60)
            return to

        def inner(name: str) -> Any:
            async def run(to: str, context: ToolContext) -> str:
                return await act(name, to, context)

            return tool(run, name=name, effect=name)  # type: ignore[call-overload]

        @tool(effect="idempotent", concurrent=False)
        async def fickle(context: ToolContext) -> str:
            for name, to in next(plans, []):
                await context.call_tool(name, {"to": to})
            if not is_last:
                held.set()
                await asyncio.sleep(60)
            return "done"

        names = ["once", "fickle", "once"]
        calls = tuple(
            [
                ToolCall(item, name, '{"to":"a"}' if name == "once" else "{}")
                for item, name in zip(ids, names, strict=True)
            ]
        )
        answers = [Message(Role.ASSISTANT, tool_calls=calls), "ok"]
        tools = [fickle, *[inner(name) for name in ("once", "idempotent", "pure")]]
        agent = Agent(ScriptedModel(answers), tools=tools, journal=MemoryJournal())
        for number in range(len(attempts)):
            is_last = number == len(attempts) - 1
            held.clear()
            task = asyncio.ensure_future(agent.resume("r") if number else agent.run("go", run_id="r"))
            waiting = asyncio.ensure_future(held.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not is_last:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        run = Run.load("r", agent.journal)
        assert run.output == "ok"
        for key, payloads in made.items():
            assert len(set(payloads)) == 1, (key, payloads)
            assert payloads[0][0] != "once" or len(payloads) == 1, (key, payloads)
        assert (await agent.replay("r")).is_exact

    asyncio.run(check())
