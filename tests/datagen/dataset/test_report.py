"""The report: one file that shows a dataset, asks for nothing, and is not controlled by what rows say."""

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.browser.chromium import PROGRAM, Chromium
from tests.datagen.dataset import made

from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.report.topic_map import MAX_CELLS, draw_map
from treadle.datagen.dataset.report.treemap import Box, lay_out
from treadle.datagen.dataset.report.write import write_report
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem

EVIL = "</script><script>throw 1</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"


def evil_folder(path: Path) -> Path:
    """Return a dataset in which all texts try to get out of their place."""
    made.plain_folder(path, 30, leaves=10)
    topic = ("Shop", f"area {EVIL}", f"topic {EVIL}")
    rows = [
        made.plain_row(
            number,
            text=f"{EVIL} {number}",
            topic=topic,
            topic_id=f"{number:016x}",
            persona=EVIL,
            models={"agent": EVIL},
            dataset=EVIL,
            filters={EVIL: EVIL},
            difficulty=EVIL,
        )
        for number in range(31, 41)
    ]
    with DatasetFolder(path).rows.open("ab") as file:
        file.writelines(map(made.encode, rows))
    with Ledger(DatasetFolder(path).ledger) as ledger:
        for number in range(1, 41):
            ledger.plan(PlannedItem(number, "single", "t", {}))
            ledger.count(
                number, 1, lambda _: ItemOutcome(status=ItemStatus.KEPT, input_tokens=9, cost_usd=0.1)
            )
    return path


class Tags(HTMLParser):
    """A parser that collects the elements and the addresses in them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]


def test_the_page_holds_everything_and_escapes_all_texts(tmp_path: Path) -> None:
    page = write_report(evil_folder(tmp_path / "d")).read_text("utf-8")
    tags = Tags()
    tags.feed(page)
    assert "img" not in tags.names
    assert all(address.startswith(("#", "data:,")) for address in tags.addresses)
    assert page.count("<script") == 2
    assert len(tags.ids) == len(set(tags.ids))
    data = re.search(r'<script type="application/json" id="rows">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    rows = json.loads(data[1])
    assert len(rows) == 42
    assert {row["status"] for row in rows} == {"kept", "rejected"}
    assert any(EVIL in row["asked"] for row in rows)
    rejected = next(row for row in rows if row["status"] == "rejected")
    assert [verdict["passed"] for verdict in rejected["verdicts"]] == [True, False]
    for title in ("Topics", "Tool use", "Lengths", "Kinds, ", "Quality", "Time and cost", "Rows"):
        assert f"<h2>{title}" in page


def test_results_stand_at_their_calls_whatever_their_order(tmp_path: Path) -> None:
    """A result is shown at the call with its id, and never at another one because of its position."""
    from msgspec.structs import replace

    from treadle.core.types import Message, Role, ToolCall

    calls = tuple([ToolCall(f"c{number}", "read_file", f'{{"path": "{number}"}}') for number in range(3)])
    results = [
        Message(Role.TOOL, f"text {number}", call_id=f"c{number}", name="read_file") for number in (2, 0, 1)
    ]
    row = made.plain_row(1)
    row = replace(row, messages=(row.messages[0], Message(Role.ASSISTANT, "", calls), *results))
    page = write_report(made.write_rows(tmp_path / "rows.jsonl", [row]), tmp_path / "r.html").read_text(
        "utf-8"
    )
    data = re.search(r'id="rows">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    shown = json.loads(data[1])[0]["messages"][1]["calls"]
    assert [(call["arguments"][-3], call["result"]) for call in shown] == [
        (str(number), f"text {number}") for number in range(3)
    ]


def test_a_large_dataset_is_sampled_and_says_so(tmp_path: Path) -> None:
    count = 100_000 if os.environ.get("TREADLE_FULL") else 3_000
    path = made.plain_folder(tmp_path / "d", count, leaves=count // 10, rejected=500)
    page = write_report(path).read_text("utf-8")
    assert len(page) < 10_000_000
    assert f"400 of {count:,} rows (drawn at random)" in page
    assert "200 of 500 rejected samples (drawn at random)" in page


def test_an_empty_dataset_has_a_report(tmp_path: Path) -> None:
    page = write_report(made.plain_folder(tmp_path / "d", 0, rejected=0)).read_text("utf-8")
    assert ">0</b><span>rows</span>" in page


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(20, 900), st.integers(20, 900))
def test_a_treemap_fills_its_room_without_overlaps(weights: list[int], width: int, height: int) -> None:
    weights.sort(reverse=True)
    boxes = lay_out(weights, Box(0, 0, width, height))
    areas = [box.width * box.height for box in boxes]
    scale = width * height / sum(weights)
    assert areas == pytest.approx([weight * scale for weight in weights])
    assert all(box.x + box.width <= width * 1.001 and box.y + box.height <= height * 1.001 for box in boxes)
    for index, one in enumerate(boxes):
        for two in boxes[:index]:
            across = min(one.x + one.width, two.x + two.width) - max(one.x, two.x)
            down = min(one.y + one.height, two.y + two.height) - max(one.y, two.y)
            assert across <= 1e-6 * width or down <= 1e-6 * height


def test_a_map_of_many_topics_draws_subtopics_together() -> None:
    leaves = {("all", f"area {n // 500}", f"field {n // 25}", f"topic {n}"): n % 7 for n in range(5_000)}
    drawn = draw_map(leaves)
    assert drawn.count("<button") <= 2 * MAX_CELLS
    assert "5,000 topics are drawn as 200" in drawn
    assert draw_map({("all", "one"): 3}) == ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    found = Chromium()
    yield found
    found.close()


@pytest.mark.parametrize(("width", "is_dark"), [(1200, False), (390, True)])
def test_in_a_browser_it_works_asks_for_nothing_and_has_no_errors(
    tmp_path: Path, browser: Chromium, width: int, is_dark: bool
) -> None:
    path = write_report(evil_folder(tmp_path / "d"))
    browser.requests.clear()
    browser.open(path, width, 900, is_dark=is_dark)
    rows = "document.querySelectorAll('.row').length"
    assert browser.evaluate(rows) == 25
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate("document.getElementById('more').click()")
    assert browser.evaluate(rows) == 42
    # Open a row, search, filter by a rejection, and select a topic on the map.
    assert "tea, 3 EUR" in browser.evaluate(
        "new Promise(done => { const row = document.querySelector('.row'); row.addEventListener("
        "'toggle', () => done(row.querySelector('.call').textContent)); row.open = true })"
    )
    browser.evaluate(
        "(s => { s.value = 'FILE 7?'; s.dispatchEvent(new Event('input')) })(document.getElementById('search'))"
    )
    assert browser.evaluate(rows) == 3
    browser.evaluate("document.getElementById('clear').click()")
    browser.evaluate(
        "(s => { s.value = 'grounding'; s.dispatchEvent(new Event('change')) })"
        "(document.getElementById('by-filter'))"
    )
    assert browser.evaluate(rows) == 2
    browser.evaluate("document.getElementById('clear').click()")
    browser.evaluate(
        "[...document.querySelectorAll('[data-topic]')].find(e => e.dataset.topic.includes('topic 3')).click()"
    )
    assert browser.evaluate(rows) == 3
    assert browser.requests == [path.as_uri()]
    assert browser.complaints == []
