"""Options that override keys of a document, and errors that name the option or the line of a key."""

from collections.abc import Iterable, Mapping

from treadle.core.documents import decode_document
from treadle.core.errors import ConfigError
from treadle.core.places import Document, KeyPath, Problem, list_mistakes
from treadle.core.types import Json

_NOWHERE: Mapping[KeyPath, KeyPath] = {}


def read_change(text: str) -> tuple[str, Json]:
    """Return the key and the value in `KEY=VALUE`, where the value is written as in YAML. Raises: `ConfigError`."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {text!r} is not KEY=VALUE; write for example --set retries.attempts=3")
    return key.strip(), decode_document(value.encode(), f"the value of {key.strip()!r}", is_yaml=True)


def apply_changes(value: dict[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Return `value` with the values of `changes`, whose keys have dots between sections.

    A model that is only a name becomes a section with this name, so that its settings can be changed.
    """
    for key, new in changes.items():
        *sections, last = key.split(".")
        value = table = dict(value)
        for name in sections:
            below = table.get(name)
            inner: dict[str, Json] = dict(below) if isinstance(below, dict) else {}
            if isinstance(below, str) and sections[0] in ("model", "models"):
                inner = {"model": below}
            table[name] = inner
            table = inner
        table[last] = new
    return value


def list_problems(
    document: Document,
    problems: Iterable[Problem],
    changes: Mapping[str, Json],
    flags: Mapping[str, str],
    origins: Mapping[KeyPath, KeyPath] = _NOWHERE,
) -> ConfigError:
    """Return the error that lists `problems` in the order of the file, and those of `changes` before them.

    `flags` are the options that set keys; the other changes were given with `--set`. `origins` has the place in the
    file of each key that was mapped from another one.
    """
    lines: list[tuple[tuple[int, int], str]] = []
    for problem in problems:
        key = ".".join(map(str, problem.path))
        found = [name for name in changes if key == name or key.startswith(f"{name}.")]
        changed = max(found, key=len, default=None)
        if changed is not None:
            lines.append(((0, 0), f"{flags.get(changed, f'--set {key}')}: {problem.text}"))
            continue
        path = find_origin(problem.path, origins)
        key = ".".join(map(str, path))
        place = document.place_of(path) or (0, 0)
        lines.append((place, f"{document.where(path)}: {f'{key}: ' if key else ''}{problem.text}"))
    return list_mistakes(document.path, [text for _, text in sorted(lines)])


def find_origin(path: KeyPath, origins: Mapping[KeyPath, KeyPath]) -> KeyPath:
    """Return the path in the file of a key that may have been mapped from another one."""
    for size in range(len(path), 0, -1):
        if path[:size] in origins:
            return (*origins[path[:size]], *path[size:])
    return path
