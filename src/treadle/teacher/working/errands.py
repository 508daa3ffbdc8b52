"""Errands: small requests about files that the scenario writer can make, and that the agent can carry out.

The agent finds an errand in a message by its wordings, so that it needs nothing but the transcript.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from treadle.tasks.draw import Draw
from treadle.tasks.prompt import Prompt
from treadle.tasks.solver import Step
from treadle.teacher.working.kit import Kit

Work = Generator[Step, list[str], str]
"""A generator of steps that returns the final answer."""


class Shelf(Struct, frozen=True):
    """The files of an environment, as far as a scenario writer sees them: path to the beginning of the text."""

    heads: Mapping[str, str]

    def paths(self, *endings: str) -> list[str]:
        """Return the paths with one of these endings; all paths without any."""
        return [path for path in self.heads if not endings or path.endswith(endings)]


class Errand(Struct, frozen=True, kw_only=True):
    """One sort of small request."""

    name: str
    kinds: tuple[str, ...]
    """The kinds of tool use that it can show."""
    needs: tuple[str, ...]
    """The operations of a `Kit` that it needs."""
    prompts: tuple[Prompt, ...]
    """The wordings. All have the same fields."""
    draw: Callable[[Shelf, Draw], dict[str, str] | None]
    """A function that returns values for the fields; `None` if the files offer none."""
    work: Callable[[Mapping[str, str], Kit], Work]
    """A function that returns the steps, given the values in the wording."""
    gapped: tuple[Prompt, ...] = ()
    """Wordings without the field `path`, for users who forget to name the file."""


class Found(Struct, frozen=True):
    """An errand in a message."""

    errand: Errand
    values: Mapping[str, str]
    is_gapped: bool = False
    """True if the path is missing."""

    def fill(self, path: str) -> "Found":
        """Return the errand with the path that was missing."""
        return Found(self.errand, {**self.values, "path": path})


def paragraphs_of(text: str) -> list[str]:
    """Return the paragraphs of a message, which blank lines separate."""
    return [part.strip() for part in text.split("\n\n") if part.strip()]


@lru_cache(maxsize=4096)
def find_errand(text: str) -> Found | None:
    """Return the errand that a paragraph of `text` asks for; `None` if none does."""
    from treadle.teacher.working.catalogue import ERRANDS

    for paragraph in paragraphs_of(text):
        for errand in ERRANDS:
            for prompts, is_gapped in ((errand.prompts, False), (errand.gapped, True)):
                for prompt in prompts:
                    values = prompt.match(paragraph)
                    if values is not None:
                        return Found(errand, values, is_gapped)
    return None


def prompts(*texts: str) -> tuple[Prompt, ...]:
    """Return wordings from their texts."""
    return tuple([Prompt(text) for text in texts])


def pick_path(paths: Sequence[str], draw: Draw) -> dict[str, str] | None:
    """Return a value for the field `path`; `None` if there are no paths."""
    return {"path": draw.pick(paths)} if paths else None
