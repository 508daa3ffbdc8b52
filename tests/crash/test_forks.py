"""Forked children: none hangs or crashes, and none damages what belongs to its parent."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from tests.conftest import IS_FULL
from tests.forks.process import FORKS, ROOT, start_python

import treadle

PREAMBLE = """
import asyncio, collections, faulthandler, json, multiprocessing, os, signal, sys, threading, time
from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.core.errors import ConfigError, JournalError
from treadle.models import call

path, forks = sys.argv[1], int(sys.argv[2])
codes = []
faulthandler.register(signal.SIGUSR1)

def ends(pid):
    "Note the exit code of a child, or that it hangs."
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        if (found := os.waitpid(pid, os.WNOHANG))[0]:
            codes.append(os.waitstatus_to_exitcode(found[1]))
            return
        time.sleep(0.002)
    os.kill(pid, signal.SIGUSR1)  # it says where
    time.sleep(1)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    codes.append("hangs")

def refused(use):
    try:
        use()
    except JournalError as error:
        assert "opened before a fork; open it again" in str(error), error
    else:
        raise SystemExit("the journal of the parent was used")
"""
WRITING = """
@tool(effect="once")
async def add(x: int) -> str:
    "Add."
    return "ok"

def answer(request):
    calls = sum(message.role == "assistant" for message in request.messages)
    return [call("add", {"x": calls})] if calls < 5 else "done"

journal = open_journal(path)
agent = Agent(ScriptedModel(answer, keeps_requests=False), tools=[add], journal=journal)
agent.run_sync("go")
is_over = threading.Event()

def drive():
    async def run_all():
        while not is_over.is_set():
            for run in await asyncio.gather(*[agent.run("go") for _ in range(10)]):
                assert run.stop_reason == "completed"
    asyncio.run(run_all())

thread = threading.Thread(target=drive)
thread.start()

def live(way):
    if way == 0:
        journal.close()
    elif way == 1:
        refused(journal.runs)
    elif way == 2:
        with open_journal(path) as own:
            assert Agent(ScriptedModel(["x"]), journal=own).run_sync("go").output == "x"
    else:
        refused(lambda: agent.run_sync("go"))

for number in range(forks):
    time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        live(number % 4)
        sys.exit(0)
    ends(pid)
context = multiprocessing.get_context("fork")
children = [context.Process(target=live, args=[way]) for way in range(4)]
for child in children:
    child.start()
for child in children:
    child.join(60)
    codes.append("hangs" if child.exitcode is None else child.exitcode)
    child.kill()
is_over.set()
thread.join()
journal.close()
print(json.dumps(codes))
"""
LOCKED = """
from pathlib import Path
from treadle.core.inbox import Cancel
from treadle.core.spec import AgentSpec, PartSpec
from treadle.http import locks
from treadle.http.background import LoopThread
from treadle.journal.driven import DrivenRuns
from treadle.journal.follow import Changes
from treadle.journal.memory import MemoryJournal
from treadle.journal.postgres.postgres_listener import PostgresListener
from treadle.knowledge.files.store_index import StoreIndexes
from treadle.knowledge.memory.memory_tables import Database
from treadle.knowledge.memory.shared_tables import SharedDatabase
from treadle.models.wrappers.limiter import Limiter
from treadle.routing.latency import Latencies
from treadle.sandbox.commands.execution import SandboxCommand
from treadle.sandbox.commands.host import HostCommands, HostFolder
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Limits, Stop
from treadle.server.api_server import load_served
from treadle.server.catalog import AgentCatalog
from treadle.telemetry import JsonlTurnLog
from treadle.tools.toolset_parts import load_file
from treadle.viewer.viewed_data import ViewedData
from treadle.workers.worker import RunAgents

folder = Path(path).parent
journal = open_journal(path)
agent = Agent(ScriptedModel(["x"] * 9), journal=journal)
agent.run_sync("go")
memory = MemoryJournal()
in_memory = Agent(ScriptedModel(["x"] * 9), journal=memory)
first = in_memory.run_sync("go").run_id
row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
(folder / "rows.jsonl").write_text(json.dumps(row))
(folder / "own.py").write_text("x = 1")
(folder / "forking.py").write_text("import os; pid = os.fork()")
(folder / "treadle.toml").write_text("[models.m]\\nmodel = 'openai:m'\\napi_key_env = 'PATH'")
served = load_served(folder / "treadle.toml", None)
driven, log, loop = DrivenRuns(lambda run_id, after: []), JsonlTurnLog(folder / "turns.jsonl"), LoopThread("own")
latencies, limiter, indexes = Latencies(), Limiter.shared("m"), StoreIndexes()
catalog, database = AgentCatalog(served.config, memory, served.names), Database(None, "memory")
viewed = ViewedData([folder / "rows.jsonl"])
sandbox, run_agents = MemorySandbox(), RunAgents(memory)
listener = PostgresListener(None, None, Changes(), driven)
host = HostFolder(HostCommands(is_protected=False), None)
command = SandboxCommand("true", folder, Limits(), None, None)
spec = AgentSpec(model=PartSpec(name="openai:m"))

def search():
    assert indexes.search(memory.resources, "vs", "a", None, None, 5, 0.0) == []

search()

def use_journal():
    refused(journal.runs)
    refused(lambda: agent.run_sync("go"))
    journal.close()
    with open_journal(path + "2") as own:
        assert Agent(ScriptedModel(["x"]), journal=own).run_sync("go").output == "x"

def use_memory():
    assert in_memory.run_sync("go").output == "x"
    memory.post(first, Cancel())
    assert len(memory.runs()) == 2

def use_limiter():
    asyncio.run(asyncio.wait_for(Limiter.shared("m").admit(), 30))
    limiter.stats()

async def follow():
    async for _ in memory.follow(first):
        break

def read_database():
    with database.reading() as db:
        assert db.execute("SELECT 1").fetchone() == (1,)

def read_shared():
    with SharedDatabase.of(memory.resources, "p", "u").reading() as db:
        assert db.execute("SELECT count(*) FROM memory_entries").fetchone() == (0,)

def build():
    try:
        run_agents.agent_for(spec, None)
    except ConfigError:
        pass

uses = {
    "http/background.py": lambda: loop.run(asyncio.sleep(0)),
    "journal/driven.py": lambda: driven.open("r").deliver(1, "note"),
    "journal/follow.py": lambda: asyncio.run(follow()),
    "journal/memory.py": use_memory,
    "journal/postgres/postgres_listener.py": listener.close,
    "journal/resources.py": lambda: memory.resources.once(list, list),
    "journal/sqlite/sqlite_journal.py": use_journal,
    "journal/sqlite/sqlite_relay.py": lambda: journal.driven.relay.want("r", is_wanted=True),
    "journal/tables/committer.py": use_journal,
    "journal/tables/reader.py": use_journal,
    "journal/tables/writer.py": use_journal,
    "knowledge/files/store_index.py": search,
    "knowledge/memory/memory_tables.py": read_database,
    "knowledge/memory/shared_tables.py": read_shared,
    "models/wrappers/limiter.py": use_limiter,
    "routing/latency.py": lambda: latencies.add("m", 1.0),
    "sandbox/commands/execution.py": lambda: command.stop(Stop.CANCELLED),
    "sandbox/commands/host.py": lambda: asyncio.run(host.run("true", MemorySandbox(), Limits())),
    "sandbox/in_memory.py": lambda: sandbox.write("a", b"x"),
    "server/catalog.py": lambda: catalog.agent("m"),
    "telemetry/turn_log.py": log.close,
    "tools/toolset_parts.py": lambda: load_file(folder / "own.py"),
    "viewer/viewed_data.py": lambda: viewed.read_row(0, 0, is_rejected=False),
    "workers/worker.py": build,
}
every = [*locks._locks, *locks._awaited]
held, is_forked = threading.Event(), threading.Event()

def hold():
    for lock in every:
        lock.acquire()
    held.set()
    is_forked.wait()
    for lock in every:
        lock.release()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
pid = os.fork()
if pid == 0:
    assert not any(lock.locked() for lock in every if hasattr(lock, "locked"))
    for use in uses.values():
        use()
    os._exit(0)
is_forked.set()
holder.join()
ends(pid)
for use in (use_memory, use_limiter, search, host.close, journal.runs):
    use()
pid = load_file(folder / "forking.py").pid  # this thread holds the lock of files
if pid == 0:
    load_file(folder / "own.py")
    os._exit(0)
ends(pid)
journal.close()
(folder / "places.json").write_text(json.dumps(list(uses)))
print(json.dumps(codes))
"""
EVERYTHING = """
import http.server
from importlib.util import find_spec
from treadle.models import model
from treadle.models.wrappers.limiter import Limiter

class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "hi"}
        body = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()

@tool(effect="pure")
def blocking() -> str:
    "Block."
    return "ok"

def once(name, arguments):
    return ScriptedModel(lambda request: [call(name, arguments)] if len(request.messages) < 3 else "done")

url = f"http://localhost:{server.server_address[1]}/v1"
agents = {
    "http": Agent(model("openai:m", base_url=url, api_key="k"), journal="memory:"),
    "thread": Agent(once("blocking", {}), tools=[blocking], journal="memory:"),
}
if find_spec("pydantic_monty"):
    agents["python"] = Agent(once("python", {"code": "1 + 1"}), tools=["python"], journal="memory:")
limiter = Limiter(requests_per_minute=60_000)

def use(names):
    for name in names:
        assert agents[name].run_sync("go").stop_reason == "completed", name
    asyncio.run(asyncio.wait_for(limiter.admit(), 30))
    limiter.stats()

use(agents)
for number in range(forks):
    pid = os.fork()
    if pid == 0:
        if number % 2:
            use(["http", "thread"])
        sys.exit(0)
    ends(pid)
use(agents)
print(json.dumps(codes))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("script", [WRITING, LOCKED, EVERYTHING], ids=["writing", "locked", "everything"])
def test_forked_children_end_and_leave_the_parents_things_alone(tmp_path: Path, script: str) -> None:
    path, forks = tmp_path / "runs.db", 120 if IS_FULL else 3
    code = PREAMBLE + textwrap.dedent(script)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Locks are not tested in a process that is itself a fork: if they are not renewed, it hangs before its test.
    start = start_python if script is LOCKED else FORKS.start
    process = start("-c", code, str(path), str(forks), cwd=ROOT, **pipes)
    try:
        out, errors = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)  # it says where it hangs
        time.sleep(1)
        process.kill()
        out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert set(json.loads(out)) == {0}, errors
    if script is LOCKED:
        assert set(json.loads((tmp_path / "places.json").read_text())) == makers_of_locks()
    if script is WRITING:
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT status, owner FROM runs GROUP BY 1, 2").fetchall() == [("finished", None)]
        db.close()


def makers_of_locks() -> set[str]:
    """Return the files of the package that make locks between threads, all in the way that forks know of."""
    source = Path(treadle.__file__).parent
    texts = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*.py")}
    del texts["http/locks.py"]
    kinds = r"(?:R?Lock|Condition|(?:Bounded)?Semaphore)\b"
    other = re.compile(rf"\bthreading\.{kinds}\(|from threading import .*{kinds}")
    assert not [name for name, text in texts.items() if other.search(text)]
    return {name for name, text in texts.items() if re.search(r"\bnew_(?:reentrant_)?lock\(", text)}
