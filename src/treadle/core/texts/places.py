"""Documents in YAML and JSON whose keys have a line and a column, and the lists of their mistakes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from treadle.core.errors import ConfigError, MistakesError
from treadle.core.texts.documents import decode_document, is_yaml_name
from treadle.core.types import Json

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path from the root of a document to a value: keys, and positions in lists."""
_MAX_MISTAKES = 20
"""How many mistakes of a file are told at once."""
_NOTHING: Mapping[str, str] = {}
_NOWHERE: Mapping[KeyPath, KeyPath] = {}


class Problem(Struct, frozen=True):
    """A mistake in a document."""

    path: KeyPath
    text: str
    """What is wrong, and what to do about it."""

    @property
    def key(self) -> str:
        """The path, with dots between its parts; "" for the whole document."""
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.path else self.text


OPTIONS = "the options"
"""The path of a document that is made of options, and of no file."""


class Mapped(Struct, frozen=True):
    """A document of another program in Treadle's keys."""

    value: dict[str, Json]
    origins: Mapping[KeyPath, KeyPath]
    """The path in the file of each key that was mapped."""
    notes: tuple[str, ...]
    """The notes, those about what changes the results first."""
    problems: tuple[Problem, ...]


class Document:
    """The value of a file, and the places of its keys."""

    def __init__(self, path: str, value: dict[str, Json], root: Any) -> None:
        self.path = path
        self.value = value
        self._root = root
        """The root node of the file; `None` if places are not known."""

    def place_of(self, path: KeyPath) -> tuple[int, int] | None:
        """Return the line and the column, from 1, of the key at `path`, or of the nearest one above it."""
        node = self._root
        found = None if node is None else node.start_mark
        for part in path:
            key, value = _child(node, part)
            if key is None:
                break
            found, node = key.start_mark, value
        return None if found is None else (found.line + 1, found.column + 1)

    def where(self, path: KeyPath) -> str:
        """Return `file:line` of the key at `path`."""
        place = self.place_of(path)
        return self.path if place is None else f"{self.path}:{place[0]}"

    def duplicates(self) -> Iterator[Problem]:
        """Yield a problem for each key that a mapping has twice."""
        seen: set[int] = set()
        pending: list[tuple[Any, KeyPath]] = [] if self._root is None else [(self._root, ())]
        while pending:
            node, path = pending.pop()
            if id(node) in seen or isinstance(node.value, str):
                continue
            seen.add(id(node))
            lines: dict[str, int] = {}
            for position, item in enumerate(node.value):
                key = str(item[0].value) if isinstance(item, tuple) else position
                pending.append((item[1] if isinstance(item, tuple) else item, (*path, key)))
                if isinstance(key, str) and key in lines and key != "<<":
                    line = item[0].start_mark.line + 1
                    text = f"the key occurs twice, in lines {lines[key]} and {line}; delete one"
                    yield Problem((*path, key), text)
                elif isinstance(key, str):
                    lines[key] = item[0].start_mark.line + 1

    def error(
        self,
        problems: Iterable[Problem],
        changes: Iterable[str] = (),
        flags: Mapping[str, str] = _NOTHING,
        origins: Mapping[KeyPath, KeyPath] = _NOWHERE,
    ) -> ConfigError:
        """Return the error that lists `problems` in the order of the file, each with its line, and those of
        `changes` before them.

        `changes` are the keys whose values are not those of the file. `flags` are the options that set keys; the
        other changes were given with `--set`. `origins` has the place in the file of each key that was mapped from
        another one.
        """
        lines: list[tuple[tuple[int, int], str]] = []
        for problem in problems:
            key = problem.key
            found = [name for name in changes if key == name or key.startswith(f"{name}.")]
            changed = max(found, key=len, default=None)
            if changed is not None:
                flag = flags.get(changed, f"--set {key}")
                # In a program, the name of an option is that of its key.
                lines.append(((0, 0), f"{key if flag == changed else flag}: {problem.text}"))
                continue
            path = find_origin(problem.path, origins)
            told = Problem(path, problem.text)
            # Options have no lines.
            where = "" if self.path == OPTIONS and path else f"{self.where(path)}: "
            lines.append((self.place_of(path) or (0, 0), f"{where}{told}"))
        return list_mistakes(self.path, [text for _, text in sorted(lines)])


def find_origin(path: KeyPath, origins: Mapping[KeyPath, KeyPath]) -> KeyPath:
    """Return the path in the file of a key that may have been mapped from another one."""
    for size in range(len(path), 0, -1):
        if path[:size] in origins:
            return (*origins[path[:size]], *path[size:])
    return path


def list_mistakes(path: str, lines: Iterable[str]) -> ConfigError:
    """Return the error with these lines, each about a mistake in the file at `path`. Only the first are told."""
    texts = list(dict.fromkeys(lines))
    if len(texts) == 1:
        return ConfigError(texts[0])
    more = [f"and {len(texts) - _MAX_MISTAKES} more"] if len(texts) > _MAX_MISTAKES else []
    subject = f"{path} have" if path == OPTIONS else f"{path!r} has"
    return MistakesError("\n".join([f"{subject} {len(texts)} mistakes:", *texts[:_MAX_MISTAKES], *more]))


def parse_document(data: bytes, path: str, *, is_yaml: bool | None = None) -> Document:
    """Return the document in `data`. If `is_yaml` is `None`, it is YAML unless the name ends in `.json`.

    `path` is the name for messages. Raises: `ConfigError` with the line of a mistake in the syntax.
    """
    if is_yaml is None:
        is_yaml = is_yaml_name(path) or not path.lower().endswith(".json")
    try:
        value = decode_document(data, repr(path), is_yaml=is_yaml)
    except ConfigError as error:
        mark = getattr(error.__cause__, "problem_mark", None)
        if mark is None:
            raise
        fault = getattr(error.__cause__, "problem", None) or "it cannot be read"
        hint = " (indent with spaces)" if "\\t" in fault else ""
        raise ConfigError(
            f"{path}:{mark.line + 1}: this is not valid YAML: {fault}{hint}"
        ) from error.__cause__
    if not isinstance(value, dict):
        found = "and it is empty" if value is None else f"not {value!r:.40}"
        raise ConfigError(f"{path!r} must hold a mapping of keys to values, {found}")
    return Document(path, value, _compose(data, is_yaml))


def _compose(data: bytes, is_yaml: bool) -> Any:
    """Return the root node of a document; `None` for JSON that the YAML reader cannot read."""
    import yaml

    try:
        return yaml.compose(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        if is_yaml:
            raise
        return None


def _child(node: Any, part: str | int) -> tuple[Any, Any]:
    """Return the nodes of a key and of its value. For an item of a list, both are the node of the item. Both are
    `None` if there is no such key or item."""
    items: Sequence[Any] = () if node is None or isinstance(node.value, str) else node.value
    if isinstance(part, int):
        is_there = part < len(items) and not isinstance(items[part], tuple)
        return (items[part], items[part]) if is_there else (None, None)
    pairs = [item for item in items if isinstance(item, tuple)]
    for key, value in reversed(pairs):
        if str(key.value) == part:
            return key, value
    for key, value in pairs:
        if key.value == "<<":
            for merged in [value] if value.id == "mapping" else value.value:
                found = _child(merged, part)
                if found[0] is not None:
                    return found
    return None, None
