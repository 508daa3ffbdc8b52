"""Forked children: none hangs or crashes, and none damages what belongs to its parent."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.conftest import IS_FULL

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
from treadle.journal import driven

journal = open_journal(path)
agent = Agent(ScriptedModel(["x"]), journal=journal)
agent.run_sync("go")
held, is_forked = threading.Event(), threading.Event()

def hold():
    "Do what a thread does that begins a run when the process is forked."
    with driven._lock:
        held.set()
        is_forked.wait()

threading.Thread(target=hold).start()
held.wait()
pid = os.fork()
if pid == 0:
    refused(lambda: agent.run_sync("go"))
    with open_journal(path + "2") as own:
        assert Agent(ScriptedModel(["x"]), journal=own).run_sync("go").output == "x"
    sys.exit(0)
is_forked.set()
ends(pid)
journal.close()
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
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), str(path), str(forks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)  # it says where it hangs
            time.sleep(1)
            process.kill()
            out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert set(json.loads(out)) == {0}, errors
    if script is WRITING:
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT status, owner FROM runs GROUP BY 1, 2").fetchall() == [("finished", None)]
        db.close()
