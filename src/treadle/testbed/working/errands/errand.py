"""What an errand is, and the parts that errands share."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence

from msgspec import Struct

from treadle.tasks.draws import Draw, Wording
from treadle.tasks.solver import Step
from treadle.testbed.working.kit import Kit

MAX_QUOTED_CHARS = 200

Work = Generator[Step, list[str], str]
"""A generator of steps that returns the final answer."""


class Shelf(Struct, frozen=True):
    """The part of an environment's files that a scenario writer sees."""

    heads: Mapping[str, str]
    """The beginnings of the text files: path to text."""
    others: frozenset[str] = frozenset()
    """The paths of all other files."""
    short: frozenset[str] = frozenset()
    """The paths of the text files whose lines can be counted by looking at them."""

    def paths(self, *endings: str, is_short: bool = False) -> list[str]:
        """Return the paths of text files with one of these endings; of all text files if no ending is given."""
        found = [path for path in self.heads if not endings or path.endswith(endings)]
        return [path for path in found if path in self.short] if is_short else found

    def is_free(self, path: str) -> bool:
        """Return whether there is no file at `path`."""
        return path not in self.heads and path not in self.others


class Errand(Struct, frozen=True, kw_only=True):
    """One sort of small request."""

    name: str
    kinds: tuple[str, ...]
    """The kinds of tool use that it can show."""
    needs: tuple[str, ...]
    """The operations of a `Kit` that it needs."""
    prompts: tuple[Wording, ...]
    """The wordings. All have the same fields."""
    draw: Callable[[Shelf, Draw], dict[str, str] | None]
    """A function that returns values for the fields; `None` if the files offer none."""
    work: Callable[[Mapping[str, str], Kit], Work]
    """A function that returns the steps, given the values in the wording."""
    gapped: tuple[Wording, ...] = ()
    """Wordings without the field `path`, for users who forget to name the file."""
    makes: tuple[str, ...] = ()
    """The fields that are paths of files which do not exist before."""
    is_misspelt: bool = True
    """True if a call fails only if the user misspells the path, False if one fails in any case."""


class Found(Struct, frozen=True):
    """An errand in a message."""

    errand: Errand
    values: Mapping[str, str]
    is_gapped: bool = False
    """True if the path is missing."""

    def fill(self, path: str) -> "Found":
        """Return the errand with the path that was missing."""
        return Found(self.errand, {**self.values, "path": path})


def prompts(*texts: str) -> tuple[Wording, ...]:
    """Return a wording for each text."""
    return tuple([Wording(text) for text in texts])


def pick_path(paths: Sequence[str], draw: Draw) -> dict[str, str] | None:
    """Return a value for the field `path`; `None` if there are no paths."""
    return {"path": draw.pick(paths)} if paths else None


def free_path(shelf: Shelf, draw: Draw, ending: str) -> str:
    """Return a path at which there is no file."""
    for _ in range(100):
        path = f"{draw.pick(_FOLDERS)}{draw.pick(_STEMS)}{draw.pick(_SUFFIXES)}{ending}"
        if shelf.is_free(path):
            return path
    return f"new-{draw.between(1000, 9999)}{ending}"


_FOLDERS = ("", "notes/", "drafts/", "out/", "shared/", "inbox/", "tmp/", "work/")
_STEMS = (
    "summary",
    "memo",
    "extract",
    "reminder",
    "list",
    "overview",
    "checklist",
    "remarks",
    "result",
    "log",
)
_SUFFIXES = ("", "-new", "-draft", "-copy", "-a", "-b", "-today", "-week", "-final", "-short")


def words_in(text: str) -> list[str]:
    """Return the different words of at least four letters in `text`, but not the last one, which may be cut off."""
    return list(dict.fromkeys(_WORD.findall(text)[:-1]))


_WORD = re.compile(r"(?<![\w-])[A-Za-z]{4,}(?![\w-])")


def one_line(text: str) -> str:
    """Return a line of a file for an answer; long lines are cut."""
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 line` or `3 lines`."""
    return f"{number} {noun}{'s' * (number != 1)}"
