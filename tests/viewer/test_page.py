"""The page: one file that shows every type of block, asks for nothing, and is not controlled by what it shows."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.browser.chromium import PROGRAM, Chromium
from tests.viewer.reports import EVIL, make_all, read_page

from treadle.export import report_blocks as b
from treadle.viewer import encode_page, write_page


class Tags(HTMLParser):
    """A parser that collects the elements and the addresses in them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]


@given(st.text() | st.just(EVIL))
def test_no_text_can_leave_its_place(text: str) -> None:
    report = make_all(text)
    page = encode_page(report).decode("utf-8", "surrogatepass")
    tags = Tags()
    tags.feed(page)
    assert sorted(set(tags.names)) == [
        "body",
        "head",
        "html",
        "link",
        "meta",
        "noscript",
        "script",
        "style",
        "title",
    ]
    assert tags.names.count("script") == 2
    assert tags.addresses == ["data:,"]
    assert read_page(page) == msgspec.json.decode(msgspec.json.encode(report))


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    found = Chromium()
    yield found
    found.close()


def show(browser: Chromium, path: Path, width: int = 1200, *, is_dark: bool = False) -> None:
    """Open a page, and wait until it is drawn."""
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(path, width, 900, is_dark=is_dark)
    browser.evaluate(
        "new Promise(done => { const look = () => document.querySelector('.map button') ? done(1) "
        ": requestAnimationFrame(look); look() })"
    )


CLIPPED = """
[...document.querySelectorAll("body *")].filter(label => {
  const isLabel = label.offsetParent && !label.childElementCount && label.textContent.trim();
  if (!isLabel || label.closest(".scroll, .message, .call, .tokens, select, .row .text")) return false;
  const range = document.createRange();
  range.selectNodeContents(label);
  const text = range.getBoundingClientRect();
  for (let box = label; box !== document.body; box = box.parentElement) {
    const edge = box.getBoundingClientRect();
    const isCut = text.right > edge.right + 1 || text.bottom > edge.bottom + 1 || text.left < edge.left - 1;
    if (isCut && getComputedStyle(box).overflow !== "visible") return true;
  }
  return false;
}).map(label => label.textContent)
"""
"""The labels of which a part cannot be seen or scrolled to."""


ASTRAY = """
[...document.querySelectorAll(".spread")].filter(bars => {
  const last = bars.lastElementChild.getBoundingClientRect(), axis = bars.nextElementSibling;
  return Math.abs(axis.lastElementChild.getBoundingClientRect().right - last.right) > 2;
}).length + [...document.querySelectorAll(".figure b.num")].filter(b => /%$/.test(b.textContent)
  && b.offsetHeight > 1.5 * parseFloat(getComputedStyle(b).lineHeight)).length
"""
"""How many distributions have their last bar away from the number below it, and shares a line break in them."""


@pytest.mark.parametrize("width", [1200, 500, 390])
def test_in_a_browser_the_ends_of_an_axis_stand_below_their_bars(
    tmp_path: Path, browser: Chromium, width: int
) -> None:
    blocks = [
        *b.make_histogram("Turns", b.Spread(b.Counter([1, 2, 2])), "rows"),
        *b.make_histogram("Tokens", b.Spread(b.Counter(range(90))), "rows"),
    ]
    section = b.ReportSection("lengths", "Lengths", "", blocks)
    shares = [b.Figure("100.0%", f"share {number}") for number in range(9)]
    page = make_all("words")
    made = replace(page, figures=shares, sections=[*page.sections, section])
    show(browser, write_page(made, tmp_path / "page.html"), width)
    assert browser.evaluate(ASTRAY) == 0


@pytest.mark.parametrize("width", [1200, 390])
def test_in_a_browser_no_label_is_cut(tmp_path: Path, browser: Chromium, width: int) -> None:
    words = "Reviewing cross-border asset tags after a power cut in the offices of the northern region " * 12
    show(browser, write_page(make_all(words), tmp_path / "page.html"), width)
    assert browser.evaluate(CLIPPED) == []


@pytest.mark.parametrize(("width", "is_dark"), [(1200, False), (390, True)])
def test_in_a_browser_every_block_is_shown_as_text(
    tmp_path: Path, browser: Chromium, width: int, is_dark: bool
) -> None:
    path = write_page(make_all(EVIL), tmp_path / "page.html")
    show(browser, path, width, is_dark=is_dark)
    browser.evaluate("document.querySelector('details').open = true")
    browser.evaluate("new Promise(done => setTimeout(done, 50))")
    shown = browser.evaluate("document.body.innerText")
    # Each of the 10 blocks has its title, and an opened row its messages, its call and its verdict.
    assert shown.count(EVIL) > 40
    assert browser.evaluate("document.querySelectorAll('main h3').length") == 10
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    for selector in (
        ".bars",
        ".spread i",
        ".series",
        ".matrix td",
        ".map button",
        ".tree p",
        ".cells button",
    ):
        assert browser.evaluate(f"document.querySelectorAll('{selector}').length") > 0, selector
    for selector in (".body .message", ".body .call pre", ".body .tokens .sampled", ".body li.bad"):
        assert browser.evaluate(f"document.querySelectorAll('{selector}').length") > 0, selector
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.requests == [path.as_uri()]
    assert browser.complaints == []
