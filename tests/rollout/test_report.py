"""The report contains everything that it shows, escapes all texts, and works in a browser."""

from pathlib import Path

import pytest
from tests.browser.chromium import PROGRAM, Chromium
from tests.rollout.groups import make_groups

from treadle.rollout.report.facts import Facts
from treadle.rollout.report.write import write_report


def test_the_facts_are_counted_over_all_groups() -> None:
    facts = Facts()
    groups = make_groups(12)
    for group in groups:
        facts.add(group)
    assert (len(facts.groups), facts.rollouts) == (12, 96)
    assert facts.groups[1].mean == 0.0
    assert len(facts.groups[2].known) == 7
    branches = [item for group in groups for rollout in group.rollouts for item in rollout.trajectories]
    assert facts.sampled_tokens == sum(item.sampled_tokens for item in branches) == facts.versions["1"]
    assert facts.drift["compaction"].branches == sum(item.branch > 0 for item in branches)
    assert facts.tools["read_file"].calls == 96
    assert facts.solved == sum(any(reward == 1.0 for reward in group.rewards_G) for group in groups)


def test_the_page_escapes_the_texts_of_runs(tmp_path: Path) -> None:
    page = write_report(
        make_groups(4), tmp_path / "report.html", name="<i>x</i>", dropped={"<u>": 1}
    ).read_text()
    for text in ("<i>x", "<u>", "<script>alert", "<b>far"):
        assert text not in page


def test_a_report_of_no_groups_says_so(tmp_path: Path) -> None:
    page = write_report([], tmp_path / "report.html", name="none").read_text()
    assert 'id="groups"' not in page
    assert '<b class="num">0</b><span>groups</span>' in page


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_in_a_browser_a_cell_shows_its_rollout(tmp_path: Path) -> None:
    file = write_report(make_groups(5), tmp_path / "report.html", name="r", decode=lambda ids: f"t{ids[0]} ")
    browser = Chromium()
    try:
        browser.open(file)
        browser.evaluate("document.querySelector('.cells button[data-run=\"g00004-3\"]').click()")
        assert browser.evaluate("document.getElementById('pick').value") == "g00004-3"
        assert browser.evaluate("document.querySelectorAll('#run .tokens .sampled').length") > 7
        assert "sampled" in browser.evaluate("document.querySelector('#run .branch').textContent")
        assert browser.evaluate("document.querySelector('#run .call pre').textContent") == "1\n2"
        assert browser.complaints == []
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    finally:
        browser.close()
