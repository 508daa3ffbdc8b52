"""The calls that a model's server makes by itself, in `treadle show` and in the view of a run."""

import asyncio

import pytest
from tests.cli.command import Cli

from treadle import Agent, ScriptedModel, open_journal
from treadle.cli.terminal.view import TextView
from treadle.core.types import Completion, FinishReason, Message, Role, ServerCall

FOUND = (
    ServerCall("s1", "web_search", '{"query": "tea"}', "Green \x1b[2Jtea", offset=8),
    ServerCall("s2", "fetch", "", "gone", is_error=True, offset=8),
)
ANSWER = Completion(
    Message(Role.ASSISTANT, "I look. It is green.", server_calls=FOUND), FinishReason.STOP, model="m"
)
SHOWN = [
    "I look.",
    '◇ web_search(query="tea")  by the server: Green �[2Jtea',
    "◇ fetch()  by the server: gone",
    "It is green.",
]


def test_a_transcript_has_them_where_they_were_made(cli: Cli) -> None:
    with open_journal(cli.folder / "runs.db") as journal:
        asyncio.run(Agent(ScriptedModel([ANSWER]), journal=journal).run("go", run_id="r"))
    shown = cli("show", "r", "--journal", "runs.db").out.splitlines()
    begin = shown.index("I look.")
    assert shown[begin : begin + 4] == SHOWN


@pytest.mark.parametrize("is_live", [False, True])
def test_a_view_has_them_where_they_were_made(capsys: pytest.CaptureFixture[str], is_live: bool) -> None:
    view = TextView(is_live=is_live)
    agent = Agent(ScriptedModel([ANSWER]), journal="memory:")
    run = asyncio.run(agent.run("go", on_event=view.on_event))
    view.finish(run, 0.0)
    shown = [line for line in map(str.strip, capsys.readouterr().out.splitlines()) if line]
    places = [next(at for at, line in enumerate(shown) if part in line) for part in SHOWN]
    assert places == sorted(set(places))
    assert sum("◇" in line for line in shown) == 2
