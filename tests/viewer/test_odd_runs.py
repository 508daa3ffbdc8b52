"""Runs with odd ids, labels, numbers and texts: the page and its files say what the journal says."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.browser.chromium import Chromium
from tests.cli.command import Cli
from tests.models.server import free_port
from tests.server.test_responses import config, journal, serving
from tests.viewer.conftest import ServedJournal
from tests.viewer.sample_runs import answer, look
from tests.viewer.test_pages import click, press, show, text_of, wait, write

from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.core.events import TextDelta
from treadle.core.events.body import Delta, ToolCallDelta
from treadle.core.inbox import Note
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall
from treadle.journal.hub import listen
from treadle.journal.protocol import Journal
from treadle.models import call
from treadle.models.protocol import Watch
from treadle.runs.recording import send
from treadle.server.api_server import load_served, serve_api
from treadle.tools.protocol import ToolOutput

__all__ = ["config", "journal"]

ODD_IDS = ["one:2", "zwölf", "50%25", "a/b", "x?y#z", "it's(1)!*~"]
LONG_NUMBER = "12345678901234567890"


class Order(BaseModel):
    number: int
    names: list[str]


@tool(effect="pure")
def find(number: int) -> ToolOutput:
    """Find an order."""
    return ToolOutput(f"after it comes {number + 1}", structured={"next": number + 1})


@pytest.mark.parametrize("run_id", ODD_IDS)
def test_a_file_shows_a_run_with_any_id(browser: Chromium, tmp_path: Path, run_id: str) -> None:
    cli = Cli(tmp_path)
    with open_journal(tmp_path / "runs.db") as opened:
        agent = Agent(ScriptedModel(["It is there."]), journal=opened)
        agent.run_sync("Is it there?", run_id=run_id, files={"a.txt": "some text"})
    assert cli("report", run_id, "--journal", "runs.db", "--out", "run.html").code == 0
    show(browser, tmp_path / "run.html", ".block")
    assert "It is there." in text_of(browser, ".transcript")
    browser.evaluate("document.querySelector('.leaf.inference').click()")
    browser.evaluate("[...document.querySelectorAll('.inspector [role=tab]')][1].click()")
    wait(browser, "document.querySelector('.prompt')?.innerText.includes('Is it there?')")
    browser.evaluate("[...document.querySelectorAll('.tabs [role=tab]')][2].click()")
    wait(browser, "document.querySelector('.difference')?.innerText.includes('some text')")
    assert browser.complaints == []


def test_a_file_of_several_runs_has_filters(browser: Chromium, tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    with open_journal(tmp_path / "runs.db") as opened:
        for number in range(4):
            agent = Agent(ScriptedModel([f'The "answer" {number}.'], name=f"m{number % 2}"), journal=opened)
            agent.run_sync("Hello.", run_id=f"r{number}", metadata={"kind": f"k{number // 2}"})
    ids = [f"r{number}" for number in range(4)]
    assert cli("report", *ids, "--journal", "runs.db", "--out", "runs.html").code == 0
    page = (tmp_path / "runs.html").as_uri()
    for query, count in {
        "": 4, "text=r2": 1, "text=%22ANSWER%22+3": 1, "model=m1": 2, "label=kind%3Dk0": 2, "status=finished": 4,
        "status=paused": 0, "model=m1&label=kind%3Dk0": 1, "label=kind": 4,
    }.items():  # fmt: skip
        show(browser, f"{page}#/runs?{query}", ".bar")
        assert browser.evaluate("document.querySelectorAll('.line').length") == count, query


@pytest.fixture
async def live(config: Path, journal: Journal) -> AsyncIterator[str]:
    async with serving(config, journal) as url:
        yield f"{url}/view#/"


@pytest.mark.parametrize("run_id", ODD_IDS)
async def test_the_list_opens_a_run_with_any_id(
    browser: Chromium, live: str, journal: Journal, run_id: str
) -> None:
    helper = Agent(ScriptedModel(["It is there."]))
    script = [answer("", call("helper", {"task": "Look."})), answer("It is done.")]
    agent = Agent(ScriptedModel(script), tools=[helper.as_tool("helper", "Helps.")], journal=journal)
    await agent.run("Is it there?", run_id=run_id, files={"a.txt": "some text"})

    def look_at() -> None:
        show(browser, f"{live}runs", ".line")
        browser.evaluate(
            "[...document.querySelectorAll('.line a')].find(a => !/^↳/.test(a.innerText)).click()"
        )
        wait(browser, "document.querySelector('.transcript')?.innerText.includes('It is done.')")
        wait(browser, "document.querySelectorAll('.leaf').length > 2")
        browser.evaluate("document.querySelector('.leaf.inference').click()")
        browser.evaluate("[...document.querySelectorAll('.inspector [role=tab]')][1].click()")
        wait(browser, "document.querySelector('.prompt')?.innerText.includes('Is it there?')")
        browser.evaluate("[...document.querySelectorAll('.tabs [role=tab]')][2].click()")
        wait(browser, "document.querySelector('.difference')?.innerText.includes('some text')")
        for number in range(browser.evaluate("document.querySelectorAll('.tabs [role=tab]').length")):
            browser.evaluate(f"document.querySelectorAll('.tabs [role=tab]')[{number}].click()")
            wait(browser, "!document.body.innerText.includes('Loading')")
            assert "there is no run" not in text_of(browser)
            assert "there is nothing at" not in text_of(browser)
        assert browser.complaints == []

    await asyncio.to_thread(look_at)


async def test_a_group_may_have_any_name(browser: Chromium, live: str, journal: Journal) -> None:
    for number in range(2):
        agent = Agent(ScriptedModel([f"Answer {number}"]), journal=journal)
        run = await agent.run("Hello.", metadata={"group": "files/ü 1?"})
    await asyncio.to_thread(show, browser, f"{live}run/{run.run_id}", ".facts-line")
    await asyncio.to_thread(
        browser.evaluate,
        "[...document.querySelectorAll('.facts-line a')].find(one => one.innerText === 'its group').click()",
    )
    await asyncio.to_thread(wait, browser, "document.querySelectorAll('.sidehead section').length === 2")
    for _ in range(2):
        await Agent(ScriptedModel(["One."]), journal=journal).run("Hello.", metadata={"group": "alike"})
    await asyncio.to_thread(show, browser, f"{live}group/alike", ".sideline")
    assert "All messages are the same" in await asyncio.to_thread(text_of, browser, "main")
    assert await asyncio.to_thread(browser.evaluate, "document.querySelectorAll('.msg.user').length") == 1
    await asyncio.to_thread(show, browser, f"{live}group/nobody", "main")
    await asyncio.to_thread(wait, browser, "document.body.innerText.includes('No finished run is in this')")


async def test_the_head_of_a_run_has_the_sums_of_the_list(
    browser: Chromium, live: str, journal: Journal
) -> None:
    helper = Agent(ScriptedModel([answer("", call("look", {"path": "a"})), answer("Done.")]), tools=[look])
    script = [answer("", call("helper", {"task": "Look."})), answer("It is done.")]
    agent = Agent(ScriptedModel(script), tools=[helper.as_tool("helper", "Helps.")], journal=journal)
    run = await agent.run("Look at all.")
    await asyncio.to_thread(show, browser, f"{live}run/{run.run_id}", ".facts-line")
    assert "2 steps\n4,800 → 192 tokens\n$0.012" in await asyncio.to_thread(text_of, browser, ".facts-line")
    other = f"{live}compare/{run.run_id}/{run.run_id}"
    await asyncio.to_thread(show, browser, other, ".side")
    assert "4,800 → 192 tokens" in await asyncio.to_thread(text_of, browser, ".sides")


async def test_a_later_note_takes_no_time_of_the_run(browser: Chromium, live: str, journal: Journal) -> None:
    run = await Agent(ScriptedModel(["Done."]), journal=journal).run("Do it.")
    await asyncio.sleep(1.2)
    await send(journal, run.run_id, Note(remark="Well done."))
    await asyncio.to_thread(show, browser, f"{live}run/{run.run_id}", ".block.event")
    await asyncio.to_thread(wait, browser, "document.body.innerText.includes('Well done.')")
    facts = await asyncio.to_thread(text_of, browser, ".facts-line")
    assert " ms\n" in facts, facts


async def test_numbers_are_shown_as_they_were_written(browser: Chromium, live: str, journal: Journal) -> None:
    written = f'{{"number": {LONG_NUMBER}, "price": 1.0, "n": 1, "n": 2}}'
    calls = answer(
        "", ToolCall("c1", "find", f'{{"number": {LONG_NUMBER}}}'), ToolCall("c2", "find", written)
    )
    agent = Agent(ScriptedModel([calls, answer("Found.")]), tools=[find], journal=journal)
    run = await agent.run("Find it.")
    await asyncio.to_thread(show, browser, f"{live}run/{run.run_id}?at=5", ".block.picked")
    picked = "[...document.querySelectorAll('.leaf.call')][{}].click()"
    inside = "document.querySelector('.inspector .inside').innerText"
    await asyncio.to_thread(browser.evaluate, picked.format(1))
    laid_out = f'{{\n  "number": {LONG_NUMBER},\n  "price": 1.0,\n  "n": 1,\n  "n": 2\n}}'
    await asyncio.to_thread(wait, browser, f"{inside}.includes({json.dumps(laid_out)})")
    await asyncio.to_thread(browser.evaluate, picked.format(0))
    tabs = "[...document.querySelectorAll('.inspector [role=tab]')].at(-1).click()"
    await asyncio.to_thread(browser.evaluate, tabs)
    await asyncio.to_thread(wait, browser, f"{inside}.match(/{int(LONG_NUMBER) + 1}/g)?.length >= 2")


async def test_a_text_has_the_direction_of_its_language(
    browser: Chromium, live: str, journal: Journal
) -> None:
    run = await Agent(ScriptedModel(["הכול מוכן."]), journal=journal).run("הכול מוכן?")
    await asyncio.to_thread(show, browser, f"{live}run/{run.run_id}", ".inference .said")
    places = """
      ['.message .said', '.inference .said', 'h1', '.leaf.inference .soft'].map(one => {
        const text = document.querySelector(one).firstChild;
        const place = at => { const range = document.createRange(); range.setStart(text, at);
          range.setEnd(text, at + 1); return range.getBoundingClientRect().left; };
        return place(text.data.length - 1) < place(0);
      })"""
    assert await asyncio.to_thread(browser.evaluate, places) == [True] * 4


def test_the_name_of_a_label_is_no_filter_yet(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs?order=nonsense"), ".line")
    runs = text_of(browser, ".bar .num")
    assert "↓" in text_of(browser, ".heads [aria-sort=descending]")
    write(browser, "[aria-label='Label: name=value']", "customer")
    wait(browser, "location.hash.includes('label=customer')")
    wait(browser, "document.querySelector('[aria-label^=Label]').getAttribute('aria-invalid') === 'true'")
    assert text_of(browser, ".bar .num") == runs
    write(browser, "[aria-label='Label: name=value']", "=acme")
    wait(browser, f"document.querySelector('.bar .num').innerText !== {json.dumps(runs)}")
    assert browser.evaluate("document.querySelectorAll('.line').length") >= 1


def test_a_key_that_is_not_known_is_called_so(browser: Chromium, served: ServedJournal) -> None:
    bare = served.url.partition("#")[0]
    browser.open(f"{bare}#token=tk-wrong&/runs")
    wait(browser, "document.querySelector('[role=alert]')?.innerText.includes('key')")
    browser.evaluate("sessionStorage.clear()")


def test_a_narrow_screen_has_room_for_what_is_written_and_changed(
    browser: Chromium, served: ServedJournal
) -> None:
    wide = "document.querySelector('{}').getBoundingClientRect().width"
    show(browser, served.address(f"run/{served.runs['asking']}"), ".ask", width=400)
    assert browser.evaluate(wide.format(".ask input")) > 150
    show(browser, served.address(f"run/{served.runs['tidy']}?view=files"), ".difference pre", width=400)
    assert browser.evaluate(wide.format(".difference pre")) > 300
    show(browser, served.address(f"run/{served.runs['tidy']}?view=forks"), ".branches a", width=400)
    assert browser.evaluate("document.querySelector('.branches a').getBoundingClientRect().left") < 200


async def test_notes_make_no_difference_between_runs(browser: Chromium, live: str, journal: Journal) -> None:
    runs = [await Agent(ScriptedModel(["Done."]), journal=journal).run("Do it.") for _ in range(2)]
    await send(journal, runs[0].run_id, Note(remark="Well done."))
    await asyncio.to_thread(show, browser, f"{live}compare/{runs[0].run_id}/{runs[1].run_id}", ".pair")
    assert "These runs are equal" in await asyncio.to_thread(text_of, browser, ".bar")


async def test_a_file_shows_a_run_as_it_was_when_the_file_was_written(
    browser: Chromium, tmp_path: Path, journal: Journal
) -> None:
    may_end, has_begun = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def wait_long() -> str:
        """Wait."""
        has_begun.set()
        await may_end.wait()
        return "waited"

    agent = Agent(ScriptedModel([[call("wait_long", {})], "Done."]), tools=[wait_long], journal=journal)
    work = asyncio.ensure_future(agent.run("Wait.", run_id="waits"))
    await has_begun.wait()
    made = await asyncio.to_thread(
        Cli(tmp_path), "report", "waits", "--journal", "runs.db", "--out", "w.html"
    )
    may_end.set()
    await work
    assert made.code == 0
    await asyncio.to_thread(show, browser, tmp_path / "w.html", ".block.call")
    await asyncio.sleep(2.1)
    assert (await asyncio.to_thread(text_of, browser, ".block.call .chip")) == "running"
    assert (await asyncio.to_thread(text_of, browser, ".runhead .chip")) == "running"
    assert " ms\n" in await asyncio.to_thread(text_of, browser, ".facts-line")


async def test_the_whole_of_a_cut_result_is_shown(browser: Chromium, live: str, journal: Journal) -> None:
    whole = "\n".join(f"line {number} of all" for number in range(20_000))

    @tool(effect="pure")
    def read() -> str:
        """Read all."""
        return whole

    agent = Agent(
        ScriptedModel([answer("", call("read", {})), answer("Read.")]), tools=[read], journal=journal
    )
    run = await agent.run("Read all.")

    def look_at() -> None:
        show(browser, f"{live}run/{run.run_id}", "button.chip")
        assert "line 19999 of all" not in text_of(browser)
        press(browser, "j", "j", "j", "j", "j")
        browser.evaluate("document.querySelector('button.chip').focus()")
        browser.evaluate("document.querySelector('button.chip').click()")
        wait(browser, "document.querySelector('dialog .kept')")
        click(browser, f"Show 200,000 of {len(whole):,} characters")
        wait(browser, "document.querySelector('dialog').innerText.includes('line 9999 of all')")
        wait(browser, "document.querySelector('dialog a[download]').protocol === 'blob:'")
        press(browser, "Escape")
        wait(browser, "!document.querySelector('dialog')")
        assert browser.complaints == []

    await asyncio.to_thread(look_at)


class PausingModel:
    """A model whose second answer stops after its first pieces until it may go on."""

    name = "pausing"

    def __init__(self, pieces: list[Delta], first: Message, second: Message) -> None:
        self.may_end = asyncio.Event()
        self._pieces = pieces
        self._answers = [first, second, Message(Role.ASSISTANT, "Done.")]

    async def infer(self, request: Request, watch: Watch) -> Completion:
        said = self._answers.pop(0)
        if len(self._answers) == 1:
            assert watch.on_delta is not None
            for piece in self._pieces:
                watch.on_delta(piece)
                await asyncio.sleep(0.1)
            await self.may_end.wait()
        reason = FinishReason.TOOL_CALLS if said.tool_calls else FinishReason.STOP
        return Completion(said, reason)


async def _follow(browser: Chromium, url: str, journal: Journal) -> None:
    await asyncio.to_thread(show, browser, f"{url}run/live", ".run[data-loaded=true]")
    await asyncio.to_thread(journal.post, "live", Note(remark="It is followed."))
    await asyncio.to_thread(wait, browser, "document.body.innerText.includes('It is followed.')")


async def test_an_answer_that_fits_a_schema_is_laid_out_while_it_comes(
    browser: Chromium, live: str, journal: Journal
) -> None:
    whole = f'{{"number": {LONG_NUMBER}, "names": ["a", "b"]}}'
    said = Message(Role.ASSISTANT, whole)
    model = PausingModel([TextDelta(whole[:20]), TextDelta(whole[20:-6])], said, said)
    async with Agent(model, schema=Order, journal=journal).session("live") as session:
        await session.send("An order.")
        await _follow(browser, live, journal)
        work = asyncio.ensure_future(session.send("Another order."))
        shown = "[...document.querySelectorAll('.block.inference pre.arguments')].at(-1).innerText"
        partial = f'{{\n  "number": {LONG_NUMBER},\n  "names": [\n    "a",'
        try:
            await asyncio.to_thread(wait, browser, f"{shown} === {json.dumps(partial)}")
            await asyncio.to_thread(write, browser, "[data-focus=message]", "Thanks.")
            await asyncio.to_thread(click, browser, "Send")
            told = "document.querySelector('.toast')?.innerText === 'sent: the model sees it after this turn'"
            await asyncio.to_thread(wait, browser, told)
        finally:
            model.may_end.set()
            await work
    end = partial + '\n    "b"\n  ]\n}'
    await asyncio.to_thread(wait, browser, f"{shown} === {json.dumps(end)}")


async def _hear(journal: Journal) -> None:
    async for _ in listen(journal, "live"):
        pass


async def test_pieces_are_not_doubled_when_a_stream_begins_again(
    browser: Chromium, config: Path, journal: Journal
) -> None:
    port = free_port()
    said = Message(Role.ASSISTANT, "The first half and the other.")
    model = PausingModel([TextDelta("The first half")], Message(Role.ASSISTANT, "Hello."), said)
    text = "document.querySelectorAll('.block.inference .said')[1]?.innerText"

    async def serve() -> "asyncio.Task[None]":
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        served = load_served(config, None)
        task = asyncio.ensure_future(serve_api(served, journal, "127.0.0.1", port, ready.set_result))
        await ready
        return task

    server = await serve()
    async with Agent(model, journal=journal).session("live") as session:
        await session.send("Hello.")
        await _follow(browser, f"http://127.0.0.1:{port}/view#/", journal)
        other = asyncio.ensure_future(_hear(journal))
        work = asyncio.ensure_future(session.send("Say something."))
        try:
            await asyncio.to_thread(wait, browser, f"{text} === 'The first half'")
            server.cancel()
            await asyncio.wait([server])
            lost = "document.querySelector('.runhead [role=alert]')?.innerText.startsWith('Not connected')"
            await asyncio.to_thread(wait, browser, lost)
            server = await serve()
            await asyncio.to_thread(wait, browser, f"!({lost})")
            await asyncio.to_thread(journal.post, "live", Note(remark="It is followed again."))
            await asyncio.sleep(1)
            assert (await asyncio.to_thread(browser.evaluate, f"{text} ?? ''")) in ("", "The first half")
        finally:
            model.may_end.set()
            await work
    await asyncio.to_thread(wait, browser, f"{text} === 'The first half and the other.'")
    await asyncio.to_thread(browser.open, "about:blank")
    other.cancel()
    server.cancel()
    await asyncio.wait([server, other])


async def test_the_arguments_of_a_call_are_shown_while_they_come(
    browser: Chromium, live: str, journal: Journal
) -> None:
    arguments = json.dumps({"path": "notes/" + "deep/" * 30})
    pieces: list[Delta] = [ToolCallDelta(0, "c1", "look", "")]
    pieces += [ToolCallDelta(0, None, None, part) for part in (arguments[:9], arguments[9:60])]
    wanted = Message(Role.ASSISTANT, "", (ToolCall("c1", "look", arguments),))
    model = PausingModel(pieces, Message(Role.ASSISTANT, "Hello."), wanted)
    async with Agent(model, tools=[look], journal=journal).session("live") as session:
        await session.send("Hello.")
        await _follow(browser, live, journal)
        work = asyncio.ensure_future(session.send("Look."))
        block = "document.querySelector('.block.call')"
        try:
            await asyncio.to_thread(
                wait, browser, f"{block}.innerText.includes({json.dumps(arguments[9:60])})"
            )
            await asyncio.to_thread(wait, browser, f"{block}.innerText.includes('being written')")
        finally:
            model.may_end.set()
            await work
    await asyncio.to_thread(wait, browser, f"{block}.innerText.includes('12 lines')")
