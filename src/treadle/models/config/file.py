"""`treadle.toml`: named models, and the order of what goes around each.

Around a model: its cost, its limit, trying again, the fallback to others, and outermost the cache. Keys never
stand in the file, only names of environment variables. Source of the format: TOML 1.0, or YAML.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treadle.core.documents import decode_document, is_yaml_name
from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.models.config.build import bare_model, model, with_cost, with_retries
from treadle.models.protocol import Model
from treadle.models.wire.price import Price

FILE_NAMES = ("treadle.toml", "treadle.yaml", "treadle.yml")
VARIABLE = "TREADLE_CONFIG"
_PREFIXES = ("TREADLE_MODELS__", "TREADLE_LIMITS__")
_PLACE = re.compile(r"\$\{(\w+)\}")

_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PriceTable(_Table):
    """USD per million tokens, where the table of prices does not know the model."""

    input_usd_per_million: Annotated[float, Field(ge=0)]
    output_usd_per_million: Annotated[float, Field(ge=0)]
    cached_input_usd_per_million: Annotated[float, Field(ge=0)] | None = None
    cache_write_usd_per_million: Annotated[float, Field(ge=0)] | None = None


class LimitTable(_Table):
    """What a server bears; shared by all models that name it, in all runs of the process."""

    requests_per_minute: _Positive | None = None
    tokens_per_minute: _Positive | None = None
    max_concurrency: _Count | None = None
    """Requests in flight, of each process."""
    is_adaptive: bool = True
    """Find out how many requests in flight the server bears."""
    store: str | None = None
    """A path, as of a journal: by `<store>.limits` several processes share the requests and tokens."""


class ModelTable(_Table):
    """One named model."""

    model: str
    """`provider:name`, as `anthropic:claude-sonnet-4-5`."""
    base_url: str | None = None
    api_key_env: str | None = None
    """The environment variable that holds the key, where it is not the provider's usual one."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_output_tokens: _Count | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    """Asks engines that can (vLLM, SGLang) for the token ids."""
    extra: dict[str, Any] | None = None
    """Further fields of the request, sent as they are."""
    headers: dict[str, str] | None = None
    """`${NAME}` in a value is taken from the environment."""
    output_mode: Literal["native", "tool", "text"] | None = None
    """How answers in a schema are asked for; `treadle models check` says what works."""
    format: str | None = None
    """For models whose tool calls are text, which the server does not read: as `hermes`, or `auto`."""
    options: dict[str, Any] = {}
    """What only this provider's dialect takes."""
    timeout_seconds: _Positive = 600.0
    connect_timeout_seconds: _Positive = 10.0
    total_timeout_seconds: _Positive = 1800.0
    """For all attempts, with the waiting between."""
    max_attempts: _Count = 6
    price: PriceTable | None = None
    limit: str | None = None
    """The table of `limits` that its requests are held to."""
    fallback: list[str] = []
    """Other named models, asked in order where this one fails."""
    cooldown_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long a model that failed is left out of a chain of fallbacks."""
    cache: str | None = None
    """A folder for answers, by which equal requests are answered again without cost."""


class ConfigFile(_Table):
    """The whole file."""

    model: str | None = None
    """The named model, or `provider:name`, that is used where none is said."""
    models: dict[str, ModelTable] = {}
    limits: dict[str, LimitTable] = {}


class Config:
    """Named models. Use `load_config`."""

    def __init__(self, file: ConfigFile, path: Path | None = None) -> None:
        """Raises: `ConfigError` for a name that is used and not there, and for fallbacks in a circle."""
        self.file = file
        self.path = path
        """Where it was read; `None`: from nowhere."""
        self._check_names()

    @property
    def default_model(self) -> str | None:
        """What is used where no model is said."""
        return self.file.model

    def model(self, name: str | None = None, **options: Any) -> Model:
        """A named model, or one by `provider:name`. `options`, as of `treadle.model`, win over the file's.

        Raises: `ConfigError` for an unknown name, with the nearest known one, and as `treadle.model` does.
        """
        name, table = self._find(name)
        if table is None:
            return model(name, **options)
        made = self._member(table, options)
        if table.fallback:
            from treadle.models.wrappers.fallback import FallbackModel

            others = [self._member(self.file.models[other], {}) for other in table.fallback]
            made = FallbackModel([made, *others], cooldown_seconds=table.cooldown_seconds)
        if table.cache is not None:
            from treadle.models.wrappers.cache import CacheModel

            made = CacheModel(made, self._resolve(table.cache))
        return made

    def bare(self, name: str, **options: Any) -> Model:
        """The same with nothing around it: no retries, no fallback, no cache."""
        name, table = self._find(name)
        return (
            bare_model(name, **options)
            if table is None
            else bare_model(table.model, **_given(table, options))
        )

    def _find(self, name: str | None) -> tuple[str, ModelTable | None]:
        name = name or self.default_model
        if name is None:
            raise ConfigError(f"no model is named, and {self._where} names no default with 'model = ...'")
        table = self.file.models.get(name)
        if table is None and ":" not in name:
            near = difflib.get_close_matches(name, self.file.models, n=1)
            if near:
                raise ConfigError(f"there is no model {name!r} in {self._where}; did you mean {near[0]!r}?")
        return name, table

    def _member(self, table: ModelTable, options: Mapping[str, Any]) -> Model:
        """One model with its cost, its limit and its retries."""
        given = _given(table, options)
        made = with_cost(bare_model(table.model, **given), table.model, **given)
        if table.limit is not None:
            made = self._limited(made, table.limit)
        return with_retries(made, table.max_attempts, table.total_timeout_seconds)

    def _limited(self, inner: Model, name: str) -> Model:
        from treadle.models.wrappers.limit import Limiter, LimitModel

        table = self.file.limits[name]
        given = table.model_dump(exclude_none=True)
        if table.store is not None:
            given["store"] = str(self._resolve(table.store))
        return LimitModel(inner, limiter=Limiter.shared(f"{self.path}#{name}", **given))

    def _resolve(self, path: str) -> Path:
        """Paths are relative to the file."""
        given = Path(path).expanduser()
        return given if self.path is None else self.path.parent / given

    @property
    def _where(self) -> str:
        return "the configuration" if self.path is None else repr(str(self.path))

    def _check_names(self) -> None:
        for name, table in self.file.models.items():
            if ":" in name:
                raise ConfigError(
                    f"{self._where}: the model {name!r} has a colon in its name, which is for providers"
                )
            if table.limit is not None:
                self._check_known(table.limit, self.file.limits, f"models.{name}.limit", "limits")
            for other in table.fallback:
                self._check_known(other, self.file.models, f"models.{name}.fallback", "models")
                if other == name:
                    raise ConfigError(f"{self._where}: models.{name}.fallback names {name!r} itself")
        default = self.file.model
        if default is not None and ":" not in default:
            self._check_known(default, self.file.models, "model", "models")

    def _check_known(self, name: str, known: Iterable[str], where: str, what: str) -> None:
        if name not in known:
            raise ConfigError(f"{self._where}: {where} is {name!r}, {_hint(name, known, what)}")


def _given(table: ModelTable, options: Mapping[str, Any]) -> dict[str, Any]:
    """What `bare_model` is to be given: the table's, and `options` over it. Raises: `ConfigError`."""
    given = table.model_dump(exclude_none=True)
    for name in ("model", "api_key_env", "limit", "fallback", "cooldown_seconds", "cache", "options"):
        given.pop(name, None)
    if table.headers:
        given["headers"] = {name: _fill(value) for name, value in table.headers.items()}
    if table.price is not None:
        given["price"] = Price(**table.price.model_dump())
    given |= table.options
    given |= {name: value for name, value in options.items() if value is not None}
    if table.api_key_env is not None and "api_key" not in given:
        given["api_key"] = _read_variable(table.api_key_env, f"the key of {table.model!r}")
    return given


def find_config(folder: Path | None = None) -> Path | None:
    """The file that counts in `folder`: TREADLE_CONFIG, or the nearest one upwards.

    Raises: `ConfigError` if TREADLE_CONFIG names no file.
    """
    if given := os.environ.get(VARIABLE):
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError(f"{VARIABLE} is {given!r}, which is no file")
        return path
    folder = (folder or Path.cwd()).resolve()
    for place in (folder, *folder.parents):
        for name in FILE_NAMES:
            if (place / name).is_file():
                return place / name
    return None


def load_config(path: str | Path | None = None) -> Config:
    """The configuration of a file, or of the one that `find_config` finds; an empty one if there is none.

    The environment wins: `TREADLE_MODELS__FAST__BASE_URL` over `base_url` of the model `fast`.
    Raises: `ConfigError` that names the file, the place and what is known there.
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
    return Config(file, found)


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
    """Put what the environment says into the tables. Raises: `ConfigError` for a table that is not there."""
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
    """A value of TOML where it is one, as `0.5`, `true` or `["a"]`; else the text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _fill(text: str) -> str:
    return _PLACE.sub(lambda place: _read_variable(place[1], "a header"), text)


def _read_variable(name: str, what: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"{what} is to come from the environment variable {name}, which is not set")
    return value


def _explain(error: ValidationError) -> str:
    """The first fault, its place, and for an unknown key what is known there."""
    faults = error.errors(include_url=False, include_input=False)
    # A key that is missing may be the one that is misspelt.
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in first["loc"])
    if where == "model":
        return "model: give the name of a model; the table of one is [models.NAME]"
    if first["type"] != "extra_forbidden":
        return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}"
    key = str(first["loc"][-1])
    if key in ("api_key", "key", "token"):
        return (
            f'{where}: keys do not belong into a file; name the variable that has it: api_key_env = "MY_KEY"'
        )
    fields = ConfigFile.model_fields
    if len(first["loc"]) > 1:
        inner: type[_Table] = LimitTable if first["loc"][0] == "limits" else ModelTable
        fields = (PriceTable if "price" in first["loc"][:-1] else inner).model_fields
    return f"{where}: there is no {key!r}, {_hint(key, fields, 'keys')}"


def _hint(name: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1) or [item for item in names if item.startswith(name)]
    if near:
        return f"did you mean {near[0]!r}?"
    return f"the {what} are {', '.join(names)}" if names else f"and there are no {what}"


def config_schema() -> dict[str, Json]:
    """The JSON Schema of the file, for editors."""
    schema = ConfigFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "treadle.toml"}
