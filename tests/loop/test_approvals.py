"""Calls that need approval: the policy, the approver, and decisions made later."""

import asyncio
from typing import Any

import pytest
from tests.loop.test_loop import Lab, kinds, lab, results

from treadle import Agent, Approval, ApprovalRequest, Decision, Policy, ScriptedModel, tool
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.state import Status
from treadle.core.types import StopReason, ToolErrorKind
from treadle.models import call
from treadle.trajectory.run_verification import verify_run

__all__ = ["lab"]

SENT: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    SENT.clear()


@tool(effect="once")
async def send(to: str) -> str:
    """Send a letter."""
    SENT.append(to)
    return f"sent to {to}"


@tool(effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


def send_to(name: str) -> Any:
    return call("send", {"to": name})


def types(run: Any) -> list[str]:
    return [event.type for event in run.events]


async def test_a_policy_is_read_by_name_then_pattern_then_effect() -> None:
    policy = Policy(approve={"once": "ask", "s*": "never", "se*": "always", "send": "ask", "look": "never"})
    assert policy.approval_of("send", send.spec.effect) is Approval.ASK
    assert policy.approval_of("seek", send.spec.effect) is Approval.ALWAYS
    assert policy.approval_of("stop", look.spec.effect) is Approval.NEVER
    assert policy.approval_of("burn", send.spec.effect) is Approval.ASK
    assert policy.approval_of("read", look.spec.effect) is Approval.ALWAYS
    assert policy.approval_of("once", look.spec.effect) is Approval.ALWAYS
    with pytest.raises(ConfigError, match="use 'always', 'ask' or 'never'"):
        Policy(approve={"send": "maybe"})  # type: ignore[dict-item]


async def test_never_is_told_to_the_model_and_counts_for_nothing(lab: Lab) -> None:
    agent = lab.agent([send_to("a"), call("look")], "ok", tools=[send, look], approve={"once": "never"})
    run = await agent.run("go")
    assert (SENT, kinds(run)) == ([], [ToolErrorKind.REFUSED, None])
    assert results(run)[0][1] == "Not run: the policy of this run does not allow it."
    assert run.state.turn.spent.tool_calls == 1
    assert run.stop_reason is StopReason.COMPLETED


async def test_somebody_is_asked_before_anything_of_the_step_is_run(lab: Lab) -> None:
    asked: list[tuple[str, bool]] = []

    async def decide(request: ApprovalRequest) -> bool:
        await asyncio.sleep(0)
        last = lab.kept(request.run_id)[-1]
        asked.append((request.call.parsed["to"], last in ("approval_requested", "approval_decided")))
        return request.call.parsed["to"] == "a"

    calls = [call("look"), send_to("a"), send_to("b")]
    agent = lab.agent(calls, "ok", tools=[send, look], approve={"send": "ask"}, approver=decide)
    run = await agent.run("go")
    assert asked == [("a", True), ("b", True)]
    assert SENT == ["a"]
    assert results(run)[1:] == [("send", "sent to a"), ("send", "Not run: the user refused it.")]
    middle = types(run)[4:]
    assert middle.index("tool_started") > max(
        i for i, kind in enumerate(middle) if kind == "approval_decided"
    )


async def test_a_call_that_could_not_be_run_asks_nobody(lab: Lab) -> None:
    agent = lab.agent(
        [call("send", {"too": "a"}), call("nope"), call("send", "{")],
        "ok",
        tools=[send],
        approve={"*": "ask"},
        approver=lambda request: pytest.fail("asked"),
    )
    run = await agent.run("go")
    assert set(kinds(run)) == {
        ToolErrorKind.INVALID_ARGUMENTS,
        ToolErrorKind.UNKNOWN_TOOL,
        ToolErrorKind.INVALID_JSON,
    }


async def test_an_edit_is_run_and_told_to_the_model(lab: Lab) -> None:
    edit = Decision(True, arguments='{"to": "b"}')
    agent = lab.agent([send_to("a")], "ok", tools=[send], approve={"once": "ask"}, approver=lambda _: edit)
    run = await agent.run("go")
    assert SENT == ["b"]
    assert results(run) == [("send", 'The user changed the arguments to {"to": "b"}\nsent to b')]
    assert run.messages[1].tool_calls[0].parsed == {"to": "a"}


async def test_new_arguments_may_be_a_mapping(lab: Lab) -> None:
    edit = Decision(True, arguments={"to": "b"})
    agent = lab.agent([send_to("a")], "ok", tools=[send], approve={"once": "ask"}, approver=lambda _: edit)
    run = await agent.run("go")
    assert results(run) == [("send", 'The user changed the arguments to {"to":"b"}\nsent to b')]
    agent = lab.agent([send_to("a")], "ok", tools=[send], approve={"once": "ask"})
    run = await agent.run("go")
    with pytest.raises(ConfigError, match="is 'yes'; give a bool or a Decision"):
        await agent.resume(run.run_id, approvals={"call_1_0": "yes"})
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        await agent.resume(run.run_id, approvals={"call_1_0": Decision(True, arguments={"to": object()})})
    run = await agent.resume(run.run_id, approvals={"call_1_0": Decision(True, arguments={"to": "c"})})
    assert SENT == ["b", "c"]


def test_a_decision_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is_approved is 'no'; give True or False"):
        Decision("no")
    with pytest.raises(ConfigError, match="arguments is 3; give a dict, or JSON as a str"):
        Decision(True, arguments=3)


async def test_a_run_that_waits_is_paused_and_goes_on_with_a_decision(lab: Lab) -> None:
    agent = lab.agent([send_to("a"), send_to("b")], "ok", tools=[send], approve={"once": "ask"})
    run = await agent.run("go")
    assert (run.status, list(run.approvals), SENT) == (Status.PAUSED, ["call_1_0", "call_1_1"], [])
    assert isinstance(run.events[-1].body, e.RunPaused)
    assert run.events[-1].body.reason == "approval"
    assert (await agent.resume(run.run_id)).status is Status.PAUSED
    run = await agent.resume(run.run_id, approvals={"call_1_1": True})
    assert (run.status, list(run.approvals), SENT) == (Status.PAUSED, ["call_1_0"], [])
    with pytest.raises(
        ConfigError, match="no call 'call_1_1' waits for a decision; the waiting calls are: call_1_0"
    ):
        await agent.resume(run.run_id, approvals={"call_1_1": False})
    with pytest.raises(ConfigError, match="cannot be run with these arguments"):
        await agent.resume(run.run_id, approvals={"call_1_0": Decision(True, arguments="{}")})
    run = await agent.resume(run.run_id, approvals={"call_1_0": Decision(False, "not to a")})
    assert (run.output, SENT) == ("ok", ["b"])
    assert results(run)[0] == ("send", "Not run: the user refused it. They said: not to a")


async def test_waiting_is_no_time_at_work(lab: Lab) -> None:
    async def decide(request: ApprovalRequest) -> bool:
        await asyncio.sleep(2.2)
        return True

    agent = lab.agent(
        [send_to("a")], "ok", tools=[send], approve={"once": "ask"}, approver=decide, deadline_seconds=2.0
    )
    run = await agent.run("go")
    assert (run.stop_reason, SENT) == (StopReason.COMPLETED, ["a"])
    assert run.state.work_seconds < 2.0


class Watch:
    """A clock that stands still until it is set."""

    now = 1e9

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("deadline", [None, 600.0])
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_waiting_for_no_decision_is_no_time_at_work(deadline: float | None, is_stopped: bool) -> None:
    clock, asked = Watch(), asyncio.Event()

    async def decide(request: ApprovalRequest) -> None:
        clock.now += 100
        asked.set()
        if is_stopped:
            await asyncio.sleep(60)

    agent = Agent(
        ScriptedModel([[send_to("a")], "ok"]),
        tools=[send],
        policy=Policy(approve={"once": "ask"}, deadline_seconds=deadline),
        approver=decide,
        journal="memory:",
        clock=clock,
    )
    async with agent.session() as session:
        turn = asyncio.ensure_future(session.send("go"))
        await asked.wait()
        if is_stopped:
            turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        assert session.run.state.turn.is_open is not is_stopped
        assert session.run.state.work_seconds == 0.0


async def test_cancelling_while_somebody_is_asked_leaves_the_call_waiting(lab: Lab) -> None:
    asked = asyncio.Event()

    async def decide(request: ApprovalRequest) -> bool:
        asked.set()
        await asyncio.sleep(60)
        return True

    agent = lab.agent([send_to("a")], "ok", tools=[send], approve={"once": "ask"}, approver=decide)
    task = asyncio.ensure_future(agent.run("go", run_id="r"))
    await asked.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    later = Agent(ScriptedModel(["ok"]), tools=[send], journal=lab.journal)
    run = await later.resume("r", approvals={"call_1_0": True})
    assert (run.output, SENT) == ("ok", ["a"])


async def test_a_session_waits_too(lab: Lab) -> None:
    agent = lab.agent([send_to("a")], "ok", "more", tools=[send], approve={"once": "ask"})
    async with agent.session("s") as session:
        assert (await session.send("go")).status is Status.PAUSED
        with pytest.raises(ConfigError, match="waits for an answer or an approval"):
            await session.send("on")
    run = await agent.resume("s", approvals={"call_1_0": True})
    assert (run.output, SENT) == ("ok", ["a"])
    async with agent.session("s") as session:
        assert (await session.send("on")).output == "more"


async def test_a_fork_from_before_the_decision_can_decide_otherwise(lab: Lab) -> None:
    agent = lab.agent([send_to("a")], "ok", tools=[send], approve={"once": "ask"}, approver=lambda _: True)
    run = await agent.run("go")
    at = types(run).index("approval_requested") + 1
    refusing = Agent(
        ScriptedModel(["well"]),
        tools=[send],
        journal=lab.journal,
        policy=Policy(approve={"once": "ask"}),
        approver=lambda _: False,
    )
    forked = await refusing.fork(run.run_id, at)
    assert (forked.output, SENT) == ("well", ["a"])
    assert kinds(forked) == [ToolErrorKind.REFUSED]


async def test_a_replay_with_another_policy_says_where_it_parts(lab: Lab) -> None:
    agent = lab.agent([send_to("a")], "ok", tools=[send])
    run = await agent.run("go")
    for approve, decided in (({"once": "ask"}, "an approval"), ({"once": "never"}, "tool_completed")):
        replay = await agent.replay(run.run_id, policy=Policy(approve=approve))
        assert replay.divergence is not None
        assert "tool_started" in replay.divergence.expected
        assert decided in replay.divergence.actual


async def test_verifying_makes_an_edited_call_as_it_was_run(lab: Lab) -> None:
    @tool(effect="pure")
    async def double(n: int) -> int:
        return 2 * n

    edit = Decision(True, arguments='{"n": 5}')
    agent = lab.agent(
        [call("double", {"n": 1})], "ok", tools=[double], approve={"*": "ask"}, approver=lambda _: edit
    )
    run = await agent.run("go")
    assert results(run)[0][1].endswith("\n10")
    verified = await verify_run(lab.journal, run.run_id, [double])
    assert (verified.matched, verified.differences, verified.skips) == (1, (), ())


async def test_verifying_counts_a_refused_call_by_name(lab: Lab) -> None:
    run = await lab.agent([send_to("a")], "ok", tools=[send], approve={"once": "never"}).run("go")
    verified = await verify_run(lab.journal, run.run_id, [send])
    assert verified.skips == ("send (call_1_0): it was refused",)
