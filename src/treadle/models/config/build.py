"""Makes a model from its name and what the user wants of it.

`provider:name` picks a preset, which is data, or a function of an entry point of the group `treadle.models`. Such
a function takes a `ModelConfig` and gives a model; what goes around every model is put around it here.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Json, OutputMode, Settings
from treadle.http.transport import Transport
from treadle.models.config.presets import DIALECTS, PRESETS, Preset, Quirks
from treadle.models.protocol import Model
from treadle.models.wire.price import Price


class ModelConfig(Struct, frozen=True, kw_only=True):
    """What a provider makes a model from."""

    name: str
    """The model as the server knows it, without the provider."""
    base_url: str | None = None
    api_key: str | None = None
    settings: Settings = Settings()
    price: Price | None = None
    headers: Mapping[str, str] | None = None
    timeout_seconds: float = 600.0
    """For one attempt, from connecting to the end of the answer."""
    connect_timeout_seconds: float = 10.0
    transport: Transport | None = None
    """`None`: HTTP."""
    output_mode: OutputMode | None = None
    """How answers in a schema are asked for; `None` leaves it to the provider."""
    options: Mapping[str, Json] = {}
    """What only this provider's dialect takes, as `cache` of `anthropic` or `format` of `completions`."""

    def __repr__(self) -> str:
        # Neither the key nor headers, which may hold one.
        return f"ModelConfig(name={self.name!r}, base_url={self.base_url!r}, settings={self.settings!r})"


if TYPE_CHECKING:
    from treadle.models.wrappers.limit import Limiter

Maker: TypeAlias = Callable[[ModelConfig], Model]


def model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_output_tokens: int | None = None,
    seed: int | None = None,
    stop: str | tuple[str, ...] | list[str] | None = None,
    logprobs: bool | None = None,
    return_token_ids: bool | None = None,
    extra: Mapping[str, Json] | None = None,
    price: Price | None = None,
    timeout_seconds: float = 600.0,
    connect_timeout_seconds: float = 10.0,
    total_timeout_seconds: float = 1800.0,
    max_attempts: int = 6,
    headers: Mapping[str, str] | None = None,
    transport: Transport | None = None,
    output_mode: OutputMode | str | None = None,
    format: str | None = None,
    limiter: "Limiter | None" = None,
    **options: Json,
) -> Model:
    """A model by its name: `"anthropic:claude-sonnet-4-5"`, or without a provider, which is `openai` then.

    `openai` is any server that speaks chat completions, at `base_url` or OPENAI_BASE_URL. `timeout_seconds`
    bounds one attempt, `total_timeout_seconds` all of them with the waiting between. What is `None` is left
    to the server. `extra` is sent as it is and wins over the settings. `output_mode` says how answers in a schema
    are asked for: `native`, `tool` or `text`. `format` is for models whose tool calls are text, which the server
    does not read: one of `treadle.formats.FORMATS`, or `auto`. `limiter` is what its requests are held to, together
    with those of all other models that it is given to. Further `options` are those of the provider's
    dialect. The cost is `price`'s, or genai-prices' where that is installed and the provider's own server is asked.

    Raises: `ConfigError` for an unknown provider or option, a missing key or a setting out of range.
    """
    inner = bare_model(
        name,
        base_url=base_url,
        api_key=api_key,
        temperature=temperature,
        top_p=top_p,
        max_output_tokens=max_output_tokens,
        seed=seed,
        stop=stop,
        logprobs=logprobs,
        return_token_ids=return_token_ids,
        extra=extra,
        price=price,
        timeout_seconds=timeout_seconds,
        connect_timeout_seconds=connect_timeout_seconds,
        total_timeout_seconds=total_timeout_seconds,
        headers=headers,
        transport=transport,
        output_mode=output_mode,
        format=format,
        **options,
    )
    priced = with_cost(inner, name, base_url=base_url, price=price)
    if limiter is not None:
        from treadle.models.wrappers.limit import LimitModel

        priced = LimitModel(priced, limiter=limiter)
    return with_retries(priced, max_attempts, total_timeout_seconds)


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
    **options: Any,
) -> Model:
    """As `model`, with the same options, but with nothing around it."""
    provider, rest = split_name(name)
    if format is not None and stop is None:
        # A model that goes on after its calls would make their results up.
        stop = ("<tool_response>",)
    settings = Settings(
        stop=(stop,) if isinstance(stop, str) else tuple(stop) if stop is not None else None,
        extra=dict(extra) if extra else None,
        **{key: options.pop(key) for key in _SETTINGS & options.keys()},
    )
    _check(settings)
    if not total_timeout_seconds > 0:
        raise ConfigError(f"total_timeout_seconds is {total_timeout_seconds!r}; give a positive number")
    config = ModelConfig(
        name=rest,
        settings=settings,
        timeout_seconds=min(timeout_seconds, total_timeout_seconds),
        output_mode=None if output_mode is None else _read_mode(output_mode),
        **{key: options.pop(key) for key in _CONFIGURED & options.keys()},
        options=options,
    )
    made = make_from_preset(provider, config) if provider in PRESETS else _find_maker(provider, name)(config)
    if format is None:
        return made
    from treadle.models.wrappers.format_model import FormatModel

    return FormatModel(made, format)


_SETTINGS = frozenset(("temperature", "top_p", "max_output_tokens", "seed", "logprobs", "return_token_ids"))
_CONFIGURED = frozenset(("base_url", "api_key", "price", "headers", "transport", "connect_timeout_seconds"))


def split_name(name: str) -> tuple[str, str]:
    """The provider, and the model as its server knows it. Raises: `ConfigError` for a name without one."""
    provider, _, rest = name.partition(":") if ":" in name else ("openai", "", name)
    if not rest:
        raise ConfigError(f"the model name {name!r} names no model; give one such as 'openai:gpt-5-mini'")
    return provider, rest


def with_cost(
    inner: Model, name: str, *, base_url: str | None = None, price: Price | None = None, **_: Any
) -> Model:
    """`inner` with the cost of its answers, where there is a table of prices and it is about this server."""
    provider, rest = split_name(name)
    preset = PRESETS.get(provider)
    if price is not None or preset is None or preset.price_provider is None:
        return inner
    if _given_url(preset, base_url) not in (None, _home_of(preset)) or find_spec("genai_prices") is None:
        return inner
    from treadle.models.wrappers.cost import CostModel

    return CostModel(inner, provider=preset.price_provider, model=rest)


def with_retries(inner: Model, max_attempts: int, total_timeout_seconds: float) -> Model:
    """`inner`, tried again."""
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


def providers() -> dict[str, str]:
    """Every provider that a name may begin with, and what it is: its dialect, or an entry point."""
    found = {point.name: point.value for point in entry_points(group="treadle.models")}
    return found | {name: preset.dialect for name, preset in PRESETS.items()}


def _find_maker(provider: str, name: str) -> Maker:
    for point in entry_points(group="treadle.models"):
        if point.name == provider:
            maker: Maker = point.load()
            return maker
    known = providers()
    near = get_close_matches(provider, known, n=1)
    hint = f"did you mean {near[0] + ':' + name.partition(':')[2]!r}? " if near else ""
    raise ConfigError(
        f"unknown provider {provider!r} in the model name {name!r}; {hint}Known: {', '.join(sorted(known))}. "
        f"A name that holds a colon itself is written {'openai:' + name!r}"
    )


def make_from_preset(provider: str, config: ModelConfig) -> Model:
    """The model of a preset, without anything around it. What is not given is read from the environment.

    Raises: `ConfigError`.
    """
    from treadle.http.transport import HttpTransport

    preset = PRESETS[provider]
    home = _home_of(preset)
    base_url = _given_url(preset, config.base_url) or home
    api_key = config.api_key or (
        os.environ.get(preset.key_variable) or None if preset.key_variable is not None else None
    )
    headers = {
        header: value
        for header, variable in preset.header_variables.items()
        if (value := os.environ.get(variable))
    }
    headers |= {name.lower(): value for name, value in (config.headers or {}).items()}
    is_home = urlsplit(base_url).hostname == urlsplit(home).hostname
    if api_key is None and preset.needs_key and is_home and not _has_key(headers):
        raise ConfigError(
            f"no API key for {config.name!r} at {home}: set the environment variable {preset.key_variable}, or "
            "pass api_key=. For another server pass base_url="
        )
    kind = _load_dialect(preset.dialect)
    options = dict(config.options)
    check_options(provider, options, kind.OPTIONS)
    if preset.quirks != Quirks():
        options["quirks"] = preset.quirks
    made: Model = kind(
        config.name,
        name=f"{provider}:{config.name}",
        base_url=base_url,
        api_key=api_key,
        settings=config.settings,
        price=config.price,
        headers=headers,
        key_variable=preset.key_variable,
        output_mode=config.output_mode or preset.output_mode,
        # Who says how knows better.
        decodes_beside_tools=preset.decodes_beside_tools or config.output_mode is not None,
        transport=config.transport
        or HttpTransport(
            timeout_seconds=config.timeout_seconds, connect_timeout_seconds=config.connect_timeout_seconds
        ),
        **options,
    )
    return made


def _home_of(preset: Preset) -> str:
    home: str = preset.base_url or _load_dialect(preset.dialect).BASE_URL
    return home


def _given_url(preset: Preset, base_url: str | None) -> str | None:
    """What the caller or the environment says."""
    variable = preset.base_url_variable
    return base_url or (os.environ.get(variable) if variable else None) or None


def _load_dialect(dialect: str) -> Any:
    module, _, name = DIALECTS[dialect].partition(":")
    return getattr(import_module(module), name)


def _has_key(headers: Iterable[str]) -> bool:
    return any(name in ("authorization", "x-api-key", "api-key", "x-goog-api-key") for name in headers)


def check_options(provider: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raises: `ConfigError` for an option that neither `model` nor the provider's dialect has."""
    taken = [*_GENERAL, *known]
    for name in options:
        if name not in known:
            near = get_close_matches(name, taken, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(taken)}"
            raise ConfigError(f"a model of {provider!r} has no option {name!r}; {hint}")


_GENERAL = tuple([name for name in model.__annotations__ if name not in ("name", "options", "return")])
"""What every model takes."""
