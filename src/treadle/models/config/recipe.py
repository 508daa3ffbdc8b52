"""The recipe that leads from a name, a part or a table to a model: presets, treadle.toml, keys and wrappers.

The wrappers of a model are, from the inside out: text format, cost, limit, retries, fallback to other models,
cache. Code that needs a model calls `make_model`, which reads the treadle.toml of the folder, or `Config.model`.
The function `model`, which users call as `treadle.model`, is for `provider:name` alone and reads no file.
"""

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.spec import PartSpec
from treadle.core.tokens.logprobs_mode import LogprobsMode
from treadle.core.types import Json, OutputMode, Settings
from treadle.http.transport import Transport
from treadle.journal.identity import Trust, read_trust
from treadle.models.config.bare import MAKERS, ModelConfig, bare_model, check_options, given_url, home_of
from treadle.models.config.model_parts import demand_of, describe_part, needs_trust
from treadle.models.config.presets import (
    AUTO,
    DIALECTS,
    ORACLE,
    find_preset,
    is_oracle,
    is_tiered,
    split_name,
)
from treadle.models.config.stored_keys import find_key
from treadle.models.config.tables import ConfigFile, ModelTable, RouterTable, TierTable
from treadle.models.config.toml_file import (
    KIND,
    REMEDY,
    VARIABLE,
    check_names,
    digest_of,
    find_config,
    find_wrong_names,
    read_file,
)
from treadle.models.protocol import Model
from treadle.models.wire.provider import Preset, Price
from treadle.models.wrappers.tiered import Tier, TieredModel
from treadle.renderers.registry import locate

if TYPE_CHECKING:
    from treadle.models.wrappers.limiter import Limiter
    from treadle.models.wrappers.retry import RetryModel
    from treadle.renderers.protocol import Renderer

_PLACE = re.compile(r"\$\{(\w+)\}")
_PER_SERVER = frozenset(("base_url", "api_key", "api_key_env", "headers"))
"""Options that belong to one server, and make no sense for models of several."""


class JobUse(Struct, frozen=True, kw_only=True):
    """The demands of a job on its models. Models of jobs that ask one server share a limiter."""

    seed: int
    """The seed to sample with, if the settings have none and the server takes one."""
    needs_keys: bool = True
    """False if the models are made only for their prices, so that no key is needed."""


class Config:
    """The configuration: named models, as `load_config` reads them."""

    def __init__(
        self,
        file: ConfigFile,
        path: Path | None = None,
        notices: tuple[str, ...] = (),
        foreign: frozenset[str] | None = None,
    ) -> None:
        """Check and keep the content of a file.

        If nobody named the file, `foreign` are the names of the models whose servers it says.

        Raises: `ConfigError` for a name that is used but not defined, and for a fallback that names itself.
        """
        self.file = file
        self.path = path
        """The file that the configuration was read from; `None` if there is no file."""
        self.notices = notices
        """What was left out of the tiers that the environment defines, and why."""
        self._foreign = foreign
        check_names(file, path)

    def find_untrusted(self) -> dict[str, str]:
        """Return what the models do that this file may not say before the user trusts it, by their names."""
        tables = {name: self.file.models[name] for name in self._foreign or ()}
        wanting = {name: table for name, table in tables.items() if needs_trust(table)}
        if not wanting or self.is_trusted:
            return {}
        return {name: demand_of(PartSpec(name=name), table) for name, table in wanting.items()}

    @property
    def is_trusted(self) -> bool:
        """True if the user named the file, or trusts its content."""
        if self._foreign is None or self.path is None:
            return True
        return read_trust(KIND, digest_of(self.path)) is Trust.TRUSTED

    def _refuse(self, demand: str) -> ConfigError:
        return ConfigError(f"{self._where} was found and is not trusted: it would {demand}; {REMEDY}")

    @property
    def default_model(self) -> str | None:
        """The model that is used if none is named."""
        return self.file.model or (AUTO if self.file.tiers else None)

    def model(
        self,
        given: str | PartSpec | ModelTable | None = None,
        *,
        task: object = None,
        limiter: "Limiter | None" = None,
        job: JobUse | None = None,
        **options: Any,
    ) -> Model:
        """Return the model that is named in this file, or by `provider:name`, `auto`, `tier:NAME` or `oracle`.

        `given` may also be the part of an agent spec, or a table from another file, which names limits and models
        of this one; without it, the default model is made. `options` are those of `treadle.model` and override
        the file. `task` is what `oracle` solves. `limiter` is used if the table names no limit.

        Raises: `ConfigError` for an unknown name, with the nearest known one, for a part that cannot be built
        again, and as `treadle.model` does.
        """
        if isinstance(given, PartSpec):
            self._check_part(given)
            options = {**(given.settings or {}), **options}
            given = given.name
        if isinstance(given, ModelTable):
            for problem in find_wrong_names(self.file, given):
                raise ConfigError(f"{self._where}: {problem.path[0]} of the model: {problem.text}")
            return self._single(None, given, options, limiter, job)
        name: str | None
        name, table = self._find(given, options)
        if is_oracle(name, options):
            settings = Settings(seed=options.get("seed", None if job is None else job.seed))
            return MAKERS.load("mock")(ModelConfig(name=name, settings=settings, task=task))
        if job is None and is_tiered(name):
            return self._tiered(name, options)
        if job is not None and table is None:
            name, table = None, self.table_of(name)  # the settings of a job's models are in the agent specs
        return self._single(name, table, options, limiter, job)

    def table_of(self, given: str | ModelTable | None = None) -> ModelTable:
        """Return the settings of a model: those given, those that this file has under its name, or those of the
        default model. Raises: `ConfigError` if there is none, and for a misspelt name."""
        if isinstance(given, ModelTable):
            if given.base_url is None:
                self._find(given.model, {})
            return given
        given = given or self.default_model
        if given is None:
            raise ConfigError(
                "there is no model; name one such as 'openai:gpt-5-mini', or 'mock:teacher', which needs no key"
            )
        name = self.full_name(given)
        return self.file.models.get(name) or ModelTable(model=name)

    def full_name(self, name: str, *, base_url: str | None = None) -> str:
        """Return the name of a configured model or of the oracle unchanged, and any other name with its provider.

        Raises: `ConfigError` for a name without a provider that is almost the name of a configured model.
        """
        options = {"base_url": base_url}
        name, table = self._find(name, options)
        if table is not None or ":" in name or is_tiered(name) or is_oracle(name, options):
            return name
        return f"openai:{name}"

    def bare(self, name: str, **options: Any) -> Model:
        """Return the model without its wrappers: no retries, no fallback, no cache."""
        name, table = self._find(name, options)
        return bare_model(name if table is None else table.model, **self._settle(table, options))

    def tier(self, name: str, options: Mapping[str, Any] | None = None) -> Tier:
        """Return a tier of the configuration. `options` hold for each of its models. Raises: `ConfigError`."""
        table: TierTable = self.file.tiers[name]  # type: ignore[index]
        members: list[Model] = []
        for model in dict.fromkeys([table.model, *table.fallback]):
            settings = table.model_dump(
                include={"temperature", "max_output_tokens", "extra"}, exclude_none=True
            )
            known = self.file.models.get(model)
            if table.price is not None and (known is None or known.price is None):
                settings["price"] = Price(**table.price.model_dump())
            members.append(self.model(model, **{**settings, **(options or {})}))
        if len(members) > 1:
            from treadle.models.wrappers.fallback import FallbackModel

            members = [FallbackModel(members)]
        known_facts = table.model_dump(include={*Tier.__struct_fields__} - {"model"})
        return Tier(name=name, model=members[0], **known_facts)

    def resolve(self, path: str) -> Path:
        """Return a path relative to the file's folder.

        Raises: `ConfigError` for one outside of this folder, if nobody named the file or trusts it.
        """
        given = Path(path).expanduser()
        if self.path is None:
            return given
        folder, place = self.path.parent, self.path.parent / given
        if not place.resolve().is_relative_to(folder.resolve()) and not self.is_trusted:
            raise self._refuse(f"use the file {str(place)!r}")
        return place

    def _single(
        self,
        name: str | None,
        table: ModelTable | None,
        options: Mapping[str, Any],
        limiter: "Limiter | None",
        job: JobUse | None = None,
    ) -> Model:
        """Return a model with all its wrappers. `name` is its name in the agent spec; `None`: the spec has the
        settings of the table."""
        target = table.model if table is not None else name or ""
        if job is not None:
            provider, _ = split_name(target)
            preset = find_preset(provider)
            options = {**options, **_job_options(preset, table, options, job)}
            if limiter is None and preset is not None and job.needs_keys:
                limiter = _share_limiter(provider, table, options)
        settled = self._settle(table, options)
        first = self._with_retries(target, table, settled, limiter)
        is_named = name is not None and table is not None
        told = dict(options) if is_named else settled
        bound = bind_key(target, told, None if table is None else table.api_key_env)
        spoken = name if is_named else ":".join(split_name(target))
        first.part = describe_part(spoken or "", told | bound)
        made: Model = first
        if table is None:
            return made
        if table.fallback:
            from treadle.models.wrappers.fallback import FallbackModel

            tables = [self.file.models[other] for other in table.fallback]
            others = [self._with_retries(item.model, item, self._settle(item, {}), None) for item in tables]
            made = FallbackModel([first, *others], cooldown_seconds=table.cooldown_seconds, part=first.part)
        if table.cache is not None:
            from treadle.models.wrappers.cache import CacheModel

            made = CacheModel(made, self.resolve(table.cache))
        return made

    def _with_retries(
        self,
        target: str,
        table: ModelTable | None,
        settled: Mapping[str, Any],
        limiter: "Limiter | None",
    ) -> "RetryModel":
        """Return the model called `target` with cost, limit and retries."""
        from treadle.models.wrappers.retry import RetryModel

        made = _with_cost(bare_model(target, **settled), target, **settled)
        if table is not None and table.limit is not None:
            limiter = self._limiter(table.limit)
        if limiter is not None:
            from treadle.models.wrappers.limiter import LimitModel

            made = LimitModel(made, limiter=limiter)
        given = {key: settled[key] for key in ("max_attempts", "total_timeout_seconds") if key in settled}
        return RetryModel(made, **given)

    def _settle(self, table: ModelTable | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options for `bare_model`, of the table and above it `options`. Raises: `ConfigError`."""
        asked = {key: value for key, value in options.items() if value is not None}
        check_options(asked)
        if isinstance(asked.get("price"), Mapping):
            try:
                asked["price"] = msgspec.convert(asked["price"], Price)
            except msgspec.ValidationError as error:
                raise ConfigError(f"price is {asked['price']!r:.200}; give a Price ({error})") from None
        if asked.get("renderer") and isinstance(asked["renderer"], str):
            asked["renderer"] = locate(asked["renderer"])
        if table is None:
            return asked
        for name, demand in self.find_untrusted().items() if needs_trust(table) else ():
            if self.file.models[name] is table:
                raise self._refuse(demand)
        given = table.model_dump(exclude_none=True)
        for name in ("model", "limit", "fallback", "cooldown_seconds", "cache", "options"):
            given.pop(name, None)
        if table.headers and "headers" not in asked:
            given["headers"] = {
                name: _PLACE.sub(lambda place: _read_variable(place[1], "a header"), value)
                for name, value in table.headers.items()
            }
        if table.price is not None:
            given["price"] = Price(**table.price.model_dump())
        if table.renderer is not None:
            given["renderer"] = locate(table.renderer, None if self.path is None else self.path.parent)
        given |= table.options | asked
        if given.get("api_key_env") and "api_key" not in given:
            given["api_key"] = _read_variable(given["api_key_env"], f"the key of {table.model!r}")
        return given

    def _tiered(self, name: str, options: Mapping[str, Any]) -> TieredModel:
        """Return the model `auto`, `auto:ROUTER` or `tier:NAME`. `options` hold for the models of all tiers.
        Raises: `ConfigError` if there are no tiers, and for an option that belongs to one server."""
        given = {key: value for key, value in options.items() if value is not None}
        if wrong := sorted(_PER_SERVER & given.keys()):
            raise ConfigError(
                f"{' and '.join(wrong)} cannot be given for the model {name!r}, which has several servers; set it "
                "for each model in treadle.toml"
            )
        if not self.file.tiers:
            raise ConfigError(
                f"the model {name!r} needs tiers: add for example [tiers] with small = 'openai:gpt-5-nano' to "
                f"treadle.toml, or set {self.file.tiers_prefix}_SMALL_MODELS=openai/gpt-5-nano"
            )
        kind, colon, rest = name.partition(":")
        if colon and not rest:
            raise ConfigError(
                f"the model {name!r} names nothing after the colon; write tier:NAME or auto:ROUTER"
            )
        router = self.file.router
        if kind == "tier":
            router = RouterTable(name="fixed", allows_weaker=router.allows_weaker, options={"tier": rest})
        elif rest and rest != router.name:
            router = RouterTable(name=rest, allows_weaker=router.allows_weaker)
        return TieredModel(
            [self.tier(tier, given) for tier in self.file.tiers],
            router=router.name,
            options=router.options,
            allows_weaker=router.allows_weaker,
            part=describe_part(name, given),
            notices=self.notices,
        )

    def _limiter(self, name: str) -> "Limiter":
        from treadle.models.wrappers.limiter import Limiter

        table = self.file.limits[name]
        return Limiter.shared(f"{self.path}#{name}", **table.model_dump(exclude_none=True))

    def _find(self, name: str | None, options: Mapping[str, Any]) -> tuple[str, ModelTable | None]:
        """Return the full name of a model, and its table; `None` if this file has none for it."""
        name = name or self.default_model
        if name is None:
            raise ConfigError(f"no model was given, and {self._where} sets no default with 'model = ...'")
        if is_oracle(name, options):
            return name, None
        if name in self.file.tiers and name not in self.file.models:
            name = f"tier:{name}"
        table = self.file.models.get(name)
        if table is None and ":" not in name and not is_tiered(name):
            if hint := did_you_mean(name, self.file.models, cutoff=0.6):
                raise ConfigError(f"there is no model {name!r} in {self._where}{hint}")
            if options.get("base_url") is None and (hint := did_you_mean(name, [ORACLE], cutoff=0.8)):
                raise ConfigError(f"there is no model {name!r}{hint}")
        return name, table

    @property
    def _where(self) -> str:
        return "the configuration" if self.path is None else repr(str(self.path))

    def _check_part(self, part: PartSpec) -> None:
        """Check that a part can be built again here. Raises: `ConfigError`."""
        if part.missing is not None:
            raise ConfigError(f"the model {part.name!r} cannot be built again: {part.missing}; give a model")
        is_known = ":" in part.name or part.name in self.file.models or is_tiered(part.name)
        # A name without a provider is one of a configuration: any other server must not be asked in its place.
        if not is_known and not is_oracle(part.name, part.settings or {}):
            known = f"has {', '.join(self.file.models)}" if self.file.models else "names no models"
            raise ConfigError(
                f"the model {part.name!r} was named in a treadle.toml, and the configuration here {known}; give a "
                "model, or add it"
            )


def load_config(path: str | Path | None = None) -> Config:
    """Return the configuration in a file, or in the one that `find_config` finds; an empty one if there is none.

    The environment overrides the file: `TREADLE_MODELS__FAST__BASE_URL` sets `base_url` of the model `fast`.
    Raises: `ConfigError` that names the file, the place in it and the names that are known there.
    """
    found = find_config() if path is None else Path(path).expanduser()
    file, notices, own = read_file(found)
    is_named = path is not None or os.environ.get(VARIABLE)
    return Config(file, found, notices, None if is_named else own)


def make_model(
    given: str | PartSpec | ModelTable | None = None,
    *,
    task: object = None,
    job: JobUse | None = None,
    **options: Any,
) -> Model:
    """Return the model that `given` names, with the treadle.toml of this folder; see `Config.model`.

    Raises: `ConfigError`.
    """
    return load_config().model(given, task=task, job=job, **options)


def model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    api_key_env: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_output_tokens: int | None = None,
    seed: int | None = None,
    stop: str | tuple[str, ...] | list[str] | None = None,
    logprobs: bool | None = None,
    return_token_ids: bool | None = None,
    logprobs_mode: LogprobsMode | str | None = None,
    extra: Mapping[str, Json] | None = None,
    price: Price | Mapping[str, float] | None = None,
    context_tokens: int | None = None,
    can_call_tools: bool | None = None,
    timeout_seconds: float = 600.0,
    connect_timeout_seconds: float = 10.0,
    total_timeout_seconds: float = 1800.0,
    max_attempts: int = 6,
    headers: Mapping[str, str] | None = None,
    transport: Transport | None = None,
    output_mode: OutputMode | str | None = None,
    format: str | None = None,
    renderer: "str | Renderer | None" = None,
    limiter: "Limiter | None" = None,
    **options: Json,
) -> Model:
    """Return a model by its name: `"anthropic:claude-sonnet-4-5"`, or without a provider, which is then `openai`.

    `openai` is any server that speaks chat completions, at `base_url` or OPENAI_BASE_URL. `timeout_seconds`
    limits the time in which the server sends nothing, `total_timeout_seconds` an answer with all attempts and the
    waiting between them. A setting that is `None` is left to the server. `extra` holds further fields of the
    request body and overrides the settings. `output_mode` says how the model is made to give answers that fit a
    schema: `native`, `tool` or `text`. `format` is for models whose tool calls are text that the server does not
    parse: one of `treadle.formats.FORMATS`, or `auto`. With a `renderer`, such as `chatml` or `hf:FOLDER`, a
    model of vLLM or SGLang is sent token ids and returns token ids, so that what it sampled is never tokenised
    again; the option `engine` names the endpoint, which otherwise the server is asked for. `limiter` limits the
    requests of all models that share it. Further `options` are those of the provider's dialect. The cost is
    computed from `price`, or from genai-prices if that is installed and the provider's own server is asked.
    `context_tokens` is the model's context window; without it, genai-prices or the server may know it. A model
    that cannot call tools, with `can_call_tools` false, is offered none of those that Treadle adds.
    `api_key_env` is the environment variable that holds the key, if it is not the provider's usual one; with ""
    no key is read.

    The model's `part` describes it for the agent spec, without secrets. Raises: `ConfigError` for an unknown
    provider or option, a missing key or a setting out of range.
    """
    # The parameters under their own names, in their order.
    asked = {key: value for key, value in locals().items() if key not in ("name", "limiter", "options")}
    if not isinstance(name, str):
        raise ConfigError(f"the model is {name!r:.200}; give a name such as 'openai:gpt-5-mini'")
    return Config(ConfigFile())._single(name, None, options | asked, limiter)


def bind_key(name: str, options: Mapping[str, Any], api_key_env: str | None = None) -> dict[str, str]:
    """Return the option that binds a given base URL to the key that is sent there, for the agent spec.

    A process that builds the model again sends no other key of its environment to that URL. If the key was not in
    a variable, it sends none. `api_key_env` is the variable that the configuration names.
    """
    if options.get("base_url") is None or options.get("api_key_env") is not None:
        return {}
    if options.get("api_key") is not None:
        return {"api_key_env": ""}
    preset = find_preset(split_name(name)[0])
    variable = api_key_env or (preset.key_variable if preset is not None else None)
    return {"api_key_env": variable} if variable is not None and os.environ.get(variable) else {}


def _with_cost(
    inner: Model, name: str, *, base_url: str | None = None, price: Price | None = None, **_: Any
) -> Model:
    """Return `inner` in a wrapper that adds the cost, if genai-prices is installed and knows this server."""
    provider, rest = split_name(name)
    preset = find_preset(provider)
    if price is not None or preset is None or preset.price_provider is None:
        return inner
    if given_url(preset, base_url) not in (None, home_of(preset)) or find_spec("genai_prices") is None:
        return inner
    from treadle.models.wrappers.cost import CostModel

    return CostModel(inner, provider=preset.price_provider, model=rest)


def _job_options(
    preset: Preset | None, table: ModelTable | None, options: Mapping[str, Any], job: JobUse
) -> dict[str, Any]:
    """Return the options that a job adds to those that were given."""
    added: dict[str, Any] = {}
    has_seed = options.get("seed") is not None or (table is not None and table.seed is not None)
    if not has_seed and (preset is None or "seed" in DIALECTS.load(preset.dialect).SETTINGS):
        added["seed"] = job.seed
    if not job.needs_keys:
        added |= {"api_key": "none"} | ({"headers": {}} if table is not None and table.headers else {})
    return added


def _share_limiter(provider: str, table: ModelTable | None, options: Mapping[str, Any]) -> "Limiter":
    """Return the limiter that the models of all jobs share for a server."""
    from treadle.models.wrappers.limiter import Limiter

    server = [str(options.get(key) or getattr(table, key, None) or "") for key in ("base_url", "api_key_env")]
    return Limiter.shared(" ".join(["job", provider, *server]), is_adaptive=False, learn_at_share=0.4)


def _read_variable(name: str, what: str) -> str:
    value = find_key(name)
    if not value:
        raise ConfigError(
            f"{what} is to come from the environment variable {name}, which is not set; set it, or store the key "
            f"with `treadle models set-key {name}`"
        )
    return value
