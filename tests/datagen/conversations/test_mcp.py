"""Samples whose tools come from a real MCP server."""

import os
import subprocess
import sys
from pathlib import Path

from tests.datagen.conversations.cast import SCENARIO, Cast, facts_of, spec, texts, think

from treadle.core.types import Request, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.scenarios.environment import Environments
from treadle.datagen.scenarios.scenario import Environment, Kind
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import call
from treadle.tools.mcp import MCPServer
from treadle.trajectory.run_verification import verify_run

OLD = "2020-01-02T03:04:05Z"


async def test_the_calls_of_a_sample_reach_a_real_server(tmp_path: Path) -> None:
    """All samples share one connection, which the studio closes, and each call can be verified."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a.txt").write_text("text\n")
    subprocess.run([*git, "add", "a.txt"], check=True)
    # A result with the time at which it was made would not be verified.
    dates = {"GIT_AUTHOR_DATE": OLD, "GIT_COMMITTER_DATE": OLD}
    subprocess.run([*git, "commit", "-qm", "begin with a text"], check=True, env=os.environ | dates)
    where = {"repo_path": str(tmp_path)}

    def agent(request: Request):
        if request.messages[-1].role is Role.TOOL:
            return "The newest commit begins with a text."
        return think("I look at both.", call("git_log", where), call("git_status", where))

    cast = Cast(agent, [{**SCENARIO, "message": "What was committed last, and is the tree clean?"}])
    server = MCPServer(sys.executable, args=["-m", "mcp_server_git", "--repository", str(tmp_path)])
    config = GenerationConfig.model_validate({"topics": {"prompt": "git"}})
    studio = Studio(config, {"default": cast.model}, MemoryJournal(), Environments(Environment(), (server,)))
    made = [await make_sample(studio, spec(kind=Kind.PARALLEL, number=number)) for number in (1, 2)]
    facts = facts_of(cast.asked["scenario"][0])
    assert facts is not None
    assert "git_log" in [item["name"] for item in facts["tools"]]
    for item in made:
        assert item.row is not None, item.error
        assert "begin with a text" in texts(item.row.messages)[2]
        assert item.row.lineage.sample is not None
        assert item.row.lineage.sample.kinds == ("parallel",)
        assert (await verify_run(studio.journal, item.run_id, [server])).is_verified
    await studio.close()
