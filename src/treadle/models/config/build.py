"""The construction of a model from its name and the user's settings.

In `provider:name`, the provider is a preset, which is data, or a function from an entry point of the group
`treadle.models`. Such a function takes a `ModelConfig` and returns a model. The wrappers that every model has are
added here.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry, did_you_mean
from treadle.core.types import Json, OutputMode, Settings
from treadle.http.transport import Transport, address_of
from treadle.models.config.connect import connect, given_url, home_of
from treadle.models.config.part import describe_part
from treadle.models.config.presets import DIALECTS, find_preset, provider_names
from treadle.models.protocol import Model
from treadle.models.wire.preset import Preset, Quirks
from treadle.models.wire.price import Price
from treadle.renderers.registry import locate


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
    """The model's context window."""
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

    def __repr__(self) -> str:
        # Neither the key nor headers, which may hold one.
        url = None if self.base_url is None else address_of(self.base_url)
        return f"ModelConfig(name={self.name!r}, base_url={url!r}, settings={self.settings!r})"


if TYPE_CHECKING:
    from treadle.models.wrappers.limiter import Limiter
    from treadle.models.wrappers.retry import RetryModel
    from treadle.renderers.protocol import Renderer

Maker: TypeAlias = Callable[[ModelConfig], Model]
AUTO = "auto"
"""The name of the model whose tier a router chooses; `auto:NAME` names the router too."""


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
    extra: Mapping[str, Json] | None = None,
    price: Price | Mapping[str, float] | None = None,
    context_tokens: int | None = None,
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
    `context_tokens` is the model's context window; without it, genai-prices or the server may know it.
    `api_key_env` is the environment variable that holds the key, if it is not the provider's usual one; with ""
    no key is read.

    The model's `part` describes it for the agent spec, without secrets. Raises: `ConfigError` for an unknown
    provider or option, a missing key or a setting out of range.
    """
    asked: dict[str, Any] = {
        "base_url": base_url,
        "api_key": api_key,
        "api_key_env": api_key_env,
        "temperature": temperature,
        "top_p": top_p,
        "max_output_tokens": max_output_tokens,
        "seed": seed,
        "stop": stop,
        "logprobs": logprobs,
        "return_token_ids": return_token_ids,
        "extra": extra,
        "price": Price(**price) if isinstance(price, Mapping) else price,
        "context_tokens": context_tokens,
        "timeout_seconds": timeout_seconds,
        "connect_timeout_seconds": connect_timeout_seconds,
        "total_timeout_seconds": total_timeout_seconds,
        "headers": headers,
        "transport": transport,
        "output_mode": output_mode,
        "format": format,
        "renderer": locate(renderer) if isinstance(renderer, str) else renderer,
    }
    asked = options | {key: value for key, value in asked.items() if value is not None}
    priced = with_cost(bare_model(name, **asked), name, **asked)
    if limiter is not None:
        from treadle.models.wrappers.limit import LimitModel

        priced = LimitModel(priced, limiter=limiter)
    made = with_retries(priced, max_attempts, total_timeout_seconds)
    bound = bind_key(name, asked)
    made.part = describe_part(":".join(split_name(name)), asked | bound | {"max_attempts": max_attempts})
    return made


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


def bare_model(
    name: str,
    *,
    stop: str | tuple[str, ...] | list[str] | None = None,
    extra: Mapping[str, Json] | None = None,
    timeout_seconds: float = 600.0,
    total_timeout_seconds: float = 1800.0,
    max_attempts: int = 6,
    output_mode: OutputMode | str | None = None,
    format: str | None = None,
    renderer: "str | Renderer | None" = None,
    **options: Any,
) -> Model:
    """Return a model as `model` does, with the same options, but without cost, limit and retries."""
    provider, rest = split_name(name)
    if format is not None and stop is None:
        # A model that continues after its calls would invent their results.
        stop = ("<tool_response>",)
    settings = Settings(
        stop=(stop,) if isinstance(stop, str) else tuple(stop) if stop is not None else None,
        extra=dict(extra) if extra else None,
        **{key: options.pop(key) for key in _SETTINGS & options.keys()},
    )
    _check(settings)
    tokens = options.get("context_tokens")
    if tokens is not None and not (isinstance(tokens, int) and tokens > 0):
        raise ConfigError(f"context_tokens is {tokens!r}; give a number of at least 1")
    if not total_timeout_seconds > 0:
        raise ConfigError(f"total_timeout_seconds is {total_timeout_seconds!r}; give a positive number")
    config = ModelConfig(
        name=rest,
        settings=settings,
        timeout_seconds=timeout_seconds,
        total_timeout_seconds=total_timeout_seconds,
        output_mode=None if output_mode is None else _read_mode(output_mode),
        **{key: options.pop(key) for key in _CONFIGURED & options.keys()},
        options=options,
    )
    preset = find_preset(provider)
    if renderer:
        return _make_token_model(preset, provider, config, renderer, format)
    made = _find_maker(provider, name)(config) if preset is None else _make(preset, provider, config)
    if format is None:
        return made
    from treadle.models.wrappers.format_model import FormatModel

    return FormatModel(made, format)


_SETTINGS = frozenset(("temperature", "top_p", "max_output_tokens", "seed", "logprobs", "return_token_ids"))
_CONFIGURED = frozenset(
    (
        "base_url",
        "api_key",
        "api_key_env",
        "price",
        "context_tokens",
        "headers",
        "transport",
        "connect_timeout_seconds",
    )
)


def is_tiered(name: str) -> bool:
    """Return whether `name` is that of a model that consists of the tiers of treadle.toml."""
    return name.partition(":")[0] in (AUTO, "tier") and name != "tier"


def split_name(name: str) -> tuple[str, str]:
    """Return the provider, and the model's name on its server. Raises: `ConfigError` for a name without a model."""
    if is_tiered(name):
        raise ConfigError(
            f"the model {name!r} consists of the tiers of treadle.toml, and one single model is needed here"
        )
    provider, _, rest = name.partition(":") if ":" in name else ("openai", "", name)
    if not rest:
        raise ConfigError(f"the model name {name!r} names no model; give one such as 'openai:gpt-5-mini'")
    return provider, rest


def with_cost(
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


def with_retries(inner: Model, max_attempts: int, total_timeout_seconds: float) -> "RetryModel":
    """Return `inner` in a wrapper that tries again after errors that may be temporary."""
    from treadle.models.wrappers.retry import RetryModel

    return RetryModel(inner, max_attempts=max_attempts, total_timeout_seconds=total_timeout_seconds)


def _read_mode(mode: OutputMode | str) -> OutputMode:
    try:
        return OutputMode(mode)
    except ValueError:
        raise ConfigError(f"output_mode is {mode!r}; use 'native', 'tool' or 'text'") from None


def _check(settings: Settings) -> None:
    for name, value, low, high in (
        ("temperature", settings.temperature, 0, float("inf")),
        ("top_p", settings.top_p, 0, 1),
        ("max_output_tokens", settings.max_output_tokens, 1, float("inf")),
    ):
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{name} is {value!r}; give a number from {low} to {high}")


_MAKERS: Registry[Maker] = Registry("provider", "treadle.models", {})
"""The functions of other packages that make models, by the name of the provider."""


def providers() -> dict[str, str]:
    """Return the name of every provider, with its dialect or the entry point of its package."""
    found = {point.name: point.value for point in entry_points(group=_MAKERS.group)}
    presets = {name: find_preset(name) for name in provider_names()}
    return found | {name: preset.dialect for name, preset in presets.items() if preset is not None}


def _find_maker(provider: str, name: str) -> Maker:
    """Return the function of another package that makes the models of `provider`."""
    if provider in _MAKERS:
        return _MAKERS.load(provider)
    known = providers()
    near = get_close_matches(provider, known, n=1)
    hint = f"did you mean {near[0] + ':' + name.partition(':')[2]!r}? " if near else ""
    raise ConfigError(
        f"unknown provider {provider!r} in the model name {name!r}; {hint}known are {', '.join(sorted(known))}. "
        f"A model whose own name has a colon is written {'openai:' + name!r}"
    )


def _make(preset: Preset, provider: str, config: ModelConfig) -> Model:
    """Return the model of a preset, without wrappers. Settings that are not given are read from the environment.

    Raises: `ConfigError`.
    """
    kind = DIALECTS.load(preset.dialect)
    options: dict[str, Any] = dict(config.options)
    _check_options(provider, options, kind.OPTIONS)
    if preset.quirks != Quirks():
        options["quirks"] = preset.quirks
    made = kind(
        config.name,
        **connect(preset, provider, config),
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
    from treadle.models.tokens.model import TokenModel
    from treadle.renderers.registry import load_renderer

    _check_options(provider, config.options, ("engine",))
    engine = make_engine(
        config.name,
        kind=config.options.get("engine"),
        context_tokens=config.context_tokens,
        **connect(preset, provider, config),
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
    taken = [*_GENERAL, *known]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, taken, f"it takes {', '.join(taken)}")
            raise ConfigError(f"a model of {provider!r} has no option {name!r}{hint}")


_GENERAL = tuple([name for name in model.__annotations__ if name not in ("name", "options", "return")])
"""The options of every model."""
