"""The pages of runs in a real browser: what they show, their keys, what can be done with them, and who may ask."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import Chromium
from tests.cli.command import Cli
from tests.server.test_responses import config, journal, serving
from tests.viewer.conftest import LONG_STEPS, ServedJournal
from tests.viewer.sample_runs import EVIL, make_asking

from treadle import Agent, Run, open_journal
from treadle.core.events import TextDelta
from treadle.core.inbox import Note
from treadle.core.types import Completion, FinishReason, Message, Request, Role
from treadle.journal.protocol import Journal
from treadle.models.protocol import Watch

__all__ = ["config", "journal"]

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
AXE_RUN = """
axe.run({resultTypes: ["violations"], selectors: false, preload: false})
  .then(found => found.violations.map(one => [one.id, one.nodes.slice(0, 3).map(node => node.html)]))
"""
WAIT = """
new Promise((done, fail) => {
  const end = performance.now() + 20000;
  const look = () => {
    let found = null;
    try { found = (() => (%s))(); } catch { /* What is looked for is not there yet. */ }
    if (found) done(typeof found === "object" ? true : found);
    else if (performance.now() > end) fail(new Error("it did not happen: " + %s));
    else setTimeout(look, 20);
  };
  look();
})
"""
WIDER = """
[...document.querySelectorAll("main *")].filter(node => {
  const box = node.getBoundingClientRect();
  const scrolls = ".tabs, .branches, .lanes, .transcript, .inspector, .cut";
  return box.width && box.right > innerWidth + 1 && !node.closest(scrolls);
}).map(node => node.outerHTML.slice(0, 200))
"""


def wait(browser: Chromium, script: str) -> Any:
    """Wait until an expression of the page is true, and return its value."""
    return browser.evaluate(WAIT % (script, json.dumps(script)))


def show(
    browser: Chromium, page: Path | str, shown: str, *, width: int = 1440, is_dark: bool = False
) -> None:
    """Open a page, and wait until it has what the selector `shown` finds."""
    browser.open(page, width, 900, is_dark=is_dark)
    wait(browser, f"document.querySelector({json.dumps(shown)})")


KEY_CODES = {"Enter": 13, "Escape": 27}
"""The codes of keys that do something in the browser itself."""
KEY_TEXTS = {"Enter": "\r"}
"""The texts of keys with a longer name. Without its text, Enter sends no form."""


def press(browser: Chromium, *keys: str, has_ctrl: bool = False) -> None:
    for key in keys:
        given = {"key": key, "windowsVirtualKeyCode": KEY_CODES.get(key, 0), "modifiers": 2 * has_ctrl}
        text = KEY_TEXTS.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            browser.send("Input.dispatchKeyEvent", type=kind, text=text, **given)


def write(browser: Chromium, selector: str, text: str) -> None:
    """Write into a field as a person does."""
    browser.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
    browser.send("Input.insertText", text=text)


def click(browser: Chromium, text: str) -> None:
    """Press the button that says `text`, in the dialog if one is open."""
    buttons = "(document.querySelector('dialog') ?? document).querySelectorAll('button')"
    button = f"[...{buttons}].find(one => one.textContent === {json.dumps(text)})"
    wait(browser, f"{button} && !{button}.disabled")
    browser.evaluate(f"{button}.click()")


def text_of(browser: Chromium, selector: str = "body") -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))


PLACES = [
    ("runs", ".line"),
    ("run/{tidy}?at=3", ".block.picked"),
    ("run/{tidy}?view=timeline", ".span"),
    ("run/{tidy}?view=files", ".difference .add"),
    ("run/{tidy}?view=events", ".eventline"),
    ("run/{tidy}?view=forks", ".branches a"),
    ("run/{asking}", ".ask"),
    ("run/{approving}", ".ask"),
    ("compare/{tidy}/{fork}", ".pair.differs"),
    ("memories", ".status"),
]


@pytest.mark.parametrize("is_dark", [False, True])
def test_pages_have_no_barriers(browser: Chromium, served: ServedJournal, is_dark: bool) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; `make viewer` installs it")
    found = {}
    for place, shown in PLACES:
        show(browser, served.address(place.format(**served.runs)), shown, is_dark=is_dark)
        browser.evaluate(f"{AXE.read_text()}; 0")
        found[place] = browser.evaluate(AXE_RUN)
    assert [item for item in found.items() if item[1]] == []
    assert browser.complaints == []


def test_the_table_is_filtered_by_its_address_and_used_by_keys(
    browser: Chromium, served: ServedJournal
) -> None:
    show(browser, served.address("runs?status=paused&label="), ".line")
    assert set(
        browser.evaluate("[...document.querySelectorAll('.line .chip')].map(one => one.textContent)")
    ) <= {
        "asks",
        "approval",
        "open",
    }
    browser.evaluate("document.querySelector('select[aria-label=Status]').focus()")
    press(browser, "Escape", "x")
    wait(browser, f"document.querySelectorAll('.line').length >= {len(served.runs)}")
    assert browser.evaluate("location.hash") == "#/runs"
    wait(browser, "document.querySelectorAll('.line')[1]?.getAttribute('aria-selected') === 'false'")
    press(browser, "j", "j", "k", "Enter")
    wait(browser, "location.hash.startsWith('#/run/') && document.querySelector('.block')")
    press(browser, "?")
    assert "Next part" in wait(browser, "document.querySelector('dialog')?.innerText")
    press(browser, "Escape")


def test_runs_are_sorted_by_the_heads_of_columns(browser: Chromium, served: ServedJournal) -> None:
    with open_journal(served.path) as journal:
        infos = journal.runs()
    costs = sorted([info.cost_usd or 0 for info in infos])
    assert costs[0] < costs[-1]
    show(browser, served.address("runs"), ".line")
    cell = "one => one.querySelectorAll('[role=cell]')[6].textContent"
    shown = f"[...document.querySelectorAll('.line')].map({cell})"
    head = (
        "[...document.querySelectorAll('[role=columnheader]')].find(one => one.innerText.startsWith('Cost'))"
    )
    browser.evaluate(f"{head}.querySelector('button').click()")
    wait(browser, f"location.hash === '#/runs?order=-cost' && {head}.ariaSort === 'descending'")
    wait(browser, f"{shown}[0] === {shown}.toSorted((a, b) => b.slice(1) - a.slice(1))[0]")
    browser.evaluate(f"{head}.querySelector('button').focus()")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    wait(browser, f"location.hash === '#/runs?order=cost' && {head}.ariaSort === 'ascending'")
    wait(browser, f"!{shown}[0].includes('.')")
    show(browser, served.address("runs?order=-tokens"), ".line")
    most = max(infos, key=lambda info: info.input_tokens + info.output_tokens)
    wait(browser, f"document.querySelector('.line a').hash === '#/run/{most.run_id}'")


def test_a_key_works_as_soon_as_a_line_is_there(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("memories"), ".status")
    browser.evaluate("""
      new MutationObserver((_, observer) => {
        if (!document.querySelector(".line")) return;
        observer.disconnect();
        window.dispatchEvent(new KeyboardEvent("keydown", { key: "j" }));
      }).observe(document.body, { childList: true, subtree: true });
      location.hash = "#/runs";
    """)
    wait(browser, "document.querySelectorAll('.line')[1]?.getAttribute('aria-selected') === 'true'")


def test_one_comes_back_to_the_same_line_also_if_new_runs_came(
    browser: Chromium, served: ServedJournal
) -> None:
    show(browser, served.address("runs"), ".line")
    picked = "document.querySelector('.line[aria-selected=true]')?.innerText"
    press(browser, "j", "j", "j")
    wait(browser, "document.querySelectorAll('.line')[3].getAttribute('aria-selected') === 'true'")
    line = browser.evaluate(f"{picked}.split('\\n')[0]")
    press(browser, "Enter")
    wait(browser, "location.hash.startsWith('#/run/') && document.querySelector('.block')")
    opened = browser.evaluate("location.hash")
    press(browser, "u")
    wait(browser, f"{picked}?.startsWith({json.dumps(line)})")
    with open_journal(served.path) as journal:
        asyncio.run(make_asking(journal))
    wait(browser, "document.querySelectorAll('.line')[4].getAttribute('aria-selected') === 'true'")
    press(browser, "Enter")
    wait(browser, f"location.hash === {opened!r}")


@pytest.mark.parametrize("width", [390, 900, 1440])
@pytest.mark.parametrize("name", ["hostile", "words"])
def test_texts_are_shown_as_text_and_leave_no_place(
    browser: Chromium, served: ServedJournal, name: str, width: int
) -> None:
    place = f"run/{served.runs[name]}"
    show(browser, served.address(place), ".block.message", width=width)
    if name == "hostile":
        # The title, the label, the system message, the user's, thoughts, answers, arguments, results and the tree.
        assert text_of(browser).count(EVIL) > (8 if width > 800 else 4)
    for view in ("transcript", "timeline", "files", "events", "forks"):
        show(browser, served.address(f"{place}?view={view}"), "main .panes > *", width=width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(WIDER) == []
    assert browser.evaluate("document.querySelectorAll('img, iframe, object').length") == 0
    assert browser.complaints == []
    own = served.url.partition("/view")[0]
    assert [url for url in browser.requests if not url.startswith((own, "about:", "data:"))] == []


def test_what_treadle_says_is_not_shown_as_the_users(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['repaired']}"), ".block.message")
    titles = "[...document.querySelectorAll('.block.message.%s .head b')].map(one => one.textContent)"
    wait(browser, f"{titles % 'treadle'}.length === 2")
    assert browser.evaluate(titles % "treadle") == [
        "Treadle asked again",
        "Treadle, at the limit max_steps",
    ]
    assert browser.evaluate(titles % "user") == ["User", "User"]
    assert "2 turns" in text_of(browser)
    assert "Turn 3" not in text_of(browser)


def test_only_what_is_in_view_is_drawn(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['long']}"), ".run[data-loaded=true] .block")
    assert browser.evaluate("document.querySelectorAll('.block').length") < 60
    # A run that is over is read from its beginning, also if it comes in several parts.
    assert browser.evaluate("document.querySelector('.transcript').scrollTop") == 0
    press(browser, "G")
    wait(browser, f"document.body.innerText.includes('Finished: completed') && {LONG_STEPS}")
    assert browser.evaluate("document.querySelectorAll('.block, .leaf').length") < 160


def test_a_sub_agent_is_shown_below_its_call(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}"), ".block.call .more")
    browser.evaluate(
        "[...document.querySelectorAll('.more')].find(one => one.textContent.includes('sub-agent')).click()"
    )
    wait(browser, "document.querySelector('.outline').innerText.includes('Three notes are old.')")
    found = browser.evaluate(
        "[...document.querySelectorAll('.leaf')].map(one => [one.ariaLevel, one.querySelector('b').innerText])"
    )
    place = [name for _, name in found].index("helper")
    assert int(found[place + 1][0]) > int(found[place][0])


def test_an_agent_is_talked_to_and_its_call_approved(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs"), "button.main")
    press(browser, "c")
    wait(browser, "document.querySelector('#new-text')")
    write(
        browser,
        "#new-text",
        'call write_file {"file_path": "a.md", "content": "one"}\nthen\nsay It is written.',
    )
    click(browser, "Send")
    wait(browser, "document.querySelector('.ask code')?.textContent.includes('a.md')")
    click(browser, "Approve")
    wait(browser, "document.querySelector('.transcript')?.innerText.match(/It is written/g)?.length > 1")
    write(browser, "[data-focus=message]", "say The next turn.")
    click(browser, "Send")
    wait(browser, "document.querySelector('.transcript').innerText.match(/The next turn/g)?.length > 1")
    run_id = browser.evaluate("location.hash.split(/[/?]/)[2]")
    press(browser, "Escape", "l")
    wait(browser, "document.querySelector('dialog input')")
    write(browser, "[aria-label='Name of the label']", "quality")
    write(browser, "[aria-label='Value of the label']", "good")
    click(browser, "Save")
    wait(browser, "document.querySelector('.facts-line').innerText.includes('quality: good')")
    # The event may come before the answer that closes the dialog, which would take the next key.
    wait(browser, "!document.querySelector('dialog')")
    press(browser, "f")
    wait(browser, "document.querySelector('#fork-text')")
    write(browser, "#fork-text", "say Another way.")
    click(browser, "Fork")
    wait(browser, f"!location.hash.includes({run_id!r}) && document.body.innerText.includes('forked from')")
    wait(browser, "document.querySelector('.transcript').innerText.includes('Another way.')")
    assert browser.complaints == []


def test_the_arguments_of_a_call_are_changed_before_it_is_approved(
    browser: Chromium, served: ServedJournal
) -> None:
    show(browser, served.address("runs"), "button.main")
    press(browser, "c")
    wait(browser, "document.querySelector('#new-text')")
    asked = 'call write_file {"file_path": "a.md", "content": "one"}\nthen\nsay It is written.'
    write(browser, "#new-text", asked)
    click(browser, "Send")
    wait(browser, "document.querySelector('.ask code')?.textContent.includes('a.md')")
    click(browser, "Change")
    wait(browser, "document.querySelector('.ask textarea')?.value.includes('a.md')")
    browser.evaluate("document.querySelector('.ask textarea').select()")
    write(browser, ".ask textarea", '{"file_path": "b.md", "content"')
    click(browser, "Approve")
    wait(browser, "document.body.innerText.includes('arguments is not JSON')")
    browser.evaluate("document.querySelector('.ask textarea').select()")
    write(browser, ".ask textarea", '{"file_path": "b.md", "content": "two"}')
    click(browser, "Approve")
    wait(browser, "document.querySelector('.transcript')?.innerText.match(/It is written/g)?.length > 1")
    run_id = browser.evaluate("location.hash.split(/[/?]/)[2]")
    with open_journal(served.path) as journal:
        assert Run.load(run_id, journal).files["b.md"] == b"two"
        assert "a.md" not in Run.load(run_id, journal).files


def test_a_question_is_answered(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs"), "button.main")
    press(browser, "c")
    wait(browser, "document.querySelector('#new-text')")
    browser.evaluate("""{ const box = document.querySelector('#new-agent'); box.value = 'curious';
        box.dispatchEvent(new Event('change', {bubbles: true})); }""")
    asked = 'call ask_user {"question": "Which month?", "options": [{"label": "March"}, {"label": "April"}]}'
    write(browser, "#new-text", f"{asked}\nthen\nsay Done with it.")
    click(browser, "Send")
    wait(browser, "document.querySelector('.ask')")
    assert "running" not in text_of(browser, ".transcript")
    click(browser, "April")
    wait(browser, "document.querySelector('.transcript')?.innerText.match(/Done with it/g)?.length > 1")
    assert "answer: April" in text_of(browser, ".transcript")
    # The call is started again to take the answer, and nothing was lost.
    assert "lost" not in text_of(browser, ".transcript")


def test_an_answer_to_a_run_that_nobody_drives_is_stored(browser: Chromium, served: ServedJournal) -> None:
    with open_journal(served.path) as journal:
        run = asyncio.run(make_asking(journal))
    show(browser, served.address(f"run/{run.run_id}"), ".ask")
    click(browser, "March")
    wait(browser, "document.querySelector('.reply').innerText.includes('The answer is stored.')")
    assert browser.evaluate("document.querySelector('.reply button').innerText") == "Resume"


def test_a_run_whose_process_was_killed_is_not_shown_as_running(
    browser: Chromium, served: ServedJournal
) -> None:
    show(browser, served.address(f"run/{served.runs['interrupted']}"), ".block.call")
    wait(browser, "document.querySelector('.runhead .chip').innerText === 'interrupted'")
    wait(browser, "document.querySelector('.block.call .chip.warn')?.innerText === 'interrupted'")
    assert "running" not in text_of(browser, "main")
    assert "Resume" in text_of(browser, ".runhead")
    assert browser.evaluate("document.title") == "interrupted: Do it once. · Treadle"


def test_the_error_of_a_run_stands_at_its_top(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['failed']}"), ".why")
    assert text_of(browser, ".why") == "the server is overloaded · fault of the infrastructure"
    assert browser.evaluate("document.title") == "error: Say hello. · Treadle"
    browser.evaluate("document.querySelector('.why a').click()")
    wait(browser, "document.querySelector('.block.picked').innerText.includes('Finished')")
    # It stands once more, where it happened.
    assert text_of(browser, "main").count("the server is overloaded") == 2


def test_a_closed_session_is_open_everywhere(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['talk']}"), ".block.event")
    wait(browser, "document.querySelector('.runhead .chip').innerText === 'open'")
    assert "Closed" not in text_of(browser, "main")
    assert "Left open" in text_of(browser, ".transcript")


def test_arguments_are_read_line_by_line(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}"), ".block.call .arguments")
    assert "# Notes\n\nold\nkept\n" in text_of(browser, ".block.call .arguments")


def test_a_narrow_page_cuts_no_names_and_shows_the_inspector(
    browser: Chromium, served: ServedJournal
) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}"), ".block.inference", width=390)
    heads = "[...document.querySelectorAll('.block .head b')]"
    assert browser.evaluate(f"{heads}.filter(one => one.scrollWidth > one.clientWidth).length") == 0
    assert browser.evaluate("document.querySelector('.inspector')") is None
    browser.evaluate("document.querySelector('.block.inference').click()")
    click(browser, "Inspector")
    wait(browser, "document.querySelector('.inspector').innerText.includes('Step 1')")
    click(browser, "✕")
    wait(browser, "!document.querySelector('.inspector')")


def test_a_narrow_page_shows_all_views_and_what_is_approved(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['approving']}"), ".ask code", width=390)
    tabs = "document.querySelector('.runhead + .tabs [role=tablist]')"
    ends = f"[...{tabs}.children].map(it => it.getBoundingClientRect().right)"
    assert browser.evaluate(f"Math.max(...{ends}) <= {tabs}.getBoundingClientRect().right")
    code = "document.querySelector('.ask code')"
    assert browser.evaluate(f"{code}.scrollWidth <= {code}.clientWidth")
    assert text_of(browser, ".ask code").endswith('"text":"The report"}')
    assert "Resume" not in text_of(browser, ".runhead")  # the run goes on by the decision


def test_the_inspector_begins_with_what_the_run_may_do(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['approving']}"), ".inspector dl")
    facts = text_of(browser, ".inspector dl").split("\n")
    for words in ("scripted", "send_mail", "max_steps", "50", "send_mail: ask", "balanced"):
        assert words in facts


def test_a_run_is_found_by_the_beginning_of_its_id(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs"), ".line")
    write(browser, "input[type=search]", served.runs["talk"][:16])
    wait(browser, "document.querySelectorAll('.line').length === 1")
    assert "Question 1" in text_of(browser, ".line")


def test_a_run_is_found_by_the_result_of_a_tool(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address("runs?text=the+newest+from+2026-03-01"), ".line")
    found = browser.evaluate("document.querySelector('.line a').hash")
    browser.evaluate(f"location.hash = {json.dumps(found)}")
    wait(browser, "document.querySelector('.transcript')?.innerText.includes('the newest from 2026-03-01')")


def test_what_fails_in_a_dialog_is_said_in_it(browser: Chromium, served: ServedJournal) -> None:
    show(browser, served.address(f"run/{served.runs['tidy']}"), ".block")
    press(browser, "f")
    wait(browser, "document.querySelector('#fork-at')")
    browser.evaluate("document.querySelector('#fork-at').select()")
    write(browser, "#fork-at", "9999")
    click(browser, "Fork")
    wait(browser, "document.querySelector('dialog .toast')?.innerText.includes('scripted')")


def test_the_first_difference_of_two_runs_is_shown(browser: Chromium, served: ServedJournal) -> None:
    place = f"compare/{served.runs['tidy']}/{served.runs['fork']}"
    show(browser, served.address(place), ".pair.differs")
    assert "The first difference is in step 2" in text_of(browser, ".bar")
    assert "I stop here." in text_of(browser, ".pair.differs")
    place = f"compare/{served.runs['tidy']}/{served.runs['failed']}"
    show(browser, served.address(place), ".pair.differs")
    assert "The first difference is before the first turn" in text_of(browser, ".bar")
    # What is further below is drawn once it is scrolled to.
    place = f"compare/{served.runs['long']}/{served.runs['tidy']}"
    show(browser, served.address(place), ".pair.differs")
    pairs = "document.querySelector('.pairs')"
    wait(browser, f"({pairs}.scrollTop = 1e9, {pairs}.innerText.includes('Finished: completed'))")


def test_a_report_works_from_disk(browser: Chromium, served: ServedJournal, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report = ("report", served.runs["hostile"], served.runs["tidy"])
    assert Cli(tmp_path)(*report, "--journal", str(served.path), "--out", str(path)).code == 0
    show(browser, path, ".line")
    assert browser.evaluate("document.querySelectorAll('.line').length") == 2
    # The run of the sub-agent is listed if somebody asks for it.
    browser.evaluate("document.querySelector('.bar label input').click()")
    wait(browser, "document.querySelectorAll('.line').length === 3")
    browser.evaluate(f"location.hash = '#/run/{served.runs['tidy']}?view=files'")
    wait(browser, "document.querySelector('.difference .add')")
    browser.evaluate(f"location.hash = '#/run/{served.runs['hostile']}'")
    wait(browser, "document.querySelectorAll('.block').length > 5")
    assert text_of(browser).count(EVIL) > 8
    browser.evaluate("document.querySelector('.leaf.inference').click()")
    wait(browser, "document.querySelectorAll('.inspector [role=tab]').length > 2")
    browser.evaluate("document.querySelectorAll('.inspector [role=tab]')[1].click()")
    wait(browser, "document.querySelector('.prompt section')")
    assert browser.evaluate("document.querySelectorAll('img, .ask').length") == 0
    assert [url for url in browser.requests if url != "about:blank"] == [path.as_uri()]
    assert browser.complaints == []


class PausingModel:
    """A model that says the first half of an answer, and the other half once it may. Its first answer is short."""

    name = "pausing"

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def infer(self, request: Request, watch: Watch) -> Completion:
        if len(request.messages) == 1:
            return Completion(Message(Role.ASSISTANT, "Hello."), FinishReason.STOP)
        assert watch.on_delta is not None
        watch.on_delta(TextDelta("The first half"))
        await self.may_end.wait()
        return Completion(Message(Role.ASSISTANT, "The first half and the other."), FinishReason.STOP)


async def test_the_words_of_an_answer_are_shown_as_they_come(
    browser: Chromium, config: Path, journal: Journal
) -> None:
    model = PausingModel()
    shown = "document.querySelector('.transcript').innerText.includes"
    async with serving(config, journal) as url, Agent(model, journal=journal).session("live") as session:
        await session.send("Hello.")
        await asyncio.to_thread(show, browser, f"{url}/view#/run/live", ".run[data-loaded=true]")
        # What comes after the events were loaded is seen by those who follow the run.
        await asyncio.to_thread(journal.post, "live", Note(remark="It is followed."))
        await asyncio.to_thread(wait, browser, f"{shown}('It is followed.')")
        work = asyncio.ensure_future(session.send("Say something."))
        try:
            await asyncio.to_thread(wait, browser, f"{shown}('The first half')")
            assert "the other" not in await asyncio.to_thread(text_of, browser, ".transcript")
            await asyncio.to_thread(wait, browser, f"{shown}('answering for ')")
        finally:
            model.may_end.set()
            await work
        await asyncio.to_thread(wait, browser, f"{shown}('and the other.')")
    # What was loaded stays, and it is said that nothing new comes.
    await asyncio.to_thread(
        wait,
        browser,
        "document.querySelector('.runhead [role=alert]')?.innerText.startsWith('Not connected')",
    )
    assert "and the other." in await asyncio.to_thread(text_of, browser, ".transcript")
    await asyncio.to_thread(browser.evaluate, "location.hash = '#/runs'")
    gone = "document.querySelector('.status')?.innerText.includes('The server does not answer')"
    await asyncio.to_thread(wait, browser, gone)
    await asyncio.to_thread(browser.open, "about:blank")


def test_without_the_key_nothing_is_shown(browser: Chromium, served: ServedJournal) -> None:
    bare = served.url.partition("#")[0]
    browser.open(bare)
    browser.evaluate("sessionStorage.clear()")
    show(browser, f"{bare}#/runs", "input[type=password]")
    assert served.runs["tidy"] not in text_of(browser)
    show(browser, f"{bare}#/run/{served.runs['tidy']}", "input[type=password]")
