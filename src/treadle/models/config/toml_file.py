"""The file `treadle.toml`: where it is found, and its content together with what the environment overrides.

The file never contains keys, only names of environment variables. Source of the format: TOML 1.0, or YAML.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import decode_document, is_yaml_name
from treadle.core.texts.mistakes import Keys
from treadle.core.texts.places import Document, KeyPath, Problem, parse_document
from treadle.core.types import Json
from treadle.journal.identity import Trust, belongs_to_user, read_trust
from treadle.journal.named_files import read_named, suggest_path
from treadle.models.config.presets import is_tiered
from treadle.models.config.tables import ConfigFile, ModelTable
from treadle.models.config.tier_variables import as_variable, read_tiers

FILE_NAMES = ("treadle.toml", "treadle.yaml", "treadle.yml")
VARIABLE = "TREADLE_CONFIG"
PREFIX_VARIABLE = "TREADLE_TIERS_PREFIX"
_PREFIXES = ("TREADLE_MODELS__", "TREADLE_LIMITS__")
_VERSION_CONTROL = (".git", ".hg", ".svn", ".jj")
KIND = "configuration"
"""The kind of these files among those that the user trusts."""
_LONG_QUOTES = re.compile(r"\"{3}|'{3}")
REMEDY = "look at it, and run `treadle models trust` if you trust it, or name it in TREADLE_CONFIG"


def find_config(folder: Path | None = None) -> Path | None:
    """Return the configuration file of `folder`: TREADLE_CONFIG, or the nearest one from it up to the root of its
    working tree. The root is the nearest folder under version control, else the home folder.

    Raises: `ConfigError` if TREADLE_CONFIG does not name a file, and for a file of another user that is not
    trusted.
    """
    if given := os.environ.get(VARIABLE):
        named = Path(given).expanduser()
        if not named.is_file():
            raise ConfigError(f"{VARIABLE} is {given!r}, which is not a file{suggest_path(given)}")
        return named
    path = search_config(folder)
    if (
        path is not None
        and not belongs_to_user(path)
        and read_trust(KIND, digest_of(path)) is not Trust.TRUSTED
    ):
        raise ConfigError(f"the configuration {str(path)!r} belongs to another user; {REMEDY}")
    return path


def search_config(folder: Path | None = None) -> Path | None:
    """Return the nearest configuration file from `folder` up to the root of its working tree, whoever owns it."""
    places = _working_tree((folder or Path.cwd()).resolve())
    found = [place / name for place in places for name in FILE_NAMES if (place / name).is_file()]
    return found[0] if found else None


def _working_tree(folder: Path) -> list[Path]:
    """Return `folder` and the folders above it up to the root of its working tree, if it is in one."""
    places = [folder, *folder.parents]
    roots = [place for place in places if any((place / mark).exists() for mark in _VERSION_CONTROL)]
    with suppress(RuntimeError):  # the user has no home folder
        roots.append(Path.home().resolve())
    root = next((place for place in roots if place in places), folder)
    return places[: places.index(root) + 1]


def digest_of(path: Path) -> str:
    """Return the hash of a file's content, to which the user's trust is bound. Raises: `ConfigError`."""
    return hashlib.sha256(read_named("the configuration ", path)).hexdigest()


def read_file(path: Path | None) -> tuple[ConfigFile, tuple[str, ...], frozenset[str]]:
    """Return the content of a configuration file with the values of the environment, notices about the tiers that
    were left out, and the names of the models whose servers the file itself says. `None`: only the environment.

    Raises: `ConfigError` that lists the mistakes, each with its line, its key and the names that are known there.
    """
    values: Json = {} if path is None else _read(path)
    origin = "the environment" if path is None else repr(str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{origin} must hold a table, not {values!r:.40}")
    overridden = _override(values, os.environ)
    try:
        file = ConfigFile.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise _open_document(path).error(_KEYS.explain(faults, values)) from None
    own = frozenset(file.models.keys() - overridden)
    prefix = os.environ.get(PREFIX_VARIABLE) or file.tiers_prefix
    tiers, models, notices = read_tiers(prefix, os.environ)
    if tiers:
        known = file.models | {name: ModelTable.model_validate(table) for name, table in models.items()}
        file = file.model_copy(update={"tiers": {**file.tiers, **tiers}, "models": known})
    return file, notices, own - models.keys()


def _read(path: Path) -> Json:
    data = read_named("the configuration ", path)
    if is_yaml_name(path.name):
        return decode_document(data, repr(str(path)), is_yaml=True) or {}
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from error


def _override(values: dict[str, Json], environment: Mapping[str, str]) -> set[str]:
    """Put values from the environment into the tables, and return the names of those that get a server from it.
    Raises: `ConfigError` for a table that does not exist."""
    moved = set()
    for variable, text in environment.items():
        prefix = next((item for item in _PREFIXES if variable.startswith(item)), None)
        if prefix is None:
            continue
        kind = prefix.removeprefix("TREADLE_").removesuffix("__").lower()
        name, _, field = variable.removeprefix(prefix).partition("__")
        tables = values.get(kind) or {}
        known = {as_variable(key): key for key in tables} if isinstance(tables, dict) else {}
        if name not in known or not field:
            hint = _hint(name.lower(), known.values(), kind)
            raise ConfigError(f"the environment variable {variable} names {name.lower()!r}{hint}")
        table = tables[known[name]]
        *path, last = field.lower().split("__")
        for part in path:
            table = table.setdefault(part, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict):
            table[last] = _read_value(text)
        if (kind, last) == ("models", "base_url"):
            moved.add(known[name])
    return moved


def _read_value(text: str) -> Json:
    """Return the value of `text` if it is one in TOML, such as `0.5`, `true` or `["a"]`, else the text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


class _TomlDocument(Document):
    """A document in TOML, in which a key has a line and no column."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, {}, None)
        self._lines: dict[KeyPath, int] = {}
        table: KeyPath = ()
        is_in_text = False
        for number, line in enumerate(text.splitlines(), 1):
            was_in_text, is_in_text = is_in_text, is_in_text != bool(len(_LONG_QUOTES.findall(line)) % 2)
            if was_in_text:
                continue
            is_table = line.lstrip().startswith("[")
            found = _read_key(line if is_table else f"{line.partition('=')[0]}= 0")
            if is_table and found:
                table, found = found, ()
            self._lines.setdefault((*table, *found), number)

    def place_of(self, path: KeyPath) -> tuple[int, int] | None:
        starts = (path[:end] for end in range(len(path), 0, -1))
        return next(((self._lines[start], 1) for start in starts if start in self._lines), None)


def _open_document(path: Path | None) -> Document:
    """Return the document in a configuration file, for the lines of mistakes."""
    if path is None or not path.is_file():
        return Document("the environment" if path is None else str(path), {}, None)
    data = read_named("the configuration ", path)
    if is_yaml_name(path.name):
        return parse_document(data, str(path), is_yaml=True)
    return _TomlDocument(str(path), data.decode())


def _read_key(text: str) -> KeyPath:
    """Return the path of the only key in a line of TOML; empty if the line has none."""
    try:
        value: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        path.append(key)
    return tuple(path)


def _hint(name: str, known: Iterable[str], what: str) -> str:
    """Return the end of an error message about an unknown name: the nearest of the `known` ones, or all of them."""
    names = list(known)
    return did_you_mean(
        name, names, f"the {what} are {', '.join(names)}" if names else f"there are no {what}"
    )


def starter_file() -> str:
    """Return a commented treadle.toml to start from."""
    return (Path(__file__).parent / "starter.toml").read_text("utf-8")


def config_schema() -> dict[str, Json]:
    """Return the JSON Schema of the file, for editors."""
    schema = ConfigFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "treadle.toml"}


_NO_STORE = "processes do not share limits; delete it, and give each process its share of the limit"
_KEYS = Keys(
    config_schema,
    {
        ("model",): "the name of a model; the table of one is [models.NAME]",
        ("models", "*", "stop"): "a text or a list of texts",
    },
    removed={("limits", "*", "store"): _NO_STORE},
)
"""The keys of the file."""


def check_names(file: ConfigFile, path: Path | None) -> None:
    """Check that every name which a file uses is defined in it, and no fallback leads back to itself.

    Raises: `ConfigError` with the first mistakes.
    """
    if problems := list(_find_wrong_names(file)):
        raise _open_document(path).error(problems)


def _find_wrong_names(file: ConfigFile) -> Iterator[Problem]:
    for name, table in file.models.items():
        place: KeyPath = ("models", name)
        if is_tiered(name):
            yield Problem(place, f"{name!r} stands for the tiers; give the model another name")
        elif ":" in name:
            text = f"the model {name!r} has a colon in its name; only 'provider:name' has one"
            yield Problem(place, text)
        for problem in find_wrong_names(file, table):
            yield Problem((*place, *problem.path), problem.text)
        if (circle := _find_circle(file.models, name)) is not None:
            what = (
                f"names {name!r} itself"
                if len(circle) == 2
                else f"leads back to {name!r} ({' → '.join(circle)})"
            )
            yield Problem((*place, "fallback"), f"it {what}; leave one of them out")
    for tier, item in file.tiers.items():
        for other in (item.model, *item.fallback):
            if is_tiered(other) or (":" not in other and other not in file.models):
                yield Problem(
                    ("tiers", tier), f"there is no model {other!r}{_hint(other, file.models, 'models')}"
                )
    default = file.model
    if default is not None and ":" not in default and not is_tiered(default) and default not in file.models:
        yield Problem(("model",), f"there is no model {default!r}{_hint(default, file.models, 'models')}")


def _find_circle(models: Mapping[str, ModelTable], name: str) -> tuple[str, ...] | None:
    """Return the names of models whose fallbacks lead from a model back to it; `None` if they do not."""
    paths: list[tuple[str, ...]] = [(name,)]
    seen = {name}
    for path in paths:
        for other in models[path[-1]].fallback if path[-1] in models else ():
            if other == name:
                return (*path, name)
            if other not in seen:
                seen.add(other)
                paths.append((*path, other))
    return None


def find_wrong_names(file: ConfigFile, table: ModelTable) -> Iterator[Problem]:
    """Yield a problem for each name that `table` uses and `file` does not define."""
    if table.limit is not None and table.limit not in file.limits:
        yield Problem(
            ("limit",), f"there is no limit {table.limit!r}{_hint(table.limit, file.limits, 'limits')}"
        )
    for other in table.fallback:
        if other not in file.models:
            yield Problem(("fallback",), f"there is no model {other!r}{_hint(other, file.models, 'models')}")
