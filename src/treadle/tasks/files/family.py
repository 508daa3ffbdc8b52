"""What a family of tasks is: wordings, a generator of cases, and a solver for them all."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.tasks.draw import Draw
from treadle.tasks.files.check import Expected
from treadle.tasks.prompt import Prompt
from treadle.tasks.solver import Habit, Solver


class Case(Struct, frozen=True):
    """One draw of a family: what the task is about and what is right."""

    values: dict[str, str]
    """For the prompt; they also choose among the wordings, by their names."""
    files: dict[str, str]
    expected: Expected
    changes: dict[str, str | None] = {}
    """What the files should become, where they should change; `None` is a deletion."""


class Family(Struct, frozen=True):
    """One kind of task."""

    name: str
    prompts: tuple[Prompt, ...]
    generate: Callable[[Draw], Case]
    solve: Callable[[Mapping[str, str], Habit], Solver]
    """From the values in the prompt and from what it observes."""

    def word(self, case: Case, draw: Draw) -> str:
        """A prompt for the case."""
        fitting = [prompt for prompt in self.prompts if prompt.fields == case.values.keys()]
        if not fitting:
            raise ConfigError(f"family {self.name!r} has no prompt for the values {sorted(case.values)}")
        return draw.pick(fitting).render(case.values)
