"""MCP servers made by others that need no network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, ScriptedModel
from treadle.core.types import Role
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.mcp import MCPServer, mcp
from treadle.trajectory.run_verification import verify_run

NPM_VERSION = "2026.8.31"


async def run(tools: Any, *steps: Any) -> tuple[Any, list[str]]:
    journal = MemoryJournal()
    run = await Agent(ScriptedModel([*steps, "done"]), tools=[tools], journal=journal).run("go")
    assert (await Agent(ScriptedModel([]), journal=journal).replay(run.run_id)).is_exact
    assert run.output == "done"
    return (journal, run.run_id), [message.content for message in run.messages if message.role is Role.TOOL]


@pytest.mark.sets(0)
async def test_the_time_server_of_pypi() -> None:
    arguments = {"time": "12:00", "source_timezone": "Europe/Oslo", "target_timezone": "Asia/Tokyo"}
    async with MCPServer(sys.executable, args=["-m", "mcp_server_time"]) as server:
        assert {tool.spec.name for tool in server.tools()} == {"get_current_time", "convert_time"}
        _, results = await run(
            server,
            [call("convert_time", arguments)],
            [call("convert_time", {**arguments, "target_timezone": "Nowhere/City"})],
        )
    assert "Asia/Tokyo" in results[0]
    assert "Nowhere/City" in results[1]


@pytest.mark.full
async def test_the_git_server_of_pypi(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a.txt").write_text("text\n")
    subprocess.run([*git, "add", "a.txt"], check=True)
    # A commit of this moment would count as a result that shows the clock.
    date = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2024-05-06T07:08:09Z")
    subprocess.run([*git, "commit", "-qm", "begin with a text"], check=True, env=os.environ | date)
    command = f"{sys.executable} -m mcp_server_git --repository {tmp_path}"
    async with mcp(command) as servers:
        (journal, run_id), results = await run(
            servers,
            [call("git_log", {"repo_path": str(tmp_path)}), call("git_status", {"repo_path": str(tmp_path)})],
        )
        assert "begin with a text" in results[0]
        assert "nothing to commit" in results[1]
        effects = {tool.spec.name: tool.spec.effect for tool in servers.tools()}
        verified = await verify_run(journal, run_id, [servers])
        assert (verified.matched, verified.differences) == (2, ())
    assert effects["git_log"] == "pure"
    assert effects["git_commit"] == "once"


@pytest.fixture(scope="session")
def from_npm(pytestconfig: pytest.Config) -> Path:
    """The folder of the npm servers, which are installed once, beside pytest's cache."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("there is no npm here, from which this server comes")
    folder = Path(pytestconfig.cache.mkdir("npm-servers"))
    script = folder / "node_modules/@modelcontextprotocol/server-memory/dist/index.js"
    if not script.exists():
        package = f"@modelcontextprotocol/server-memory@{NPM_VERSION}"
        options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--silent"]
        try:
            done = subprocess.run(
                [npm, "install", *options, package], capture_output=True, text=True, timeout=90
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm could not reach its registry for {package}")
        if done.returncode:
            pytest.skip(f"npm could not install {package}: {done.stderr[-300:]}")
    return script


@pytest.mark.full
async def test_the_memory_server_of_npm(from_npm: Path, tmp_path: Path) -> None:
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
    entity = {"name": "Ann", "entityType": "person", "observations": ["likes looms"]}
    async with MCPServer("node", args=[str(from_npm)], env=env) as server:
        _, results = await run(
            server,
            [call("create_entities", {"entities": [entity]})],
            [call("search_nodes", {"query": "looms"}), call("open_nodes", {"names": "Ann"})],
        )
    assert "Ann" in results[1]
    assert "names" in results[2]
