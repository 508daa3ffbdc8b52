"""Finding things: words in a run, runs in the list and beside each other, and what an answer in Markdown says."""

import json
from asyncio import to_thread
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.browser.chromium import Chromium
from tests.cli.command import Cli
from tests.datagen.dataset import made
from tests.server.test_responses import config, journal, serving
from tests.viewer.conftest import LONG_STEPS, ServedJournal
from tests.viewer.pages import EVIL, Screen
from tests.viewer.sample_runs import answer, look
from tests.viewer.test_pages import press, show, text_of, wait, write

from treadle import Agent, ScriptedModel
from treadle.core.events import RunStarted
from treadle.core.lineage import Caller
from treadle.datagen.dataset.dataset_view import make_dataset_view
from treadle.journal.protocol import Journal
from treadle.models import call
from treadle.viewer.data_pages import write_page

__all__ = ["config", "journal"]
FIND = "input[aria-label='Find in this run']"
TITLES = "[...document.querySelectorAll('.line a')].map(one => one.innerText)"
MARKDOWN = f"""# The orders

The **largest** one is of `Acme`:

| customer | total |
| --- | ---: |
| Acme | 4,310 |

1. See [the report](https://example.org/report), [a script](javascript:alert(1)) and ![a picture](https://example.org/x.png)
2. {EVIL}

[//]: # (what a reader would not see)
"""


@pytest.fixture
async def live(config: Path, journal: Journal) -> AsyncIterator[str]:
    async with serving(config, journal) as url:
        yield f"{url}/view#/"


def load_again(browser: Chromium) -> None:
    """Load the page that is open anew."""
    browser.open(str(browser.evaluate("location.href")), 1440, 900)


def test_words_are_found_in_a_run_of_which_little_is_drawn(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['long']}"), ".run[data-loaded=true]")
    press(browser, "/")
    wait(browser, f"document.activeElement === document.querySelector({json.dumps(FIND)})")
    write(browser, FIND, "FOLDER/3")
    # Folders 3, 30 to 39 and 300 to 399.
    wait(browser, "document.querySelector('.find .num')?.innerText === '1 of 111'")
    assert text_of(browser, ".block.picked").startswith("look")
    assert "folder/3" in text_of(browser, ".block.picked")
    press(browser, "Enter")
    wait(browser, "document.querySelector('.find .num').innerText === '2 of 111'")
    press(browser, "Escape", "N", "N")
    wait(browser, "document.querySelector('.find .num').innerText === '111 of 111'")
    wait(browser, "document.querySelector('.block.picked')?.innerText.includes('folder/399')")
    assert browser.evaluate("[...CSS.highlights.get('found')].map(String).includes('folder/3')")
    assert browser.evaluate("document.querySelector('.leaf[aria-selected=true]').classList.contains('found')")
    # The words and the place stand in the address, and the events are those that have the words.
    assert "find=FOLDER" in browser.evaluate("location.hash")
    press(browser, "4")
    wait(browser, "document.querySelector('.eventline')?.innerText.includes('folder/3')")
    wait(
        browser, "[...document.querySelectorAll('.eventline')].every(one => /folder\\/3/.test(one.innerText))"
    )
    write(browser, FIND, "x")
    wait(browser, "document.querySelector('.lanes').innerText === 'No event has these words.'")
    assert LONG_STEPS == 400


async def test_a_word_far_below_in_a_long_text_is_shown(
    browser: Chromium, live: str, journal: Journal
) -> None:
    text = "\n".join(
        [*(f"line {number}" for number in range(2000)), "the needle", *("more" for _ in range(500))]
    )
    run = await Agent(ScriptedModel([text, text]), journal=journal).run("Say much.")
    await to_thread(show, browser, f"{live}runs?text=needle", ".line")
    await to_thread(browser.evaluate, "document.querySelector('.line').click()")
    await to_thread(wait, browser, "document.querySelector('.find .num')?.innerText === '1 of 1'")
    in_view = (
        "(() => { const mark = [...CSS.highlights.get('found') ?? []].find(one => String(one) === 'needle'); "
        "const place = mark?.getBoundingClientRect(); return place && place.top > 100 && place.bottom < 900; })()"
    )
    await to_thread(wait, browser, in_view)
    assert run.run_id in await to_thread(browser.evaluate, "location.hash")


def test_one_goes_from_run_to_run_as_the_list_has_them(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs?status=waiting&order=started"), ".line")
    assert browser.evaluate(TITLES) == ["Send the report.", "Mail the report to Kim."]
    browser.evaluate("document.querySelector('.line').click()")
    wait(browser, "document.querySelector('h1.cut').innerText === 'Send the report.'")
    assert browser.evaluate("document.querySelectorAll('.step').length") == 1
    press(browser, "]")
    wait(browser, "document.querySelector('h1.cut').innerText === 'Mail the report to Kim.'")
    press(browser, "u")
    wait(browser, "document.querySelectorAll('.line').length === 2")
    assert "status=waiting" in browser.evaluate("location.hash")


def test_filters_offer_what_the_runs_have(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs?status=error&since=day"), ".line")
    assert browser.evaluate(TITLES) == ["Say hello."]
    show(browser, served.address("runs"), "#offered-label option")
    offered = "[...document.querySelectorAll('#offered-%s option')].map(one => one.value)"
    assert "customer=acme" in browser.evaluate(offered % "label")
    assert "scripted" in browser.evaluate(offered % "model")
    # Runs of sub-agents are listed if somebody asks for them.
    called = f"{TITLES}.filter(one => one.startsWith('↳'))"
    assert browser.evaluate(called) == []
    browser.evaluate("document.querySelector('.bar label input').click()")
    wait(browser, f"{called}.length === 1")
    load_again(browser)
    wait(browser, f"{called}.length === 1")
    # A label of a run leads to the runs that have it.
    show(browser, served.address(f"run/{served.runs['tidy']}"), "a.chip")
    browser.evaluate("document.querySelector('a.chip').click()")
    wait(browser, "document.querySelector('.line') && location.hash.includes('customer%3Dacme')")
    assert all("Tidy" in title for title in browser.evaluate(TITLES))


async def test_the_list_asks_once_however_many_runs_are_of_sub_agents(
    browser: Chromium, live: str, journal: Journal
) -> None:
    for number in range(500):
        caller = Caller("r0", "call") if number % 250 else None
        writer = journal.create(f"r{number}")
        writer.append([RunStarted(at=float(number + 1), version="1", caller=caller)])
        await writer.release()
    await to_thread(show, browser, f"{live}runs", ".line")
    assert await to_thread(browser.evaluate, "document.querySelectorAll('.line').length") == 2
    assert not [address for address in browser.requests if "after=" in address]
    await to_thread(browser.evaluate, "document.querySelector('.bar label input').click()")
    await to_thread(wait, browser, "document.querySelector('.num').innerText === '200+ runs'")


async def test_markdown_of_answers_is_laid_out_and_stays_text(
    browser: Chromium, live: str, journal: Journal
) -> None:
    script = [answer("I look.", call("look", {"path": "orders"})), answer(MARKDOWN)]
    run = await Agent(ScriptedModel(script), tools=[look], journal=journal).run("**Which** order?")
    await to_thread(show, browser, f"{live}run/{run.run_id}", ".markdown td")
    said = await to_thread(text_of, browser, ".markdown")
    assert "4,310" in said
    assert "**" not in said
    assert "| Acme" not in said
    assert EVIL in said
    assert "what a reader would not see" in said
    assert "https://example.org/x.png" in said  # a picture of another server is not loaded
    links = "[...document.querySelectorAll('.markdown a')].map(one => [one.href, one.rel])"
    assert await to_thread(browser.evaluate, links) == [["https://example.org/report", "noopener noreferrer"]]
    # What the user wrote is shown as it was written.
    assert "**Which** order?" in await to_thread(text_of, browser, ".block.user")
    await to_thread(Screen(browser).check)
    await to_thread(press, browser, "M")
    await to_thread(wait, browser, "document.querySelector('.inference pre.said')?.innerText === 'I look.'")
    await to_thread(wait, browser, "!document.querySelector('.markdown')")
    await to_thread(press, browser, "M")
    await to_thread(wait, browser, "document.querySelector('.markdown strong').innerText === 'largest'")
    assert browser.complaints == []


@pytest.mark.parametrize("text", [f"{'>' * 30_000} x", f"{'**' * 1500}x{'**' * 1500}", "_a" * 60_000])
async def test_an_answer_that_is_nested_deeply_or_long_can_be_read(
    text: str, browser: Chromium, live: str, journal: Journal
) -> None:
    """Rules out the defect that such an answer, of which a part is shown first, ended the page."""
    run = await Agent(ScriptedModel([answer(text)]), journal=journal).run("Say much.")
    await to_thread(show, browser, f"{live}run/{run.run_id}", ".block.inference button.more")
    await to_thread(browser.evaluate, "document.querySelector('.block.inference button.more').click()")
    said = "document.querySelector('.block.inference .said')?.innerText.replaceAll('\\n', '')"
    await to_thread(wait, browser, f"{said}?.includes({json.dumps(text[-1490:])})")
    assert browser.complaints == []


def test_one_comes_back_to_the_same_place(browser: Chromium, served: ServedJournal, tmp_path: Path) -> None:
    made.plain_folder(tmp_path / "rows", 40, leaves=10)
    page = write_page(make_dataset_view(tmp_path / "rows"), tmp_path / "page.html")
    show(browser, page, ".overview")
    top = "document.querySelector('.overview').scrollTop"
    browser.evaluate(f"{top} = 300")
    # A browser tells of what was scrolled at the next frame.
    browser.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
    browser.evaluate("document.querySelector('.overview a').click()")
    wait(browser, "!document.querySelector('.overview')")
    browser.evaluate("history.back()")
    wait(browser, f"document.querySelector('.overview') && {top} === 300")
    load_again(browser)
    wait(browser, f"document.querySelector('.overview') && {top} === 300")
    # The change of files that is shown stands in the address, too.
    show(browser, served.address(f"run/{served.runs['tidy']}?view=files"), ".difference .add")
    press(browser, "k")
    load_again(browser)
    wait(browser, "document.querySelector('.leaf[aria-selected=true]')?.innerText.includes('Step 1')")


def test_what_was_opened_is_open_after_a_reload(browser: Chromium, served: ServedJournal) -> None:
    tidy = served.runs["tidy"]
    show(browser, served.address(f"run/{tidy}"), ".run[data-loaded=true]")
    browser.evaluate(
        "[...document.querySelectorAll('.more')].find(one => one.textContent.includes('sub-agent')).click()"
    )
    inner = "[...document.querySelectorAll('.leaf.call')].find(one => one.innerText.includes('look'))"
    wait(browser, inner)
    browser.evaluate(f"{inner}.click()")
    browser.evaluate(
        "[...document.querySelectorAll('.inspector [role=tab]')].find(one => one.innerText === 'Events').click()"
    )
    press(browser, "o")
    wait(browser, "!document.querySelector('.outline')")
    load_again(browser)
    wait(browser, "document.querySelector('.inspector [aria-selected=true]')?.innerText === 'Events'")
    wait(browser, "document.querySelector('.block.picked')?.innerText.includes('notes: 12 lines')")
    assert not browser.evaluate("document.querySelector('.outline')")
    press(browser, "o", "i", "2", "w")
    wait(browser, "document.querySelector('input[type=checkbox]').checked === false")
    load_again(browser)
    wait(browser, "document.querySelector('input[type=checkbox]')?.checked === false")
    assert not browser.evaluate("document.querySelector('.inspector')")
    show(browser, served.address(f"compare/{tidy}/{served.runs['talk']}"), ".pair.differs")
    wait(browser, "document.querySelector('.pair .picked')")
    press(browser, "a", "n", "n")
    now = "[document.querySelector('.bar input').checked, document.querySelector('.pair .picked')?.innerText]"
    wait(browser, f"{now}[0] && {now}[1]")
    picked = browser.evaluate(now)
    load_again(browser)
    wait(
        browser,
        f"JSON.stringify({now}) === {json.dumps(json.dumps(picked, separators=(',', ':'), ensure_ascii=False))}",
    )
    show(browser, served.address("runs"), ".line")
    press(browser, "v")
    wait(browser, "document.querySelector('.line input').checked")
    load_again(browser)
    wait(browser, "document.querySelector('.line input')?.checked")


async def test_a_text_that_was_opened_and_one_that_was_begun_are_there_after_a_reload(
    browser: Chromium, live: str, journal: Journal
) -> None:
    agent = Agent(ScriptedModel(["word " * 2_000] * 30), journal=journal)
    async with agent.session() as session:
        for number in range(30):
            await session.send(f"Speak {number}.")
    await to_thread(show, browser, f"{live}run/{session.run_id}", ".run[data-loaded=true]")
    more = "document.querySelector('.block.inference .more')"
    # The end of a session is shown at first.
    await to_thread(press, browser, "g", "g")
    await to_thread(wait, browser, f"document.querySelector('[data-index=\"0\"]') && {more}")
    await to_thread(browser.evaluate, f"{more}.click()")
    await to_thread(write, browser, "[data-focus=message]", "not sent yet")
    await to_thread(press, browser, "Escape", "G")
    await to_thread(wait, browser, f"{more}?.textContent.startsWith('Show all')")
    await to_thread(press, browser, "g", "g")
    # A part that left the view and came back has not forgotten, and neither has one that was loaded again.
    await to_thread(wait, browser, f"{more}?.textContent === 'Show less'")
    await to_thread(load_again, browser)
    await to_thread(wait, browser, f"{more}?.textContent === 'Show less'")
    assert await to_thread(browser.evaluate, "document.querySelector('[data-focus=message]').value") == (
        "not sent yet"
    )


def test_the_line_that_was_chosen_is_chosen_after_a_reload(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs"), ".line")
    chosen = "document.querySelector('.line[aria-selected=true]')?.innerText"
    first = browser.evaluate(chosen)
    press(browser, "j", "j")
    wait(browser, f"{chosen} !== {json.dumps(first)}")
    kept = browser.evaluate(chosen)
    load_again(browser)
    wait(browser, f"{chosen} === {json.dumps(kept)}")


def test_words_of_a_search_are_marked_in_the_row(browser: Chromium, tmp_path: Path) -> None:
    made.plain_folder(tmp_path / "rows", 40, leaves=10)
    page = write_page(make_dataset_view(tmp_path / "rows"), tmp_path / "page.html")
    show(browser, f"{page.as_uri()}#/rows/0?row=k3", ".opened .msg-text")
    word = str(browser.evaluate("document.querySelector('.msg.user').innerText.split(/\\s+/).at(-1)"))
    browser.evaluate(f"location.hash = '#/rows/0?row=k3&words=' + encodeURIComponent({json.dumps(word)})")
    wait(browser, "[...CSS.highlights.get('found') ?? []].length > 0")
    assert browser.evaluate("String([...CSS.highlights.get('found')][0])").lower() == word.lower()


def test_the_timeline_says_when(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}?view=timeline"), ".lane .span")
    told = browser.evaluate(
        "[...document.querySelectorAll('.ruler-line .track span')].map(one => one.innerText)"
    )
    assert told[0] == "0 ms"
    assert len(told) == 5
    # The lines of the times stand where the times are told.
    places = "[...document.querySelectorAll('%s')].map(one => Math.round(one.getBoundingClientRect().left))"
    assert browser.evaluate(places % ".ruler-line .track span") == browser.evaluate(
        places % ".lane:not(.ruler-line):first-child .tick"
    )


async def test_a_run_is_compared_with_one_of_another_journal(
    browser: Chromium, live: str, journal: Journal, served: ServedJournal, tmp_path: Path
) -> None:
    script = [answer("I look first.", call("look", {"path": "notes"})), answer("Nothing is old.")]
    run = await Agent(ScriptedModel(script), tools=[look], journal=journal).run("Tidy the notes.")
    path = tmp_path / "other.html"
    ids = (served.runs["tidy"], served.runs["talk"])
    assert Cli(tmp_path)("report", *ids, "--journal", str(served.path), "--out", str(path)).code == 0

    def compare() -> None:
        show(browser, f"{live}compare/{run.run_id}", "input[type=file]")
        root = browser.send("DOM.getDocument")["root"]["nodeId"]
        node = browser.send("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
        browser.send("DOM.setFileInputFiles", files=[str(path)], nodeId=node)
        choice = "document.querySelector('select[aria-label=\"The run of the file\"]')"
        wait(browser, f"{choice}?.options.length === 3")
        value = f"[...{choice}.options].find(one => one.text.startsWith('Tidy')).value"
        Screen(browser).type('select[aria-label="The run of the file"]', str(browser.evaluate(value)))
        wait(browser, "document.querySelector('.pair.differs')")
        assert "in a file" in text_of(browser, ".side:last-child")
        assert "replaced 1 occurrence" in text_of(browser, ".pairs")
        assert "first difference" in text_of(browser, ".bar")
        load_again(browser)
        wait(browser, "document.body.innerText.includes('choose it again')")

    await to_thread(compare)
