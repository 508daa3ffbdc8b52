"""The page of two journals: each run is that of its journal, also if both have runs with the same ids."""

import asyncio
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.browser.chromium import Chromium
from tests.cli.command import Cli
from tests.datagen.dataset import made
from tests.viewer.pages import Screen
from tests.viewer.sample_runs import fork_tidy, make_tidy
from tests.viewer.test_data_pages import serve

from treadle import Agent, ScriptedModel, open_journal
from treadle.datagen.dataset.dataset_folder import DatasetFolder

LINKS = "[...document.querySelectorAll('.line a')].map(one => one.innerText)"


@pytest.fixture
def screen(browser: Chromium) -> Screen:
    return Screen(browser)


async def run_named(path: Path, answer: str, run_id: str = "same") -> None:
    with open_journal(path) as journal:
        await Agent(ScriptedModel([answer]), journal=journal).run("Say a word.", run_id=run_id)


def test_runs_of_two_journals_are_listed_read_and_compared(tmp_path: Path, screen: Screen) -> None:
    asyncio.run(run_named(tmp_path / "one.db", "apple"))
    asyncio.run(run_named(tmp_path / "two.db", "pear"))

    async def tidy() -> str:
        with open_journal(tmp_path / "two.db") as journal:
            run = await make_tidy(journal)
            await fork_tidy(journal, run.run_id)
            return run.run_id

    tidied = asyncio.run(tidy())
    with serve(tmp_path, "one.db", "two.db") as url:
        screen.open(url)
        screen.wait("document.querySelectorAll('.line').length === 1")
        # Mark the run of the first journal, and then one of the second.
        screen.run("document.querySelector('.line input').click()")
        screen.type("select[aria-label=Journal]", "other")
        screen.wait("document.querySelectorAll('.line').length === 3")
        screen.run(
            "[...document.querySelectorAll('.line')].find(one => one.innerText.includes('a word'))"
            ".querySelector('input').click()"
        )
        screen.wait("document.querySelectorAll('.sides .side').length === 2")
        assert "apple" in screen.run("document.querySelector('.pairs').innerText")
        assert "pear" in screen.run("document.querySelector('.pairs').innerText")
        # Both runs have the same title and the same id; only their journals tell them apart.
        sides = screen.run("[...document.querySelectorAll('.sides .side')].map(one => one.innerText)")
        assert ["one.db" in sides[0], "two.db" in sides[0]] == [True, False]
        assert ["one.db" in sides[1], "two.db" in sides[1]] == [False, True]
        screen.check()
        screen.browser.open(str(screen.run("location.href")), 1200, 900)
        screen.wait("document.querySelector('.pairs')?.innerText.includes('pear')")
        screen.run("document.querySelectorAll('.sides .side a')[1].click()")
        screen.wait("document.querySelector('.transcript')?.innerText.includes('pear')")
        assert screen.run("document.querySelector('button.id').innerText") == "same"
        assert "two.db" in screen.run("document.querySelector('.facts-line').innerText")
        # What a run of the second journal leads to is of that journal.
        screen.browser.open("about:blank")
        screen.open(f"{url}&/run/%40other%2F{tidied}?view=forks")
        screen.wait("document.querySelectorAll('.branches li').length === 2")
        screen.run("document.querySelector('.branches li:not(.own) a').click()")
        screen.wait("document.querySelector('.facts-line')?.innerText.includes('forked from')")
        screen.run(
            "[...document.querySelectorAll('.facts-line a')].find(one => one.innerText.includes('forked')).click()"
        )
        screen.wait("document.querySelector('.facts-line a.chip')")
        screen.run(
            "[...document.querySelectorAll('.more')].find(one => one.textContent.includes('sub-agent')).click()"
        )
        screen.wait("document.querySelector('.transcript').innerText.includes('notes: 12 lines')")
        screen.run("document.querySelector('.facts-line a.chip').click()")
        screen.wait("document.querySelectorAll('.line').length === 2")
        assert not screen.browser.complaints
        # Nobody without the key reads them.
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"{url.partition('/view')[0]}/other/v1/runs", timeout=20)


def test_the_runs_of_the_second_evaluation_open_from_the_comparison(tmp_path: Path, screen: Screen) -> None:
    cli = Cli(tmp_path)
    for folder, model in (("one", "oracle"), ("two", "mock:echo")):
        assert cli("eval", "--task", "files:csv_sum-0001", "--model", model, "--out", folder).code == 0
    with serve(tmp_path, "one", "two") as url:
        screen.open(url)
        screen.wait("document.querySelectorAll('#both tbody tr').length === 1")
        assert "treadle view" not in screen.run("document.querySelector('.overview').innerText")
        screen.run("document.querySelector('#both .side a').click()")
        screen.wait("document.querySelectorAll('.sides .side').length === 2")
        screen.wait("document.querySelector('.pair.differs')")
        # A difference is the second evaluation minus the first.
        assert "%40other" in screen.run("document.querySelector('.sides .side a').href")
        screen.run("document.querySelectorAll('.sides .side a')[1].click()")
        assert screen.run("location.hash").startswith("#/run/eval-1")
        assert not screen.browser.complaints


def test_the_runs_of_the_second_dataset_open_from_its_rows(tmp_path: Path, screen: Screen) -> None:
    for name in ("one", "two"):
        made.plain_folder(tmp_path / name, 2)
        asyncio.run(run_named(DatasetFolder(tmp_path / name).journal, f"of {name}", "s000001-1"))
    with serve(tmp_path, "one", "two") as url:
        screen.open(f"{url}&/rows/1?words=s000001")
        screen.wait("document.querySelectorAll('.line').length === 1")
        screen.run("document.querySelector('.line').click()")
        screen.wait("document.querySelector('.opened .facts a')")
        screen.run("document.querySelector('.opened .facts a').click()")
        screen.wait("document.querySelector('.transcript')?.innerText.includes('of two')")
