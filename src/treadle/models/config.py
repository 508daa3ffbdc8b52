"""Makes a model from its name and what the user wants of it.

`provider:name` picks a function from the registry: one line here, or an entry point of the group
`treadle.models`. It takes a `ModelConfig` and gives a model; retrying is put around it here.
"""

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeAlias

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Json, Settings
from treadle.models.price import Price
from treadle.models.protocol import Model
from treadle.models.transport import Transport

PROVIDERS = {
    "openai": "treadle.models.config:make_openai",
}
"""Provider to `module:function`."""


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

    def __repr__(self) -> str:
        # Neither the key nor headers, which may hold one.
        return f"ModelConfig(name={self.name!r}, base_url={self.base_url!r}, settings={self.settings!r})"


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
) -> Model:
    """A model by its name: `"openai:gpt-5-mini"`, or without a provider, which is `openai` then.

    `openai` is any server that speaks chat completions, at `base_url` or OPENAI_BASE_URL. `timeout_seconds`
    bounds one attempt, `total_timeout_seconds` all of them with the waiting between. What is `None` is left
    to the server. `extra` is sent as it is and wins over the settings.

    Raises: `ConfigError` for an unknown provider, a missing key or a setting out of range.
    """
    provider, _, rest = name.partition(":") if ":" in name else ("openai", "", name)
    if not rest:
        raise ConfigError(f"the model name {name!r} names no model; give one such as 'openai:gpt-5-mini'")
    settings = Settings(
        temperature=temperature,
        top_p=top_p,
        max_output_tokens=max_output_tokens,
        seed=seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop) if stop is not None else None,
        logprobs=logprobs,
        return_token_ids=return_token_ids,
        extra=dict(extra) if extra else None,
    )
    _check(settings)
    if not total_timeout_seconds > 0:
        raise ConfigError(f"total_timeout_seconds is {total_timeout_seconds!r}; give a positive number")
    inner = _find_provider(provider, name)(
        ModelConfig(
            name=rest,
            base_url=base_url,
            api_key=api_key,
            settings=settings,
            price=price,
            headers=headers,
            timeout_seconds=min(timeout_seconds, total_timeout_seconds),
            connect_timeout_seconds=connect_timeout_seconds,
            transport=transport,
        )
    )
    from treadle.models.retry import RetryModel

    return RetryModel(inner, max_attempts=max_attempts, total_timeout_seconds=total_timeout_seconds)


def _check(settings: Settings) -> None:
    for name, value, low, high in (
        ("temperature", settings.temperature, 0, float("inf")),
        ("top_p", settings.top_p, 0, 1),
        ("max_output_tokens", settings.max_output_tokens, 1, float("inf")),
    ):
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{name} is {value!r}; give a number from {low} to {high}")


def _find_provider(provider: str, name: str) -> Maker:
    found = {point.name: point.value for point in entry_points(group="treadle.models")} | PROVIDERS
    if provider not in found:
        near = get_close_matches(provider, found, n=1)
        hint = f"did you mean {near[0] + ':' + name.partition(':')[2]!r}? " if near else ""
        raise ConfigError(
            f"unknown provider {provider!r} in the model name {name!r}; {hint}Known: {', '.join(sorted(found))}. "
            f"A name that holds a colon itself is written {'openai:' + name!r}"
        )
    module, _, function = found[provider].partition(":")
    maker: Maker = getattr(import_module(module), function)
    return maker


def make_openai(config: ModelConfig) -> Model:
    """A server that speaks OpenAI's chat completions. What is not given is read from the environment
    as OpenAI's own SDK does.
    """
    from treadle.models.openai_chat import OPENAI_BASE_URL, OpenAIChatModel
    from treadle.models.transport import HttpTransport

    base_url = config.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_BASE_URL
    api_key = config.api_key or os.environ.get("OPENAI_API_KEY") or None
    headers: dict[str, str] = {}
    for header, variable in (
        ("openai-organization", "OPENAI_ORG_ID"),
        ("openai-project", "OPENAI_PROJECT_ID"),
    ):
        if value := os.environ.get(variable):
            headers[header] = value
    headers |= {name.lower(): value for name, value in (config.headers or {}).items()}
    if api_key is None and "//api.openai.com" in base_url and "authorization" not in headers:
        raise ConfigError(
            f"no API key for {config.name!r} at {OPENAI_BASE_URL}: set the environment variable OPENAI_API_KEY, or "
            "pass api_key=. For another server pass base_url="
        )
    return OpenAIChatModel(
        config.name,
        base_url=base_url,
        api_key=api_key,
        settings=config.settings,
        price=config.price,
        headers=headers,
        transport=config.transport
        or HttpTransport(
            timeout_seconds=config.timeout_seconds, connect_timeout_seconds=config.connect_timeout_seconds
        ),
    )
