"""Families of tasks: each has prompts, a generator of cases, and a solver for all of its tasks."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.tasks.draw import Draw
from treadle.tasks.files.check import Expected
from treadle.tasks.prompt import Prompt
from treadle.tasks.solver import Habit, Solver


class Case(Struct, frozen=True):
    """One generated task of a family, with the correct result."""

    values: dict[str, str]
    """The values for the fields of the prompt. A prompt fits if it has exactly these fields."""
    files: dict[str, str]
    expected: Expected
    changes: dict[str, str | None] = {}
    """The required contents of the files that must change, by path. `None` means that the file must be deleted."""


class Family(Struct, frozen=True):
    """One kind of task."""

    name: str
    prompts: tuple[Prompt, ...]
    generate: Callable[[Draw], Case]
    solve: Callable[[Mapping[str, str], Habit], Solver]
    """A function that returns a solver, given the values in the prompt."""

    def word(self, case: Case, draw: Draw) -> str:
        """Return a prompt for the case."""
        fitting = [prompt for prompt in self.prompts if prompt.fields == case.values.keys()]
        if not fitting:
            raise ConfigError(f"family {self.name!r} has no prompt for the values {sorted(case.values)}")
        return draw.pick(fitting).render(case.values)
