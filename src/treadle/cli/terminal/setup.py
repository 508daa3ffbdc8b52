"""From options to an agent, and back from a journal to the options that a run was started with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.agent.spec import Files
from treadle.core.errors import ConfigError, JournalError, RunNotFoundError
from treadle.core.events import RunStarted
from treadle.core.policy import Approval, Policy, ToolLimits
from treadle.core.types import Effect, Json
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.models.protocol import Model
from treadle.tools.parts import may_hold_secret

if TYPE_CHECKING:
    from treadle.agent.task import Task

METADATA_KEY = "cli"
"""Under which a run's metadata holds its `ModelOptions`."""


class ModelOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What says which model and tools a run has. `None` was not given."""

    model: str | None = None
    base_url: str | None = None
    tools: tuple[str, ...] = ()
    temperature: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None

    def over(self, other: "ModelOptions") -> "ModelOptions":
        """These options, and those of `other` where these were not given."""
        base = other
        if self.model is not None and self.model != other.model:
            # Another model is at home elsewhere, and has its own sampling.
            base = ModelOptions(tools=other.tools)
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}
        given |= {
            name: value for name in ("temperature", "seed") if (value := getattr(self, name)) is not None
        }
        return replace(base, **given)

    def with_files(self, mount: Path | None) -> "ModelOptions":
        """A mounted folder brings the toolset `files`, if no tools are given."""
        return replace(self, tools=("files",)) if mount is not None and not self.tools else self

    def to_metadata(self) -> Mapping[str, Json]:
        """What a run's journal keeps of them, so that it can be resumed without saying it all again."""
        kept = replace(self, tools=tuple([text for text in self.tools if not may_hold_secret(text)]))
        if self.base_url is not None:
            parts = urlsplit(self.base_url)
            # Secrets never enter a journal.
            if parts.username or parts.password or parts.query:
                kept = replace(kept, base_url=None)
        return {METADATA_KEY: msgspec.to_builtins(kept)}


class Limits(Struct, frozen=True, kw_only=True):
    """The limits that were given on the command line."""

    max_steps: int | None = None
    max_tokens: int | None = None
    max_tool_calls: int | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None
    parallel_tool_calls: int | None = None
    approve: Mapping[str, Approval] | None = None
    tool_limits: Mapping[str, ToolLimits] | None = None

    def over(self, policy: Policy) -> Policy:
        """`policy` with the limits that were given."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        changes = {name: value for name, value in given.items() if value is not None}
        return replace(policy, **changes) if changes else policy


def read_approve(rules: Sequence[str] | None) -> dict[str, Approval] | None:
    """`--approve` as a policy has it; a word alone is for calls of effect `once`. Raises: `ConfigError`."""
    found: dict[str, Approval] = {}
    for rule in rules or ():
        key, _, word = rule.rpartition("=")
        try:
            found[key or Effect.ONCE.value] = Approval(word)
        except ValueError:
            raise ConfigError(
                f"--approve {rule!r}: {word!r} is none of ask, never and always; write --approve ask, or "
                "--approve 'send_*=ask'"
            ) from None
    return found or None


def read_tool_limits(texts: Sequence[str] | None) -> dict[str, ToolLimits] | None:
    """`--tool-limit` as a policy has it. Raises: `ConfigError`."""
    names = {"calls": "max_calls", "concurrent": "max_concurrent", "chars": "max_result_chars"}
    found: dict[str, ToolLimits] = {}
    for text in texts or ():
        tool, _, rest = text.rpartition(":")
        limits: dict[str, int] = {}
        for part in rest.split(","):
            name, _, number = part.strip().partition("=")
            if not tool or name not in names or not number.isdigit():
                raise ConfigError(
                    f"--tool-limit {text!r}: write TOOL:calls=3, with calls, concurrent or chars, as "
                    "'web_*:calls=3,chars=2000'"
                )
            limits[names[name]] = int(number)
        found[tool] = ToolLimits(**limits)
    return found or None


def recorded_options(started: RunStarted) -> ModelOptions:
    """The options of the command that started a run; its model's name, if it was started otherwise."""
    kept = (started.metadata or {}).get(METADATA_KEY)
    try:
        return msgspec.convert(kept, ModelOptions)
    except msgspec.ValidationError:
        return ModelOptions(model=started.spec.model.name)


def make_model(options: ModelOptions, api_key: str | None, task: "Task | None") -> Model:
    """The model that `options` name, or the default of treadle.toml. Raises: `ConfigError`."""
    from treadle.models.config.file import load_config

    config = load_config()
    name = options.model or config.default_model
    if name is None:
        raise ConfigError(
            "no model is given; pass --model openai:gpt-5-mini (with OPENAI_API_KEY set), or --model NAME "
            "--base-url URL for a server of your own, or set TREADLE_MODEL, or write a treadle.toml with `treadle "
            "init`. To look around without one: "
            "treadle demo, or treadle run --task files:csv_sum-0001 --model oracle"
        )
    stem, colon, rate = name.partition(":")
    if stem == "oracle" and options.base_url is None:
        if task is None:
            raise ConfigError(
                "the model 'oracle' solves the tasks of a task set; pass --task files:csv_sum-0001, or another "
                "--model"
            )
        return _make_oracle(task, rate if colon else "0")
    return config.model(
        name,
        base_url=options.base_url,
        api_key=api_key,
        temperature=options.temperature,
        max_output_tokens=options.max_output_tokens,
        seed=options.seed,
    )


def _make_oracle(task: "Task", rate: str) -> Model:
    try:
        mistake_rate = float(rate)
    except ValueError:
        raise ConfigError(
            f"'oracle:{rate}' has no rate of mistakes; write 'oracle:0.2', from 0 to 1"
        ) from None
    from treadle.teacher import oracle_for

    oracle = oracle_for(task, mistake_rate=mistake_rate)
    if oracle is None:
        raise ConfigError(f"the task {task.task_set}:{task.task_id} has no oracle; give another --model")
    return oracle


def make_agent(
    options: ModelOptions,
    api_key: str | None,
    journal: Journal,
    *,
    task: "Task | None" = None,
    policy: Policy | None = None,
    instructions: str | None = None,
    files: Files | None = None,
) -> Agent:
    """An agent as the options say. Raises: `ConfigError`."""
    return Agent(
        make_model(options, api_key, task),
        instructions=instructions,
        tools=options.tools,
        policy=policy,
        journal=journal,
        files=files,
    )


def load_task_of(started: RunStarted) -> "Task | None":
    """The task that a run was started on."""
    if started.task is None:
        return None
    from treadle.agent.task import load_task

    return load_task(f"{started.task.task_set}:{started.task.task_id}")


def open_existing(path: Path | None) -> Journal:
    """A journal that must be there."""
    return open_journal(path, must_exist=True)


def open_or_make(path: Path | None, level: str) -> Journal:
    """A journal that is made, with its folder, if it is not there."""
    if path is not None and str(path) != "memory:":
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(
                f"the journal's folder {str(path.parent)!r} cannot be made: {error}"
            ) from error
    return open_journal("memory:" if str(path) == "memory:" else path, level)


def find_run(journal: Journal, text: str) -> str:
    """The id of the run that `text` names: an id, the beginning of one, or `last`.

    Raises: `RunNotFoundError`, which names near ids.
    """
    known = [info.run_id for info in journal.runs()]
    if text in known:
        return text
    if text == "last" and known:
        return known[-1]
    starting = [run_id for run_id in known if text and run_id.startswith(text)]
    if len(starting) == 1:
        return starting[0]
    if starting:
        raise RunNotFoundError(
            f"{len(starting)} runs begin with {text!r}, as {starting[-1]!r}; write more of the id"
        )
    if not known:
        raise RunNotFoundError(f"there is no run {text!r}: the journal is empty")
    raise RunNotFoundError(
        f"there is no run {text!r} in this journal of {len(known)}; the newest is {known[-1]!r}. "
        "`treadle runs` lists them"
    )


def find_runs(journal: Journal, texts: list[str] | None, *, is_all: bool) -> list[str]:
    """The ids that `texts` name, each once, or all. Raises: `ConfigError` if neither or both are given."""
    if bool(texts) is is_all:
        raise ConfigError(
            "give the runs, or --all" if is_all is False else "give the runs or --all, not both"
        )
    if is_all:
        return [info.run_id for info in journal.runs()]
    return list(dict.fromkeys(find_run(journal, text) for text in texts or ()))


def read_started(journal: Journal, run_id: str) -> RunStarted:
    """The first event of a run."""
    events = journal.read(run_id)
    started = events[0].body if events else None
    if not isinstance(started, RunStarted):
        raise JournalError(f"run {run_id!r} does not begin with run_started; its journal is damaged")
    return started
