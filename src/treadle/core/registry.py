"""Registries of named objects, and functions that import a module when it is first needed.

A `Registry` maps names to objects: built-in ones from a table, those of other packages from their entry points.
Nothing is imported before it is loaded by name.
"""

import importlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import StructMeta

from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import CodeType

T = TypeVar("T")
_MAX_CHARS = 64
"""How many characters of an unknown name are compared with the known ones."""
_MAX_CHANGES = 4
"""How many letters of a name may be wrong."""
_WORDS = re.compile(r"[\W_]+")
_IMPORT = re.compile(r"^    from (\S+) import \w+ as (\w+)$", re.MULTILINE)
"""An import of a name that a package has for others, under `if TYPE_CHECKING:`."""


class Registry(Generic[T]):
    """The objects of one kind by name, each imported when it is first loaded."""

    def __init__(
        self,
        kind: str,
        group: str,
        table: Mapping[str, str],
        *,
        old_group: str = "",
        hidden: Collection[str] = (),
    ) -> None:
        """Make a registry of the objects in `table` and in the entry-point group `group`.

        `old_group` is an earlier name of the group, which is still read. No error lists the `hidden` names, which
        are not for people.

        `kind` is the noun that error messages use, as in "unknown task set 'flies'". `table` maps a name to
        `module:attribute`. A name in the table takes precedence over an entry point of the same name, and an
        entry point of Treadle itself over one of another package.
        """
        self.kind = kind
        self.group = group
        self._old_group = old_group
        self._hidden = hidden
        self.table = table
        self._loaded: dict[str, T] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.table or name in self._loaded or name in self._plugins()

    def names(self) -> list[str]:
        """Return all names: the built-in ones in the table's order, then those of other packages, sorted."""
        return [*self.table, *sorted({*self._plugins(), *self._loaded} - {*self.table})]

    def add(self, name: str, made: T) -> None:
        """Register an object under a name, for this process only."""
        self._loaded[name] = made

    def load(self, name: str) -> T:
        """Return the object called `name`, importing its module if needed.

        Raises: `ConfigError` if there is no such name (with the nearest names), or if the object of another
        package cannot be imported.
        """
        if name in self.table:
            return cast("T", load(self.table[name]))
        if name in self._loaded:
            return self._loaded[name]
        point = self._plugins().get(name)
        if point is None:
            raise self._unknown(name)
        try:
            return cast("T", point.load())
        except Exception as error:
            raise ConfigError(
                f"the {self.kind} {name!r} ({point.value}) cannot be loaded: {error!r}"
            ) from error

    def origins(self) -> dict[str, str]:
        """Return `module:attribute` of each object of another package, by name."""
        return {name: point.value for name, point in self._plugins().items()}

    def _plugins(self) -> "dict[str, EntryPoint]":
        found = _read_plugins(self.group, tuple(sys.path))
        return {**_read_plugins(self._old_group, tuple(sys.path)), **found} if self._old_group else found

    def _unknown(self, name: str) -> ConfigError:
        known = [other for other in self.names() if other not in self._hidden]
        hint = did_you_mean(name, known) or "."
        return ConfigError(f"unknown {self.kind} {name!r}{hint} Known names: {', '.join(known) or 'none'}")


@cache
def _read_plugins(group: str, path: tuple[str, ...]) -> "dict[str, EntryPoint]":
    packages: dict[str, tuple[EntryPoint, ...]] = {}
    for folder in path:
        for package, points in _read_folder(folder):
            packages.setdefault(package, points)
    found = [point for points in packages.values() for point in points if point.group == group]
    return {point.name: point for point in sorted(found, key=lambda item: item.value.startswith("treadle."))}


@cache
def _read_folder(folder: str) -> "tuple[tuple[str, tuple[EntryPoint, ...]], ...]":
    """Return the packages in a folder that have entry points for Treadle, by name. This takes milliseconds."""
    from importlib.metadata import distributions  # takes 20 ms to import

    return tuple(
        (str(package.name).lower(), tuple(package.entry_points))
        for package in distributions(path=[folder])
        if "[treadle." in (package.read_text("entry_points.txt") or "")
    )


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.0) -> str:
    """Return the end of an error message that suggests the nearest of the `known` names.

    If no name is near, or at least as similar as `cutoff`, from 0 to 1, the end is `otherwise`, or "" without it.
    """
    near = find_near(name, known, cutoff=cutoff)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return otherwise and f"; {otherwise}"


def find_near(name: str, known: Iterable[str], *, cutoff: float = 0.0) -> list[str]:
    """Return up to three of the `known` names that somebody may have meant with `name`, all of them at least as
    similar as `cutoff`, from 0 to 1.

    They are those with the fewest wrong letters, if these are at most four and a third of the name; else those of
    which one begins with the other; else those with the most words of it.
    """
    text = name[:_MAX_CHARS].casefold().lstrip("/-")
    # The dashes of options say nothing about which one was meant.
    names = {item: item.casefold().lstrip("/-") for item in dict.fromkeys(known)}
    if cutoff:
        from difflib import SequenceMatcher

        names = {
            item: plain
            for item, plain in names.items()
            if SequenceMatcher(None, plain, text).ratio() >= cutoff
        }
    most = min(_MAX_CHANGES, max(1, len(text) // 3))
    counts = {
        item: count_changes(text, plain, most)
        for item, plain in names.items()
        if abs(len(plain) - len(text)) <= most
    }
    least = min(counts.values(), default=most + 1)
    if least <= most and least < len(text):
        return [item for item, count in counts.items() if count == least][:3]
    begun = [
        item
        for item, plain in names.items()
        if text and (plain.startswith(text) or (len(plain) > 2 and text.startswith(plain)))
    ]
    if begun:
        return begun[:3]
    words = {*_WORDS.split(text)} - {""}
    shared = {item: len(words & {*_WORDS.split(plain)}) for item, plain in names.items()}
    most = max([1, *shared.values()])
    return [item for item, count in shared.items() if count == most][:3]


def count_changes(one: str, other: str, most: int) -> int:
    """Return how many letters have to be added, removed, replaced or exchanged with their neighbour; any number
    above `most` if they are more."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        before, last, row = row, before, [at] + [most + 1] * len(other)
        # A place further from the diagonal needs more changes than `most`.
        for to in range(max(1, at - most), min(len(other), at + most) + 1):
            wanted = other[to - 1]
            cost = min(before[to] + 1, row[to - 1] + 1, before[to - 1] + (letter != wanted))
            if at > 1 and to > 1 and letter == other[to - 2] and one[at - 2] == wanted:
                cost = min(cost, last[to - 2] + 1)
            row[to] = cost
        if min(row) > most and min(before) > most:
            return most + 1
    return row[-1]


def name_known(name: str, known: Iterable[str], introduction: str) -> str:
    """Return the end of an error message about an unknown name: the nearest of the `known` names and, after the
    `introduction`, all of them."""
    names = list(known)
    return f"{did_you_mean(name, names) or ';'} {introduction} {', '.join(names) or 'none'}"


def check_options(given: Iterable[str], known: frozenset[str], what: str) -> None:
    """Check that options, of the kind `what`, have `known` names. Raises: `ConfigError` with the nearest."""
    if not known.issuperset(given):
        name = next(name for name in given if name not in known)
        raise ConfigError(
            f"{what} has no option {name!r}{name_known(name, sorted(known), 'the options are')}"
        )


class NamedFields(StructMeta):
    """The metaclass of structs that people make by hand. A field that does not exist is a `ConfigError`."""

    if not TYPE_CHECKING:

        def __call__(cls, *values, **fields):  # noqa: N805
            check_options(fields, frozenset(cls.__struct_fields__), cls.__name__)
            return super().__call__(*values, **fields)


@cache
def load(reference: str) -> Any:
    """Return the object at `package.module:attribute`, importing the module if needed."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def require(module: str, extra: str = "", *, install: str = "") -> Any:
    """Return a module that belongs to an optional dependency, which `pip install 'treadle[extra]'` installs, or
    `pip install` of the packages in `install` if no extra has it.

    Raises: `ConfigError` with that command if the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this needs {error.name}, which is not installed: pip install "
            + (install or f"'treadle[{extra}]'")
        ) from error


def load_name(package: str, name: str) -> Any:
    """Return the attribute `name` of a package, for the package's `__getattr__`: from the module that the package
    imports it from, as `NAME as NAME`, under `if TYPE_CHECKING:`.

    `__all__` is the list of all such names. Raises: `AttributeError` if the package has no such import.
    """
    places = _places_of(package)
    if name == "__all__":
        return [*places]
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(places[name]), name)


@cache
def _places_of(package: str) -> dict[str, str]:
    """Return the module of each name that a package imports for type checkers, as its source says. A program may be
    shipped without sources, so that only the compiled package says it."""
    module: Any = sys.modules[package]
    try:
        source: str = module.__loader__.get_data(module.__file__).decode()
    except (OSError, UnicodeDecodeError):
        return dict(_read_imports(module.__loader__.get_code(package)))
    return {name: place for place, name in _IMPORT.findall(source)}


def _read_imports(code: "CodeType") -> Iterator[tuple[str, str]]:
    """Yield the name and the module of each import of a compiled module that gives one name."""
    import dis

    names, place = tuple[str, ...](), ""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_CONST":
            names = step.argval
        elif step.opname == "IMPORT_NAME":
            place = step.argval
        elif step.opname == "STORE_NAME" and names == (step.argval,) and place != "typing":
            yield step.argval, place
