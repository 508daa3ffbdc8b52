"""Commands of a conversation that are stopped, that meet an open turn, or that get a wrong value."""

import asyncio
import signal
import subprocess
import threading

import pyte
from tests.cli.command import Cli
from tests.cli.scripted import Json, Script, call, say
from tests.cli.test_chat import CTRL_D, CTRL_U, ENTER, ESC, Terminal

from treadle import Agent, open_journal
from treadle.core.events import TextDelta
from treadle.core.events.narrowing import Item
from treadle.core.types import Completion, Request
from treadle.models.protocol import Watch
from treadle.runs.run import Run

_LONG = "the boat and the nets in the harbour " * 40


def _is_summary(body: dict[str, Json]) -> bool:
    return str(body["messages"][0]["content"]).startswith("You write the memory")


def _leave(terminal: Terminal) -> None:
    terminal.wait_for("›")
    terminal.type(CTRL_U + CTRL_D)
    assert terminal.process.wait(60) == 0


def test_ctrl_c_stops_a_compaction_and_not_the_chat(cli: Cli, script: Script) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def answer(body: dict[str, Json]) -> Json:
        if not _is_summary(body):
            return say(_LONG)
        asked.set()
        goes_on.wait(60)
        return say("They talk about boats.")

    base = ("-m", "m", "--base-url", script(answer).url, "--context-tokens", "100000")
    terminal = Terminal(cli, "chat", *base, is_screen=True)
    for number in range(4):
        terminal.wait_for("›")
        terminal.type(f"message {number}" + ENTER)
        terminal.wait_for(f"session: {number + 1} turn")
    terminal.wait_for("›")
    terminal.type("/compact" + ENTER)
    terminal.wait_for("compacting")
    assert asked.wait(60)
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("/compact was stopped")
    goes_on.set()
    terminal.wait_for("›")
    terminal.type("/compact" + ENTER)
    terminal.wait_for("old messages summarised by")
    _leave(terminal)


def test_a_fork_does_not_go_on_with_a_turn_that_waits(cli: Cli, script: Script) -> None:
    """The question is asked again in the copy, once the person goes on, and is not put while the copy is made."""

    def answer(body: dict[str, Json]) -> Json:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return say(f"The size is {last['content']}.")
        return call("ask_user", question="Which size?") if "ask" in str(last["content"]) else say("Fine.")

    server = script(answer)
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url, "-t", "ask", is_screen=True)
    terminal.wait_for("›")
    terminal.type("ask me" + ENTER)
    terminal.wait_for("? Which size?")
    terminal.wait_for("answers later")
    terminal.type(ESC)
    terminal.wait_for("asks the question again")
    terminal.wait_for("›")
    terminal.type("/fork" + ENTER)
    terminal.wait_for("from now on, a copy")
    terminal.wait_for("›")
    terminal.type("next" + ENTER)
    terminal.wait_for("? Which size?")
    terminal.wait_for("answers later")
    terminal.type("large" + ENTER)
    terminal.wait_for("The size is large.")
    terminal.wait_for("Fine.")
    _leave(terminal)
    assert len(server.requests) == 3


def test_a_fork_after_an_error_asks_no_model(cli: Cli, script: Script) -> None:
    """A turn that ended with an error is tried again in the copy before the next message, and told so."""
    fails = True

    def answer(body: dict[str, Json]) -> Json:
        return 400 if fails else say(f"answer {len(body['messages'])}")

    server = script(answer)
    terminal = Terminal(cli, "chat", "-m", "m", "--base-url", server.url, is_screen=True)
    terminal.wait_for("›")
    terminal.type("one" + ENTER)
    terminal.wait_for("/retry tries it again")
    for _ in range(2):
        terminal.wait_for("›")
        terminal.type("/fork" + ENTER)
        terminal.wait_for("from now on, a copy")
    assert len(server.requests) == 1
    fails = False
    terminal.wait_for("›")
    terminal.type("two" + ENTER)
    terminal.wait_for("the last turn ended with an error; it is tried again now")
    terminal.wait_for("answer 1")
    terminal.wait_for("answer 3")
    _leave(terminal)


def test_a_message_is_on_the_screen_once_also_with_memory(cli: Cli, script: Script) -> None:
    server = script(lambda body: say("answer"))
    base = ("-m", "m", "--base-url", server.url, "--memory", "--user", "kim")
    terminal = Terminal(cli, "chat", *base, is_screen=True)
    terminal.wait_for("›")
    terminal.type("hello there" + ENTER)
    terminal.wait_for("session: 1 turn")
    _leave(terminal)
    screen = pyte.Screen(100, 200)
    pyte.Stream(screen).feed(terminal.out)
    assert [line.rstrip() for line in screen.display].count("› hello there") == 1


class _Stalled:
    """A model that says the beginning of an answer, and nothing more."""

    name = "stalled"

    async def infer(self, request: Request, watch: Watch) -> Completion:
        assert watch.on_delta is not None
        watch.on_delta(TextDelta("Once upon a time"))
        return await asyncio.Future()


async def test_an_answer_that_was_stopped_is_shown_when_the_session_goes_on(cli: Cli) -> None:
    """As the transcript has it: as far as the person saw it."""
    turn: asyncio.Task[Run[str]] | None = None

    def stop_at_text(item: Item) -> None:
        if isinstance(item.body, TextDelta) and turn is not None:
            turn.cancel()

    with open_journal(str(cli.folder / ".treadle" / "runs.db")) as journal:
        async with Agent(_Stalled(), journal=journal).session() as session:
            turn = asyncio.create_task(session.send("a tale", on_event=stop_at_text))
            await asyncio.wait([turn])
            assert session.messages[-1].content == "Once upon a time"
    done = cli("chat", "--continue", "-m", "mock:echo", text="")
    assert "1 turn so far; the newest one:" in done.err
    assert done.out.splitlines() == ["› a tale", "Once upon a time"]


def test_a_number_in_other_digits_ends_no_chat(cli: Cli) -> None:
    done = cli("chat", "-m", "mock:echo", text="/queue ²\nhello\n")
    assert "'²' is not the number of a message that waits" in done.err
    assert "You said: hello" in done.out
    done = cli("chat", "-m", "mock:echo", "--tool-limit", "x:calls=²", text="hello\n")
    assert "write TOOL:calls=3" in done.err


def test_a_model_for_summaries_that_does_not_exist_is_told_at_once(cli: Cli) -> None:
    """And not when old messages have to go."""
    for command in (["chat"], ["run", "hello"]):
        done = cli(*command, "-m", "mock:echo", "--summary-model", "nope:x", text="hello\n")
        assert (done.code, done.out) == (2, "")
        assert "--summary-model 'nope:x': unknown provider 'nope'" in done.err


def test_an_interrupted_chat_in_a_pipe_says_how_it_goes_on(cli: Cli, script: Script) -> None:
    goes_on = threading.Event()
    server = script(lambda body: goes_on.wait(60) and say("late"))
    base = ("chat", "-m", "m", "--base-url", server.url)
    process = cli.start(*base, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("hi\n")
    process.stdin.flush()
    assert server.asked.wait(60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    goes_on.set()
    (session,) = cli("sessions", "--json").lines
    assert process.returncode == 130
    assert f"continue with: treadle chat --session {session['run_id']}" in err
