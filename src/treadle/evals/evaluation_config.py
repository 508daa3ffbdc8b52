"""The configuration of evaluations, and their plan: which sample is which attempt of which model.

Field docstrings are the descriptions in the JSON Schema.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import name_known
from treadle.core.texts.places import KeyPath, Problem
from treadle.core.types import Json
from treadle.evals.deepfabric_evaluations import map_deepfabric_evaluation
from treadle.jobs.ledger import PlannedItem
from treadle.jobs.sections import (
    AttemptSection,
    ConfigReader,
    Count,
    JobName,
    find_idle_keys,
    find_mistakes,
    tool_checks,
)
from treadle.jobs.seeded_agents import find_model
from treadle.models.config.presets import is_oracle
from treadle.models.config.recipe import load_config
from treadle.models.config.tables import ModelTable
from treadle.runs.task import find_tasks, load_task, split_reference
from treadle.scoring.registry import RewardSpec, make_scorers, read_rewards
from treadle.tasks.draws import fraction
from treadle.tasks.solver import Solvable
from treadle.telemetry.curves import CURVES
from treadle.workers.registry import check_workers

REPORTS = ("json", "csv", "markdown", "html", "inspect", "deepfabric")
"""The reports that are files."""
ROWS = "rows:"
"""How the names of the tasks begin that are steps of a dataset's rows."""
PROGRAM = "program:"
"""How the names of models begin that the program made."""


_OF_LOOPS = frozenset(("max_steps", "max_tool_calls", "parallel_tool_calls", "max_result_chars"))
"""The keys of the agent that answers of rows have no use for."""


class EvaluationConfig(AttemptSection):
    """The configuration of an evaluation."""

    name: JobName = "eval"
    """The beginning of the ids of all runs."""
    models: list[str | ModelTable] | dict[str, str | ModelTable] = []
    """The models: each `provider:name`, a name of treadle.toml, `oracle`, or a mapping with `model` and settings.
    Instead of a list, a mapping of names to such models, so that one model can be compared with two settings."""
    tasks: list[str] = []
    """The tasks: a task set, `SET:ID`, `SET:SPLIT` such as `files:test`, or a pattern such as `files:csv_sum-*`.
    `SET` is the name of an installed set, or `file.py:ATTRIBUTE` or `package.module:ATTRIBUTE`, which may be a
    function that returns tasks."""
    rows: list[str] = []
    """Files of rows, as `treadle generate` and `treadle export` write them. At each answer of a row, each model is
    asked for the next message, and its calls are compared with those of the row."""
    max_tasks: Count | None = None
    """The most tasks, and the most answers of rows; those that remain are spread over the whole list."""
    epochs: Count = 1
    """How often each model attempts each task, each time with another seed. All models have the same seeds."""
    rewards: dict[str, float | dict[str, Json]] = {}
    """The scorers by name, each with its weight in the score or a mapping of settings: `check` (the check of the
    task), `calls`, `trajectory`, `final_answer`, `efficiency`, `judge` and others, or a function as
    `module:function`. Default: `check` for tasks and `calls` for rows."""
    solved_at: float = 1.0
    """The score from which on a sample counts as solved, for pass@k and pass^k."""
    reports: list[str] = []
    """The reports that `treadle eval` writes at the end, each `NAME=PATH`: `json`, `csv`, `markdown`, `html`,
    `inspect` or `deepfabric`; and curves, as `tensorboard=FOLDER`, `trackio=PROJECT`, `wandb=PROJECT` or `otel`."""
    path: Path = Path("evaluation")
    """The folder of the evaluation; the same folder continues it."""

    def model_names(self) -> dict[str, str | ModelTable]:
        """Return the models by the names that tables show."""
        if isinstance(self.models, dict):
            return dict(self.models)
        return {model if isinstance(model, str) else model.model: model for model in self.models}

    def scorers(self) -> tuple[RewardSpec, ...]:
        """Return the scorers with their weights. Raises: `ConfigError`."""
        defaults = {"check": self.tasks, "calls": self.rows}
        return read_rewards(
            self.rewards or dict.fromkeys([name for name, given in defaults.items() if given], 1.0)
        )


class EvaluationSpec(Struct, frozen=True):
    """The plan of one sample."""

    task: str
    """The task as `SET:ID`, or a step of a row."""
    model: str
    epoch: int

    def seed_of(self, seed: int) -> int:
        """Return the sampling seed, given the seed of the plan. All models have the same."""
        return int(fraction(seed, self.task, self.epoch) * 2**31)


class EvaluationPlan:
    """The plan of the samples of an evaluation. All tasks are attempted once before one is attempted again."""

    def __init__(
        self, config: EvaluationConfig, tasks: Sequence[str], unsolved: Collection[str] = ()
    ) -> None:
        """Make a plan. `unsolved` are the tasks that oracles do not attempt.

        Raises: `ConfigError` if none is left.
        """
        oracles = find_oracles(config) if unsolved else []
        models = config.model_names()
        self._pairs = [
            (task, model)
            for task in tasks
            for model in models
            if task not in unsolved or model not in oracles
        ]
        if not self._pairs and tasks:
            raise ConfigError(f"no task has a reference solution, such as {tasks[0]}; give another model")
        self.wanted = len(self._pairs) * config.epochs
        """How many samples are wanted."""

    def make_item(self, number: int) -> PlannedItem:
        """Return the item with this number, from 1."""
        epoch, place = divmod(number - 1, len(self._pairs))
        spec = EvaluationSpec(*self._pairs[place], epoch)
        return PlannedItem(number, spec.model, spec.task, msgspec.to_builtins(spec))


def find_oracles(config: EvaluationConfig) -> list[str]:
    """Return the models that solve tasks by their reference solutions. Raises: `ConfigError`."""
    file = load_config()
    tables = {name: file.table_of(given) for name, given in config.model_names().items()}
    return [name for name, table in tables.items() if is_oracle(table.model, {"base_url": table.base_url})]


def find_unsolved(tasks: Iterable[str]) -> list[str]:
    """Return the tasks that have no reference solution. Raises: `ConfigError`.

    Only tasks of sets with a text or a place in their name are loaded; the others of Treadle all have solutions.
    """
    return [reference for reference in tasks if ":" in split_reference(reference)[0] and _lacks(reference)]


def _lacks(reference: str) -> bool:
    task = load_task(reference)
    return not isinstance(task, Solvable) or task.find_solver(task.input) is None


def check_reports(reports: Iterable[str]) -> None:
    """Check the names of reports. Raises: `ConfigError` for an unknown one, and for one without its file."""
    for given in reports:
        name, _, path = given.partition("=")
        if name not in REPORTS and name not in CURVES:
            hint = name_known(name, [*REPORTS, *CURVES.names()], "they are")
            raise ConfigError(f"there is no report {name!r}{hint}")
        if name in REPORTS and not path:
            raise ConfigError(f"the report {name!r} needs a file: {name}=FILE")


def choose(tasks: list[str], most: int | None) -> list[str]:
    """Return at most `most` of the tasks, spread over the list: one at random of each of `most` equal parts.

    At equal distances they could all be of a few kinds, since task sets mix their kinds in a fixed order.
    """
    if most is None or most >= len(tasks):
        return tasks
    bounds = [place * len(tasks) // most for place in range(most + 1)]
    return [tasks[low + int(fraction(low) * (high - low))] for low, high in pairwise(bounds)]


def find_conflicts(config: EvaluationConfig) -> list[Problem]:
    """Return what cannot work: values that exclude each other, and names that do not exist."""
    problems: list[Problem] = []
    if not config.tasks and not config.rows:
        text = "give tasks, such as 'files:test' (--task), or rows, a file of a dataset (--rows)"
        problems.append(Problem(("tasks",), text))
    if not config.models:
        text = "give a model (--model), such as 'openai:gpt-5-mini', or 'oracle', which needs no key"
        problems.append(Problem(("models",), text))
    named = config.models.items() if isinstance(config.models, dict) else enumerate(config.models)
    given: dict[str | int, str | ModelTable] = dict(named)
    names = Counter([item if isinstance(item, str) else item.model for item in given.values()])
    if isinstance(config.models, list) and (twice := [name for name, count in names.items() if count > 1]):
        text = f"{twice[0]!r} is given twice; a configuration file may give it several names in `models`"
        problems.append(Problem(("models",), text))
    if odd := [name for name in given if isinstance(name, str) and (not name or name != name.strip())]:
        text = f"the name {odd[0]!r} cannot be shown; give one that neither begins nor ends with a space"
        problems.append(Problem(("models",), text))
    if config.rows and (solvers := [name for name in names if name.partition(":")[0] == "oracle"]):
        text = (
            f"{solvers[0]!r} solves tasks, and the answers of rows are not tasks; give another model, or run the "
            f"whole conversations: --task conversations:{config.rows[0]}"
        )
        problems.append(Problem(("models",), text))
    if not config.tasks:
        if config.agent.tools:
            text = "the answers of rows are asked for with the tools of their rows; delete it"
            problems.append(Problem(("agent", "tools"), text))
        text = "the answers of rows are single messages, whose calls are not run; delete it"
        problems += [Problem(("agent", name), text) for name in _OF_LOOPS & config.agent.model_fields_set]
    problems += find_idle_keys(config)
    if config.rows and config.workers != "here":
        problems.append(Problem(("workers",), "the answers of rows are asked for here; write 'here'"))
    checks: dict[KeyPath, Callable[[], object]] = {
        ("tasks",): lambda: find_tasks(config.tasks),
        ("rewards",): lambda: make_scorers(config.scorers()),
        ("reports",): lambda: check_reports(config.reports),
        ("workers",): lambda: check_workers(config.workers),
        **tool_checks(config.agent.tools, "agent", "tools"),
    }
    for place, model in given.items():
        if isinstance(model, str) and model.startswith(PROGRAM):
            continue
        checks["models", place] = lambda model=model: find_model(model)  # type: ignore[misc]
    return problems + find_mistakes(checks)


READER: ConfigReader[EvaluationConfig] = ConfigReader(
    EvaluationConfig,
    "treadle eval",
    find_conflicts,
    {
        ("models", "*"): "'provider:name', a name of treadle.toml, or a mapping with 'model' and settings",
        ("rewards", "*"): "a weight, or a mapping with 'weight' and settings",
    },
    renamed={("model",): "models", ("out",): "path", ("limit",): "max_tasks", ("report",): "reports"},
    translate=map_deepfabric_evaluation,
)
"""The reader of configuration files, and their JSON Schema."""
