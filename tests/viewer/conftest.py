"""Fixtures of the page: a browser, whose picture is kept if a test fails, and a served journal with all kinds of
runs."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from tests.browser.chromium import PROGRAM, Chromium
from tests.forks.process import FORKS
from tests.viewer import sample_runs

from treadle import open_journal
from treadle.viewer.bundle import HOW_TO_BUILD, NotBuiltError, read_bundle

_FAILED = pytest.StashKey[bool]()
CONFIG = """
[agents.careful]
model = "mock:echo"
tools = ["files"]
approve = { write_file = "ask" }

[agents.curious]
model = "mock:echo"
tools = ["ask"]
"""
LONG_STEPS = 400


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def bundle() -> None:
    try:
        read_bundle()
    except NotBuiltError:
        pytest.skip(HOW_TO_BUILD)


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    found = Chromium()
    yield found
    found.close()


@pytest.fixture
def browser(
    bundle: None, _chromium: Chromium, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Chromium]:
    _chromium.requests.clear()
    _chromium.complaints.clear()
    yield _chromium
    if request.node.stash.get(_FAILED, False):
        (tmp_path / "failed.png").write_bytes(_chromium.picture(is_whole=False))
    # What a reader opened is kept by the tab, which all tests share.
    _chromium.evaluate("(() => { try { sessionStorage.clear(); } catch { /* a page without a store */ } })()")
    # A page that goes on asking a server would complain within the next test.
    _chromium.open("about:blank")


class ServedJournal(Struct, frozen=True):
    """A journal and the page that shows it."""

    path: Path
    url: str
    """The address with the key, without the page's own part."""
    runs: dict[str, str]
    """The ids of the runs by what is special about them."""

    def address(self, place: str) -> str:
        """Return the address of a page, such as `runs?status=paused`."""
        return f"{self.url}&/{place}"


async def _fill(path: Path) -> dict[str, str]:
    made = {}
    with open_journal(path) as journal:
        for name in ("tidy", "failed", "asking", "approving", "talk", "repaired", "hostile"):
            made[name] = (await getattr(sample_runs, f"make_{name}")(journal)).run_id
        made["words"] = (await sample_runs.make_hostile(journal, "Donaudampfschifffahrt" * 60)).run_id
        made["long"] = (await sample_runs.make_long(journal, LONG_STEPS)).run_id
        made["fork"] = (await sample_runs.fork_tidy(journal, made["tidy"])).run_id
    return made


@pytest.fixture(scope="session")
def served(bundle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedJournal]:
    folder = tmp_path_factory.mktemp("viewer")
    path, config = folder / "runs.db", folder / "treadle.toml"
    config.write_text(CONFIG)
    runs = {**asyncio.run(_fill(path)), "interrupted": sample_runs.make_interrupted(path)}
    environment = {**os.environ, "TREADLE_CONFIG": str(config)}
    process = FORKS.start(
        *("-m", "treadle", "view", str(path), "--no-open", "--json"),
        stdout=subprocess.PIPE,
        env=environment,
        cwd=folder,
    )
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    yield ServedJournal(path, url, runs)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
