"""The oracle: a model that solves tasks by acting on what it observes, and that can make mistakes on purpose.

It keeps no state between requests, so it can continue after a crash, in another process, or over HTTP.
"""

from collections.abc import Callable, Sequence
from typing import cast

from treadle.core.errors import ConfigError, RequestError
from treadle.core.spec import PartSpec
from treadle.core.types import Completion, Message, Role
from treadle.models.config.bare import ModelConfig
from treadle.models.protocol import Model
from treadle.runs.task import Task
from treadle.tasks.solver import Solvable, Solver
from treadle.testbed.built_in import BuiltInModel, BuiltInRequest, digest, make_completion
from treadle.testbed.play import Manner, play

REASONING_RATE = 0.6
"""The share of steps whose reasoning is part of the message."""


def oracle_for(task: Task, *, mistake_rate: float = 0.0) -> Model | None:
    """Return a model that solves `task`, or `None` if the task is not `Solvable`.

    `mistake_rate` is the probability, at each step, of a mistake that the model then recovers from.
    Raises: `ConfigError` if `mistake_rate` is not between 0 and 1.
    """
    if not isinstance(task, Solvable):
        return None
    return OracleModel(task.find_solver, mistake_rate=mistake_rate)


def named_oracle(name: str, task: Task, *, seed: int = 0) -> Model:
    """Return the model `oracle`, or `oracle:RATE` with a rate of mistakes, for `task`.

    Models with different seeds make different mistakes. Raises: `ConfigError` for another name, and if the task
    cannot be solved.
    """
    mistake_rate = read_rate(name)
    if not isinstance(task, Solvable):
        raise ConfigError(f"the task {task.task_set}:{task.task_id} has no oracle; give another model")
    if task.find_solver(task.input) is None:
        raise ConfigError(
            f"the task {task.task_set}:{task.task_id} has no reference solution; give another model, or leave the "
            "task out"
        )
    return OracleModel(task.find_solver, mistake_rate=mistake_rate, seed=seed)


def make_oracle(config: ModelConfig) -> Model:
    """Return the model `oracle`, or `oracle:RATE`, for the task in `config`. Raises: `ConfigError`."""
    if config.task is None:
        raise ConfigError(
            f"the model {config.name!r} solves the tasks of a task set, and there is no task; pass --task "
            "files:csv_sum-0001, or another --model"
        )
    return named_oracle(config.name, cast("Task", config.task), seed=config.settings.seed or 0)


class OracleModel(BuiltInModel):
    """A model that solves the tasks for whose prompts `find_solver` returns a solver."""

    def __init__(
        self,
        find_solver: Callable[[str], Solver | None],
        *,
        mistake_rate: float = 0.0,
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name or ("oracle" if mistake_rate == 0 else f"oracle:{mistake_rate:g}"))
        self._manner = Manner(mistake_rate=check_rate(mistake_rate), reasoning_rate=REASONING_RATE)
        self._seed = f"/{seed}" if seed else ""
        self.part = PartSpec(
            name=self.name,
            settings={"seed": seed} if seed else None,
            missing=None if name is None else "it has a name of the program",
        )
        self._find_solver = find_solver

    def answer(self, asked: BuiltInRequest) -> Completion:
        """Return the next step of the task in the last user message that is a known prompt.

        Raises: `RequestError` if no user message is a known prompt.
        """
        messages = asked.messages
        prompt, start, solver = self._find_task(messages)
        position = sum([message.role is Role.ASSISTANT for message in messages])
        key = f"{prompt}/{position}{self._seed}"
        message = play(
            solver,
            messages[start:],
            key,
            self._manner,
            has_tools=bool(asked.tools),
            max_calls=asked.max_calls,
        )
        return make_completion(message, messages, self.name, f"oracle-{digest(key)}")

    def _find_task(self, messages: Sequence[Message]) -> tuple[str, int, Solver]:
        for index in range(len(messages) - 1, -1, -1):
            if messages[index].role is Role.USER:
                solver = self._find_solver(messages[index].content)
                if solver is not None:
                    return digest(messages[index].content.strip()), index + 1, solver
        raise RequestError(
            "none of the user messages is the input of a task that the oracle knows; "
            "send the input of a task of its set, word for word",
            status=400,
        )


def read_rate(name: str, default: float = 0.0) -> float:
    """Return the rate of mistakes in the name of a model, such as `oracle:0.2`, or `default` if it has none.

    Raises: `ConfigError` if it is not a number from 0 to 1.
    """
    stem, colon, rate = name.partition(":")
    try:
        return check_rate(float(rate)) if colon else default
    except ValueError:
        raise ConfigError(
            f"there is no model {name!r}: {rate!r} is not a rate of mistakes; write '{stem}:0.2', from 0 to 1"
        ) from None


def check_rate(mistake_rate: float) -> float:
    """Return `mistake_rate`. Raises: `ConfigError` if it is not between 0 and 1."""
    if not 0.0 <= mistake_rate <= 1.0:
        raise ConfigError(f"mistake_rate is {mistake_rate!r}; give a number from 0 to 1")
    return mistake_rate
