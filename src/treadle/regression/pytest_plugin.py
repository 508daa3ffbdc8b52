"""The plugin of pytest: recordings are tests, and the fixture `treadle_run` replays one within a test.

Treadle itself is imported only when a recording is run.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from treadle.regression.regression_suite import RecordingOutcome

_ENDING = ".run.json"
_OPTIONS = {
    "update": "replace the recordings of agents that differ",
    "trust": "let recordings start programs and import files",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("treadle", "recorded runs of agents")
    for name, help in _OPTIONS.items():
        group.addoption(f"--treadle-{name}", action="store_true", help=help)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "treadle_run(recording, agent): replay a recording against an agent first"
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let a test with the marker use the fixture."""
    names = getattr(item, "fixturenames", None)
    if (
        names is not None
        and item.get_closest_marker("treadle_run") is not None
        and "treadle_run" not in names
    ):
        names.append("treadle_run")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "RecordingFile | None":
    if not file_path.name.endswith(_ENDING):
        return None
    return RecordingFile.from_parent(parent, path=file_path)


class RecordingFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        """Yield its only test."""
        yield RecordingItem.from_parent(self, name=self.path.name.removesuffix(_ENDING))


class RecordingItem(pytest.Item):
    """The test of a recording against the agent that treadle.toml names."""

    def runtest(self) -> None:
        """Raises: `AgentDiffersError`."""
        check_recording(self.path, None, self.config)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what differs, without a traceback."""
        if isinstance(excinfo.value, AgentDiffersError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the place and the name of the test."""
        return self.path, 0, f"recording {self.name}"


class AgentDiffersError(AssertionError):
    """Raised if an agent differs from a recording, or the recording cannot be tested."""


def check_recording(path: Path, agent: Any, config: pytest.Config) -> "RecordingOutcome":
    """Replay a recording against `agent`, by default the one of treadle.toml, and return the outcome.

    Raises: `AgentDiffersError` that shows the first request that differs.
    """
    __tracebackhide__ = True
    from treadle.core.errors import ConfigError
    from treadle.models.config.recipe import load_config
    from treadle.regression.regression_suite import Suite, run_recording

    update, trust = [config.getoption(f"--treadle-{name}") for name in _OPTIONS]
    try:
        suite = Suite.of_config(load_config(), is_updating=update, is_trusted=trust)
    except ConfigError as error:
        raise AgentDiffersError(str(error)) from None
    with ThreadPoolExecutor(1) as thread:  # the test may be a coroutine, whose event loop runs
        outcome = thread.submit(asyncio.run, run_recording(suite, path, agent)).result()
    if outcome.error is not None:
        raise AgentDiffersError(f"{outcome.name}: {outcome.error}")
    if outcome.has_failed:
        title, _, rest = outcome.text().partition("\n")
        place = f"{path}:{outcome.line} (-: recorded, +: now)"
        advice = "If the change is intended, accept it with: pytest --treadle-update"
        raise AgentDiffersError(f"{outcome.name}: {title}\n{place}\n{rest}\n\n{advice}")
    return outcome


@pytest.fixture
def treadle_run(request: pytest.FixtureRequest) -> "Callable[..., RecordingOutcome]":
    """Return a function that replays a recording against an agent: `treadle_run("euro", agent)`.

    The recording is named by its path, or by its name in `agent_runs` beside the test. The marker of the same name
    replays before the test begins.
    """
    folder = request.path.parent

    def replay(recording: str | Path, agent: Any = None) -> "RecordingOutcome":
        __tracebackhide__ = True
        given = Path(recording)
        path = given if given.name.endswith(_ENDING) else folder / "agent_runs" / f"{recording}{_ENDING}"
        return check_recording(path if path.is_absolute() else folder / path, agent, request.config)

    marker = request.node.get_closest_marker("treadle_run")
    if marker is not None:
        try:
            replay(*marker.args, **marker.kwargs)
        except AgentDiffersError as error:  # no line of the test has run, so there is nothing to trace
            raise pytest.fail.Exception(str(error), pytrace=False) from None
    return replay
