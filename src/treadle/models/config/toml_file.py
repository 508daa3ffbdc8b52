"""The file `treadle.toml`: where it is found, and its content together with what the environment overrides.

The file never contains keys, only names of environment variables. Source of the format: TOML 1.0, or YAML.
"""

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from treadle.core.documents import decode_document, is_yaml_name
from treadle.core.errors import ConfigError
from treadle.core.places import KeyPath, list_mistakes, parse_document
from treadle.core.types import Json
from treadle.journal.identity import Trust, belongs_to_user, read_trust
from treadle.models.config.presets import is_tiered
from treadle.models.config.tables import ConfigFile, ModelTable, TierName
from treadle.models.config.tier_variables import as_variable, read_tiers

FILE_NAMES = ("treadle.toml", "treadle.yaml", "treadle.yml")
VARIABLE = "TREADLE_CONFIG"
PREFIX_VARIABLE = "TREADLE_TIERS_PREFIX"
_PREFIXES = ("TREADLE_MODELS__", "TREADLE_LIMITS__")
_VERSION_CONTROL = (".git", ".hg", ".svn", ".jj")
KIND = "configuration"
"""The kind of these files among those that the user trusts."""
_LONG_QUOTES = re.compile(r"\"{3}|'{3}")
_MAX_MISTAKES = 10
"""How many mistakes of a file are told at once."""
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
            raise ConfigError(f"{VARIABLE} is {given!r}, which is not a file")
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
    """Return `folder` and the folders above it up to the root of its working tree; `folder` alone if it has no
    root."""
    places = [folder, *folder.parents]
    roots = [place for place in places if any((place / mark).exists() for mark in _VERSION_CONTROL)]
    with suppress(RuntimeError):  # the user has no home folder
        roots.append(Path.home().resolve())
    root = next((place for place in roots if place in places), folder)
    return places[: places.index(root) + 1]


def digest_of(path: Path) -> str:
    """Return the hash of a file's content, to which the user's trust is bound. Raises: `ConfigError`."""
    return hashlib.sha256(_read_bytes(path)).hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {str(path)!r}: {error.strerror}") from error


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
        raise _list_mistakes(path, _explain_all(faults, values)) from None
    own = frozenset(file.models.keys() - overridden)
    prefix = os.environ.get(PREFIX_VARIABLE) or file.tiers_prefix
    tiers, models, notices = read_tiers(prefix, os.environ)
    if tiers:
        known = file.models | {name: ModelTable.model_validate(table) for name, table in models.items()}
        file = file.model_copy(update={"tiers": {**file.tiers, **tiers}, "models": known})
    return file, notices, own - models.keys()


def _read(path: Path) -> Json:
    data = _read_bytes(path)
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
            hint = suggest(name.lower(), known.values(), kind)
            raise ConfigError(f"the environment variable {variable} names {name.lower()!r}, {hint}")
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


def _list_mistakes(path: Path | None, mistakes: Iterable[tuple[KeyPath, str]]) -> ConfigError:
    """Return the error with mistakes, which are keys and texts: the first ones of the file, each with its line."""
    origin = "the environment" if path is None else str(path)
    find_line = _line_finder(path) if path is not None and path.is_file() else lambda key: 0
    lines = sorted({(find_line(key), text) for key, text in mistakes})
    told = [f"{origin}:{number}: {text}" if number else f"{origin}: {text}" for number, text in lines]
    more = [f"and {len(told) - _MAX_MISTAKES} more"] if len(told) > _MAX_MISTAKES else []
    return list_mistakes(origin, [*told[:_MAX_MISTAKES], *more])


def _line_finder(path: Path) -> Callable[[KeyPath], int]:
    """Return a function that finds the line of a key, or of the nearest one above it; 0 if there is none."""
    data = _read_bytes(path)
    if is_yaml_name(path.name):
        document = parse_document(data, str(path), is_yaml=True)
        return lambda key: (document.place_of(key) or (0, 0))[0]
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    is_in_text = False
    for number, line in enumerate(data.decode().splitlines(), 1):
        was_in_text, is_in_text = is_in_text, is_in_text != bool(len(_LONG_QUOTES.findall(line)) % 2)
        if was_in_text:
            continue
        is_table = line.lstrip().startswith("[")
        found = _read_key(line if is_table else f"{line.partition('=')[0]}= 0")
        if is_table and found:
            table, found = found, ()
        lines.setdefault((*table, *found), number)
    return lambda key: next((lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines), 0)


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


def _explain_all(faults: Sequence[Any], values: Json) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key and the text of each mistake. What is wrong within a value hides that it has no other form, and
    a misspelled key that it is missing."""
    placed = [(_path_in(values, fault), fault) for fault in faults]
    unknown = [path for path, fault in placed if fault["type"] == "extra_forbidden"]
    known: set[KeyPath] = set()
    for path, fault in placed:
        is_hidden = any(len(other) > len(path) and other[: len(path)] == path for other, _ in placed)
        if fault["type"] == "missing":
            near = [str(other[-1]) for other in unknown if other[:-1] == path[:-1]]
            is_hidden = bool(difflib.get_close_matches(str(path[-1]), near))
        if path not in known and not is_hidden:
            known.add(path)
            yield path, _explain(fault | {"loc": fault["loc"] if fault["loc"][-1] == "[key]" else path})


def _path_in(value: Any, fault: Any) -> KeyPath:
    """Return the path of a fault in the file, without the names of forms that a value could have."""
    path: list[str | int] = []
    for number, part in enumerate(fault["loc"], 1):
        is_missing = fault["type"] == "missing" and number == len(fault["loc"])
        if isinstance(value, dict) and (part in value or is_missing):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def _explain(first: Any) -> str:
    """Return a text with a fault and its place, and with the known keys if a key is unknown."""
    where = ".".join(str(part) for part in first["loc"])
    if where == "model":
        return "model: give the name of a model; the table of one is [models.NAME]"
    if first["loc"][-1] == "[key]":
        name = str(first["loc"][-2])
        return f"{first['loc'][0]}.{name}: unknown key {name!r}, {suggest(name, get_args(TierName), 'keys')}"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}"
    key = str(first["loc"][-1])
    if key in ("api_key", "key", "token"):
        return f'{where}: keys do not belong in a file; name the environment variable: api_key_env = "MY_KEY"'
    if key == "store" and first["loc"][0] == "limits":
        return (
            f"{where}: processes do not share limits; delete it, and give each process its share of the limit"
        )
    table: type[BaseModel] = ConfigFile
    for part in first["loc"][:-1]:
        # The names of tables within tables are no fields.
        if (field := table.model_fields.get(str(part))) is not None:
            table = _find_table(field.annotation) or table
    return f"{where}: unknown key {key!r}, {suggest(key, table.model_fields, 'keys')}"


def _find_table(kind: object) -> type[BaseModel] | None:
    """Return the table in the type of a field, such as `dict[str, ModelTable]`; `None` if it has none."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for inner in get_args(kind) if (found := _find_table(inner)) is not None), None)


def suggest(name: str, known: Iterable[str], what: str) -> str:
    """Return the end of an error message about an unknown name: the nearest of the `known` ones, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1) or [item for item in names if item.startswith(name)]
    if near:
        return f"did you mean {near[0]!r}?"
    return f"the {what} are {', '.join(names)}" if names else f"and there are no {what}"


def starter_file() -> str:
    """Return a commented treadle.toml to start from."""
    return (Path(__file__).parent / "starter.toml").read_text("utf-8")


def config_schema() -> dict[str, Json]:
    """Return the JSON Schema of the file, for editors."""
    schema = ConfigFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "treadle.toml"}


def check_names(file: ConfigFile, path: Path | None) -> None:
    """Check that every name which a file uses is defined in it, and no fallback leads back to itself.

    Raises: `ConfigError` with the first mistakes.
    """
    if mistakes := list(_find_wrong_names(file)):
        raise _list_mistakes(path, mistakes)


def _find_wrong_names(file: ConfigFile) -> Iterator[tuple[KeyPath, str]]:
    for name, table in file.models.items():
        place: KeyPath = ("models", name)
        if is_tiered(name):
            yield place, f"{name!r} stands for the tiers; give the model another name"
        elif ":" in name:
            yield place, f"the model {name!r} has a colon in its name; only 'provider:name' has one"
        for key, text in find_wrong_names(file, f"models.{name}", table):
            yield (*place, key), text
        if (circle := _find_circle(file.models, name)) is not None:
            what = (
                f"names {name!r} itself" if len(circle) == 2 else f"leads back to it ({' → '.join(circle)})"
            )
            yield (*place, "fallback"), f"models.{name}.fallback {what}; leave one of them out"
    for tier, item in file.tiers.items():
        for other in (item.model, *item.fallback):
            if is_tiered(other) or (":" not in other and other not in file.models):
                said = f"tiers.{tier} names the model {other!r}, {suggest(other, file.models, 'models')}"
                yield ("tiers", tier), said
    default = file.model
    if default is not None and ":" not in default and not is_tiered(default) and default not in file.models:
        yield ("model",), f"model is {default!r}, {suggest(default, file.models, 'models')}"


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


def find_wrong_names(file: ConfigFile, label: str, table: ModelTable) -> Iterator[tuple[str, str]]:
    """Yield the key and the text for each name that the table `label` uses and `file` does not define."""
    if table.limit is not None and table.limit not in file.limits:
        yield "limit", f"{label}.limit is {table.limit!r}, {suggest(table.limit, file.limits, 'limits')}"
    for other in table.fallback:
        if other not in file.models:
            yield "fallback", f"{label}.fallback is {other!r}, {suggest(other, file.models, 'models')}"
