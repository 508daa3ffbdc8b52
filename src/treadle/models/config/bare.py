"""The model of one server, without wrappers: which dialect it speaks, where it is, and which key it is sent.

In `provider:name`, the provider is a preset, which is data, or a function from an entry point of the group
`treadle.models`. Such a function takes a `ModelConfig` and returns a model.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry, did_you_mean
from treadle.core.texts.mistakes import Keys
from treadle.core.types import Json, OutputMode, Settings
from treadle.http.transport import Transport, address_of
from treadle.http.transport_errors import BASE_URL
from treadle.models.config.presets import DIALECTS, ORACLE, find_preset, provider_names, split_name
from treadle.models.config.stored_keys import find_key
from treadle.models.config.tables import ModelTable
from treadle.models.protocol import Model
from treadle.models.wire.provider import Preset, Price, Quirks

NEEDS_KEYS = ContextVar("NEEDS_KEYS", default=True)
"""False where models are made that are not asked, so that an API key may be missing."""
_KEY_HEADERS = frozenset(("authorization", "x-api-key", "api-key", "x-goog-api-key"))


class ModelConfig(Struct, frozen=True, kw_only=True):
    """The settings from which a provider makes a model."""

    name: str
    """The name of the model on its server, without the provider."""
    base_url: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    """The environment variable that holds the key, "" for none; `None`: the provider's usual one."""
    settings: Settings = Settings()
    price: Price | None = None
    context_tokens: int | None = None
    """The size of the model's context window in tokens; `None` if it is not known."""
    can_call_tools: bool = True
    """False if the model cannot call tools."""
    headers: Mapping[str, str] | None = None
    timeout_seconds: float = 600.0
    """The longest time in which the server sends nothing."""
    connect_timeout_seconds: float = 10.0
    total_timeout_seconds: float = 1800.0
    """The longest time for all attempts."""
    transport: Transport | None = None
    """The transport of requests. `None`: HTTP."""
    output_mode: OutputMode | None = None
    """How the model is made to give answers that fit a schema; `None` leaves it to the provider."""
    options: Mapping[str, Json] = {}
    """Options that only this provider's dialect has, such as `cache` of `anthropic`."""
    task: object = None
    """The task that the run is about, for models that solve tasks; `None` if there is none."""

    def __repr__(self) -> str:
        # Neither the key nor headers, which may hold one.
        url = None if self.base_url is None else address_of(self.base_url)
        return f"ModelConfig(name={self.name!r}, base_url={url!r}, settings={self.settings!r})"


if TYPE_CHECKING:
    from treadle.renderers.protocol import Renderer

Maker: TypeAlias = Callable[[ModelConfig], Model]
"""A function of another package that makes the models of a provider."""
IN_PROCESS = "hf"
"""The provider of models in this process, which takes a renderer and a format itself."""
MAKERS: Registry[Maker] = Registry(
    "provider", "treadle.models", {IN_PROCESS: "treadle.models.tokens.engines.in_process:make_model"}
)
"""The functions that make models without a dialect, by the name of the provider."""


def bare_model(
    name: str,
    *,
    stop: str | tuple[str, ...] | list[str] | None = None,
    extra: Mapping[str, Json] | None = None,
    max_attempts: int = 6,
    output_mode: OutputMode | str | None = None,
    format: str | None = None,
    renderer: "str | Renderer | None" = None,
    **options: Any,
) -> Model:
    """Return the model that answers requests itself, without cost, limit and retries. The options are those of
    `treadle.model`.

    Raises: `ConfigError`.
    """
    provider, rest = split_name(name)
    preset = find_preset(provider)
    has_stop = preset is None or "stop" in DIALECTS.load(preset.dialect).SETTINGS
    if format is not None and stop is None and has_stop:
        # A model that continues after its calls would invent their results.
        stop = ("<tool_response>",)
    given = {key: options.pop(key) for key in _SETTINGS if key in options}
    settings = Settings(
        stop=(stop,) if isinstance(stop, str) else tuple(stop) if stop is not None else None,
        extra=dict(extra) if extra else None,
        **given,
    )
    config = ModelConfig(
        name=rest,
        settings=settings,
        output_mode=None if output_mode is None else OutputMode(output_mode),
        **{key: options.pop(key) for key in _CONFIGURED if key in options},
        options=options,
    )
    made: Any
    if provider == IN_PROCESS and (renderer or format):
        taken = {"renderer": renderer, "format": format}
        more = {key: value for key, value in taken.items() if value}
        config = replace(config, options={**options, **more})
        renderer = format = None
    if renderer:
        made = _make_token_model(preset, provider, config, renderer, format)
    else:
        made = _find_maker(provider, name)(config) if preset is None else _make(preset, provider, config)
    if not config.can_call_tools:
        made.can_call_tools = False
    if renderer or format is None:
        return made  # type: ignore[no-any-return]
    from treadle.models.wrappers.format_model import FormatModel

    return FormatModel(made, format)


_SETTINGS = tuple(name for name in Settings.__struct_fields__ if name not in ("stop", "extra"))
"""The settings that are given as they are sent."""
_MADE = ("name", "settings", "output_mode", "options", "task")
"""The fields of `ModelConfig` that are made from options, or are none."""
_CONFIGURED = tuple([name for name in ModelConfig.__struct_fields__ if name not in _MADE])
GENERAL_OPTIONS = (
    *_CONFIGURED,
    *_SETTINGS,
    *("stop", "extra", "output_mode", "format", "renderer", "limiter", "max_attempts"),
)
"""The options of every model."""


def providers() -> dict[str, str]:
    """Return the name of every provider, with its dialect or the entry point of its package."""
    presets = {name: find_preset(name) for name in provider_names()}
    dialects = {name: preset.dialect for name, preset in presets.items() if preset is not None}
    return {**MAKERS.table, **MAKERS.origins(), **dialects}


class _Options(ModelTable):
    """The options of a model, which are the keys of its table, and the key itself."""

    model: str = ""
    api_key: str | None = None


_KEYS = Keys(_Options.model_json_schema, {("stop",): "a text or a list of texts"})
_CHECKED = frozenset(GENERAL_OPTIONS) & _Options.model_fields.keys() - {"price", "renderer"}
_QUOTED = frozenset((*_SETTINGS, "stop", "output_mode", "format", "context_tokens", "max_attempts"))
"""The options whose values cannot be secrets."""


def check_options(given: Mapping[str, Any]) -> None:
    """Check the types and the ranges of options. Raises: `ConfigError`."""
    known = {
        key: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for key, value in given.items()
        if key in _CHECKED
    }
    texts = {key: str(known[key]) for key in ("output_mode", "logprobs_mode") if known.get(key)}
    try:
        _Options.model_validate(known | texts, strict=True)
    except ValidationError as error:
        faults: list[dict[str, Any]] = [dict(fault) for fault in error.errors(include_url=False)]
        for fault in faults:
            if fault["loc"][0] not in _QUOTED:
                del fault["input"]
        raise ConfigError(str(_KEYS.explain(faults, known)[0])) from None


def _find_maker(provider: str, name: str) -> Maker:
    if provider in MAKERS:
        return MAKERS.load(provider)
    known = [*providers(), ORACLE]
    near = get_close_matches(provider, known, n=1)
    hint = f"did you mean {near[0] + ':' + name.partition(':')[2]!r}? " if near else ""
    raise ConfigError(
        f"unknown provider {provider!r} in the model name {name!r}; {hint}known: {', '.join(sorted(known))}. "
        f"A model whose own name has a colon is written {'openai:' + name!r}"
    )


def _make(preset: Preset, provider: str, config: ModelConfig) -> Model:
    """Return a preset's model without wrappers, with settings of the environment. Raises: `ConfigError`."""
    kind = DIALECTS.load(preset.dialect)
    options: dict[str, Any] = dict(config.options)
    _check_options(provider, options, kind.OPTIONS)
    if preset.quirks != Quirks():
        options["quirks"] = preset.quirks
    made = kind(
        config.name,
        **_connect(preset, provider, config),
        settings=config.settings,
        price=config.price,
        context_tokens=config.context_tokens,
        output_mode=config.output_mode or preset.output_mode,
        # A mode that the user chose overrides what is known of the provider.
        decodes_beside_tools=preset.decodes_beside_tools or config.output_mode is not None,
        **options,
    )
    made.tells_window = preset.tells_window
    return made


def _make_token_model(
    preset: Preset | None,
    provider: str,
    config: ModelConfig,
    renderer: "str | Renderer",
    format: str | None,
) -> Model:
    """Return a model that is sent token ids and returns token ids. Raises: `ConfigError`."""
    if preset is None or preset.dialect not in ("openai_chat", "completions"):
        raise ConfigError(
            f"a model of {provider!r} takes no token ids, so it can have no renderer; servers of vLLM and SGLang "
            "take them"
        )
    if format is not None:
        raise ConfigError(
            f"give the format {format!r} as an option of the renderer, such as 'hf:FOLDER?format={format}'"
        )
    from treadle.models.tokens.engines.registry import make_engine
    from treadle.models.tokens.token_model import TokenModel
    from treadle.renderers.registry import load_renderer

    _check_options(provider, config.options, ("engine",))
    engine = make_engine(
        config.name,
        kind=config.options.get("engine"),
        context_tokens=config.context_tokens,
        **_connect(preset, provider, config),
    )
    return TokenModel(
        engine,
        load_renderer(renderer) if isinstance(renderer, str) else renderer,
        settings=config.settings,
        price=config.price,
        context_tokens=config.context_tokens,
        output_mode=config.output_mode,
    )


def _check_options(provider: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Check the options of a dialect. Raises: `ConfigError` for one that neither `model` nor the dialect has."""
    taken = [*GENERAL_OPTIONS, *known]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, taken, f"it takes {', '.join(taken)}")
            raise ConfigError(f"a model of {provider!r} has no option {name!r}{hint}")


def _connect(preset: Preset, provider: str, config: ModelConfig) -> dict[str, Any]:
    """Return the options of an `HttpEndpoint` that say where and how. Raises: `ConfigError` without a key."""
    from treadle.http.transport import HttpTransport
    from treadle.models.wire.endpoint import check_base_url

    home = home_of(preset)
    base_url = given_url(preset, config.base_url) or home
    if provider == "ollama":  # whose variable may have a host alone
        from treadle.models.dialects.ollama import read_host

        base_url = read_host(base_url)
    base_url = check_base_url(base_url, home)
    is_home = urlsplit(base_url).hostname == urlsplit(home).hostname
    variable = preset.key_variable if config.api_key_env is None else config.api_key_env
    api_key = config.api_key
    if api_key is None and variable:
        # A stored key is the provider's, and goes to no other server.
        api_key = find_key(variable) if is_home else os.environ.get(variable) or None
    headers = {
        header: value
        for header, variable in preset.header_variables.items()
        if (value := os.environ.get(variable))
    }
    headers |= {name.lower(): value for name, value in (config.headers or {}).items()}
    stem, slash, rest = config.name.partition("/")
    if is_home and provider == "openai" and slash and find_preset(stem) is not None:
        raise ConfigError(
            f"{home} has no model {config.name!r}; did you mean {f'{stem}:{rest}'!r}? A model with this name on "
            f"another server needs its address: {BASE_URL}"
        )
    has_key = api_key is not None or not _KEY_HEADERS.isdisjoint(headers)
    if preset.needs_key and is_home and NEEDS_KEYS.get() and not has_key:
        raise ConfigError(
            f"no API key for {config.name!r} at {home}: set the environment variable "
            f"{variable or preset.key_variable}, or store the key with `treadle models set-key {provider}`. If the "
            f"model is on another server, give its address: {BASE_URL}"
        )
    return {
        "name": f"{provider}:{config.name}",
        "base_url": base_url,
        "api_key": api_key,
        "headers": headers,
        "key_variable": variable or preset.key_variable,
        "transport": config.transport
        or HttpTransport(
            timeout_seconds=config.timeout_seconds,
            connect_timeout_seconds=config.connect_timeout_seconds,
            total_timeout_seconds=config.total_timeout_seconds,
        ),
    }


def home_of(preset: Preset) -> str:
    """Return the URL of the provider's own server."""
    return preset.base_url or DIALECTS.load(preset.dialect).BASE_URL


def given_url(preset: Preset, base_url: str | None) -> str | None:
    """Return the base URL that the caller or the environment gives; `None` if neither does."""
    variable = preset.base_url_variable
    return base_url or (os.environ.get(variable) if variable else None) or None
