"""The tool `shell`, with real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from tests.sandbox.here import needs_sandbox
from tests.tools.contexts import HeardContext

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect, Json, Message, Role, ToolCall
from treadle.sandbox.commands.host import MAX_COMMANDS
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Limits
from treadle.tools.context import Scope, ToolContext
from treadle.tools.protocol import ToolOutput
from treadle.tools.resolve import resolve_tools
from treadle.tools.shell import MAX_COMMAND_BYTES, Shell

pytestmark = needs_sandbox

Run = Callable[..., Awaitable[ToolOutput]]


class Bench:
    """A sandbox, and the commands run in it."""

    def __init__(self, shell: Shell | None = None, files: dict[str, bytes | str] | None = None) -> None:
        self.sandbox = MemorySandbox(files)
        self.scope = Scope()
        self.told: list[str] = []
        (self.tool,) = (shell or Shell()).tools()

    async def __call__(self, command: str, **more: Json) -> ToolOutput:
        arguments = {"command": command, **more}
        assert self.tool.find_fault(arguments) is None
        context = HeardContext(self.told.append, self.sandbox, self.scope)
        output = await self.tool.call(arguments, context)
        assert isinstance(output, ToolOutput)
        return output

    async def text(self, command: str, **more: Json) -> str:
        """Return the output of a command that succeeds."""
        output = await self(command, **more)
        assert not output.is_error, output.content
        return output.content


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(files={"a.txt": "one\n", "d/b.txt": "two\n"})
    yield bench
    await bench.scope.close()


def test_the_tool_as_the_model_sees_it() -> None:
    (tool,) = resolve_tools("shell")
    assert tool.spec.name == "shell"
    assert tool.spec.effect is Effect.IDEMPOTENT
    assert not tool.spec.is_concurrent
    assert "no network" in tool.spec.description
    assert tool.find_fault({"command": "true", "timeout_seconds": 5}) is None
    assert tool.find_fault({"command": "true", "timeout_seconds": 0})
    assert tool.find_fault({"command": "true", "timeout_seconds": 10_000})
    assert "missing parameter 'command'" in (tool.find_fault({}) or "")
    (networked,) = Shell(network=True).tools()
    assert networked.spec.effect is Effect.ONCE
    (unprotected,) = resolve_tools("shell-unprotected")
    assert unprotected.spec.effect is Effect.ONCE
    assert "WITHOUT a sandbox" in unprotected.spec.description


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="seconds is 0"):
        Shell(limits=Limits(seconds=0))


class TestResults:
    async def test_both_outputs_come_in_order(self, bench: Bench) -> None:
        assert await bench.text("echo 1; echo 2 >&2; echo 3") == "1\n2\n3\n"
        assert await bench.text("true") == ""
        assert await bench.text("printf 'no end'") == "no end"

    @pytest.mark.parametrize(
        ("command", "text"),
        [
            ("echo x; exit 3", "x\n[exit code 3]"),
            ("false", "[exit code 1]"),
            ("printf x; exit 2", "x\n[exit code 2]"),
            ("kill -SEGV $$", "[exit code 139, SIGSEGV]"),
            ("no-such-program", "[exit code 127]"),
            ("if", "[exit code 2]"),
        ],
    )
    async def test_a_failure_is_told(self, bench: Bench, command: str, text: str) -> None:
        output = await bench(command)
        assert output.is_error
        assert output.content.endswith(text)

    async def test_what_is_not_utf_8_is_replaced(self, bench: Bench) -> None:
        assert await bench.text(r"printf 'a\377b'") == "a\ufffdb"

    async def test_of_much_output_both_ends_are_kept(self) -> None:
        bench = Bench(Shell(limits=Limits(output_bytes=3000)))
        text = await bench.text("echo first; head -c 50000000 /dev/zero | tr '\\0' x; echo last")
        assert text.startswith("first\nxxx")
        assert text.endswith("xxxlast\n")
        assert "\n[… 49,997,011 of 50,000,011 bytes left out …]\n" in text
        assert len(text) < 3100
        await bench.scope.close()

    async def test_the_time_limit(self, bench: Bench) -> None:
        output = await bench("echo begun; echo kept > kept; sleep 60; echo never", timeout_seconds=3)
        assert output.is_error
        assert output.content == "begun\n[stopped after 3 seconds, with everything that it had started]"
        assert bench.sandbox.read("kept") == b"kept\n"

    async def test_who_watches_is_told_the_last_line(self, bench: Bench) -> None:
        await bench.text("echo one; sleep 0.3; echo two; sleep 0.3")
        assert bench.told == ["one", "two"]

    @pytest.mark.parametrize(
        ("command", "problem"),
        [("a\0b", "NUL"), ("\ud800", "not valid Unicode"), (" " * (MAX_COMMAND_BYTES + 1), "100,001 bytes")],
    )
    async def test_what_cannot_be_a_command(self, bench: Bench, command: str, problem: str) -> None:
        with pytest.raises(ToolError, match=problem):
            await bench(command)
        assert await bench.text(f": {'x' * (MAX_COMMAND_BYTES - 10)}\necho ok") == "ok\n"

    async def test_without_a_sandbox_it_says_how_to_get_one(self) -> None:
        (tool,) = Shell().tools()
        with pytest.raises(ToolError, match=r"no files.*`files="):
            await tool.call({"command": "true"}, ToolContext("run", "call", 1))


class TestFiles:
    async def test_commands_see_the_files_and_the_sandbox_what_they_change(self, bench: Bench) -> None:
        assert (
            await bench.text("pwd; find . -type f | sort; cat d/b.txt") == "/work\n./a.txt\n./d/b.txt\ntwo\n"
        )
        await bench.text("echo 1 >> a.txt; rm d/b.txt; mkdir -p x/y; printf '\\0\\377' > x/y/z")
        assert bench.sandbox.paths() == ["a.txt", "x/y/z"]
        assert bench.sandbox.read("a.txt") == b"one\n1\n"
        assert bench.sandbox.read("x/y/z") == b"\0\xff"

    async def test_between_commands_other_tools_change_files(self, bench: Bench) -> None:
        await bench.text("true")
        bench.sandbox.write("a.txt", b"new\n")
        bench.sandbox.delete("d/b.txt")
        bench.sandbox.write("d/c/e", b"deep\n")
        assert await bench.text("cat a.txt d/c/e; ls d") == "new\ndeep\nc\n"
        bench.sandbox.delete("d/c/e")
        bench.sandbox.write("d", b"now a file\n")
        assert await bench.text("cat d") == "now a file\n"
        bench.sandbox.delete("d")
        bench.sandbox.write("d/f", b"a folder again\n")
        assert await bench.text("cat d/f") == "a folder again\n"

    async def test_a_change_that_keeps_size_and_time_is_seen(self, bench: Bench) -> None:
        await bench.text("touch -d @1000 a.txt")
        await bench.text("printf 'two\\n' > a.txt; touch -d @1000 a.txt")
        assert bench.sandbox.read("a.txt") == b"two\n"
        await asyncio.sleep(0.1)
        await bench.text("true")
        await bench.text("printf 'six\\n' > a.txt; touch -d @1000 a.txt")
        assert bench.sandbox.read("a.txt") == b"six\n"

    async def test_what_is_not_changed_is_not_written(self, bench: Bench) -> None:
        bench.sandbox.take_delta()
        await bench.text("cat a.txt; touch a.txt; cp a.txt b; mv b a.txt; rm d/b.txt; echo two > d/b.txt")
        assert bench.sandbox.take_delta() is None

    async def test_names_of_any_kind(self, bench: Bench) -> None:
        names = ["-rf", "a b", "é", "\n", "*", "$(x)", "'", '"', "...", ".hidden"]
        for name in names:
            bench.sandbox.write(f"n/{name}", name.encode())
        await bench.text("mkdir m; cp -- n/* n/.[!.]* n/... m/")
        assert {path[2:] for path in bench.sandbox.paths() if path.startswith("m/")} == set(names)

    async def test_what_the_sandbox_cannot_hold_is_removed_and_named(self, bench: Bench) -> None:
        text = await bench.text("mkfifo p; touch 'a\\b'; mkdir \"$(printf 'x\\377')\"; touch x*/y; echo > ok")
        assert "'p' (a named pipe)" in text
        assert r"'a\\b' (a backslash in its name)" in text
        assert r"'x\udcff' (a name that is not UTF-8)" in text
        assert text.count("(") == 3
        assert bench.sandbox.paths() == ["a.txt", "d/b.txt", "ok"]
        assert await bench.text("ls -A") == "a.txt\nd\nok\n"

    async def test_nothing_else_lasts(self, bench: Bench) -> None:
        await bench.text("echo x > /tmp/x; echo x > /dev/shm/x; mkdir -p ~/.cache; export X=1; sleep 1000 &")
        assert await bench.text("ls -A /tmp /dev/shm ~; echo $X; ps ax | grep -c '[s]leep' || true") == (
            "/dev/shm:\n\n/tmp:\n\n/tmp:\n\n0\n"
        )

    async def test_what_files_alone_do_not_say_is_in_the_snapshot(self, bench: Bench) -> None:
        text = await bench.text(
            "echo 'echo ran' > run; chmod +x run; mkdir -p e/f; ln -s a.txt link; ln -s /etc l2"
        )
        assert text == "[only commands see these links, other tools do not: 'l2', 'link']"
        assert bench.sandbox.paths() == ["a.txt", "d/b.txt", "run"]
        delta, blobs = bench.sandbox.take_delta() or (None, {})
        assert delta is not None
        resumed = Bench()
        resumed.sandbox = MemorySandbox.restore(delta.changed, blobs.__getitem__, delta.states)
        told = "./run; ls -F; ls e; cat link; readlink l2"
        assert await resumed.text(told) == "ran\na.txt\nd/\ne/\nl2@\nlink@\nrun*\nf\none\n/etc\n"
        assert await bench.text(told) == await resumed.text(told)
        assert resumed.sandbox.take_delta() is None
        await resumed.scope.close()

    async def test_a_state_of_another_time_is_gone_back_to(self, bench: Bench) -> None:
        await bench.text("mkdir empty")
        before = bench.sandbox.read_state("shell")
        assert before is not None
        await bench.text("rmdir empty; chmod +x a.txt")
        bench.sandbox.write_state("shell", before)
        assert await bench.text("ls -F") == "a.txt\nd/\nempty/\n"

    async def test_a_link_in_the_way_of_a_file_is_not_followed(self, bench: Bench, tmp_path: Path) -> None:
        await bench.text(f"ln -s {tmp_path} out; ln -s {tmp_path}/victim file")
        bench.sandbox.write("out/x", b"inside")
        bench.sandbox.write("file", b"inside")
        assert await bench.text("cat out/x file") == "insideinside"
        assert list(tmp_path.iterdir()) == []

    async def test_what_is_over_the_limit_is_undone(self) -> None:
        limits = Limits(disk_bytes=1_000_000, files=120)
        bench = Bench(Shell(limits=limits), {"a": "one"})
        for command, told in (
            ("echo two > a; head -c 1000001 /dev/zero > big", "more than 1,000,000 bytes"),
            ("echo two > a; for i in $(seq 130); do : > $i; done", "more than 120 files"),
            ("echo two > a; for i in $(seq 110); do mkdir d; cd d; done", "nested more than 100 deep"),
        ):
            output = await bench(command)
            assert output.is_error
            assert told in output.content
            assert bench.sandbox.paths() == ["a"]
            assert await bench.text("cat a; ls") == "onea\n"
        await bench.scope.close()

    async def test_files_of_the_host_to_read(self, tmp_path: Path) -> None:
        folder = Path("/usr/share")
        bench = Bench(Shell(read_only_binds={str(folder): "/data/share"}))
        output = await bench("ls /data; touch /data/share/x")
        assert output.content.startswith("share\n")
        assert "Read-only file system" in output.content
        await bench.scope.close()
        with pytest.raises(ConfigError, match="there is no"):
            Shell(read_only_binds={str(tmp_path / "none"): "/data"})
        with pytest.raises(ConfigError, match="cannot be mounted"):
            Shell(read_only_binds={str(folder): "/proc/"})


class TestProcesses:
    async def test_what_runs_in_the_background_is_ended_with_the_shell(self, bench: Bench) -> None:
        begun = time.monotonic()
        assert await bench.text("sleep 300 & echo begun") == "begun\n"
        assert await bench.text("(setsid sleep 300; echo x) & echo begun") == "begun\n"
        assert time.monotonic() - begun < 200

    async def test_cancelling_ends_it_and_undoes_it(self, bench: Bench) -> None:
        mark = f"300.{os.getpid()}"
        task = asyncio.ensure_future(bench(f"echo x > a.txt; echo x > new; echo begun; sleep {mark}"))
        while not bench.told:
            await asyncio.sleep(0.02)
        assert runs(mark)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not runs(mark)
        assert await bench.text("ls; cat a.txt") == "a.txt\nd\none\n"

    async def test_cancelled_before_it_began(self, bench: Bench) -> None:
        for delay in (0, 0, 0.001, 0.002, 0.004, 0.006, 0.008):
            task = asyncio.ensure_future(bench("sleep 300"))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await bench.text("echo still") == "still\n"

    async def test_one_that_waits_for_its_turn_is_cancelled_at_once(self) -> None:
        benches = [Bench() for _ in range(MAX_COMMANDS)]
        waiting = Bench()
        await asyncio.gather(*[bench.text("true") for bench in (*benches, waiting)])
        busy = [asyncio.ensure_future(bench("sleep 300")) for bench in benches]
        await asyncio.sleep(0.1)
        late = asyncio.ensure_future(waiting("echo never > late"))
        await asyncio.sleep(0.1)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert not any(task.done() for task in busy)
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)
        assert await waiting.text("ls") == ""
        for bench in (*benches, waiting):
            await bench.scope.close()

    async def test_commands_of_many_runs_at_once(self) -> None:
        benches = [Bench(files={"n": str(index)}) for index in range(20)]
        texts = await asyncio.gather(*[bench.text("sleep 0.1; cat n") for bench in benches])
        assert texts == [str(index) for index in range(20)]
        for bench in benches:
            await bench.scope.close()

    def test_on_another_kind_of_loop_in_another_thread(self) -> None:
        async def main() -> str:
            bench = Bench(files={"a": "x"})
            text = await bench.text("cat a")
            await bench.scope.close()
            return text

        async def outer() -> str:
            return await asyncio.to_thread(
                lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())
            )

        assert asyncio.run(outer()) == "x"

    async def test_closing_leaves_nothing_on_the_disk(self, bench: Bench) -> None:
        await bench.text("mkdir -p x/y; chmod 000 x/y x; chmod 000 a.txt")
        (manager,) = bench.scope._items.values()
        assert manager._root.is_dir()
        await bench.scope.close()
        assert not manager._root.exists()


def runs(mark: str) -> bool:
    """Whether a process with `mark` in its command line is running."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in folder.joinpath("cmdline").read_bytes().split(
                b"\0"
            ):
                return True
        except OSError:
            continue
    return False


SCRIPT = """
    import asyncio, sys
    from treadle.sandbox.in_memory import MemorySandbox
    from treadle.tools.context import ToolContext
    from treadle.tools.shell import Shell

    class HeardContext(ToolContext):
        is_heard = True

        def progress(self, text):
            print(text, flush=True)

    async def main():
        (tool,) = Shell().tools()
        context = HeardContext("run", "call", 1, MemorySandbox({"a": "x"}))
        print(await tool.call({"command": sys.argv[1]}, context), flush=True)
        if sys.argv[2:]:
            await context.scope.close()

    asyncio.run(main())
"""


def start(command: str, *more: str) -> "subprocess.Popen[str]":
    """Start a process that runs a command with the tool, and that can be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), command, *more],
        stdout=subprocess.PIPE,
        text=True,
        # These tests send SIGINT, so the process must not inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


class TestTheEndOfOurProcess:
    def test_killed_it_leaves_no_process_and_the_next_removes_its_folder(self) -> None:
        mark = f"301.{os.getpid()}"
        process = start(f"setsid sleep {mark} & pwd; echo $$; sleep 1000")
        assert process.stdout is not None
        process.stdout.readline()
        (home,) = homes_of(process.pid)
        process.kill()
        process.communicate()
        until(lambda: not runs(mark))
        # The folder is left behind, until another process, maybe of another test, begins.
        assert start("true").wait() == 0
        assert not home.exists()

    def test_at_its_end_its_folder_goes(self) -> None:
        process = start("sleep 1; echo done; sleep 1")
        assert process.stdout is not None
        process.stdout.readline()
        (home,) = homes_of(process.pid)
        assert process.wait() == 0
        process.stdout.close()
        assert not home.exists()

    def test_interrupted_it_ends_the_command(self) -> None:
        mark = f"302.{os.getpid()}"
        process = start(f"echo begun; sleep {mark}")
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode != 0
        assert not runs(mark)


def homes_of(pid: int) -> list[Path]:
    """Return the folders that a process has locked."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return [Path(link) for link in links if Path(link).name.startswith("treadle-shell-")]


def until(is_so: Callable[[], bool]) -> None:
    """Wait until `is_so()` is true, for at most a minute."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestUnprotected:
    async def test_limits_and_ends_count_without_a_sandbox(self) -> None:
        limits = Limits(memory_bytes=200 * 2**20, processes=20, file_bytes=1_000_000)
        bench = Bench(Shell(unprotected=True, limits=limits), {"a": "one\n"})
        assert await bench.text("cat a; echo two > b") == "one\n"
        assert bench.sandbox.read("b") == b"two\n"
        assert "SIGXFSZ" in (await bench("head -c 2000000 /dev/zero > big")).content
        assert "MemoryError" in (await bench(f"{sys.executable} -c 'b\"x\" * (1 << 30)'")).content
        output = await bench("for i in $(seq 40); do sleep 100 & done; wait")
        assert "more than 20 processes" in output.content
        mark = f"303.{os.getpid()}"
        assert (
            await bench.text(f"(setsid sleep {mark} &) ; nohup sleep {mark} >/dev/null 2>&1 & echo begun")
            == "begun\n"
        )
        until(lambda: not runs(mark))  # what was killed may need a moment to end
        await bench.scope.close()

    async def test_nothing_of_our_environment_is_in_it(self) -> None:
        bench = Bench(Shell(unprotected=True))
        os.environ["TREADLE_TEST_SECRET"] = "hidden"
        try:
            assert "hidden" not in await bench.text("env")
        finally:
            del os.environ["TREADLE_TEST_SECRET"]
        await bench.scope.close()


class TestInARun:
    async def test_files_and_state_are_in_the_journal(self, tmp_path: Path) -> None:
        commands = ["echo 'echo ran' > s; chmod +x s", "./s > out; rm a"]

        def answer(request: object) -> Message:
            done = sum(message.role is Role.TOOL for message in request.messages)  # type: ignore[attr-defined]
            if done < len(commands):
                call = ToolCall(f"c{done}", "shell", json.dumps({"command": commands[done]}))
                return Message(Role.ASSISTANT, tool_calls=(call,))
            return Message(Role.ASSISTANT, "done")

        with open_journal(tmp_path / "runs.db") as journal:
            agent = Agent(ScriptedModel(answer), tools=["shell"], journal=journal)
            result = await agent.run("Go.", files={"a": "1"})
            assert result.files == {"out": b"ran\n", "s": b"echo ran\n"}
