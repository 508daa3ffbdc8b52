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
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.postgres.server import Server

from treadle import Agent, Approval, ApprovalRequest, InDoubt, Policy, Run, ToolContext, tool
from treadle.core.asking import Question
from treadle.core.errors import RunNotFoundError
from treadle.core.events import DurableBody, Event, MessageInjected, TurnStarted
from treadle.core.spec import MemorySpec
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall
from treadle.journal.protocol import RunWriter
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.journal.tables.journal import TableJournal
from treadle.models import call
from treadle.models.protocol import Model, Watch
from treadle.models.wrappers.tiered import TieredModel
from treadle.routing.judging import Judgement, MessageFacts, judge_message

RUN_ID = "run"


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_server(folder: str) -> None:
    """Kill the PostgreSQL server in `folder`, and start it again while this process goes on."""
    server = Server(Path(folder))
    server.kill()
    threading.Thread(target=server.start).start()


class Boundary:
    """A counter that kills the process at call number `crash_at`, counted from 0. `None` means never."""

    def __init__(self) -> None:
        self.count = 0
        self.strike = kill_this_process
        """What happens at the call."""
        self._crash_at: int | None = None
        self._file = -1

    def begin(self, crash_at: int | None, witness: Path) -> None:
        """Count from here, and write to `witness`."""
        self._crash_at = crash_at
        self._file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self) -> None:
        if self.count == self._crash_at:
            self.strike()
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
        self.driven = inner.driven

    def append(self, bodies: Sequence[DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        boundary()
        self._inner.append(bodies, blobs)
        boundary()

    def take_in(self, number: int) -> None:
        boundary()
        self._inner.take_in(number)
        boundary()

    async def sync(self) -> None:
        boundary()
        await self._inner.sync()
        boundary()

    async def release(self) -> None:
        await self._inner.release()


class _Crashing(TableJournal[Any]):
    """A journal whose writers may kill the process."""

    def create(self, run_id: str, **options: Any) -> Any:
        return CrashingWriter(super().create(run_id, **options))

    async def acquire(self, run_id: str) -> Any:
        return CrashingWriter(await super().acquire(run_id))


class CrashingJournal(_Crashing, SqliteJournal):
    """A SQLite journal whose writers may kill the process."""


def address_of(path: Path) -> str | Path:
    """Return the address of a scenario's journal: the file itself, or the URL in the file beside it."""
    beside = path.with_suffix(".url")
    return beside.read_text() if beside.exists() else path


def open_crashing(path: Path, level: str) -> Any:
    """Open the journal of a scenario, whose writers may kill the process."""
    if (address := address_of(path)) is path:
        return CrashingJournal(path, level)
    from treadle.journal.postgres.postgres_journal import PostgresJournal

    return type("CrashingPostgres", (_Crashing, PostgresJournal), {})(address, level)


class Script:
    """A model that answers by the number of results so far, and records every answer that is paid for."""

    name = "script"
    answer = "done"
    witnessed_as = "asked"

    def __init__(self, steps: Sequence[Sequence[ToolCall]], *, is_child: bool = False) -> None:
        self._steps = steps
        self._is_child = is_child

    def step_of(self, request: Request) -> int:
        """Return how many steps were made."""
        return sum(message.role is Role.ASSISTANT for message in request.messages)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        step = self.step_of(request)
        task = next(message.content for message in request.messages if message.role is Role.USER)
        boundary.witness(f"child {task} {step + 1}" if self._is_child else f"{self.witnessed_as} {step + 1}")
        boundary()
        await asyncio.sleep(0)
        boundary()
        if step < len(self._steps):
            calls = tuple(
                ToolCall(f"c{step}_{index}", item.name, item.arguments)
                for index, item in enumerate(self._steps[step])
            )
            return Completion(
                Message(Role.ASSISTANT, f"step {step}", calls), FinishReason.TOOL_CALLS, cost_usd=0.0
            )
        if not self._steps and step < 3:
            # The second question was asked before, and the answer without content is not yet one.
            text = ("[ASK_USER] Which?", "[ASK_USER] which", "")[step]
            return Completion(Message(Role.ASSISTANT, text), FinishReason.STOP, cost_usd=0.0)
        return Completion(Message(Role.ASSISTANT, self.answer), FinishReason.STOP, cost_usd=0.0)


class Refusing(Script):
    """A script whose first answer in each turn says that the model cannot do what it has a tool for."""

    def step_of(self, request: Request) -> int:
        begun = max(at for at, item in enumerate(request.messages) if item.content.startswith("delete"))
        return sum(message.role is Role.ASSISTANT for message in list(request.messages)[begun:]) - 1

    async def infer(self, request: Request, watch: Watch) -> Completion:
        if self.step_of(request) >= 0:
            return await super().infer(request, watch)
        boundary()
        said = Message(Role.ASSISTANT, "I'm sorry, but I can't search the web.")
        return Completion(said, FinishReason.STOP, cost_usd=0.0)


class SlowJudge:
    """A judge that takes time, and records what it is asked."""

    async def judge(self, message: str, facts: MessageFacts) -> Judgement:
        boundary.witness(f"judged {message}")
        boundary()
        await asyncio.sleep(0)
        boundary()
        return judge_message(message, facts)


class Hesitant(Script):
    """A script whose answer does not pass the check of a cascade."""

    name = "hesitant"
    answer = "I don't know."
    witnessed_as = "hesitated"


def model_of(scenario: str) -> Model:
    """Return the model of a scenario. In `routed`, an answer is thrown away, and a better tier is asked."""
    steps = SCENARIOS[scenario]
    if scenario in ("routed", "routed_messages"):
        return TieredModel({"small": Hesitant(steps), "mid": Script(steps)}, router="cascade")
    if scenario == "remembering":
        return Remembering(steps)
    if scenario == "judged":
        return Refusing(steps)
    return Summarising(steps) if scenario in CONTEXT_TOKENS else Script(steps)


_STEP = re.compile(r"step (\d+)")


class Summarising(Script):
    """A model that answers by the last step that its prompt tells of, as messages or in a summary."""

    def step_of(self, request: Request) -> int:
        told = " ".join(message.content for message in request.messages if message.role is not Role.TOOL)
        return 1 + max(map(int, _STEP.findall(told)), default=-1)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        if not request.messages[0].content.startswith("You write the memory"):
            return await super().infer(request, watch)
        step = self.step_of(request)
        boundary.witness(f"summary {step}")
        boundary()
        await asyncio.sleep(0)
        boundary()
        said = Message(Role.ASSISTANT, f"All was done up to step {step - 1}.")
        return Completion(said, FinishReason.STOP, cost_usd=0.0)


class Remembering(Summarising):
    """A model that makes the calls of one step in each turn, and answers when it has the results."""

    def step_of(self, request: Request) -> int:
        said = [message.content for message in request.messages if message.role is Role.USER]
        number = int(([0, *re.findall(r"Message (\d+)", said[-1])])[-1])
        return len(self._steps) if request.messages[-1].role is Role.TOOL else number


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

    @tool(effect="idempotent")
    async def ask_around(context: ToolContext) -> str:
        """Asks, acts, and asks again."""
        first = await context.ask("First?")
        acted = await context.call_tool("once_async", {"text": first.text})
        second = await context.ask("Second?")
        return f"{first.text}; {acted.content}; {second.text}"

    @tool(effect="once")
    async def once_asking(context: ToolContext) -> str:
        """Asks before it acts."""
        said = await context.ask("Pay?")
        return act("once", context, said.text)

    return [*tools, program, ask_around, once_asking, "files", "ask"]


OWN = make_tools()


def tools_of(scenario: str, witness: Path) -> list[Any]:
    """Return the tools of a scenario. Only some scenarios need tools with processes of their own."""
    if scenario in ("python", "shell"):
        return [*OWN, scenario]
    if scenario in CONTEXT_TOKENS:
        # Others would fill its small window.
        return [item for item in OWN if getattr(item, "__name__", "") in ("in_thread", "inline")]
    if scenario == "mcp":
        return [_servers(witness)]
    if scenario == "judged":

        @tool(effect="once")
        async def web_search(query: str, context: ToolContext) -> str:
            """Search the web."""
            boundary.witness(f"effect once {context.idempotency_key}")
            boundary()
            return query

        return [web_search, "ask"]
    if scenario in ("agents", "agents_asking"):
        steps = CHILD if scenario == "agents" else ASKING_CHILD
        child = Agent(Script(steps, is_child=True), tools=OWN, policy=Policy())
        return [*OWN, child.as_tool("helper", "helps", shares_files=True)]
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
    "routed": [[one("once_async", text="a")], [one("pure_async", text="b")]],
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
CONTEXT_TOKENS = {"compaction": 2000, "remembering": 3600}
"""The context windows of scenarios; none in the others."""
SCENARIOS |= {
    "agents": [
        [call("helper", {"task": "one"}), one("once_async", text="1")],
        [call("helper", {"task": "two"})],
    ],
    "agents_asking": [[call("helper", {"task": "one"})]],
    "messages": [[one("pure_async", text="1")], [one("once_async", text="2")]],
    "routed_messages": [[one("pure_async", text="1")], [one("once_async", text="2")]],
    "remembering": [
        [
            call("remember", {"text": f"Fact {number} is {_LONG}.", "reason": "r", "confidence": 1.0}),
            one("once_async", text=f"{number} {_LONG}"),
        ]
        for number in range(4)
    ],
    "judged": [[one("web_search", query="1")]],
    "asking": [
        [call("ask_user", {"question": "One?"}), one("pure_async", text="1"), call("ask_around", {})],
        [call("once_asking", {})],
    ],
    "parked": [
        [call("ask_user", {"question": "One?"}), one("pure_async", text="1"), call("ask_around", {})],
    ],
    "marked": [],
}
CHILD = [[one("once_async", text="c"), one("pure_sync", text="c")], [one("once_sync", text="d")]]
"""What the sub-agents do."""
ASKING_CHILD = [[call("ask_user", {"question": "Which?"})], [one("once_async", text="d")]]
"""What a sub-agent does that asks the user."""
SESSIONS = ("messages", "routed_messages", "remembering", "judged")
"""The scenarios that are sessions."""
TURNS = 4
"""How many turns the session has that remembers them."""
MESSAGES = {"q1": "queue", "s1": "steer", "i1": "interrupt", "q2": "queue"}
"""The messages that are sent during the first turn of a session, and their delivery."""
JUDGED = ("delete the database", "delete the server")
"""The messages of the session whose messages are judged."""
HAS_ASKER = ("asking", "marked")
"""The scenarios with an asker. In the others, questions wait until the run is resumed with their answers."""
APPROVE = {"approved": {"once": Approval.ASK}}
"""The approvals that a scenario's policy asks for. Every request is approved."""


async def drive(
    path: Path,
    scenario: str,
    level: str,
    crash_at: int | None,
    *,
    listens: bool,
    in_doubt: InDoubt,
    server: str | None = None,
) -> tuple[Run, int]:
    """Resume the run, or begin it if nothing was kept. Return the run and the number of boundaries.

    `server` is the folder of a PostgreSQL server, which is killed then instead of this process.
    """
    boundary.begin(crash_at, path.with_suffix(".witness"))
    if server is not None:
        boundary.strike = partial(kill_server, server)
    journal = open_crashing(path, level)
    memory = MemorySpec(persona="p", user="u", writes_back=True) if scenario == "remembering" else None

    async def approve(request: ApprovalRequest) -> bool:
        boundary.witness(f"approved {request.call.call_id}")
        boundary()
        return True

    async def answer(question: Question) -> str:
        boundary.witness(f"put {question.question_id}")
        boundary()
        await asyncio.sleep(0)
        boundary()
        return f"an answer to {question.text}"

    agent = Agent(
        model_of(scenario),
        tools=tools_of(scenario, path.with_suffix(".witness")),
        policy=Policy(
            in_doubt=in_doubt,
            approve=APPROVE.get(scenario, {}),
            text_markers=scenario == "marked",
            context_tokens=CONTEXT_TOKENS.get(scenario),
        ),
        approver=approve,
        asker=answer if scenario in HAS_ASKER else None,
        judge=SlowJudge() if scenario == "judged" else None,
        journal=journal,
        memory=memory,
        files={"a.txt": "seed\n"},
    )

    def hear(event: Any) -> None:
        if isinstance(event, Event):
            boundary.witness(f"heard {event.seq}")

    options: dict[str, Any] = {"on_event": hear} if listens else {}
    if scenario in SESSIONS:
        talks = {"remembering": converse, "judged": talk_in_turn}
        run = await talks.get(scenario, talk)(agent)
        journal.close()
        return run, boundary.count
    try:
        run = await agent.resume(RUN_ID, **options)
    except RunNotFoundError:
        run = await agent.run("go", run_id=RUN_ID, **options)
    while run.questions:
        said = "an answer" if scenario == "parked" else "unknown, says the user"
        boundary()
        run = await agent.resume(RUN_ID, answers=dict.fromkeys(run.questions, said), **options)
    journal.close()
    return run, boundary.count


async def talk(agent: Agent) -> Run:
    """Continue the session, and send the messages that it does not have yet, all during a turn if there is one."""
    async with agent.session(RUN_ID) as session:
        known = [
            event.body.message.content
            for event in await session.read_events()
            if isinstance(event.body, TurnStarted | MessageInjected)
        ]
        await session.finish_turn()
        texts = [text for text in ("go", *MESSAGES) if text not in known]
        sending = []
        for text in texts:
            delivery: Any = MESSAGES.get(text, "queue")
            sending.append(asyncio.ensure_future(session.send(text, delivery=delivery)))
            for _ in range(3):
                await asyncio.sleep(0)
        for task in sending:
            await task
        return await session.finish_turn()


async def converse(agent: Agent) -> Run:
    """Continue the session, and send the messages that it does not have yet, one after another."""
    async with agent.session(RUN_ID) as session:
        run = await session.finish_turn()
        for number in range(session.run.state.turn.number, TURNS):
            run = await session.send(f"Message {number}")
        return run


async def talk_in_turn(agent: Agent) -> Run:
    """Continue the session, and send one after another the messages that it does not have yet."""
    async with agent.session(RUN_ID) as session:
        known = [
            event.body.message.content
            for event in await session.read_events()
            if isinstance(event.body, TurnStarted | MessageInjected)
        ]
        run = await session.finish_turn()
        for text in JUDGED:
            if text not in known:
                run = await session.send(text)
        return run


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
