"""A run with numbered boundaries at which its process can be killed.

There are boundaries before and after each append and each sync, around each answer of the model, and around
each effect of a tool. What the outside world saw is written to a file beside the journal, which survives the
kill.
"""

import asyncio
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treadle import Agent, Approval, ApprovalRequest, InDoubt, Policy, Run, ToolContext, open_journal, tool
from treadle.core.errors import RunNotFoundError
from treadle.core.events import DurableBody, Event
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall
from treadle.journal.protocol import RunWriter
from treadle.models import call
from treadle.models.protocol import Watch

RUN_ID = "run"


class Boundary:
    """A counter that kills the process at call number `crash_at`, counted from 0. `None` means never."""

    def __init__(self) -> None:
        self.count = 0
        self._crash_at: int | None = None
        self._file = -1

    def begin(self, crash_at: int | None, witness: Path) -> None:
        """Count from here, and write to `witness`."""
        self._crash_at = crash_at
        self._file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self) -> None:
        if self.count == self._crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def witness(self, what: str) -> None:
        """Record something that the outside world saw. The record survives a kill at the next instant."""
        os.write(self._file, f"{what}\n".encode())


boundary = Boundary()
"""A process drives one run, so it has one; the tools below are made before it is known which run that is."""


class CrashingWriter:
    """The journal's own writer, with a boundary before and after each of its operations."""

    def __init__(self, inner: RunWriter) -> None:
        self._inner = inner
        self.run_id = inner.run_id

    def append(self, bodies: Sequence[DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        boundary()
        self._inner.append(bodies, blobs)
        boundary()

    async def sync(self) -> None:
        boundary()
        await self._inner.sync()
        boundary()

    async def release(self) -> None:
        await self._inner.release()


class CrashingJournal:
    """A SQLite journal whose writers may kill the process."""

    def __init__(self, path: Path, level: str) -> None:
        self._inner = open_journal(path, level=level)

    def create(self, run_id: str) -> CrashingWriter:
        return CrashingWriter(self._inner.create(run_id))

    async def acquire(self, run_id: str) -> CrashingWriter:
        return CrashingWriter(await self._inner.acquire(run_id))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


_STEP = re.compile(r"step (\d+)")


class Script:
    """A model that answers by the last step that its prompt tells of, and records every answer that is paid for."""

    name = "script"

    def __init__(self, steps: Sequence[Sequence[ToolCall]]) -> None:
        self._steps = steps

    async def infer(self, request: Request, watch: Watch) -> Completion:
        told = " ".join(message.content for message in request.messages if message.role is not Role.TOOL)
        step = 1 + max(map(int, _STEP.findall(told)), default=-1)
        is_summary = request.messages[0].content.startswith("You write the memory")
        boundary.witness(f"summary {step}" if is_summary else f"asked {step + 1}")
        boundary()
        await asyncio.sleep(0)
        boundary()
        if is_summary:
            said = Message(Role.ASSISTANT, f"All was done up to step {step - 1}.")
            return Completion(said, FinishReason.STOP, cost_usd=0.0)
        if step < len(self._steps):
            calls = tuple(
                ToolCall(f"c{step}_{index}", item.name, item.arguments)
                for index, item in enumerate(self._steps[step])
            )
            return Completion(
                Message(Role.ASSISTANT, f"step {step}", calls), FinishReason.TOOL_CALLS, cost_usd=0.0
            )
        return Completion(Message(Role.ASSISTANT, "done"), FinishReason.STOP, cost_usd=0.0)


def make_tools() -> list[Any]:
    """Return one sync and one async tool for each effect."""

    def act(effect: str, context: ToolContext, text: str) -> str:
        boundary()
        boundary.witness(f"effect {effect} {context.idempotency_key}")
        boundary()
        return f"{effect} {text}"

    tools = []
    for effect in ("pure", "idempotent", "once"):

        @tool(name=f"{effect}_sync", effect=effect)  # type: ignore[call-overload,untyped-decorator]
        def in_thread(text: str, context: ToolContext, effect: str = effect) -> str:
            """Acts in a thread."""
            return act(effect, context, text)

        @tool(name=f"{effect}_async", effect=effect)  # type: ignore[call-overload,untyped-decorator]
        async def inline(text: str, context: ToolContext, effect: str = effect) -> str:
            """Acts on the loop."""
            await asyncio.sleep(0)
            return act(effect, context, text)

        tools += [in_thread, inline]

    @tool(effect="idempotent", concurrent=False)
    async def program(names: list[str], context: ToolContext) -> str:
        """Calls others, and writes a file of its own before and after each."""
        assert context.sandbox is not None
        said = []
        for number, name in enumerate(names):
            path = "program.log"
            before = context.sandbox.read(path) if path in context.sandbox.paths() else b""
            context.sandbox.write(path, before + b"%d\n" % number)
            arguments = {"file_path": "c.txt", "content": "c"} if name == "write_file" else {"text": "p"}
            said.append((await context.call_tool(name, arguments)).content)
        return "; ".join(said)

    return [*tools, program, "files"]


OWN = make_tools()


def tools_of(scenario: str, witness: Path) -> list[Any]:
    """Return the tools of a scenario. Only some scenarios need tools with processes of their own."""
    if scenario in ("python", "shell"):
        return [*OWN, scenario]
    if scenario == "compaction":
        return [
            item for item in OWN if getattr(item, "spec", None) is not None and item.spec.name != "program"
        ]
    if scenario == "mcp":
        return [_servers(witness)]
    return OWN


def _servers(witness: Path) -> Any:
    """Return an MCP server that records its calls and their idempotency keys."""
    from treadle.tools.mcp import MCPServer

    return MCPServer(
        sys.executable, args=["-S", str(Path(__file__).with_name("mcp_server.py")), str(witness)]
    )


def one(name: str, **arguments: str) -> ToolCall:
    return call(name, arguments)


SCENARIOS: dict[str, list[list[ToolCall]]] = {
    "async": [[one(f"{effect}_async", text="a")] for effect in ("pure", "idempotent", "once")],
    "sync": [[one(f"{effect}_sync", text="a")] for effect in ("once", "idempotent", "pure")],
    "parallel": [
        [one("once_async", text="1"), one("idempotent_sync", text="2"), one("pure_async", text="3")],
        [one("once_sync", text="4"), one("once_async", text="5"), one("idempotent_async", text="6")],
    ],
    "files": [
        [one("write_file", file_path="b.txt", content="one\n")],
        [one("edit_file", file_path="a.txt", old_text="seed", new_text="grown"), one("list_files")],
        [one("once_async", text="7"), one("read_file", file_path="a.txt")],
        [one("delete_file", file_path="b.txt")],
    ],
    "inner": [
        [call("program", {"names": ["once_async", "write_file", "once_sync", "idempotent_async"]})],
        [one("read_file", file_path="program.log"), one("read_file", file_path="c.txt")],
    ],
    "approved": [
        [one("once_async", text="1"), one("pure_async", text="2"), one("once_sync", text="3")],
        [call("program", {"names": ["once_async"]})],
    ],
}
SCENARIOS |= {
    "python": [
        [call("python", {"code": "n = 1\nopen('log', 'a').write('1')"})],
        [call("python", {"code": "n += 1\nopen('log', 'a').write('2')\nonce_async(text='p')\nn"})],
        [call("python", {"code": "open('log').read(), n"})],
    ],
    "shell": [
        [call("shell", {"command": "echo 1 >> log; mkdir -p d; echo x > d/y"})],
        [call("shell", {"command": "echo 2 >> log; rm d/y; cat log"}), one("read_file", file_path="log")],
        [one("list_files")],
    ],
    "mcp": [
        [call("mcp_look", {}), call("mcp_set", {})],
        [call("mcp_once", {})],
        [call("mcp_once", {}), call("mcp_look", {})],
    ],
}
_LONG = " ".join(["some words of a long text"] * 20)
SCENARIOS["compaction"] = [
    [one(f"{effect}_async", text=f"{number} {_LONG}")]
    for number, effect in enumerate(["pure", "once", "idempotent", "once", "pure", "once", "idempotent"])
]
CONTEXT_TOKENS = {"compaction": 1500}
"""The context windows of scenarios; none in the others."""
APPROVE = {"approved": {"once": Approval.ASK}}
"""The approvals that a scenario's policy asks for. Every request is approved."""


async def drive(
    path: Path, scenario: str, level: str, crash_at: int | None, *, listens: bool, in_doubt: InDoubt
) -> tuple[Run, int]:
    """Resume the run, or begin it if nothing was kept. Return the run and the number of boundaries."""
    boundary.begin(crash_at, path.with_suffix(".witness"))
    journal = CrashingJournal(path, level)

    async def approve(request: ApprovalRequest) -> bool:
        boundary.witness(f"approved {request.call.call_id}")
        boundary()
        return True

    agent = Agent(
        Script(SCENARIOS[scenario]),
        tools=tools_of(scenario, path.with_suffix(".witness")),
        policy=Policy(
            in_doubt=in_doubt,
            approve=APPROVE.get(scenario, {}),
            context_tokens=CONTEXT_TOKENS.get(scenario),
        ),
        approver=approve,
        journal=journal,  # type: ignore[arg-type]
        files={"a.txt": "seed\n"},
    )

    def hear(event: Any) -> None:
        if isinstance(event, Event):
            boundary.witness(f"heard {event.seq}")

    options: dict[str, Any] = {"on_event": hear} if listens else {}
    try:
        run = await agent.resume(RUN_ID, **options)
    except RunNotFoundError:
        run = await agent.run("go", run_id=RUN_ID, **options)
    if run.questions:
        run = await agent.resume(RUN_ID, answers=dict.fromkeys(run.questions, "unknown, says the user"))
    journal.close()
    return run, boundary.count


def main() -> None:
    """Drive the run that the last argument describes, then end at once, without Python's own shutdown."""
    order = json.loads(sys.argv[-1])
    path = Path(order.pop("path"))
    code = 1
    try:
        _, count = asyncio.run(drive(path, **{**order, "in_doubt": InDoubt(order["in_doubt"])}))
        path.with_suffix(".count").write_text(str(count))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
