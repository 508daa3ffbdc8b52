"""The agents that a server keeps, and the connections of those that it drops."""

import asyncio
import json
import os
import shlex
from pathlib import Path

import pytest
from tests.forks.process import FORKS, command_of

from treadle import open_journal
from treadle.journal.protocol import Journal
from treadle.server.api_server import load_served
from treadle.server.catalog import AgentCatalog, ClientWish

SERVER = """
import os, sys, time
from pathlib import Path
from mcp.server.mcpserver import MCPServer

made = MCPServer("waits")

@made.tool()
def wait(seconds: float) -> str:
    "Wait."
    Path(sys.argv[1], f"called-{os.getpid()}").touch()
    time.sleep(seconds)
    return "waited"

Path(sys.argv[1], str(os.getpid())).touch()
made.run("stdio")
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def wait_until_over(pid: int) -> None:
    async with asyncio.timeout(60):
        while is_alive(pid):
            await asyncio.sleep(0.02)


@pytest.fixture
def journal(tmp_path: Path):
    with open_journal(tmp_path / "runs.db") as opened:
        yield opened


async def test_an_agent_that_is_dropped_leaves_its_servers(tmp_path: Path, journal: Journal) -> None:
    """A run that is under way keeps them, from one call to the next."""
    started = tmp_path / "started"
    started.mkdir()
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    variables = [f"{name}={value}" for name, value in FORKS.variables().items()]
    server = f"mcp:{shlex.join([*variables, *command_of(program), str(started)])}"
    file = tmp_path / "treadle.toml"
    file.write_text(f'[agents.slow]\nmodel = "mock:echo"\ntools = [{json.dumps(server)}]\n')
    catalog = AgentCatalog(load_served(file, None).config, journal, ("slow",), max_agents=1)

    async def make(temperature: float) -> int:
        before = set(os.listdir(started))
        await catalog.open_agent("slow", ClientWish(settings={"temperature": temperature}))
        return int((set(os.listdir(started)) - before).pop())

    first = await make(0.1)
    agent = await catalog.open_agent("slow", ClientWish(settings={"temperature": 0.1}))
    calls = 'call wait {"seconds": 0.2}\nthen\ncall wait {"seconds": 0.2}\nthen\nsay done'
    running = asyncio.ensure_future(agent.run(calls))
    del agent
    while not (started / f"called-{first}").exists():
        await asyncio.sleep(0.01)
    second = await make(0.2)  # the first agent is dropped
    assert is_alive(first)
    assert (await running).output == "done"
    del running
    await wait_until_over(first)
    assert is_alive(second)
    assert len([name for name in os.listdir(started) if name.isdigit()]) == 2
    await make(0.3)
    await wait_until_over(second)
    await catalog.close()
