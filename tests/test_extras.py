"""The extras: `all` has each of them, and each brings what it needs into an environment that has nothing else."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.renderers.kinds import make

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
FOR_DEVELOPERS = {"dev", "train-tests", "docs", "fuzz"}
EXTRAS = sorted(PROJECT.keys() - FOR_DEVELOPERS)
USES = {
    "speed": "import uvloop; from treadle import Agent, ScriptedModel; Agent(ScriptedModel(['x'])).run_sync('y')",
    "mcp": "from treadle.core.registry import require\n"
    "for name in ('mcp', 'mcp_types', 'httpx2', 'mcp.client.sse', 'mcp.client.streamable_http', 'mcp.server.stdio',"
    " 'mcp.server.lowlevel'): require(name, 'mcp')",
    "python": "from treadle.core.registry import require; require('pydantic_monty', 'python')",
    "serve": "import uvicorn, starlette.applications, starlette.routing, python_multipart",
    "cost": "from treadle import Agent, model; model('openai:gpt-5-mini', api_key='x')\n"
    "from treadle.core.registry import require; require('genai_prices', 'cost')",
    "keyring": "import keyring",
    "memory": "import numpy",
    "pdf": "import pypdf",
    "data": "import pyarrow, pyarrow.parquet",
    "hub": "import huggingface_hub.errors, huggingface_hub.utils, six\nfrom importlib.util import find_spec\n"
    "assert find_spec('kaggle')",
    "otel": "from treadle.telemetry.open_telemetry import OpenTelemetry; OpenTelemetry()",
    "tensorboard": "from treadle.telemetry.curves import open_curves; open_curves(['tensorboard'], 'x').close()",
    "trackio": "import trackio",
    "wandb": "import wandb",
    "postgres": "import psycopg; assert psycopg.pq.__impl__ == 'binary'",
    "ray": "import ray",
    "train": "import sys; from treadle.renderers.registry import load_renderer\n"
    "from treadle.core.types import Message, Role\n"
    "for name in sys.argv[1:]:\n"
    "    renderer = load_renderer(name)\n"
    "    ids = renderer.render([Message(Role.USER, 'hello')], ())\n"
    "    assert 'hello' in renderer.decode(ids), name",
}
"""What uses each extra, in Python; the arguments are names of renderers."""


def test_all_has_every_extra_for_users():
    (everything,) = PROJECT["all"]
    assert set(everything.removeprefix("treadle[").removesuffix("]").split(",")) == {*EXTRAS} - {"all"}
    assert USES.keys() == {*EXTRAS} - {"all"}


@pytest.mark.full
@pytest.mark.parametrize("extra", USES)
def test_an_extra_alone_brings_what_it_needs(extra, tmp_path):
    """Rules out that a feature works only because another extra, or a package for the tests, is there too."""
    renderers = [make("family:qwen3").name, make("hf:qwen").name]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{ROOT}[{extra}]"], check=True, timeout=900)
    used = subprocess.run(
        [python, "-c", USES[extra], *renderers], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert used.returncode == 0, used.stderr
