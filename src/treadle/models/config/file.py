"""The file `treadle.toml`, which defines named models and their wrappers.

The wrappers of a model are, from the inside out: cost, limit, retries, fallback to other models, cache. The file
never contains keys, only names of environment variables. Source of the format: TOML 1.0, or YAML.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from treadle.core.documents import decode_document, is_yaml_name
from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.models.config.build import (
    AUTO,
    bare_model,
    bind_key,
    is_tiered,
    model,
    split_name,
    with_cost,
    with_retries,
)
from treadle.models.config.keys import find_key
from treadle.models.config.part import describe_part
from treadle.models.config.tables import (
    ChatTable,
    ConfigFile,
    LimitTable,
    ModelTable,
    PriceTable,
    RouterTable,
    Table,
    TelemetryTable,
    TierName,
    TierTable,
)
from treadle.models.config.tiers import make_tiered, read_tiers
from treadle.models.protocol import Model
from treadle.models.wire.price import Price
from treadle.renderers.registry import locate

if TYPE_CHECKING:
    from treadle.models.wrappers.limiter import Limiter
    from treadle.models.wrappers.retry import RetryModel

FILE_NAMES = ("treadle.toml", "treadle.yaml", "treadle.yml")
VARIABLE = "TREADLE_CONFIG"
PREFIX_VARIABLE = "TREADLE_TIERS_PREFIX"
_PREFIXES = ("TREADLE_MODELS__", "TREADLE_LIMITS__")
_PLACE = re.compile(r"\$\{(\w+)\}")


class Config:
    """The configuration: named models, as `load_config` reads them."""

    def __init__(self, file: ConfigFile, path: Path | None = None, notices: tuple[str, ...] = ()) -> None:
        """Check and keep the content of a file.

        Raises: `ConfigError` for a name that is used but not defined, and for a fallback that names itself.
        """
        self.file = file
        self.path = path
        """The file that it was read from; `None` if there is none."""
        self.notices = notices
        """What was left out of the tiers that the environment defines, and why."""
        self._check_names()

    @property
    def default_model(self) -> str | None:
        """The model that is used if none is named."""
        return self.file.model or (AUTO if self.file.tiers else None)

    def model(self, name: str | None = None, **options: Any) -> Model:
        """Return a named model, or one by `provider:name`. `options` are those of `treadle.model` and override
        the file.

        Raises: `ConfigError` for an unknown name, with the nearest known one, and as `treadle.model` does.
        """
        name, table = self._find(name)
        if is_tiered(name):
            return make_tiered(self, name, options)
        if table is None:
            return model(name, **options)
        return self.model_of(table, name=name, **options)

    def model_of(
        self, table: ModelTable, *, name: str | None = None, limiter: "Limiter | None" = None, **options: Any
    ) -> Model:
        """Return the model of a table, which may be from another file; it names limits and models of this one.

        `name` is the model's name in the agent spec; `None`: the spec has the settings of the table. `limiter` is
        used if the table names no limit.
        Raises: `ConfigError` for a name that is not in this file, and as `treadle.model` does.
        """
        if name is None:
            self._check_table("the model", table)
        first = self._member(table, options, limiter)
        told = options if name is not None else _given(table, options, self.path)
        bound = bind_key(table.model, told, table.api_key_env)
        first.part = describe_part(name or ":".join(split_name(table.model)), told | bound)
        made: Model = first
        if table.fallback:
            from treadle.models.wrappers.fallback import FallbackModel

            others = [self._member(self.file.models[other], {}) for other in table.fallback]
            made = FallbackModel([first, *others], cooldown_seconds=table.cooldown_seconds, part=first.part)
        if table.cache is not None:
            from treadle.models.wrappers.cache import CacheModel

            made = CacheModel(made, self.resolve(table.cache))
        return made

    def full_name(self, name: str) -> str:
        """Return the name of a configured model as it is, and any other name with its provider.

        Raises: `ConfigError` for a name without a provider that is almost the name of a configured model.
        """
        name, table = self._find(name)
        return name if table is not None or ":" in name or is_tiered(name) else f"openai:{name}"

    def bare(self, name: str, **options: Any) -> Model:
        """Return the model without its wrappers: no retries, no fallback, no cache."""
        name, table = self._find(name)
        return (
            bare_model(name, **options)
            if table is None
            else bare_model(table.model, **_given(table, options, self.path))
        )

    def _find(self, name: str | None) -> tuple[str, ModelTable | None]:
        name = name or self.default_model
        if name is None:
            raise ConfigError(f"no model was given, and {self._where} sets no default with 'model = ...'")
        if name in self.file.tiers and name not in self.file.models:
            name = f"tier:{name}"
        table = self.file.models.get(name)
        if table is None and ":" not in name and not is_tiered(name):
            hint = did_you_mean(name, self.file.models, cutoff=0.6)
            if hint:
                raise ConfigError(f"there is no model {name!r} in {self._where}{hint}")
        return name, table

    def _member(
        self, table: ModelTable, options: Mapping[str, Any], limiter: "Limiter | None" = None
    ) -> "RetryModel":
        """Return one model with cost, limit and retries."""
        given = _given(table, options, self.path)
        made = with_cost(bare_model(table.model, **given), table.model, **given)
        if table.limit is not None:
            limiter = self._limiter(table.limit)
        if limiter is not None:
            from treadle.models.wrappers.limit import LimitModel

            made = LimitModel(made, limiter=limiter)
        return with_retries(made, table.max_attempts, table.total_timeout_seconds)

    def _limiter(self, name: str) -> "Limiter":
        from treadle.models.wrappers.limiter import Limiter

        table = self.file.limits[name]
        given = table.model_dump(exclude_none=True)
        if table.store is not None:
            given["store"] = str(self.resolve(table.store))
        return Limiter.shared(f"{self.path}#{name}", **given)

    def resolve(self, path: str) -> Path:
        """Return `path` relative to the file's folder."""
        given = Path(path).expanduser()
        return given if self.path is None else self.path.parent / given

    @property
    def _where(self) -> str:
        return "the configuration" if self.path is None else repr(str(self.path))

    def _check_names(self) -> None:
        for name, table in self.file.models.items():
            if is_tiered(name):
                raise ConfigError(
                    f"{self._where}: {name!r} stands for the tiers; give the model another name"
                )
            if ":" in name:
                raise ConfigError(
                    f"{self._where}: the model {name!r} has a colon in its name; only 'provider:name' has one"
                )
            self._check_table(f"models.{name}", table)
            if name in table.fallback:
                raise ConfigError(f"{self._where}: models.{name}.fallback names {name!r} itself")
        for tier, item in self.file.tiers.items():
            for other in (item.model, *item.fallback):
                if is_tiered(other) or (":" not in other and other not in self.file.models):
                    where = f"tiers.{tier} names the model {other!r}"
                    raise ConfigError(f"{self._where}: {where}, {_hint(other, self.file.models, 'models')}")
        default = self.file.model
        if default is not None and ":" not in default and not is_tiered(default):
            self._check_known(default, self.file.models, "model", "models")

    def _check_table(self, label: str, table: ModelTable) -> None:
        if table.limit is not None:
            self._check_known(table.limit, self.file.limits, f"{label}.limit", "limits")
        for other in table.fallback:
            self._check_known(other, self.file.models, f"{label}.fallback", "models")

    def _check_known(self, name: str, known: Iterable[str], where: str, what: str) -> None:
        if name not in known:
            raise ConfigError(f"{self._where}: {where} is {name!r}, {_hint(name, known, what)}")


def _given(table: ModelTable, options: Mapping[str, Any], path: Path | None) -> dict[str, Any]:
    """Return the options for `bare_model`: the table's, overridden by `options`. `path` is the table's file.

    Raises: `ConfigError`.
    """
    given = table.model_dump(exclude_none=True)
    for name in ("model", "limit", "fallback", "cooldown_seconds", "cache", "options"):
        given.pop(name, None)
    if table.headers:
        given["headers"] = {name: _fill(value) for name, value in table.headers.items()}
    if table.price is not None:
        given["price"] = Price(**table.price.model_dump())
    if table.renderer is not None:
        given["renderer"] = locate(table.renderer, None if path is None else path.parent)
    given |= table.options
    given |= {name: value for name, value in options.items() if value is not None}
    if given.get("api_key_env") and "api_key" not in given:
        given["api_key"] = _read_variable(given["api_key_env"], f"the key of {table.model!r}")
    return given


def find_config(folder: Path | None = None) -> Path | None:
    """Return the configuration file of `folder`: TREADLE_CONFIG, or the nearest one in it or above it.

    Raises: `ConfigError` if TREADLE_CONFIG does not name a file.
    """
    if given := os.environ.get(VARIABLE):
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError(f"{VARIABLE} is {given!r}, which is not a file")
        return path
    folder = (folder or Path.cwd()).resolve()
    for place in (folder, *folder.parents):
        for name in FILE_NAMES:
            if (place / name).is_file():
                return place / name
    return None


def load_config(path: str | Path | None = None) -> Config:
    """Return the configuration in a file, or in the one that `find_config` finds; an empty one if there is none.

    The environment overrides the file: `TREADLE_MODELS__FAST__BASE_URL` sets `base_url` of the model `fast`.
    Raises: `ConfigError` that names the file, the place in it and the names that are known there.
    """
    found = find_config() if path is None else Path(path).expanduser()
    values: Json = {} if found is None else _read(found)
    origin = "the environment" if found is None else repr(str(found))
    if not isinstance(values, dict):
        raise ConfigError(f"{origin} must hold a table, not {values!r:.40}")
    _override(values, os.environ)
    try:
        file = ConfigFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {_explain(error)}") from None
    prefix = os.environ.get(PREFIX_VARIABLE) or file.tiers_prefix
    tiers, models, notices = read_tiers(prefix, os.environ)
    if tiers:
        known = file.models | {name: ModelTable.model_validate(table) for name, table in models.items()}
        file = file.model_copy(update={"tiers": {**file.tiers, **tiers}, "models": known})
    return Config(file, found, notices)


def model_from_part(part: PartSpec, *, api_key: str | None = None) -> Model:
    """Return the model that a journal's agent spec describes.

    `api_key` is used in place of the one from the environment. Raises: `ConfigError` if the part is missing, and as
    `Config.model` does.
    """
    if part.missing is not None:
        raise ConfigError(f"the model {part.name!r} cannot be built again: {part.missing}; give a model")
    options: dict[str, Json] = dict(part.settings or {})
    if api_key is not None:
        options["api_key"] = api_key
    config = load_config()
    # A name without a provider is one of a configuration: any other server must not be asked in its place.
    if ":" not in part.name and part.name not in config.file.models and not is_tiered(part.name):
        known = f"has {', '.join(config.file.models)}" if config.file.models else "names no models"
        raise ConfigError(
            f"the model {part.name!r} was named in a treadle.toml, and the configuration here {known}; give a "
            "model, or add it"
        )
    return config.model(part.name, **options)


def _read(path: Path) -> Json:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {str(path)!r}: {error.strerror}") from error
    if is_yaml_name(path.name):
        return decode_document(data, repr(str(path)), is_yaml=True) or {}
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from error


def _override(values: dict[str, Json], environment: Mapping[str, str]) -> None:
    """Put values from the environment into the tables. Raises: `ConfigError` for a table that does not exist."""
    for variable, text in environment.items():
        prefix = next((item for item in _PREFIXES if variable.startswith(item)), None)
        if prefix is None:
            continue
        kind = prefix.removeprefix("TREADLE_").removesuffix("__").lower()
        name, _, field = variable.removeprefix(prefix).partition("__")
        tables = values.get(kind) or {}
        known = {_as_variable(key): key for key in tables} if isinstance(tables, dict) else {}
        if name not in known or not field:
            hint = _hint(name.lower(), known.values(), kind)
            raise ConfigError(f"the environment variable {variable} names {name.lower()!r}, {hint}")
        table = tables[known[name]]
        *path, last = field.lower().split("__")
        for part in path:
            table = table.setdefault(part, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict):
            table[last] = _read_value(text)


def _as_variable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def _read_value(text: str) -> Json:
    """Return the value of `text` if it is one in TOML, such as `0.5`, `true` or `["a"]`, else the text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _fill(text: str) -> str:
    return _PLACE.sub(lambda place: _read_variable(place[1], "a header"), text)


def _read_variable(name: str, what: str) -> str:
    value = find_key(name)
    if not value:
        raise ConfigError(
            f"{what} is to come from the environment variable {name}, which is not set; set it, or store the key "
            f"with `treadle models set-key {name}`"
        )
    return value


def _explain(error: ValidationError) -> str:
    """Return a text with the first fault and its place, and with the known keys if a key is unknown."""
    faults = error.errors(include_url=False, include_input=False)
    # An unknown key may be the misspelling of a missing one, so it goes first.
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in first["loc"])
    if where == "model":
        return "model: give the name of a model; the table of one is [models.NAME]"
    if first["loc"][-1] == "[key]":
        name = str(first["loc"][-2])
        return f"{first['loc'][0]}.{name}: unknown key {name!r}, {_hint(name, get_args(TierName), 'keys')}"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}"
    key = str(first["loc"][-1])
    if key in ("api_key", "key", "token"):
        return f'{where}: keys do not belong in a file; name the environment variable: api_key_env = "MY_KEY"'
    fields = ConfigFile.model_fields
    if len(first["loc"]) > 1:
        inner = _INNER.get(str(first["loc"][0]), ModelTable)
        fields = (PriceTable if "price" in first["loc"][:-1] else inner).model_fields
    return f"{where}: unknown key {key!r}, {_hint(key, fields, 'keys')}"


_INNER: dict[str, type[Table]] = {
    "limits": LimitTable,
    "tiers": TierTable,
    "router": RouterTable,
    "chat": ChatTable,
    "telemetry": TelemetryTable,
}
"""The tables within the file, except those of models."""


def _hint(name: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1) or [item for item in names if item.startswith(name)]
    if near:
        return f"did you mean {near[0]!r}?"
    return f"the {what} are {', '.join(names)}" if names else f"and there are no {what}"


def config_schema() -> dict[str, Json]:
    """Return the JSON Schema of the file, for editors."""
    schema = ConfigFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "treadle.toml"}
