"""The names of models, the providers that they may begin with, and the dialects that providers speak.

A dialect is one line in `DIALECTS`; its own provider is the `PRESET` of its class. Another provider of a dialect
is an entry in `presets.toml`.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.core.texts.documents import read_data
from treadle.models.wire.provider import Preset

if TYPE_CHECKING:
    from treadle.models.wire.http_model import HttpModel

DIALECTS: "Registry[type[HttpModel]]" = Registry(
    "dialect",
    "treadle.dialects",
    {
        "openai_chat": "treadle.models.dialects.openai_chat.request:OpenAIChatModel",
        "openai_responses": "treadle.models.dialects.openai_responses.request:OpenAIResponsesModel",
        "anthropic": "treadle.models.dialects.anthropic.request:AnthropicModel",
        "gemini": "treadle.models.dialects.gemini.request:GeminiModel",
        "ollama": "treadle.models.dialects.ollama:OllamaModel",
        "completions": "treadle.models.dialects.completions:CompletionsModel",
    },
)
"""The classes of models, by dialect."""

_PROVIDERS = {"openai_chat": "openai"}
"""The names of dialects' own providers, if they differ from the names of the dialects."""


AUTO = "auto"
"""The name of the model whose tier a router chooses; `auto:NAME` names the router too."""
ORACLE = "oracle"
"""The name of the model that solves the run's task; `oracle:RATE` names a rate of mistakes too."""


def is_tiered(name: str) -> bool:
    """Return whether `name` names a model that consists of the tiers of treadle.toml."""
    return name.partition(":")[0] in (AUTO, "tier") and name != "tier"


def is_oracle(name: str, options: Mapping[str, object]) -> bool:
    """Return whether `name` names the oracle. With a base URL, `name` is a model on a server."""
    return name.partition(":")[0] == ORACLE and options.get("base_url") is None


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


@cache
def _presets() -> dict[str, Preset]:
    """Return the providers that speak another provider's dialect, by name."""
    return msgspec.convert(read_data(__package__, "presets"), dict[str, Preset])


def provider_names() -> list[str]:
    """Return the names of all built-in providers, and of the providers that are dialects of other packages."""
    return [*[_PROVIDERS.get(name, name) for name in DIALECTS.names()], *_presets()]


def find_preset(provider: str) -> Preset | None:
    """Return the preset of a provider; `None` if there is no built-in provider of this name."""
    if (preset := _presets().get(provider)) is not None:
        return preset
    dialect = next((name for name, known in _PROVIDERS.items() if known == provider), provider)
    if dialect in _PROVIDERS and provider == dialect:
        return None
    return DIALECTS.load(dialect).PRESET if dialect in DIALECTS else None
