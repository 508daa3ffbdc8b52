"""The test of recordings: which agent each is for, its replay or its live runs, and what is updated.

`treadle test` and the plugin of pytest call `run_recording` for each file.
"""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, MistakesError, TreadleError, UntrustedError
from treadle.core.registry import did_you_mean
from treadle.core.spec import PartSpec
from treadle.journal.memory import MemoryJournal
from treadle.models.config.bare import NEEDS_KEYS
from treadle.models.config.recipe import Config, make_model
from treadle.models.config.tables import RegressionTable
from treadle.regression.live_scores import LiveScores, score_live
from treadle.regression.recorded_parts import ToolReplay
from treadle.regression.recorded_runs import (
    ENDING,
    RecordedRun,
    Redaction,
    compile_patterns,
    find_recordings,
    read_recording,
    write_recording,
)
from treadle.regression.replay_agent import ReplaySettings, replay_recording
from treadle.regression.request_differences import Divergence, Normalize
from treadle.runs.agent_parts import demands_of
from treadle.runs.resume import load_task_of
from treadle.scoring.registry import read_rewards
from treadle.tools.threads import THREADS
from treadle.tools.toolset_parts import load_reference, refuse_async, told
from treadle.tools.user_code import describe_error


class Suite(Struct, frozen=True, kw_only=True):
    """The recordings of a project, and how they are tested."""

    table: RegressionTable
    """The settings, with what options changed."""
    base: Path = Path()
    """The folder that the paths in the settings are relative to."""
    is_updating: bool = False
    """True if recordings are replaced by the runs of today."""
    is_live: bool = False
    """True if the model of today is asked."""
    is_trusted: bool = False
    """True if the agents that recordings describe may start programs and import files."""

    @classmethod
    def of_config(cls, config: Config, changes: Mapping[str, Any] = {}, **options: Any) -> "Suite":
        """Return the suite of a treadle.toml. `changes` override keys of its table. Raises: `ConfigError`."""
        modes, tools = [mode.value for mode in ToolReplay], changes.get("tools")
        if tools is not None and tools not in modes:
            raise ConfigError(f"--tools {tools!r}: give one of {', '.join(modes)}")
        if not options.get("is_live"):
            for name in ("samples", "min_score", "must_not_drop"):
                if changes.get(name) is not None and changes[name] is not False:
                    option = f"--{name.replace('_', '-')}"
                    raise ConfigError(
                        f"{option} is about scores, which only --live has; add --live, or leave it out"
                    )
        table = RegressionTable.model_validate({**config.file.test.model_dump(), **changes})
        base = Path.cwd() if config.path is None else config.path.resolve().parent
        # Paths are shown as short as possible.
        suite = cls(table=table, base=Path(os.path.relpath(base)), **options)
        suite.normalizer()
        return suite

    @property
    def folder(self) -> Path:
        return self.base / self.table.folder

    def name_of(self, path: Path) -> str:
        """Return the path of a recording in their folder, without the ending; elsewhere the name of its file."""
        place = os.path.relpath(path, self.folder)
        return (path.name if place.startswith("..") else Path(place).as_posix()).removesuffix(ENDING)

    def path_of(self, name: str) -> Path:
        """Return the file of the recording called `name`. Raises: `ConfigError` if it is outside of the folder."""
        path = self.folder / f"{name}{ENDING}"
        if os.path.relpath(path, self.folder).startswith("..") or path.name == ENDING:
            raise ConfigError(
                f"{name!r} is no name of a recording in {str(self.folder)!r}; leave out '..' and the root"
            )
        return path

    def find(self, places: list[Path], keyword: str | None) -> list[Path]:
        """Return the recordings in files and folders, by default all, whose names have `keyword` in them.

        Raises: `ConfigError` if there are none.
        """
        found: list[Path] = []
        for place in places or [self.folder]:
            found += (
                [place] if place.is_file() else find_recordings(place, lambda name: (keyword or "") in name)
            )
        if not found:
            what = "" if keyword is None else f" with {keyword!r} in their names"
            where = ", ".join([repr(str(place)) for place in places or [self.folder]])
            raise ConfigError(
                f"there are no recordings{what} in {where}; record a run with `treadle test record RUN`"
            )
        return list(dict.fromkeys(found))

    def reference_of(self, name: str) -> str | None:
        """Return how the agent for the recording `name` is named; `None` if the recording describes it."""
        fitting = [agent for pattern, agent in self.table.agents.items() if _fits(name, pattern)]
        return next(iter(fitting), self.table.agent)

    async def check_agents(self, paths: list[Path]) -> None:
        """Load the agents that are named for recordings. Raises: `MistakesError` that names each that fails."""
        counts = Counter(filter(None, [self.reference_of(self.name_of(path)) for path in paths]))
        mistakes = []
        with _offline(not self.is_live):
            for reference, count in counts.items():
                try:
                    await THREADS.run(partial(load_agent, reference, self.base), {})
                except ConfigError as error:
                    mistakes.append(f"{error} (needed for {count} of {len(paths)} recordings)")
        if mistakes:
            raise MistakesError("\n".join(mistakes))

    def find_unused(self, names: Collection[str]) -> Iterator[str]:
        """Yield what is wrong with each pattern in `[test.agents]` that fits none of the recordings."""
        for pattern in self.table.agents:
            if not any(_fits(name, pattern) for name in names):
                hint = did_you_mean(pattern, names, f"there are {', '.join(sorted(names)[:10])}")
                yield f"the pattern {pattern!r} in [test.agents] fits no recording{hint}"

    def normalizer(self) -> Normalize:
        """Return the function that replaces what may differ, and secrets. Raises: `ConfigError`."""
        patterns, redaction = compile_patterns("ignore", self.table.ignore), self.redaction()

        def normalize(text: str) -> str:
            text = redaction.hide(text)
            for pattern in patterns:
                text = pattern.sub("…", text)
            return text

        return normalize

    def redaction(self) -> Redaction:
        """Return the removal of secrets. Raises: `ConfigError`."""
        return Redaction(self.table.redact)


def _fits(name: str, pattern: str) -> bool:
    """Return whether a pattern fits the name of a recording, or its last part."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)


class RecordingOutcome(Struct, frozen=True, kw_only=True):
    name: str
    path: Path
    seconds: float = 0.0
    requests: int = 0
    """How many requests were compared."""
    line: int = 1
    """The line of the file that the divergence is about."""
    divergence: Divergence | None = None
    """Where today's agent differs first; `None` if it does not."""
    error: str | None = None
    """Why the recording could not be tested; `None` if it was."""
    is_updated: bool = False
    """True if the recording was replaced, so that its divergence is accepted."""
    live: LiveScores | None = None
    """The scores of live runs; `None` if the model was not asked."""

    @property
    def has_failed(self) -> bool:
        """True if the test failed by itself, whatever the scores of all recordings say."""
        return self.error is not None or (self.divergence is not None and not self.is_updated)

    def text(self) -> str:
        """Return what a person is shown about a test that failed."""
        return self.error or str(self.divergence)


async def run_recording(
    suite: Suite, path: Path, agent: Agent[Any] | Callable[[], Agent[Any]] | None = None
) -> RecordingOutcome:
    """Test a recording with `agent`, or the one that this function returns; by default with the one that the suite
    names. It raises no error of Treadle."""
    begin, name = time.monotonic(), suite.name_of(path)
    try:
        recorded = await read_recording(path, name)
        suite.redaction().check(recorded)
        with _offline(not suite.is_live):
            if agent is None:
                agent = cast(Agent[Any], await THREADS.run(partial(find_agent, suite, recorded), {}))
            else:
                agent = make_agent(agent, "the agent of the test")
        if suite.is_live:
            specs = read_rewards(suite.table.rewards or {})
            live, journal = await score_live(
                recorded, agent, ToolReplay(suite.table.tools), specs, suite.table.samples
            )
            is_updated = suite.is_updating and journal is not None
            if is_updated and journal is not None:
                await asyncio.to_thread(write_recording, journal, recorded.run_id, path, suite.redaction())
            found = RecordingOutcome(name=name, path=path, live=live, error=live.error, is_updated=is_updated)
        else:
            found = await _replay(suite, recorded, agent)
    except UntrustedError as error:
        found = RecordingOutcome(name=name, path=path, error=error.explain("name the agent, or pass --trust"))
    except TreadleError as error:
        found = RecordingOutcome(name=name, path=path, error=str(error))
    except Exception as error:  # of the agent's own code, such as a function for instructions
        text = describe_error(error)
        found = RecordingOutcome(name=name, path=path, error=text)
    return replace(found, seconds=time.monotonic() - begin)


async def _replay(suite: Suite, recorded: RecordedRun, agent: Agent[Any]) -> RecordingOutcome:
    settings = ReplaySettings(
        tools=ToolReplay(suite.table.tools), normalize=suite.normalizer(), is_accepting=suite.is_updating
    )
    replayed = await replay_recording(recorded, agent, settings)
    divergence = replayed.divergence
    is_updated = divergence is not None and suite.is_updating
    if is_updated:
        await asyncio.to_thread(
            write_recording, replayed.journal, recorded.run_id, recorded.path, suite.redaction()
        )
    return RecordingOutcome(
        name=recorded.name,
        path=recorded.path,
        requests=replayed.requests,
        line=1 if divergence is None else recorded.line_of(divergence.seq),
        divergence=divergence,
        is_updated=is_updated,
    )


@contextmanager
def _offline(is_offline: bool) -> Iterator[None]:
    """Let models be made without API keys in the `with` block, because they are not asked."""
    token = NEEDS_KEYS.set(not is_offline)
    try:
        yield
    finally:
        NEEDS_KEYS.reset(token)


def find_agent(suite: Suite, recorded: RecordedRun) -> Agent[Any]:
    """Return today's agent for a recording: the one that the suite names, or the one that the recording describes,
    made again. Blocks.

    Raises: `ConfigError` if it cannot be made; `UntrustedError` if making it starts programs, imports files, or
    loads a task set from a place that nobody named.
    """
    task = recorded.started.task
    if task is not None and ":" in task.task_set:
        # Whoever wrote the recording named a place, from which code may be imported or an image built.
        _require_trust(suite, recorded, (f"load the task set {task.task_set!r}",))
    reference = suite.reference_of(recorded.name)
    return _rebuild(suite, recorded) if reference is None else load_agent(reference, suite.base)


def load_agent(reference: str, base: Path = Path()) -> Agent[Any]:
    """Return the agent at `file.py:NAME`, whose path is relative to `base`, or `package.module:NAME`. Blocks.

    Raises: `ConfigError`.
    """
    place, colon, _ = reference.rpartition(":")
    if not colon:
        raise ConfigError(
            f"the agent {reference!r} has no name; write it as file.py:NAME or package.module:NAME"
        )
    found = load_reference(f"{base / reference}" if place.endswith(".py") else reference)
    return make_agent(found, f"the agent {reference!r}")


def make_agent(found: Any, what: str) -> Agent[Any]:
    """Return `found`, or the agent that it returns if it is a function. Raises: `ConfigError`."""
    made = found
    if not isinstance(found, Agent) and callable(found):
        refuse_async(found, what)
        with told(what):
            made = found()
    if not isinstance(made, Agent):
        raise ConfigError(f"{what} is {made!r:.100}; name a treadle.Agent, or a function that returns one")
    return made


def _rebuild(suite: Suite, recorded: RecordedRun) -> Agent[Any]:
    spec = recorded.started.spec
    missing = [part.name for part in spec.tools if part.missing is not None]
    missing += [spec.model.name] if spec.model.missing is not None else []
    if missing:
        raise ConfigError(
            f"the recording {recorded.name!r} does not say how its agent is made: {missing[0]!r} is an object of a "
            "program; name the agent, as --agent file.py:NAME or test.agent in treadle.toml"
        )
    asked = spec if suite.is_live else replace(spec, model=PartSpec(name=""))
    _require_trust(suite, recorded, demands_of(asked))
    # The oracle is made for the task that it solves.
    model = make_model(spec.model, task=load_task_of(recorded.started))
    return Agent.from_spec(spec, model=model, journal=MemoryJournal())


def _require_trust(suite: Suite, recorded: RecordedRun, demands: tuple[str, ...]) -> None:
    """Raises: `UntrustedError` if there are demands and nobody trusts them."""
    if demands and not suite.is_trusted:
        why = "is a file, which others may have changed,"
        raise UntrustedError(f"the recording {recorded.name!r}", demands, why)


def slug(text: str) -> str:
    """Return a name for a file, made from a text."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-") or "run"
