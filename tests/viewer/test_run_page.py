"""What the page of a run and its neighbours say about tokens, times, tools, forks, comparisons and memories."""

import asyncio
from asyncio import to_thread
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace
from tests.browser.chromium import Chromium
from tests.cli.command import Cli
from tests.cli.scripted import Scripted
from tests.server.test_responses import config, journal, serving
from tests.viewer.conftest import ServedJournal
from tests.viewer.sample_runs import answer
from tests.viewer.test_data_pages import serve
from tests.viewer.test_pages import click, press, show, text_of, wait, write

from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.core.tokens.token_record import TokenRecord
from treadle.journal.protocol import Journal
from treadle.knowledge.memory import Draft, Store, open_memory
from treadle.models import call
from treadle.scoring.grade import grade
from treadle.scoring.protocol import Score
from treadle.scoring.scorers import FunctionScorer

__all__ = ["config", "journal"]
TIMES = (
    "Object.fromEntries([...document.querySelectorAll('%s')].map(one => "
    "[one.querySelector('b').innerText, one.querySelector('%s')?.innerText]))"
)
"""The times in a list of parts, by the names of the parts."""


@pytest.fixture
async def live(config: Path, journal: Journal) -> AsyncIterator[str]:
    async with serving(config, journal) as url:
        yield f"{url}/view#/"


async def test_only_a_run_with_token_ids_leads_to_its_tokens(
    browser: Chromium, live: str, journal: Journal
) -> None:
    record = TokenRecord.of(prompt=[1, 2, 3], output=[4, 5], logprobs=[-0.1, -0.2])
    models = {
        "ids": replace(answer("It is so."), tokens=record),
        "texts": replace(answer("It is so."), tokens=TokenRecord.of(logprobs=[-0.1], tokens=("It",))),
        "none": answer("It is so."),
    }
    links = "[...document.querySelectorAll('.facts-line a')].map(one => one.innerText)"
    for name, said in models.items():
        await Agent(ScriptedModel([said]), journal=journal).run("Is it so?", run_id=name)
        await to_thread(show, browser, f"{live}run/{name}", ".run[data-loaded=true] .facts-line a")
        assert ("tokens" in await to_thread(browser.evaluate, links)) == (name == "ids")
    await to_thread(show, browser, f"{live}tokens/ids", ".tokenline .sampled")


def test_the_tools_of_a_run_are_named_once(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['approving']}"), ".inspector dl")
    assert (
        text_of(browser, ".inspector .inside").count("send_mail") == 2
    )  # the tool, and the rule of its approval


def test_the_timeline_has_the_times_of_the_transcript(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}"), ".run[data-loaded=true] .block.call")
    said = browser.evaluate(TIMES % (".block.inference, .block.call", ".head > .soft:last-child"))
    show(browser, served.address(f"run/{served.runs['tidy']}?view=timeline"), ".lane")
    drawn = browser.evaluate(TIMES % (".lane:not(.turn)", ".num"))
    assert {"fail", "helper", "Step 1"} <= drawn.keys() & said.keys()
    assert drawn == said


async def test_the_end_of_a_run_that_is_watched_is_in_view(
    browser: Chromium, live: str, journal: Journal
) -> None:
    may_end = asyncio.Event()

    @tool(effect="pure")
    async def wait_here() -> str:
        """Wait."""
        await may_end.wait()
        return "line\n" * 60

    said = "".join(f"Line {number}.\n\n" for number in range(60))
    agent = Agent(ScriptedModel([[call("wait_here", {})], said]), tools=[wait_here], journal=journal)
    running = asyncio.create_task(agent.run("Wait.", run_id="watched"))
    await to_thread(show, browser, f"{live}run/watched", ".run[data-loaded=true] .block.call .chip.accent")
    may_end.set()
    await running
    in_view = (
        "(() => { const box = document.querySelector('.transcript').getBoundingClientRect(); "
        "const end = [...document.querySelectorAll('.block')].at(-1); "
        "return end.innerText.startsWith('Finished') && end.getBoundingClientRect().bottom <= box.bottom; })()"
    )
    await to_thread(wait, browser, in_view)


async def test_a_failed_run_is_tried_again(
    browser: Chromium, live: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    answers = iter([(400, "no more today"), {"content": "Now it works."}])
    server = Scripted(lambda _: next(answers))
    given = ("--model", "some", "--base-url", server.url, "--run-id", "failed", "--journal", "runs.db")
    assert (await to_thread(Cli(tmp_path), "run", "Say hello.", *given)).code
    await to_thread(show, browser, f"{live}run/failed", ".why")
    await to_thread(click, browser, "Try again")
    await to_thread(
        wait, browser, "document.querySelector('.inference .said')?.innerText === 'Now it works.'"
    )
    assert "forked from failed" in await to_thread(text_of, browser, ".facts-line")
    server.stop()


async def test_words_that_differ_are_marked_in_a_comparison(
    browser: Chromium, live: str, journal: Journal
) -> None:
    for name, number in (("one", "twelve"), ("two", "thirteen")):
        said = f"The **largest** folder has {number} files, and nobody needs them."
        await Agent(ScriptedModel([said]), journal=journal).run("Which folder is large?", run_id=name)
    await to_thread(show, browser, f"{live}compare/one/two", ".pair.differs strong")
    marks = "[...CSS.highlights.get('differs') ?? []].map(String)"
    await to_thread(wait, browser, f"{marks}.length === 2")
    assert await to_thread(browser.evaluate, marks) == ["twelve", "thirteen"]


def test_a_fork_says_which_event_it_copies_last(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}"), ".run[data-loaded=true] .block.call")
    press(browser, "f")
    wait(browser, "document.querySelector('#fork-last').innerText === 'run finished'")
    browser.evaluate("document.querySelector('#fork-at').select()")
    write(browser, "#fork-at", "5")
    wait(browser, "document.querySelector('#fork-last').innerText === 'tool started, write_file, step 1'")
    press(browser, "Escape")


def test_runs_to_compare_are_chosen_in_the_list(browser: Chromium, served: ServedJournal) -> None:
    line = "[...document.querySelectorAll('.line')].find(one => one.innerText.includes('%s'))"
    show(browser, served.address("compare"), ".line")
    browser.evaluate(f"({line % 'Tidy the notes'}).click()")
    wait(
        browser,
        f"document.querySelector('h1').innerText.startsWith('Compare Tidy the notes') && {line % 'tomorrow'}",
    )
    browser.evaluate(f"({line % 'tomorrow'}).click()")
    wait(browser, "document.querySelector('.pair')")
    assert "Tidy the notes" in text_of(browser, ".side:first-child")
    assert "what do we do tomorrow?" in text_of(browser, ".side:last-child")
    # In the list of runs, two marks do the same.
    show(browser, served.address("runs"), ".line")
    browser.evaluate(f"({line % 'tomorrow'}).querySelector('input').click()")
    wait(browser, f"({line % 'tomorrow'}).querySelector('input').checked")
    browser.evaluate(f"({line % 'Tidy the notes'}).querySelector('input').click()")
    wait(browser, "document.querySelector('.pair')")
    assert "what do we do tomorrow?" in text_of(browser, ".side:first-child")


async def test_the_memories_of_the_first_owner_are_shown_at_once(
    browser: Chromium, live: str, journal: Journal
) -> None:
    for user in ("anna", "kim"):
        memory = open_memory(journal, persona="vera", user=user)
        await memory.write(Draft(store=Store.SELF_FACTS, text=f"{user} lives in Hamar."))
    await to_thread(show, browser, f"{live}memories", ".memories article")
    assert (await to_thread(text_of, browser, ".memories")).startswith("anna lives in Hamar.")
    choose = (
        "{ const box = document.querySelector('[aria-label=\"Persona and user\"]'); "
        "box.value = [...box.options].find(one => one.text === 'vera about kim').value; "
        "box.dispatchEvent(new Event('change', {bubbles: true})); }"
    )
    await to_thread(browser.evaluate, choose)
    await to_thread(wait, browser, "document.querySelector('.memories').innerText.startsWith('kim lives')")


def test_events_and_the_timeline_are_walked_by_keys(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}?view=events"), ".eventline")
    for seq in (1, 2, 3):
        press(browser, "j")
        wait(browser, f"document.querySelector('.eventline.picked').innerText.startsWith('{seq}')")
    press(browser, "G")
    wait(browser, "document.querySelector('.eventline.picked').innerText.includes('run_finished')")
    show(browser, served.address(f"run/{served.runs['tidy']}?view=timeline"), ".lane")
    for name in ("Turn 1", "Step 1", "write_file"):
        press(browser, "j")
        wait(browser, f"document.querySelector('.lane.picked b').innerText === '{name}'")
    press(browser, "k")
    wait(browser, "document.querySelector('.lane.picked b').innerText === 'Step 1'")


def test_a_difference_is_opened_in_both_runs_by_keys(browser: Chromium, served: ServedJournal) -> None:
    place = f"compare/{served.runs['tidy']}/{served.runs['fork']}"
    for key, name in (("h", "tidy"), ("l", "fork")):
        show(browser, served.address(place), ".pair.differs .picked")
        press(browser, key)
        wait(browser, f"location.hash.startsWith('#/run/{served.runs[name]}?at=')")
        wait(browser, "document.querySelector('.block.picked').innerText.startsWith('Step 2')")


def test_the_arguments_to_change_are_laid_out_and_have_the_focus(
    browser: Chromium, served: ServedJournal
) -> None:
    show(browser, served.address(f"run/{served.runs['approving']}"), ".ask")
    press(browser, "r")
    wait(browser, "document.activeElement.innerText === 'Approve'")
    browser.evaluate("document.activeElement.nextElementSibling.click()")
    wait(browser, "document.activeElement.tagName === 'TEXTAREA'")
    assert browser.evaluate("document.activeElement.value.split('\\n').length") == 4
    browser.evaluate(
        "[...document.querySelectorAll('.ask button')].find(one => one.innerText === 'Undo').click()"
    )
    wait(browser, "document.querySelector('.ask code')")


async def test_two_sub_agents_are_opened_one_right_after_the_other(
    browser: Chromium, live: str, journal: Journal
) -> None:
    helper = Agent(ScriptedModel(lambda _: answer("Fine.")))
    calls = [call("helper", {"task": f"Look at {number}."}) for number in (1, 2)]
    tools = [helper.as_tool("helper", "Looks.")]
    await Agent(ScriptedModel([calls, "Done."]), tools=tools, journal=journal).run("Look.", run_id="both")
    await to_thread(show, browser, f"{live}run/both", "[aria-expanded=false]")
    await to_thread(
        browser.evaluate, "document.querySelectorAll('[aria-expanded]').forEach(one => one.click())"
    )
    await to_thread(wait, browser, "document.querySelectorAll('[aria-expanded=true]').length === 2")
    titles = "[...document.querySelectorAll('.block.message .said')].map(one => one.innerText)"
    await to_thread(wait, browser, f"{titles}.join() === 'Look.,Look at 1.,Look at 2.'")


async def test_each_scorer_is_shown_with_its_reason_and_metrics(
    browser: Chromium, live: str, journal: Journal
) -> None:
    run = await Agent(ScriptedModel(["done"]), journal=journal).run("Do it.")
    said = {
        "tidiness": Score(0.25, "two files are left", {"files": 2, "precision": 1 / 3}),
        "manners": Score(1, "it was polite"),
    }
    scorers = [FunctionScorer(name, function=lambda _, score=score: score) for name, score in said.items()]
    await grade(journal, run.run_id, scorers)
    await to_thread(show, browser, f"{live}run/{run.run_id}", ".run[data-loaded=true]")
    assert "rewards tidiness 0.25 · manners 1" in await to_thread(text_of, browser, ".facts-line")
    await to_thread(press, browser, "s")
    rows = (
        "[...document.querySelectorAll('.grades tr')].map(one => [...one.cells].map(cell => cell.innerText))"
    )
    await to_thread(wait, browser, "document.querySelector('.grades')")
    assert (await to_thread(browser.evaluate, rows))[1:] == [
        ["tidiness", "0.25", "two files are left", "files 2, precision 0.333"],
        ["manners", "1", "it was polite", ""],
    ]
    # A new grade takes the place of the old one, and the address has what was opened.
    await grade(journal, run.run_id, [FunctionScorer("manners", function=lambda _: Score(0, "it swore"))])
    await to_thread(wait, browser, f"{rows}[2]?.[2] === 'it swore'")
    assert "grades=yes" in await to_thread(browser.evaluate, "location.hash")
    await to_thread(browser.open, await to_thread(browser.evaluate, "location.href"), 390, 900)
    await to_thread(wait, browser, "document.querySelector('.grades')")
    assert await to_thread(browser.evaluate, "document.documentElement.scrollWidth <= innerWidth")


def test_a_server_that_was_started_again_asks_for_its_new_key(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path) as stored:
        run = asyncio.run(Agent(ScriptedModel(["done"]), journal=stored).run("Do it."))
    with serve(tmp_path, str(path)) as url:
        show(browser, f"{url}&/run/{run.run_id}", ".run[data-loaded=true]")
        port = urlsplit(url).port
    wait(browser, "document.querySelector('.runhead [role=alert]')?.innerText.includes('does not answer')")
    with serve(tmp_path, str(path), "--port", str(port)) as url:
        key = "document.querySelector('.runhead input[type=password]')"
        wait(browser, key)
        assert "treadle view" in text_of(browser, ".runhead form")
        write(browser, "#token", url.partition("token=")[2])
        click(browser, "Use the key")
        browser.wait_loaded()
        wait(browser, f"document.querySelector('.run[data-loaded=true]') && !{key}")
        assert "Not connected" not in text_of(browser, ".runhead")
