"""The engines of these tests, which `make test-engines` installs. Without them, they are skipped.

Variables: `TREADLE_ENGINES` is the folder of the environment with vLLM, `TREADLE_SGLANG` that with SGLang, and
`TREADLE_WORKER_MODEL` that of a model that calls tools; without it, a tiny model is made in the first environment.
`TREADLE_VLLM_URL` and `TREADLE_SGLANG_URL` name servers that run already with that model, so that none is started,
and `TREADLE_LANGUAGE_URL` one with the language model.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conftest import LONG_SECONDS
from tests.engines.engine_server import EngineServer, make_tiny_model, serve
from tests.engines.recorder import Recorder, record
from tests.environments import is_ready

WORKER = os.environ.get("TREADLE_WORKER_MODEL")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give these tests the time of long forms: on a busy machine, an engine starts within minutes."""
    item.add_marker(pytest.mark.timeout(LONG_SECONDS))


@pytest.fixture(scope="session")
def environment() -> Path:
    """The folder of the environment with vLLM, which also makes models."""
    return _find_environment("engines", "TREADLE_ENGINES")


def _find_environment(name: str, variable: str) -> Path:
    folder = os.environ.get(variable)
    if not folder or not is_ready(name, Path(folder)):
        pytest.skip(
            f"these tests need a real engine; run `make test-engines`, which installs one ({variable})"
        )
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def vllm(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """vLLM with the worker model or the tiny one."""
    log = tmp_path_factory.mktemp("engine") / "vllm.log"
    yield from _serve("vllm", environment, _find_model(environment), log)


@pytest.fixture(scope="session")
def sglang(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """SGLang with the same model."""
    own = _find_environment("sglang", "TREADLE_SGLANG")
    log = tmp_path_factory.mktemp("engine") / "sglang.log"
    yield from _serve("sglang", own, _find_model(environment), log)


@pytest.fixture(scope="session")
def seeded(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """SGLang, started so that it does not ignore seeds."""
    own = _find_environment("sglang", "TREADLE_SGLANG")
    log = tmp_path_factory.mktemp("engine") / "seeded.log"
    yield from _serve("seeded", own, _find_model(environment), log)


def _find_model(environment: Path) -> Path:
    return Path(WORKER).resolve() if WORKER else make_tiny_model(environment, environment / "tiny")


def _serve(engine: str, environment: Path, model: Path, log: Path) -> Iterator[EngineServer]:
    if running := os.environ.get(f"TREADLE_{engine.upper()}_URL"):
        with closing(EngineServer(environment, model, running)) as server:
            yield server
        return
    with serve(environment, model, log, engine=engine) as server:
        yield server


@pytest.fixture
def endpoint() -> str:
    """The endpoint of tests that are for one of them."""
    return "vllm_completions"


@pytest.fixture
def engine(request: pytest.FixtureRequest, endpoint: str) -> EngineServer:
    """The engine with an endpoint."""
    found: EngineServer = request.getfixturevalue(endpoint.partition("_")[0])
    return found


@pytest_asyncio.fixture
async def recorder(engine: EngineServer) -> AsyncIterator[Recorder]:
    """A proxy before the engine that keeps what it says."""
    async with record(engine.url) as found:
        yield found
