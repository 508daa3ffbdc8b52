"""The tool `python`: what code can see, what is kept of it, and how it calls the run's other tools."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import FORKS

from treadle import Agent, ScriptedModel, tool
from treadle.core.errors import ConfigError, ToolError
from treadle.core.events import digests_of
from treadle.core.types import Role
from treadle.journal.jsonl import export_run, import_lines
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.protocol import ToolOutput
from treadle.tools.python import Python, python
from treadle.trajectory.run_verification import verify_run


class Lab:
    """The tool, the files and the scope of one run."""

    def __init__(self, files: dict[str, str] | None = None, kind: Python = python) -> None:
        self.sandbox = MemorySandbox(files or {})
        self.scope = Scope()
        self.kind = kind

    async def __call__(self, code: str) -> ToolOutput:
        context = ToolContext("r", "c", 1, self.sandbox, scope=self.scope)
        return await self.kind.call({"code": code}, context)

    async def text(self, code: str) -> str:
        output = await self(code)
        assert not output.is_error, output.content
        return output.content


@pytest.fixture
async def lab() -> Any:
    lab = Lab({"a.txt": "seed\n", "d/b.txt": "b"})
    yield lab
    await lab.scope.close()


async def test_prints_and_the_last_value_come_back(lab: Lab) -> None:
    assert await lab.text("1 + 1") == "2"
    assert await lab.text("print('a')\n'b'") == "a\n'b'"
    assert await lab.text("print('a', end='')\n[1]") == "a\n[1]"
    assert await lab.text("x = 5") == ""
    assert await lab.text("x") == "5"


async def test_values_show_themselves_as_in_an_interactive_python(lab: Lab) -> None:
    own = "class A:\n    def __repr__(self):\n        return 'A!'\n"
    assert await lab.text(f"{own}[A(), {{'é': A()}}]  # what there is") == "[A!, {'é': A!}]"
    assert await lab.text("_") == "[A!, {'é': A!}]"
    assert await lab.text("if True:\n    7") == ""
    assert await lab.text("(1,\n 2,\n 3)") == "(1, 2, 3)"
    assert await lab.text("x = 1; 'é', x # é") == "('é', 1)"
    assert await lab.text('"a" \\\n "b"\n\n') == "'ab'"
    assert await lab.text("None") == ""
    failed = await lab("y = 2\nabsent + y")
    assert "line 2" in failed.content
    assert "name 'absent' is not defined" in failed.content
    assert "repr(_)" not in failed.content


async def test_the_files_are_those_of_the_run(lab: Lab) -> None:
    assert await lab.text("open('a.txt').read()") == "'seed\\n'"
    assert await lab.text("open('/a.txt').read()") == "'seed\\n'"
    await lab.text("with open('new/c.txt', 'w') as f:\n    f.write('1')\nopen('new/c.txt', 'a').write('2')")
    assert lab.sandbox.read("new/c.txt") == b"12"
    assert await lab.text("import os\nos.listdir('.'), os.path.exists('d/b.txt')") == (
        "(['a.txt', 'd', 'new'], True)"
    )
    assert await lab.text("from pathlib import Path\nsorted(str(p) for p in Path('.').glob('**/*.txt'))") == (
        "['a.txt', 'd/b.txt', 'new/c.txt']"
    )
    await lab.text("Path('d').rename('e')\nos.remove('a.txt')\nPath('bin').write_bytes(b'\\xff')")
    assert lab.sandbox.paths() == ["bin", "e/b.txt", "new/c.txt"]
    assert lab.sandbox.read("bin") == b"\xff"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("open('absent').read()", "FileNotFoundError"),
        ("open('d').read()", "IsADirectoryError"),
        ("open('d', 'w')", "IsADirectoryError"),
        ("open('a.txt/b', 'w').write('x')", "OSError"),
        ("import os\nos.listdir('a.txt')", "NotADirectoryError"),
        ("import os\nos.mkdir('d')", "FileExistsError"),
        ("import os\nos.mkdir('p/q')", "FileNotFoundError"),
        ("import os\nos.rmdir('d')", "OSError"),
        ("import os\nos.rename('nope', 'x')", "FileNotFoundError"),
        ("import os\nos.remove('d')", "IsADirectoryError"),
        ("open('\\\\')", "OSError"),
    ],
)
async def test_errors_of_files_are_those_of_python(lab: Lab, code: str, error: str) -> None:
    output = await lab(code)
    assert output.is_error
    assert error in output.content
    caught = await lab.text(
        f"try:\n    {code.replace(chr(10), chr(10) + '    ')}\nexcept OSError as e:\n    print('caught')"
    )
    assert caught == "caught\n"


@pytest.mark.parametrize(
    "code",
    [
        "print(Path('n.txt').write_text('héj'), Path('n.txt').read_text())",
        "f = open('a.txt', 'ab')\nprint(f.write(b'bc'))\nf.close()\nprint(open('a.txt', 'rb').read())",
        "Path('p/q').mkdir(parents=True)\nPath('p/q').mkdir(exist_ok=True)\nprint(os.listdir('p'))",
        "os.mkdir('p')\nprint(os.listdir('p'))\nos.rmdir('p')\nprint(os.path.exists('p'))",
        "os.rename('d/b.txt', 'b.txt')\nprint(os.path.isdir('d'), os.listdir('d'), os.path.exists('b.txt'))",
        "os.makedirs('p/q')\nos.rename('p/q', 'q')\nprint(os.listdir('p'), os.path.isdir('q'))",
        "os.makedirs('p')\nos.rename('d', 'p/d')\nprint(os.listdir('p/d'), os.path.exists('d'))",
        "os.makedirs('p/q')\nopen('p/q/f', 'w').write('1')\nos.rename('p/q', 'q')\nprint(os.listdir('p'))",
        "os.remove('d/b.txt')\nprint(os.path.isdir('d'), os.listdir('d'))",
        "print(Path('d/../a.txt').resolve().name, Path('a.txt').absolute().is_file())",
        "print(os.path.basename(os.path.abspath('a.txt')))",
        "print(os.stat('a.txt').st_size, os.path.isdir('d'), Path('d').stat().st_mode & 0o40000)",
    ],
)
async def test_files_behave_as_those_of_python(lab: Lab, code: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in lab.sandbox.paths():
        (tmp_path / name).write_bytes(lab.sandbox.read(name))
    code = f"import os\nfrom pathlib import Path\n{code}"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert await lab.text(code) == made.stdout


async def test_errors_show_where_and_keep_what_was_printed(lab: Lab) -> None:
    failed = await lab("print('before')\nx = 3\n1 / 0")
    assert failed.is_error
    assert failed.content.startswith("before\nTraceback")
    assert "ZeroDivisionError: division by zero" in failed.content
    assert await lab.text("x") == "3"
    syntax = await lab("def f(:\n    pass")
    assert "line 1" in syntax.content
    assert "SyntaxError" in syntax.content
    absent = await lab("import numpy")
    assert "no other packages" in absent.content


async def test_state_is_kept_across_scopes_as_a_resume_or_fork_has_it(lab: Lab) -> None:
    await lab.text("import json\nn = 1\ndef double(x):\n    return 2 * x")
    other = Lab()
    other.sandbox = lab.sandbox.copy()
    await lab.text("n = 100")
    assert await other.text("json.dumps(double(n))") == "'2'"
    await other.text("n = 7")
    assert await lab.text("n") == "100"
    await other.scope.close()


async def test_a_warm_session_gives_way_to_the_sandbox(lab: Lab) -> None:
    await lab.text("n = 1")
    state = lab.sandbox.read_state("python")
    await lab.text("n = 2")
    assert state is not None
    lab.sandbox.write_state("python", state)
    assert await lab.text("n") == "1"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("n = 2\nwhile True:\n    pass", "time limit exceeded"),
        ("n = 2\nx = 'a' * 10**10", "memory limit exceeded"),
        ("n = 2\nbig = list(range(100_000))", "over the limit of 100,000"),
    ],
)
async def test_limits_leave_the_variables_as_they_were(code: str, message: str) -> None:
    lab = Lab(kind=Python(max_seconds=0.3, max_memory_bytes=20_000_000, max_state_bytes=100_000))
    await lab.text("n = 1")
    output = await lab(code)
    assert output.is_error
    assert message in output.content
    assert "as they were before this call" in output.content
    assert await lab.text("n") == "1"
    await lab.scope.close()


async def test_other_limits_are_errors_that_the_code_can_meet() -> None:
    lab = Lab(kind=Python(max_recursion=50, max_output_bytes=1000, max_files_bytes=1000))
    assert "RecursionError" in (await lab("def f():\n    return f()\nf()")).content
    assert (await lab("print('x' * 5000)")).is_error
    full = await lab("open('f', 'w').write('x' * 600)\nopen('g', 'w').write('x' * 600)")
    assert "the files would be larger than 1,000 bytes" in full.content
    assert lab.sandbox.paths() == ["f", "g"]
    with pytest.raises(ToolError, match="the code has 1,000,001 characters"):
        await lab("1" * 1_000_001)
    await lab.scope.close()


async def test_two_hundred_at_once() -> None:
    async def one(number: int) -> str:
        lab = Lab()
        await lab.text(f"n = {number}")
        try:
            return await lab.text("n * 2")
        finally:
            await lab.scope.close()

    assert await asyncio.gather(*[one(number) for number in range(200)]) == [str(2 * n) for n in range(200)]


async def test_cancelling_stops_the_code_at_once(lab: Lab) -> None:
    await lab.text("n = 1")
    task = asyncio.ensure_future(lab("while True:\n    pass"))
    await asyncio.sleep(0.2)
    begin = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await lab.text("n") == "1"
    assert time.monotonic() - begin < 8


def test_on_one_event_loop_after_another() -> None:
    lab = Lab()
    for number in (1, 2):
        asyncio.run(lab.text(f"n = {number}"))
        assert asyncio.run(lab.text("n")) == str(number)
    asyncio.run(lab.scope.close())


async def test_the_other_tools_are_functions() -> None:
    sent: list[str] = []

    @tool(effect="once")
    async def send(to: str, times: int = 1) -> str:
        """Send."""
        sent.extend([to] * times)
        return f"sent {to}"

    @tool(effect="pure", name="odd-name")
    async def odd_name() -> dict[str, int]:
        """Give a mapping."""
        return {"n": 1}

    code = """
import json
said = [send('a'), send(to='b', times=2), await send('c')]
try:
    send()
except RuntimeError as e:
    said.append('missing' in str(e))
for wrong in (lambda: send('a', to='b'), lambda: send('a', 1, 2)):
    try:
        wrong()
    except TypeError as e:
        said.append(str(e).partition(' ')[2])
said.append(json.loads(odd_name())['n'])
write_file('f.txt', 'from the tool')
said.append(open('f.txt').read())
said
"""
    journal = MemoryJournal()
    tools = [python, send, odd_name, "files"]
    run = await Agent(
        ScriptedModel([[call("python", {"code": code})], [call("python", {"code": "said[0]"})], "ok"]),
        tools=tools,
        journal=journal,
    ).run("go")
    texts = [item.content for item in run.messages if item.role is Role.TOOL]
    wrong = ["got multiple values for argument 'to'", "takes 2 arguments but 3 were given"]
    said = ["sent a", "sent b", "sent c", True, *wrong, 1, "from the tool"]
    assert texts == [repr(said), "'sent a'"]
    assert sent == ["a", "b", "b", "c"]
    assert run.files["f.txt"] == b"from the tool"
    started = [json.loads(event.to_json()) for event in run.events if event.type == "tool_started"]
    assert [item["name"] for item in started if item.get("parent_call_id")] == [
        "send",
        "send",
        "send",
        "odd-name",
        "write_file",
    ]
    assert (await Agent(ScriptedModel([]), journal=journal).replay(run.run_id)).is_exact
    done = await verify_run(journal, run.run_id, tools)
    assert (done.differences, len(done.skips)) == ((), 3)
    assert sent == ["a", "b", "b", "c"]


async def test_a_fork_has_the_variables_of_its_moment() -> None:
    journal = MemoryJournal()
    steps: list[Any] = [[call("python", {"code": f"n = {number}"})] for number in (1, 2)]
    run = await Agent(ScriptedModel([*steps, "ok"]), tools=[python], journal=journal).run("go")
    after_first = next(event.seq for event in run.events if event.type == "tool_completed")
    ask = ScriptedModel([[call("python", {"code": "n"})], "ok"])
    forked = await Agent(ask, tools=[python], journal=journal).fork(run.run_id, after_first)
    assert forked.messages[-2].content == "1"
    again = ScriptedModel([[call("python", {"code": "n"})], "ok"])
    later = await Agent(again, tools=[python], journal=journal).fork(run.run_id, text="and now?")
    assert later.messages[-2].content == "2"


async def test_an_exported_journal_brings_the_variables_along() -> None:
    journal, other = MemoryJournal(), MemoryJournal()
    code = "big = ['a longer text %d' % n for n in range(2000)]\nopen('f', 'w').write('x')"
    run = await Agent(
        ScriptedModel([[call("python", {"code": code})], "ok"]), tools=[python], journal=journal
    ).run("go")
    await import_lines(other, export_run(journal, run.run_id))
    ask = ScriptedModel([[call("python", {"code": "len(big), open('f').read()"})], "ok"])
    forked = await Agent(ask, tools=[python], journal=other).fork(run.run_id, text="on", trust=True)
    assert forked.messages[-2].content == "(2000, 'x')"
    kept = {digest for event in run.events for digest in digests_of(event.body)}
    assert sum(len(journal.read_blob(digest)) for digest in kept) < 40_000


def test_a_fork_of_a_process_that_ran_code_is_told_and_does_not_hang() -> None:
    script = """
import asyncio, os, sys
from treadle.tools.context import ToolContext
from treadle.tools.python import python
def run():
    return asyncio.run(python.call({"code": "1 + 1"}, ToolContext("r", "c", 1)))
run()
child = os.fork()
if child == 0:
    try:
        run()
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(run().content)
"""
    done = FORKS.run("-c", script)
    assert "forked from one that had run Python code already" in done.stdout
    assert done.stdout.endswith("\n2\n")


def test_options_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="max_seconds is 0"):
        Python(max_seconds=0)


def workers_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            is_worker = b"monty" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if is_worker and int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None])
def test_no_worker_outlives_the_process(ending: signal.Signals | None) -> None:
    script = """
import asyncio, sys
from treadle.tools.context import ToolContext
from treadle.tools.python import python
async def main():
    print((await python.call({"code": "1 + 1"}, ToolContext("r", "c", 1))).content, flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""
    process = FORKS.start("-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "2\n"
    workers = workers_of(process.pid)
    assert workers
    if ending is not None:
        process.send_signal(ending)
    process.communicate("\n" if ending is None else None, timeout=120)
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.02)
    assert os.getpid() != process.pid
