"""The report: one file that shows a dataset, asks for nothing, and is not controlled by what rows say."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import PROGRAM, Chromium
from tests.datagen.dataset import made
from tests.viewer.reports import EVIL, blocks_of, read_page

from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_report import make_dataset_report, report_path
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem
from treadle.viewer import write_page


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


def page_of(path: Path, out: Path | None = None) -> tuple[Path, str]:
    """Write the page of a dataset, and return its path and its text."""
    written = write_page(make_dataset_report(path), out or report_path(path))
    return written, written.read_text("utf-8")


def test_the_page_holds_everything_and_escapes_all_texts(tmp_path: Path) -> None:
    path, page = page_of(evil_folder(tmp_path / "d"))
    assert path == DatasetFolder(tmp_path / "d").report
    assert EVIL not in page
    rows = blocks_of(page, "browse")[0]["items"]
    assert len(rows) == 42
    assert {row["keys"]["status"] for row in rows} == {"kept", "rejected"}
    assert any(EVIL in row["text"] for row in rows)
    rejected = next(row for row in rows if row["keys"]["status"] == "rejected")
    assert [verdict["is_passed"] for verdict in rejected["verdicts"]] == [True, False]
    report = read_page(page)
    shown = [section["title"] for section in report["sections"] if section["blocks"]]
    assert shown == [
        "Topics",
        "Tool use",
        "Lengths",
        "Kinds, difficulties and models",
        "Quality",
        "Time and cost",
        "Rows",
    ]
    assert {"value": "40", "label": "rows kept"} in report["figures"]


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
    path = made.write_rows(tmp_path / "rows.jsonl", [row])
    assert report_path(path) == tmp_path / "rows.report.html"
    _, page = page_of(path, tmp_path / "r.html")
    shown = blocks_of(page, "browse")[0]["items"][0]["messages"][1]["calls"]
    assert [(call["arguments"][-3], call["result"]) for call in shown] == [
        (str(number), f"text {number}") for number in range(3)
    ]


def test_all_rows_of_a_large_dataset_are_listed_and_a_sample_has_its_messages(tmp_path: Path) -> None:
    count = 100_000 if os.environ.get("TREADLE_FULL") else 3_000
    path = made.plain_folder(tmp_path / "d", count, leaves=count // 10, rejected=500)
    _, page = page_of(path)
    assert len(page) < 10_000_000
    browse = next(section for section in read_page(page)["sections"] if section["name"] == "browse")
    assert f"all {count:,} rows; 1,000 of them (drawn at random) show their messages" in browse["lead"]
    assert "all 500 rejected samples." in browse["lead"]
    rows = browse["blocks"][0]["items"]
    assert len(rows) == count + 500
    assert sum("messages" in row for row in rows) == 1_500
    asked = [row for row in rows if "messages" not in row and "file 7?" in row["text"]]
    assert all("read_file" in row["words"] for row in asked)


def test_an_empty_dataset_has_a_report(tmp_path: Path) -> None:
    _, page = page_of(made.plain_folder(tmp_path / "d", 0, rejected=0))
    assert {"value": "0", "label": "rows kept"} in read_page(page)["figures"]


def test_a_map_of_many_topics_draws_subtopics_together(tmp_path: Path) -> None:
    topics = [("all", f"area {n // 500}", f"field {n // 25}", f"topic {n}") for n in range(5_000)]
    rows = [
        made.plain_row(n, topic=path, topic_id=f"{n:016x}") for n, path in enumerate(topics) for _ in range(1)
    ]
    _, page = page_of(made.write_rows(tmp_path / "rows.jsonl", rows))
    section = next(item for item in read_page(page)["sections"] if item["name"] == "topics")
    block = section["blocks"][0]
    assert len(block["items"]) == 200
    assert block["above"] == ["all"]
    assert all(item["size"] == item["value"] == 25 for item in block["items"])
    assert "5,000 topics are drawn as 200" in section["lead"]
    _, page = page_of(made.write_rows(tmp_path / "one.jsonl", rows[:1]))
    assert blocks_of(page, "topics") == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    found = Chromium()
    yield found
    found.close()


def test_in_a_browser_a_treemap_fills_its_room_without_overlaps(tmp_path: Path, browser: Chromium) -> None:
    path, _ = page_of(made.plain_folder(tmp_path / "d", 300, leaves=37))
    browser.open(path)
    found = browser.evaluate(
        "new Promise(done => { const look = () => document.querySelector('.map button') ? done(1) "
        ": requestAnimationFrame(look); look() }).then(() => { const box = document.querySelector('.map')"
        ".getBoundingClientRect(); return [[0, 0, box.width, box.height], ...[...document.querySelectorAll("
        "'.map button')].map(e => ['left', 'top', 'width', 'height'].map(k => parseFloat(e.style[k])))] })"
    )
    (_, _, wide, high), *boxes = found
    assert len(boxes) == 37
    names = browser.evaluate(
        "[...document.querySelectorAll('.map > div')].map(e => e.offsetWidth * e.offsetHeight)"
        ".reduce((sum, area) => sum + area, 0)"
    )
    assert names + sum(w * h for _, _, w, h in boxes) == pytest.approx(wide * high, rel=0.02)
    for index, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 <= y
        assert x + w <= wide + 1
        assert y + h <= high + 1
        for left, top, width, height in boxes[:index]:
            across = min(x + w, left + width) - max(x, left)
            down = min(y + h, top + height) - max(y, top)
            assert across <= 0.01 or down <= 0.01


@pytest.mark.parametrize(("width", "is_dark"), [(1200, False), (390, True)])
def test_in_a_browser_it_works_asks_for_nothing_and_has_no_errors(
    tmp_path: Path, browser: Chromium, width: int, is_dark: bool
) -> None:
    path, _ = page_of(evil_folder(tmp_path / "d"))
    browser.requests.clear()
    browser.open(path, width, 900, is_dark=is_dark)
    rows = "document.querySelectorAll('.row').length"
    browser.evaluate(
        "new Promise(done => { const look = () => document.querySelector('.map button') ? done(1) "
        ": requestAnimationFrame(look); look() })"
    )
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
