"""Regenerate the golden journals: `python tests/data/regenerate.py [NAME ...]`.

Do this only if the change in their content is intended. The journals in `before_contexts` come from an older
version, and are not made again.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from treadle import (
    Agent,
    Attachment,
    Decision,
    Event,
    InDoubt,
    Policy,
    ScriptedModel,
    ToolContext,
    ToolOutput,
    open_journal,
    tool,
)
from treadle.core.errors import RateLimitError, ServerError
from treadle.core.types import Message, Role
from treadle.journal.jsonl import export_run
from treadle.models import RetryModel, call
from treadle.models.scripted import Answer

FOLDER = Path(__file__).parent


@tool(effect="pure")
async def echo(text: str) -> str:
    """Says it back."""
    return text


@tool(effect="once")
async def charge(wait: float = 0.0) -> str:
    """Takes money."""
    await asyncio.sleep(wait)
    return "charged"


JOURNAL = open_journal("memory:")


def agent(*answers: Answer, model: Any = None, **options: Any) -> Agent:
    """Return an agent with all that the journals need."""
    options.setdefault("tools", [echo, charge, "files"])
    return Agent(model or ScriptedModel(answers), journal=JOURNAL, **options)


def say(text: str) -> Any:
    """Return a call of `echo`."""
    return call("echo", {"text": text})


async def cancelled(which: Agent, run_id: str, at: str) -> None:
    """Begin a run and cancel it at an event of this type."""
    reached = asyncio.Event()
    task = asyncio.ensure_future(
        which.run("go", run_id=run_id, on_event=lambda event: reached.set() if event.type == at else None)
    )
    await reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def plain() -> None:
    await agent("the answer", instructions="Be brief.").run("go", run_id="plain")


async def tools() -> None:
    steps: list[Answer] = [
        [say("a"), say("b"), call("charge")],
        [call("ecko"), call("echo", "{"), call("echo", {})],
        [call("write_file", {"file_path": "a", "content": "1"})],
        [call("edit_file", {"file_path": "a", "old_text": "1", "new_text": "2"}), call("list_files")],
        "done",
    ]
    await agent(*steps, files={"seed": "s"}).run("go", run_id="tools")


async def max_steps() -> None:
    last = Message(Role.ASSISTANT, "so far", (say("c"),))
    await agent([say("a")], [say("b")], last, policy=Policy(max_steps=2)).run("go", run_id="max_steps")


async def max_tool_calls() -> None:
    policy = Policy(max_tool_calls=1)
    await agent([say("a"), say("b")], "so far", policy=policy).run("go", run_id="max_tool_calls")


async def retried() -> None:
    flaky = ScriptedModel([RateLimitError("wait", status=429, retry_after_seconds=0.01), "ok"])
    await agent(model=RetryModel(flaky)).run("go", run_id="retried")


async def failed() -> None:
    await agent([say("a")], ServerError("down")).run("go", run_id="failed")
    await agent("up again").resume("failed")


async def cancelled_model() -> None:
    slow = ScriptedModel(["late"], delay_seconds=60)
    await cancelled(agent(model=slow), "cancelled_model", "inference_started")
    await agent("in time").resume("cancelled_model")


async def in_doubt() -> None:
    await cancelled(agent([call("charge", {"wait": 60.0}), say("a")]), "in_doubt", "tool_started")
    await agent("I see").resume("in_doubt")


async def asked() -> None:
    policy = Policy(in_doubt=InDoubt.ASK)
    await cancelled(agent([call("charge", {"wait": 60.0})], policy=policy), "asked", "tool_started")
    waiting = await agent(policy=policy).resume("asked")
    await agent("thanks", policy=policy).resume("asked", answers=dict.fromkeys(waiting.questions, "charged"))


async def session() -> None:
    async with agent("one", [say("a")], "two").session("session") as first:
        await first.send("first")
        await first.send("second")
    async with agent("three").session("session") as again:
        await again.send("third")


async def fork() -> None:
    await agent([say("a")], "done").run("go", run_id="origin")
    await agent("otherwise").fork("origin", 6, new_run_id="fork")


async def approved() -> None:
    policy = Policy(approve={"once": "ask", "echo": "never"})
    steps: list[Answer] = [[call("charge"), call("charge", {"wait": 0.01}), say("a")], "done"]
    asking = agent(*steps, policy=policy, approver=lambda _: True)
    await asking.run("go", run_id="said_yes")
    waiting = agent(*steps, policy=policy)
    await waiting.run("go", run_id="approved")
    await waiting.resume("approved", approvals={"call_1_1": Decision(False, "too slow")})
    edit = Decision(True, arguments='{"wait": 0.0}')
    await agent("done", policy=policy).resume("approved", approvals={"call_1_0": edit})


async def inner() -> None:
    @tool(effect="idempotent", concurrent=False)
    async def program(context: ToolContext, names: list[str], wait: bool = False) -> str:
        """Calls others."""
        said = []
        for name in names:
            arguments = {"text": "x"} if name == "echo" else {}
            said.append((await context.call_tool(name, arguments)).content)
        if wait and not IS_SECOND:
            await asyncio.sleep(60)
        return ", ".join(said)

    names = {"names": ["charge", "echo", "absent"], "wait": True}
    tools = [program, echo, charge]
    first = agent([call("program", names)], "done", tools=tools)
    started = asyncio.ensure_future(first.run("go", run_id="inner"))
    while sum(event.type == "tool_completed" for event in _read("inner")) < 3:
        await asyncio.sleep(0.01)
    started.cancel()
    await asyncio.gather(started, return_exceptions=True)
    IS_SECOND.append(True)
    await first.resume("inner")


IS_SECOND: list[bool] = []


def _read(run_id: str) -> list[Event]:
    return JOURNAL.read(run_id) if run_id in [info.run_id for info in JOURNAL.runs()] else []


async def artifacts() -> None:
    @tool(effect="pure", max_result_chars=40, max_calls=2)
    async def page(size: int) -> ToolOutput:
        """A page with a picture."""
        picture = Attachment("image", b"\x89PNG", "image/png")
        return ToolOutput("x" * size, structured={"size": size}, attachments=(picture,), is_simulated=True)

    steps: list[Answer] = [
        [call("page", {"size": 41}), call("page", {"size": 1})],
        [call("page", {"size": 2})],
        "ok",
    ]
    await agent(*steps, tools=[page]).run("go", run_id="artifacts")


ALL: list[Callable[[], Awaitable[None]]] = [
    plain, tools, max_steps, max_tool_calls, retried, failed, cancelled_model, in_doubt, asked, session, fork,
    approved, inner, artifacts,
]  # fmt: skip


async def main() -> None:
    """Write one file for each run, or only for those that are named."""
    for make in ALL:
        name = make.__name__
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        await make()
        (FOLDER / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in export_run(JOURNAL, name)))


if __name__ == "__main__":
    asyncio.run(main())
