"""The examples of the README and of the documentation run, against a mock server in place of the providers'."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.page import blocks
from tests.forks.process import FORKS

from treadle.cli.jobs.machine_checks import read_extras, read_requirements
from treadle.runs.options import AgentOptions
from treadle.testbed.server import ServerSettings
from treadle.testbed.server.oracle_app import HttpReply, OracleApp
from treadle.testbed.server.serving import ServerConnection

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "tests" / "forks"
"""The folder of a command `treadle` that starts without importing anything."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = json.loads((Path(__file__).parent / "scripts.json").read_text())
"""What the mock server is told in place of a user's message, if it has to do more than answer."""


PETSTORE = """
openapi: 3.1.0
info: {title: Pets, version: "1"}
servers: [{url: "https://pets.example.org"}]
paths:
  /pets: {get: {operationId: listPets, responses: {"200": {description: ok}}}}
  /pets/{id}:
    get:
      operationId: getPet
      parameters: [{name: id, in: path, required: true, schema: {type: string}}]
      responses: {"200": {description: ok}}
components: {securitySchemes: {apiKey: {type: apiKey, in: header, name: X-Key}}}
"""


class DocsApp(OracleApp):
    """The mock server, with the scripts of the examples."""

    def answer(self, method: str, path: str, body: bytes) -> HttpReply:
        """See `OracleApp.answer`."""
        if path == "/v1/chat/completions":
            asked: Any = json.loads(body)
            for message in asked["messages"]:
                if isinstance(message.get("content"), str):
                    message["content"] = SCRIPTS.get(message["content"], message["content"])
            body = json.dumps(asked).encode()
        return super().answer(method, path, body)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a mock server in a thread."""
    started: list[Any] = []
    ready = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        connections: set[ServerConnection] = set()
        app = DocsApp(ServerSettings())
        listening = await loop.create_server(lambda: ServerConnection(app, connections), "127.0.0.1", 0)
        stop = asyncio.Event()
        started.extend([loop, stop, listening.sockets[0].getsockname()[1]])
        ready.set()
        await stop.wait()
        listening.close()
        for connection in list(connections):
            connection.abort()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield f"http://127.0.0.1:{started[2]}/v1"
    started[0].call_soon_threadsafe(started[1].set)
    thread.join()


@pytest.mark.sets(15)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, server: str, tmp_path: Path) -> None:
    if page.name not in ("README.md", "index.md"):  # which a newcomer reads in an empty folder
        (tmp_path / "reports").mkdir()
        (tmp_path / "reports" / "june.txt").write_text("Sales went up.\n")
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    (tmp_path / "petstore.yaml").write_text(PETSTORE)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_", "OPENAI_"))}
    env |= {
        "PATH": os.pathsep.join([str(COMMANDS), str(Path(sys.executable).parent), env["PATH"]]),
        **FORKS.variables(),
        "OPENAI_API_KEY": "key",
        "OPENAI_BASE_URL": server,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    done = FORKS.start("-m", "tests.docs.page", str(page), cwd=tmp_path, env=env, stderr=subprocess.PIPE)
    _, told = done.communicate()
    assert done.returncode == 0, told


def test_the_tables_are_up_to_date() -> None:
    script = "import runpy; runpy.run_path({!r}, run_name='__main__')".format(
        str(ROOT / "docs" / "reference.py")
    )
    done = FORKS.start("-c", script, "--check", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    told, _ = done.communicate()
    assert done.returncode == 0, told


def test_no_table_is_empty() -> None:
    """Rules out a page with a table that nothing writes."""
    for page in PAGES:
        for place in re.findall(r"<!-- table: .*? -->\n(.*?)<!-- end -->", page.read_text(), re.DOTALL):
            assert place.count("\n") > 3, page.name


def test_every_extra_is_told() -> None:
    """In the list of extras, by `treadle doctor`, and in `all`."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    users = set(found) - {"all", "dev", "train-tests", "docs", "fuzz"}
    assert set(read_extras()) == users
    (everything,) = found["all"]
    assert set(everything.removeprefix("treadle[").removesuffix("]").split(",")) == users
    assert all(read_requirements()[name] for name in users)


def test_every_option_of_an_agent_is_told() -> None:
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs" / "agents.md").read_text().splitlines()
        if line[:3] == "| `"
    ]
    told = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert AgentOptions.__optional_keys__ <= told


def test_every_page_is_in_the_site() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages == set(re.findall(r": ([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text()))


def test_few_examples_are_left_out() -> None:
    found = [(page.name, *block) for page in PAGES for block in blocks(page)]
    left_out = [block for block in found if block[-1] is not None]
    assert len(found) > 30
    assert len(left_out) <= len(found) / 4, left_out
