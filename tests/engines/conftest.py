"""The engine of these tests, which `make test-engines` installs. Without it, they are skipped.

Variables: `TREADLE_ENGINES` is the folder of the environment, and `TREADLE_WORKER_MODEL` that of a model that calls
tools; without it, a tiny model is made in the environment's folder. `TREADLE_VLLM_URL` names a server that runs
already with that model, so that none is started.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engines.recorder import Recorder, record
from tests.engines.vllm_server import VllmServer, make_tiny_model, serve
from tests.environments import is_ready

ENVIRONMENT = os.environ.get("TREADLE_ENGINES")
RUNNING = os.environ.get("TREADLE_VLLM_URL")
WORKER = os.environ.get("TREADLE_WORKER_MODEL")


@pytest.fixture(scope="session")
def environment() -> Path:
    """The folder of the engine's environment."""
    if not ENVIRONMENT or not is_ready("engines", Path(ENVIRONMENT)):
        pytest.skip("these tests need a real engine; run `make test-engines`, which installs one")
    return Path(ENVIRONMENT).resolve()


@pytest.fixture(scope="session")
def vllm(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server with the worker model or the tiny one."""
    model = Path(WORKER).resolve() if WORKER else make_tiny_model(environment, environment / "tiny")
    if RUNNING:
        with closing(VllmServer(environment, model, RUNNING)) as server:
            yield server
        return
    with serve(environment, model, tmp_path_factory.mktemp("engine") / "vllm.log") as server:
        yield server


@pytest_asyncio.fixture
async def recorder(vllm: VllmServer) -> AsyncIterator[Recorder]:
    """A proxy before the server that keeps what it says."""
    async with record(vllm.url) as found:
        yield found
