"""Questions of a model during a turn, at a terminal."""

import time

import pyte
from tests.cli.command import Cli
from tests.cli.scripted import Json, Script, call, say
from tests.cli.test_chat import CTRL_D, ENTER, Terminal

from treadle import open_journal
from treadle.core.events import ToolCompleted


def wait_for_result(cli: Cli) -> None:
    """Wait until the journal has a result, which the view gets next."""
    with open_journal(str(cli.folder / ".treadle" / "runs.db")) as journal:
        (run,) = journal.runs()
        while not any(isinstance(event.body, ToolCompleted) for event in journal.read(run.run_id)):
            time.sleep(0.01)
    time.sleep(0.1)


def test_a_result_is_not_written_into_the_next_question(cli: Cli, script: Script) -> None:
    """Two questions of one step are asked one after the other, and their results are shown after both."""

    def answer(body: dict[str, Json]) -> Json:
        if body["messages"][-1]["role"] == "tool":
            return say("Thank you.")
        calls = [call("ask_user", f"call_{n}", question=f"Which {n}?") for n in (1, 2)]
        return {"content": None, "tool_calls": [item["tool_calls"][0] for item in calls]}

    base = ("-m", "m", "--base-url", script(answer).url, "-t", "ask")
    terminal = Terminal(cli, "chat", *base, is_screen=True)
    terminal.wait_for("›")
    terminal.type("ask" + ENTER)
    for number, said in ((1, "first"), (2, "second")):
        terminal.wait_for(f"? Which {number}?")
        terminal.wait_for("answers later")
        if number == 2:
            wait_for_result(cli)
        terminal.type(said + ENTER)
    terminal.wait_for("Thank you.")
    terminal.wait_for("›")
    terminal.type(CTRL_D)
    assert terminal.process.wait(60) == 0
    screen = pyte.Screen(100, 200)
    pyte.Stream(screen).feed(terminal.out)
    shown = [line.strip() for line in screen.display if line.strip()]
    begin = shown.index("? Which 1?")
    prompt = "a text; Enter or Esc answers later:"
    assert shown[begin : begin + 4] == [
        "? Which 1?",
        f"{prompt} first",
        "? Which 2?",
        f"{prompt} second",
    ]
    assert [line for line in shown[begin + 4 :] if line in ("first", "second")] == ["first", "second"]
