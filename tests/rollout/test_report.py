"""The report contains everything that it shows, escapes all texts, and works in a browser."""

from pathlib import Path

import pytest
from tests.browser.chromium import PROGRAM, Chromium
from tests.rollout.groups import make_groups
from tests.viewer.reports import blocks_of, read_page

from treadle.rollout.rollout_report import RolloutCounts, make_rollout_report
from treadle.viewer import encode_page, write_page


def test_the_facts_are_counted_over_all_groups() -> None:
    counts = RolloutCounts()
    groups = make_groups(12)
    for group in groups:
        counts.add(group)
    assert (len(counts.groups), sum(len(group.cells) for group in counts.groups)) == (12, 96)
    assert counts.groups[1].known == [0.0] * 8
    assert len(counts.groups[2].known) == 7
    branches = [item for group in groups for rollout in group.rollouts for item in rollout.trajectories]
    assert counts.sampled_tokens == sum(item.sampled_tokens for item in branches) == counts.versions["1"]
    assert counts.drift["compaction"] == sum(item.branch > 0 for item in branches)
    assert counts.tools["read_file"] == 96
    figures = {item.label: item.value for item in make_rollout_report(groups, name="r").figures}
    solved = sum(any(reward == 1.0 for reward in group.rewards_G) for group in groups)
    assert figures["of groups solved at least once"] == f"{solved / 12:.1%}"


def test_the_page_escapes_the_texts_of_runs() -> None:
    page = encode_page(make_rollout_report(make_groups(4), name="<i>x</i>", dropped={"<u>": 1})).decode()
    for text in ("<i>x", "<u>", "<script>alert", "<b>far"):
        assert text not in page
    report = read_page(page)
    assert (report["name"], report["notes"]) == ("<i>x</i>", ["1 groups were dropped: <u>."])


def test_all_rollouts_are_listed_and_those_of_some_groups_have_their_tokens() -> None:
    page = encode_page(make_rollout_report(make_groups(40), name="r")).decode()
    rows = blocks_of(page, "tokens")[0]["items"]
    whole = [row for row in rows if "messages" in row]
    assert (len(rows), len(whole)) == (320, 192)
    assert {whole[0]["id"], whole[-1]["id"]} == {"g00001-0", "g00040-7"}
    assert len(blocks_of(page, "groups")[0]["items"]) == 40


def test_a_report_of_no_groups_says_so() -> None:
    report = read_page(encode_page(make_rollout_report([], name="none")).decode())
    assert [item["name"] for item in report["sections"] if item["blocks"]] == []
    assert report["figures"][:3] == [
        {"value": "-", "label": "mean reward"},
        {"value": "-", "label": "of groups solved at least once"},
        {"value": "0", "label": "groups"},
    ]


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_in_a_browser_a_cell_shows_its_rollout(tmp_path: Path) -> None:
    report = make_rollout_report(make_groups(5), name="r", decode=lambda ids: f"t{ids[0]} ")
    browser = Chromium()
    try:
        browser.open(write_page(report, tmp_path / "report.html"))
        browser.evaluate(
            "new Promise(done => { const look = () => document.querySelector('.cells button') ? done(1) "
            ": requestAnimationFrame(look); look() })"
        )
        browser.evaluate("document.querySelector('.cells button[data-run=\"g00004-3\"]').click()")
        browser.evaluate("new Promise(done => setTimeout(done, 50))")
        assert browser.evaluate("document.querySelector('details[open]').dataset.id") == "g00004-3"
        assert browser.evaluate("document.querySelectorAll('details[open] .tokens .sampled').length") > 7
        assert "sampled" in browser.evaluate("document.querySelector('details[open] .body').textContent")
        assert browser.evaluate("document.querySelector('details[open] .call pre').textContent") == "1\n2"
        assert browser.complaints == []
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    finally:
        browser.close()
