"""The pages of datasets, rollouts and topics as files: they hold everything, and show every text as a text."""

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from msgspec.structs import replace
from tests.browser.chromium import Chromium
from tests.cli.command import Cli
from tests.datagen.dataset import made
from tests.datagen.topics.test_draw import tree
from tests.forks.process import ForkServer
from tests.rollout.groups import make_groups
from tests.viewer.pages import EVIL, NEEDS_VIEWER, Screen, read_answers

import treadle
from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_view import compare_datasets, make_dataset_view
from treadle.datagen.quality.protocol import FilterVerdict
from treadle.datagen.topics.topics_view import make_topics_view
from treadle.evals.evaluation_folder import EvaluationFolder
from treadle.rollout.rollouts_view import make_rollouts_view
from treadle.viewer.data_pages import DataKind, encode_page, find_kind, make_evaluation_page, write_page
from treadle.viewer.viewed_data import ViewedData

LONG = "Donaudampfschifffahrtsgesellschaft" * 20


def evil_folder(path: Path, count: int = 30) -> Path:
    """Return a dataset in which some texts try to get out of their place, and some are very long."""
    made.plain_folder(path, count, leaves=10)
    folder = DatasetFolder(path)
    rows = []
    for number, text in enumerate((EVIL, LONG), count + 1):
        topic = ("Shop", f"area {text}", f"topic {text}")
        row = made.plain_row(
            number,
            text=text,
            topic=topic,
            topic_id=f"{number:016x}",
            persona=text,
            models={"agent": text},
            dataset=text,
            filters={text: text},
            difficulty=text,
            kind=text,
        )
        call = ToolCall("c1", text, text)
        said = (
            row.messages[0],
            Message(Role.ASSISTANT, text, (call,), reasoning=text),
            Message(Role.TOOL, text, call_id="c1", name=text),
            Message(Role.ASSISTANT, text),
        )
        rows.append(replace(row, messages=said))
    with folder.rows.open("ab") as file:
        file.writelines(map(made.encode, rows))
    with folder.rejected.open("ab") as file:
        file.writelines(
            made.encode(row, FilterVerdict(text[:40], False, text))
            for row, text in zip(rows, (EVIL, LONG), strict=True)
        )
    return path


def test_what_a_path_holds_is_recognised(tmp_path: Path) -> None:
    dataset = made.plain_folder(tmp_path / "d", 1)
    rollouts = tmp_path / "r"
    rollouts.mkdir()
    for name in ("ledger.db", "groups.jsonl", "rows.jsonl"):
        (rollouts / name).touch()
    (tmp_path / "topics.json").write_text("{}")
    assert find_kind(dataset) is find_kind(DatasetFolder(dataset).rows) is DataKind.DATASET
    assert find_kind(rollouts) is DataKind.ROLLOUTS
    assert find_kind(tmp_path / "topics.json") is DataKind.TOPICS
    assert (
        find_kind(tmp_path) is find_kind(tmp_path / "none.jsonl") is find_kind(tmp_path / "runs.db") is None
    )


class Tags(HTMLParser):
    """A parser that collects the elements and the addresses in them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]


@NEEDS_VIEWER
def test_no_text_can_leave_its_place(tmp_path: Path) -> None:
    view = make_dataset_view(evil_folder(tmp_path / "d"))
    page = encode_page(replace(view, name=EVIL)).decode()
    tags = Tags()
    tags.feed(page)
    assert EVIL not in page
    assert tags.names.count("script") == 2
    assert "img" not in tags.names
    assert tags.addresses == ["data:,"]
    answers = read_answers(page)
    assert answers == {
        "/v1/view/datasets/0": msgspec.json.decode(msgspec.json.encode(replace(view, name=EVIL)))
    }


def test_without_the_viewer_no_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a package without the built page, commands that write a page fail and say how to build it."""
    package = Path(treadle.__file__).parent
    ignore = shutil.ignore_patterns("bundle.html")
    shutil.copytree(package, tmp_path / "lib/treadle", copy_function=os.symlink, ignore=ignore)
    made.plain_folder(tmp_path / "d", 2)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    forks = ForkServer("treadle.cli.start", "treadle.rollout", "treadle.datagen", "treadle.viewer.bundle")
    found = forks.run("-c", "import treadle; print(treadle.__file__)", cwd=tmp_path)
    assert found.stdout == f"{tmp_path / 'lib/treadle/__init__.py'}\n"

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return forks.run("-m", "treadle", *arguments, cwd=tmp_path)

    tasks = ("--task", "files:csv_sum-0001", "--model", "oracle")
    assert run("rollout", *tasks, "--groups", "1", "--group-size", "2", "-q").returncode == 0
    for command in (
        ("report", "d"),
        ("report", "d", "--out", "x.html"),
        ("dataset", "report", "d"),
        ("rollout", "report", "rollouts"),
    ):
        done = run(*command)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "make viewer" in done.stderr
    (tmp_path / "g.yaml").write_text("topics: {prompt: milk}\ntools: {use: [files]}\n")
    generated = run("generate", "g.yaml", "-m", "mock:teacher", "-n", "1", "-o", "g")
    assert generated.returncode == 0, generated
    assert "make viewer" in generated.stderr
    assert not list(tmp_path.glob("**/*.html"))


@pytest.fixture
def screen(browser: Chromium) -> Screen:
    return Screen(browser)


@contextmanager
def serve(folder: Path, *paths: str) -> Iterator[str]:
    """Start the page of some paths, and return its address."""
    process = Cli(folder).start("view", *paths, "--no-open", "--json")
    assert process.stdout is not None
    try:
        yield msgspec.json.decode(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


ROWS = "document.querySelectorAll('.table .line').length"


def test_a_dataset_without_rows_says_so(tmp_path: Path, screen: Screen) -> None:
    (tmp_path / "none.jsonl").touch()
    screen.open(page := write_page(make_dataset_view(tmp_path / "none.jsonl"), tmp_path / "none.html"))
    assert screen.run("document.querySelector('.status').innerText") == "The dataset has no rows."
    screen.check(page)


@pytest.mark.parametrize(("width", "is_dark"), [(1200, False), (420, True)])
def test_the_overview_of_a_dataset_shows_all_parts(
    tmp_path: Path, screen: Screen, width: int, is_dark: bool
) -> None:
    page = write_page(make_dataset_view(evil_folder(tmp_path / "d")), tmp_path / "d.html")
    screen.open(page, width=width, is_dark=is_dark)
    screen.wait("document.querySelector('.map button')")
    shown = screen.run("[...document.querySelectorAll('.section')].map(part => part.id)")
    assert shown == ["topics", "tools", "lengths", "kinds", "quality", "time"]
    text = screen.run("document.body.innerText")
    for words in (
        "rows kept\n32",
        "samples rejected (11.1%)\n4",
        "the answer names 4 EUR, which no result has",
        EVIL,
    ):
        assert words in text
    sums = screen.run(
        "[...document.querySelectorAll('.spread')].map(chart => [...chart.children].reduce((sum, bin) => "
        "sum + Number(bin.title.match(/: ([\\d,]+) row/)[1].replace(',', '')), 0))"
    )
    assert sums == [32] * 5
    boxes = screen.run(
        "[...document.querySelectorAll('.map button')].map(box => ['left', 'top', 'width', 'height']"
        ".map(side => parseFloat(box.style[side])))"
    )
    for index, (x, y, w, h) in enumerate(boxes):
        for left, top, wide, high in boxes[:index]:
            assert (
                min(x + w, left + wide) - max(x, left) <= 0.01 or min(y + h, top + high) - max(y, top) <= 0.01
            )
    screen.check(page)
    screen.run(
        "[...document.querySelectorAll('.map button')].find(e => e.dataset.topic.includes('topic 3')).click()"
    )
    screen.wait(f"{ROWS} === 3")


def test_rows_are_found_and_opened(tmp_path: Path, screen: Screen) -> None:
    page = write_page(make_dataset_view(evil_folder(tmp_path / "d")), tmp_path / "d.html")
    screen.open(page, "#/rows/0")
    screen.wait("document.querySelector('[aria-live]').textContent === 'all 36 rows'")
    screen.type("#search", "FILE 7?")
    screen.wait(f"{ROWS} === 3")
    screen.press("Escape")
    screen.run("document.activeElement.blur()")
    screen.press("Enter")
    screen.wait("document.querySelector('.opened .msg-call')")
    assert "tea, 3 EUR" in screen.run("document.querySelector('.opened').textContent")
    screen.check(page)
    first = screen.run("document.querySelector('.opened h2').textContent")
    screen.press("j")
    screen.wait(f"document.querySelector('.opened h2').textContent !== '{first}'")
    screen.press("x")
    screen.type("#by-status", "rejected")
    screen.wait(f"{ROWS} === 4")
    screen.run("document.querySelectorAll('.table .line')[2].click()")
    screen.wait("document.querySelector('.opened .verdicts .told')")
    opened = screen.run("document.querySelector('.opened').innerText")
    assert opened.count(EVIL) >= 8
    screen.run("document.querySelectorAll('.table .line')[3].click()")
    screen.wait(f"document.querySelector('.opened').innerText.includes('{LONG}')")
    screen.check(page)


def test_rollouts_stand_side_by_side_down_to_their_tokens(tmp_path: Path, screen: Screen) -> None:
    view = make_rollouts_view(
        make_groups(5), name=EVIL, dropped={EVIL: 1}, decode=lambda ids: f"t{ids[0]}<b> "
    )
    page = write_page(view, tmp_path / "r.html")
    screen.open(page)
    text = screen.run("document.body.innerText")
    for words in (
        f"1 groups were dropped: {EVIL}",
        "of groups solved at least once",
        "Example of compaction",
    ):
        assert words in text
    screen.check(page)
    screen.press("e")
    screen.wait(f"{ROWS} === 5")
    assert screen.run("document.querySelectorAll('.table .cells span').length") == 40
    screen.check(page)
    screen.run("document.querySelectorAll('.table .line')[3].click()")
    screen.wait("document.querySelectorAll('.sidehead section').length === 8")
    assert screen.run("document.querySelector('.mark').textContent") == "the first difference"
    screen.check(page)
    rollout = view.groups[3].rollouts[0]
    screen.run("document.querySelector('.sidehead section button:not(.close)').click()")
    screen.wait("document.querySelector('.tokenline .sampled')")
    first = screen.run("document.querySelector('.tokens .picked').textContent")
    assert first.startswith("t")
    assert first.endswith("<b> ")
    assert f"{rollout.branches[0].sampled_tokens} of {rollout.branches[0].tokens} tokens" in screen.run(
        "document.querySelector('main').innerText"
    )
    screen.press("l", "n", "c")
    screen.wait("document.querySelector('.tokens .trained')")
    screen.check(page)


def test_rewards_are_readable_on_every_colour(tmp_path: Path, screen: Screen) -> None:
    (group,) = make_groups(1)
    rollouts = [replace(group.rollouts[0], run_id=f"r{part}", reward=part / 20) for part in range(21)]
    view = make_rollouts_view([replace(group, rollouts=tuple(rollouts))], name="colours")
    page = write_page(view, tmp_path / "r.html")
    for is_dark in (False, True):
        screen.open(page, "#/groups", is_dark=is_dark)
        assert screen.run("document.querySelectorAll('.cells span').length") == 21
        screen.check(page)
    assert screen.run("document.title") == "colours: groups · Treadle"


def test_groups_are_read_in_parts_and_say_why_a_rollout_is_the_best(tmp_path: Path, screen: Screen) -> None:
    job = ("--task", "files:csv_sum-*", "--group-size", "3", "--groups", "14", "--model", "oracle:0.9")
    made = Cli(tmp_path)("rollout", *job, "--reward", "check=1", "--reward", "tool_use=1", "--out", "r")
    assert made.code == 0, made
    with serve(tmp_path, "r") as url:
        screen.open(f"{url}&/groups?order=-mean")
        screen.wait("document.querySelector('[role=search] [aria-live]').innerText === 'all 14 groups'")
        assert [
            address.partition("?")[2] for address in screen.browser.requests if "view/rollouts?" in address
        ][:2] == ["after=0&limit=12", "after=12&limit=60"]
        means = screen.run(
            "[...document.querySelectorAll('.line')].map(one => parseFloat(one.children[3].innerText))"
        )
        assert means == sorted(means, reverse=True)
        screen.run("document.querySelector('.line:last-child').click()")
        screen.wait("document.querySelectorAll('.sidehead section').length === 3")
        screen.type('[aria-label="Order of the rollouts"]', "the best and the worst")
        screen.wait("document.querySelectorAll('.sidehead section').length === 2")
        heads = screen.run("[...document.querySelectorAll('.sidehead section')].map(one => one.innerText)")
        rewards = [float(head.split()[2]) for head in heads]
        assert rewards == sorted(rewards, reverse=True)
        # The reasons come with the messages.
        screen.wait(
            "document.querySelector('.sidehead').innerText.match(/calls are well-formed/g).length === 2"
        )
        screen.check()


def test_rollouts_say_that_their_server_is_gone_and_ask_for_its_new_key(
    tmp_path: Path, screen: Screen
) -> None:
    job = ("--task", "files:csv_sum-*", "--group-size", "2", "--groups", "2", "--model", "oracle:0.9")
    assert Cli(tmp_path)("rollout", *job, "--out", "r").code == 0
    with serve(tmp_path, "r") as url:
        screen.open(f"{url}&/groups")
        screen.wait("document.querySelectorAll('.line').length === 2")
        port = urlsplit(url).port
    screen.wait("document.querySelector('[role=alert]')?.innerText.includes('does not answer')")
    assert screen.run("document.querySelectorAll('.line').length") == 2
    with serve(tmp_path, "r", "--port", str(port)) as url:
        screen.wait("document.querySelector('#token')")
        screen.type("#token", url.partition("token=")[2])
        screen.run("document.querySelector('.status button').click()")
        screen.browser.wait_loaded()
        screen.wait("!document.querySelector('#token') && document.querySelectorAll('.line').length === 2")


def test_topics_and_two_datasets_are_shown(tmp_path: Path, screen: Screen) -> None:
    graph = tree(3, 2)
    leaf = next(graph.leaves())
    leaf.text, leaf.error = EVIL, LONG
    page = write_page(make_topics_view(graph, {leaf.topic_id: 5}), tmp_path / "t.html")
    screen.open(page)
    screen.wait("document.querySelectorAll('.topiclines li').length === 10")
    assert EVIL in screen.run("document.body.innerText")
    screen.check(page)
    one, other = evil_folder(tmp_path / "one"), made.plain_folder(tmp_path / "other", 20)
    page = write_page(compare_datasets(one, other), tmp_path / "c.html")
    screen.open(page, width=900)
    text = screen.run("document.body.innerText")
    for words in ("rows that are equal\n20", "rows of the first one only\n12", "s000029"):
        assert words in text
    screen.check(page)
    screen.run("document.querySelector('.ids a').click()")
    screen.wait(f"{ROWS} === 1")


def test_a_row_leads_to_a_run_of_its_own_dataset_only(tmp_path: Path, screen: Screen) -> None:
    """The runs of two datasets have the same ids, and the server has the journal of the first."""
    for name in ("one", "other"):
        made.plain_folder(tmp_path / name, 5)
    with serve(tmp_path, "one", "other") as url:
        for number, links in ((0, 1), (1, 0)):
            screen.open(f"{url}&/rows/{number}?row=k2")
            screen.wait("document.querySelector('.opened .facts')?.innerText.includes('run')")
            assert screen.run("document.querySelectorAll('.opened .facts a').length") == links


def test_a_served_dataset_is_searched_and_grows(tmp_path: Path, screen: Screen) -> None:
    dataset = evil_folder(tmp_path / "d", 1_200)
    with serve(tmp_path, "d") as url:
        screen.open(url)
        screen.wait("document.querySelector('.map button')")
        screen.run("location.hash = '#/rows/0'")
        said = "document.querySelector('[role=search] [aria-live]').textContent"
        screen.wait(f"{said} === 'all 1,206 rows'")
        screen.press("G")
        screen.wait("Number(document.querySelector('.table').getAttribute('aria-rowcount')) > 600")
        screen.type("#search", "FILE 1199?")
        screen.wait(f"{said} === '1 of 1,206 rows'")
        screen.run("document.querySelector('.table .line').click()")
        screen.wait("document.querySelector('.opened .msg-call')")
        with DatasetFolder(dataset).rows.open("ab") as file:
            file.write(made.encode(made.plain_row(9_999)))
        screen.type("#search", "FILE 9999?")
        screen.wait(f"{said} === '1 of 1,207 rows'")
        screen.check()


def test_an_evaluation_shows_scores_tasks_and_failures(tmp_path: Path, screen: Screen) -> None:
    cli = Cli(tmp_path)
    models = ("--model", "oracle", "--model", "oracle:0.3")
    for name in ("one", "two"):
        made = cli(
            "eval", "--task", "files:csv_sum-000*", *models, "--limit", "4", "--name", name, "--out", name
        )
        assert made.code == 0, made
    written = cli("report", "one", "--out", "e.html")
    assert (written.code, written.out) == (0, "e.html\n")
    screen.open(page := tmp_path / "e.html")
    text = screen.run("document.body.innerText")
    for words in ("samples graded", "Differences on the same tasks", "csv_sum", "Score against cost"):
        assert words.lower() in text.lower(), words
    assert screen.run("document.querySelectorAll('.matrix tbody tr').length") == 4
    # A kind of failures that leaves out what varies is told with an example.
    kinds = screen.run("[...document.querySelectorAll('.kind')].map(one => one.innerText)")
    assert all("such as: " in kind for kind in kinds if "…" in kind)
    # The names stand beside their points.
    far = "Math.abs(one.querySelector('text').y.baseVal[0].value - one.querySelector('circle').cy.baseVal.value)"
    assert screen.run(f"Math.max(...[...document.querySelectorAll('.scatter g')].map(one => {far}))") < 20
    screen.check(page)
    screen.open(page, width=400, is_dark=True)
    screen.check(page)
    screen.run("document.querySelector('.matrix tbody a').click()")
    screen.wait("document.querySelector('main').innerText.includes('Transcript')")
    screen.check(page)
    # Two clicks lead to the two runs in which the models differ most.
    screen.open(page)
    screen.run("document.querySelector('#scores table.plain a').click()")
    screen.wait("document.querySelector('#grid select').value === 'oracle − oracle:0.3'")
    apart = screen.run("[...document.querySelectorAll('#grid tbody tr')].map(row => row.cells[3].innerText)")
    assert len(apart) == 4
    assert apart == sorted(apart, key=lambda text: -abs(float(text)))
    screen.check(page)
    screen.run("document.querySelector('#grid .side a').click()")
    screen.wait("document.querySelectorAll('.sides .side').length === 2")
    screen.check(page)
    assert cli("report", "one", "two", "--out", "both.html").code == 0
    screen.open(page := tmp_path / "both.html")
    assert "two" in screen.run("document.body.innerText")
    assert screen.run("document.querySelectorAll('#both tbody tr').length") == 4
    assert "treadle view" not in screen.run("document.querySelector('.overview').innerText")
    screen.check(page)
    screen.run("[...document.querySelectorAll('#both tbody tr')][0].cells[4].querySelector('a').click()")
    screen.wait("document.querySelector('main').innerText.includes('Transcript')")
    (tmp_path / "two" / "runs.db").rename(tmp_path / "elsewhere.db")
    assert cli("report", "one", "two", "--out", "both.html").code == 0
    screen.open(page)
    assert "treadle view two" in screen.run("document.querySelector('.overview').innerText")
    # Nobody named these two.
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert cli("report", "one", "copy", "--out", "same.html").code == 0
    screen.open(tmp_path / "same.html")
    assert screen.run("document.querySelector('h1').innerText") == "one and copy"
    assert "copy: Scores" in screen.run("document.body.innerText")


@NEEDS_VIEWER
def test_a_folder_of_folders_is_no_journal(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    evil_folder(tmp_path / "datasets" / "small", 3)
    for command in (["view", "--no-open"], ["report"]):
        refused = cli(*command, "datasets")
        assert refused.code == 2
        assert "did you mean 'datasets/small'?" in refused.err
    written = cli("report", "datasets/small", "--out", "datasets")
    assert written.code == 2
    assert "cannot write 'datasets': it is a folder; name a file in it" in written.err
    written = cli("report", "datasets/small", "--out", ".")
    assert written.code == 2


@NEEDS_VIEWER
def test_a_configuration_that_is_not_trusted_is_said(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    assert cli("run", "hello", "--model", "mock:echo").code == 0
    far = '[models.far]\nmodel = "openai:x"\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "FAR_KEY"\n'
    cli.write("treadle.toml", f'{far}[agents.clerk]\nmodel = "far"\n')
    process = cli.start("view", "--no-open", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http")
    process.kill()
    _, err = process.communicate(timeout=30)
    assert "treadle.toml' are left out, because the file is not trusted" in err


def test_a_report_on_two_evaluations_has_the_runs_of_both(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    for name in ("one", "two"):
        made = cli(
            *("eval", "--task", "files:csv_sum-0001", "--model", "oracle", "--name", name, "--out", name)
        )
        assert made.code == 0, made
    page = make_evaluation_page([tmp_path / "one", tmp_path / "two"])
    assert page.view.has_runs == (True, True)
    for found in page.view.evaluations:
        (sample,) = found.samples
        assert f"/v1/view/runs/{sample.run_id}/events" in page.runs
    listed: Any = page.runs["/v1/runs"]
    assert len(listed["data"]) == 2


def test_a_report_on_two_evaluations_with_one_name_has_the_runs_of_the_first(tmp_path: Path) -> None:
    """The ids of runs begin with the name of their evaluation."""
    cli = Cli(tmp_path)
    for folder, model in (("one", "oracle"), ("two", "oracle:0")):
        assert cli("eval", "--task", "files:csv_sum-0001", "--model", model, "--out", folder).code == 0
    page = make_evaluation_page([tmp_path / "one", tmp_path / "two"])
    assert page.view.has_runs == (True, False)
    listed: Any = page.runs["/v1/runs"]
    assert [run["reward"] for run in listed["data"]] == [1.0]


def test_evaluations_from_elsewhere_are_shown_together_with_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read from the journal that they name."""
    cli = Cli(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("mine", "theirs"):
        given = ("--name", name, "--out", name, "--journal", "runs.db")
        made = cli("eval", "--task", "files:csv_sum-0001", "--model", "oracle", *given)
        assert made.code == 0, made
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    assert ViewedData([mine, theirs]).evaluation().has_runs == (True, True)
    with sqlite3.connect(EvaluationFolder(theirs).ledger) as db:
        assert db.execute("DELETE FROM meta WHERE name = ?", (EvaluationFolder.SEAL,)).rowcount == 1
    db.close()
    assert ViewedData([mine, theirs]).evaluation().has_runs == (True, False)
    assert ViewedData([theirs]).evaluation().has_runs[0]  # the server was given their journal
