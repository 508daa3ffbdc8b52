"""`treadle cancel`, `label`, `follow` and `answer` on runs that other processes drive."""

import asyncio
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.cli.command import Cli, RealCli
from tests.cli.scripted import Script, call_once
from tests.cli.test_answer import ask
from tests.cli.test_approve import Terminal, terminals  # noqa: F401 (a fixture)

from treadle import open_journal
from treadle.core.events import Noted
from treadle.journal.protocol import Journal

TOOLS = '''
import asyncio
from pathlib import Path
from treadle import tool

@tool(effect="pure")
async def wait() -> str:
    """Wait until a file is there."""
    Path("reached").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "waited"
'''


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.write("waiting.py", TOOLS)
    return cli


def begin(url: str, *more: str) -> list[str]:
    options = ["--model", "m", "--base-url", url, "--api-key", "k", "--tools", "waiting.py", *more]
    return ["run", "wait", "--run-id", "r", "-q", *options]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_tool_is_stopped_by_a_cancel_of_another_process(cli: Cli, script: Script) -> None:
    run = cli.start(*begin(script(call_once("wait")).url))
    wait_for(cli.folder / "reached")
    done = cli("cancel", "r", "--reason", "wrong file")
    # "cancelled" if the other process was so quick that it has left the run already.
    is_told = "sent to the process that drives the run" in done.err or "cancelled" in done.err
    assert (done.code, is_told) == (0, True), done
    _, told = run.communicate(timeout=60)
    assert run.returncode not in (0, None)
    assert "stopped by another process; continue with: treadle resume r" in told
    assert "reason=cancelled, remark=wrong file" in cli("show", "r", "--events").out
    (cli.folder / "go").touch()
    done = cli("resume", "r", "--api-key", "k", "--tools", "waiting.py", "-q")
    assert (done.code, done.out.strip()) == (0, "done: waited"), done


def test_an_inference_is_stopped_by_a_cancel_of_another_process(cli: Cli, script: Script) -> None:
    is_slow, asked = threading.Event(), threading.Event()

    def answer(_: object) -> object:
        if not is_slow.is_set():
            is_slow.set()
            asked.wait(60)
        return {"role": "assistant", "content": "said"}

    server = script(answer)
    run = cli.start(*begin(server.url))
    assert server.asked.wait(60)
    done = cli("cancel", "r")
    assert done.code == 0, done
    run.communicate(timeout=60)
    asked.set()
    assert run.returncode not in (0, None)
    done = cli("resume", "r", "--api-key", "k", "--tools", "waiting.py", "-q")
    assert (done.code, done.out.strip()) == (0, "said"), done
    again = cli("cancel", "r")
    assert (again.code, "no turn is open" in again.err) == (1, True), again


@pytest.mark.parametrize("options", [(), ("--from-now",)])
def test_a_run_of_another_process_is_followed_to_its_end(
    cli: Cli, script: Script, options: tuple[str, ...]
) -> None:
    run = cli.start(*begin(script(call_once("wait")).url))
    wait_for(cli.folder / "reached")
    follower = cli.start("follow", "r", "--json", *options)
    if options:
        time.sleep(1)  # what happens before it has begun is left out
    (cli.folder / "go").touch()
    out, err = follower.communicate(timeout=60)
    run.communicate(timeout=60)
    assert (follower.returncode, run.returncode) == (0, 0), err
    assert ("run_started" in out) is (not options), out
    assert "waited" in out
    assert "run_completed" in out or "turn_completed" in out, out


def test_a_note_that_came_later_makes_a_run_no_longer(cli: Cli) -> None:
    assert cli("run", "hi", "--model", "mock:echo", "--run-id", "r", "-q").code == 0

    async def note_tomorrow(journal: Journal) -> None:
        writer = await journal.acquire("r")
        writer.append([Noted(at=time.time() + 86400, remark="seen")])
        await writer.release()
        await writer.sync()

    with open_journal(cli.folder / ".treadle" / "runs.db") as journal:
        asyncio.run(note_tomorrow(journal))
    followed = cli("follow", "r")
    assert (followed.code, " h " in followed.out + followed.err) == (0, False), followed


def test_ctrl_c_ends_the_follower_and_leaves_the_run_alone(tmp_path: Path, cli: Cli, script: Script) -> None:
    run = cli.start(*begin(script(call_once("wait")).url))
    wait_for(cli.folder / "reached")
    follower = RealCli(tmp_path).start("follow", "r")
    assert follower.stdout is not None
    assert follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=60)
    assert follower.returncode == 130
    (cli.folder / "go").touch()
    out, _ = run.communicate(timeout=60)
    assert (run.returncode, out.strip()) == (0, "done: waited")


def test_a_chat_takes_the_answer_of_another_process(cli: Cli, terminals: list[Terminal]) -> None:  # noqa: F811
    chat = Terminal(cli, "chat", "-m", "mock:echo", "--tools", "ask")
    terminals.append(chat)
    chat.wait_for("›")
    chat.type(ask("Which file?") + "\r")
    chat.wait_for("answers later")
    chat.seen = ""
    done = cli("answer", "last", "a.txt")
    assert (done.code, "takes the answer in" in done.err) == (0, True), done
    chat.wait_for("a.txt")
    chat.wait_for("›")
    assert cli("label", "last", "quality=good").code == 0
    assert cli("label", "last", "--remark", "looked at it").code == 0
    assert "give a label as NAME=VALUE, or a --remark" in cli("label", "last").err
    chat.type("\x04")
    assert chat.close() == 0
    assert "quality" in cli("show", "last", "--events").out
    assert len(cli("runs", "--label", "quality=good", "--json").lines) == 1
    assert cli("runs", "--label", "quality=good", "--label", "quality=bad").err == "no such runs\n"
    assert "'quality' is not a label; write NAME=VALUE" in cli("runs", "--label", "quality").err
