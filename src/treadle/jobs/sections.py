"""The common parts of the configurations of jobs: the reading of a file, and sections about the agent, retries
and limits.

Field docstrings are the descriptions in the published JSON Schemas.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from select import select
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.spec import PartSpec
from treadle.core.texts.documents import apply_changes
from treadle.core.texts.mistakes import Keys
from treadle.core.texts.places import OPTIONS, Document, KeyPath, Mapped, Problem, parse_document
from treadle.core.types import Json
from treadle.journal.named_files import explain_unread
from treadle.models.config.described import Described
from treadle.runs.retries import RetryPolicy
from treadle.runs.task import Task, find_environment, find_tasks, load_task, split_reference
from treadle.tools.resolve import check_part

Count = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class ConfigSection(Described, BaseModel):
    """A part of a configuration. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AgentSection(ConfigSection):
    """The agent. A task brings its own instructions and tools. For tasks with an environment of their own, as those
    of verifiers, Inspect and OpenEnv, only `max_steps`, `max_tokens` and `deadline_seconds` hold; if there are no
    other tasks, other keys are errors."""

    instructions: str | None = None
    """The system message; it replaces the system message of the task."""
    tools: list[str] = []
    """Toolsets, as for `treadle run --tools`; they replace the toolsets of the task."""
    max_steps: Count = 50
    """The most inferences of a rollout that may call tools."""
    max_tokens: Count | None = None
    """The most input and output tokens of a rollout."""
    max_tool_calls: Number | None = None
    """The most tool calls of a rollout."""
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    """The longest time of work on a rollout."""
    parallel_tool_calls: Count = 8
    """The most tool calls of one step that run at the same time."""
    max_result_chars: Count | None = None
    """The longest tool result in characters."""
    context_tokens: Count | None = None
    """The context window of the model in tokens, if it is not known or should be smaller."""
    compact_at: Share | None = 0.8
    """The share of the room for the prompt at which the context is compacted; `null`: never."""

    def policy(self) -> Policy:
        given = self.model_dump(exclude={"instructions", "tools"})
        return Policy(**given)


class RetrySection(ConfigSection):
    """What happens after a fault of the infrastructure: a server that fails, a lost connection, a grader that
    cannot reach its service. Such a fault never counts as a reward of 0. A run in which the server or the sandbox
    of a tool was lost is made anew, with `~2` after its id.

    A mistake in a task, or in the code of a grader, a reward or a tool, stops the job in all its processes with an
    error that names the task, or the file and the line. Once it is mended, the same command continues the job.
    Mistakes are exceptions such as `KeyError` and `FileNotFoundError`, and any that ends the first three attempts
    at the same line. In a tool, only an unknown name counts, and a `TypeError` or `AttributeError` that ends the
    first three calls; any other exception of a tool is a result for the model."""

    attempts: Count = 4
    """How often each rollout is tried, the first time included."""
    delay_seconds: Annotated[float, Field(ge=0)] = 1.0
    """The delay before the second attempt. It doubles from one attempt to the next, up to 30 seconds."""

    def policy(self) -> RetryPolicy:
        return RetryPolicy(attempts=self.attempts, delay_seconds=self.delay_seconds)


class LimitSection(ConfigSection):
    """The limits of the whole job, judges included. At a limit, the work stops; what it cuts off is made when the
    job goes on."""

    max_cost_usd: Annotated[float, Field(ge=0)] | None = None
    """The most that all requests together may cost. Each model then needs a price."""
    max_tokens: Number | None = None
    """The most tokens of all requests together, input and output."""
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """The longest time of work, the sum over all processes."""


JobName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.-]*$", max_length=60)]
"""The name of a job, with which its ids and files begin."""


class AttemptSection(ConfigSection):
    """The configuration of a job that attempts tasks."""

    name: JobName = "job"
    """The beginning of the ids of all groups and runs."""
    seed: int = 0
    """The seed of the tasks, of the sampling of each run, and of the forks."""
    tasks: Annotated[list[str], Field(min_length=1)] = ["files"]
    """The tasks: a task set, `SET:ID`, `SET:SPLIT` such as `files:train`, or a pattern such as `files:csv_sum-*`.
    `SET` is the name of an installed set, or `file.py:ATTRIBUTE` or `package.module:ATTRIBUTE`."""
    window: Annotated[int, Field(ge=1, le=100_000)] = 64
    """How many runs are driven at the same time."""
    workers: str = "here"
    """Where the runs are driven: `here`, `local:N` (N processes), or `ray`."""
    agent: AgentSection = AgentSection()
    """The agent."""
    rewards: Annotated[dict[str, float | dict[str, Json]], Field(min_length=1)] = {"check": 1.0}
    """The parts of the reward by name, each with its weight or a mapping of settings: `check` (the check of the
    task), `tool_use`, `length`, `judge`, or a function as `module:function`."""
    retries: RetrySection = RetrySection()
    """What happens after a fault of the infrastructure."""
    limits: LimitSection = LimitSection()
    """The limits of all runs together."""
    path: Path = Path("job")
    """The folder with the state of the work, which is `--out` on the command line; the same folder continues it."""
    journal: str | None = None
    """The journal of the runs: a path, or the address of a store. Default: `runs.db` in the folder."""


_PROGRAM_LIMITS = frozenset(("max_steps", "max_tokens", "deadline_seconds"))
"""The keys of the agent that hold for programs and environments, which have loops and tools of their own."""


def first_tasks(references: Iterable[str]) -> list[Task]:
    """Return the first task of each set, which says what all tasks of the set need. Raises: `ConfigError`."""
    first = {split_reference(reference)[0]: reference for reference in references}.values()
    return [load_task(find_tasks([reference])[0]) for reference in first]


def find_idle_keys(config: AttemptSection, *, has_command: bool = False) -> list[Problem]:
    """Return the keys of the agent that were given for nothing, because a command is the agent, or all tasks come
    with an environment."""
    idle = sorted(config.agent.model_fields_set - _PROGRAM_LIMITS)
    what = "a command has a loop" if has_command else "the environment of the tasks has a loop and tools"
    with suppress(ConfigError):  # the tasks themselves are checked elsewhere
        if idle and (has_command or (config.tasks and all(map(find_environment, first_tasks(config.tasks))))):
            return [Problem(("agent", name), f"{what} of its own; delete it") for name in idle]
    return []


C = TypeVar("C", bound=ConfigSection)


class LoadedConfig(Struct, Generic[C], frozen=True):
    """A configuration that was read from a file."""

    config: C
    document: Document
    mapped: Mapped
    """The file in Treadle's keys."""
    changes: Mapping[str, Json] = {}
    """The values that override the file, by key with dots between sections."""
    flags: Mapping[str, str] = {}
    """The options of the command line that override keys, by key. The other changes were given with `--set`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was mapped from the keys of another program, one line for each."""
        return self.mapped.notes

    def error(self, problems: Iterable[Problem]) -> ConfigError:
        """Return the error that lists `problems`, each with the line of its key."""
        return self.document.error(problems, self.changes, self.flags, self.mapped.origins)


class ConfigReader(Generic[C]):
    """The way from a configuration file and options to a configuration, with all mistakes at once."""

    def __init__(
        self,
        kind: type[C],
        command: str,
        find_conflicts: Callable[[C], list[Problem]],
        forms: Mapping[KeyPath, str],
        renamed: Mapping[KeyPath, str] | None = None,
        translate: Callable[[Document], Mapped | None] = lambda document: None,
    ) -> None:
        """Make a reader of the configurations of `command`. `find_conflicts` returns what cannot work although each
        value is valid; `forms` and `renamed` are those of `Keys`; `translate` returns the file of another program
        in Treadle's keys, and `None` for one of Treadle."""
        self._kind = kind
        self._command = command
        self._find_conflicts = find_conflicts
        self.keys = Keys(lambda: self.schema, forms, renamed)
        """The keys that a file can have."""
        self._translate = translate

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a configuration file."""
        made = self._kind.model_json_schema()
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": self._command}

    def load(
        self,
        path: str | Path | None = None,
        changes: Mapping[str, Json] | None = None,
        flags: Mapping[str, str] | None = None,
        tell: Callable[[str], object] = lambda note: None,
    ) -> C:
        """Return the configuration in a YAML or JSON file, or the default one, with `changes`.

        `changes` override the file, by key such as `retries.attempts`; `flags` are the options that error messages
        name in place of such keys. `tell` is called with each note about the keys of another program.

        Raises: `ConfigError` that lists all mistakes, each with `file:line` or the option, the key and the nearest
        known key.
        """
        loaded = self.read(read_document(path), changes, flags)
        for note in loaded.notes:
            tell(note)
        return loaded.config

    def read(
        self,
        document: Document,
        changes: Mapping[str, Json] | None = None,
        flags: Mapping[str, str] | None = None,
    ) -> LoadedConfig[C]:
        """Return the configuration in a document, with what later errors about it need; see `load`."""
        changes, flags = changes or {}, flags or {}
        mapped = self._translate(document) or Mapped(document.value, {}, (), ())
        config, found = self.validate(apply_changes(mapped.value, changes))
        found = list(self._find_foreign(document, mapped, changes)) or found
        problems = [*document.duplicates(), *mapped.problems, *found]
        if problems or config is None:
            raise document.error(problems, changes, flags, mapped.origins)
        return LoadedConfig(config, document, mapped, changes, flags)

    def _find_foreign(
        self, document: Document, mapped: Mapped, changes: Mapping[str, Json]
    ) -> Iterator[Problem]:
        """Yield a problem for each change of a key that only the file of another program has."""
        for path in [tuple(key.split(".")) for key in changes if mapped.origins]:
            known = [self.keys.known(path[:at]) for at in range(len(path))]
            is_own = all([not names or name in names for name, names in zip(path, known, strict=True)])
            if not is_own and path[0] in document.value:
                sources = [source for source in mapped.origins.values() if path[: len(source)] == source]
                nearest = max(sources, key=len, default=None)
                own = [".".join(map(str, key)) for key, source in mapped.origins.items() if source == nearest]
                hint = f"change {' or '.join(map(repr, own))}" if own else f"known are {', '.join(known[0])}"
                yield Problem(path, f"only the file has this key; of Treadle's keys, {hint}")

    def resolve(self, given: C | str | Path | None, options: Mapping[str, Json]) -> C:
        """Return the configuration that a program gives: one, or the path of one with `options`, or these alone.

        Raises: `ConfigError`, also for a configuration together with options.
        """
        if not isinstance(given, ConfigSection):
            return self.load(given, options, {name: name for name in options})
        if options:
            raise ConfigError(f"give a configuration or options, not both: {', '.join(options)}")
        return given

    def validate(
        self, value: dict[str, Any], find_conflicts: Callable[[C], list[Problem]] | None = None
    ) -> tuple[C | None, list[Problem]]:
        """Return the configuration, or `None`, and its mistakes."""
        try:
            config = self._kind.model_validate(value)
        except ValidationError as error:
            return None, self.keys.explain(error.errors(include_url=False), value)
        return config, (find_conflicts or self._find_conflicts)(config)


def find_mistakes(checks: Mapping[KeyPath, Callable[[], object]]) -> list[Problem]:
    """Return a problem for each of the `checks`, by the keys that they are of, that raises a `ConfigError`."""
    problems = []
    for key, check in checks.items():
        try:
            check()
        except ConfigError as error:
            problems.append(Problem(key, str(error)))
    return problems


def tool_checks(tools: Sequence[str], *keys: str) -> dict[KeyPath, Callable[[], object]]:
    """Return the checks of toolsets, by their keys below `keys`: each exists, and its command is installed. Nothing
    is imported or started."""
    return {(*keys, number): partial(check_part, PartSpec(name=name)) for number, name in enumerate(tools)}


def read_document(path: str | Path | None) -> Document:
    """Return the YAML or JSON document in a file; an empty one if `path` is `None`. Raises: `ConfigError`."""
    if path is None:
        return Document(OPTIONS, {}, None)
    file = Path(path).expanduser()
    try:
        return parse_document(read_config_file(file), str(file))
    except ConfigError as error:
        if file.suffix.lower() == ".toml" and file.is_file():
            raise ConfigError(f"cannot read {str(file)!r}: write YAML or JSON, not TOML") from error
        raise


def read_config_file(file: Path, patience_seconds: float = 5.0) -> bytes:
    """Return the content of a configuration file, which can be a pipe.

    Raises: `ConfigError` if it cannot be read, or if nothing comes through the pipe.
    """
    try:
        if not file.is_fifo():
            return file.read_bytes()
        # Opening a pipe waits for a writer, who may never come.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
            if not select([pipe], [], [], patience_seconds)[0]:
                raise ConfigError(
                    f"nothing was written to the pipe {str(file)!r} within {patience_seconds:g} s"
                )
            os.set_blocking(pipe.fileno(), True)
            return pipe.read()
    except OSError as error:
        raise explain_unread("the configuration ", file, error) from error
