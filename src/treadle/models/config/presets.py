"""The names of models, the providers that they may begin with, and the dialects that providers speak.

A dialect is one line in `DIALECTS`; its own provider is the `PRESET` of its class. Another provider of a dialect
is an entry in `_PRESETS`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.core.types import OutputMode
from treadle.models.wire.provider import Preset, Quirks

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


def _chat(base_url: str, key_variable: str, price_provider: str | None, **more: Any) -> Preset:
    return Preset(
        dialect="openai_chat",
        base_url=base_url,
        key_variable=key_variable,
        price_provider=price_provider,
        **more,
    )


def _local(base_url: str, stem: str, *, tells_window: bool = True, **more: Any) -> Preset:
    return Preset(
        dialect="openai_chat",
        base_url=base_url,
        key_variable=f"{stem}_API_KEY",
        needs_key=False,
        base_url_variable=f"{stem}_BASE_URL",
        tells_window=tells_window,
        **more,
    )


_PRESETS: dict[str, Preset] = {
    "openrouter": _chat(
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "openrouter",
        quirks=Quirks(reports_cost=True),
    ),
    "groq": _chat(
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        "groq",
        decodes_beside_tools=False,
        quirks=Quirks(thinks_in_text=True),
    ),
    "huggingface": _chat(
        "https://router.huggingface.co/v1", "HF_TOKEN", None, quirks=Quirks(thinks_in_text=True)
    ),
    "deepseek": _chat(
        "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek", output_mode=OutputMode.TOOL
    ),
    "mistral": _chat(
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        "mistral",
        quirks=Quirks(renamed={"seed": "random_seed"}, has_reasoning=False, has_short_ids=True),
    ),
    "together": _chat("https://api.together.xyz/v1", "TOGETHER_API_KEY", "together"),
    "fireworks": _chat("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "fireworks"),
    "xai": _chat("https://api.x.ai/v1", "XAI_API_KEY", "x-ai"),
    "vllm": _local("http://localhost:8000/v1", "VLLM", quirks=Quirks(id_fields=("return_weight_versions",))),
    "sglang": _local(
        "http://localhost:30000/v1",
        "SGLANG",
        quirks=Quirks(id_fields=("return_prompt_token_ids", "return_meta_info"), streams_ids=False),
    ),
    "llama.cpp": _local("http://localhost:8080/v1", "LLAMA"),
    "lmstudio": _local("http://localhost:1234/v1", "LMSTUDIO", tells_window=False),
}
"""Providers that speak another provider's dialect, by name."""


def provider_names() -> list[str]:
    """Return the names of all built-in providers, and of the providers that are dialects of other packages."""
    return [*[_PROVIDERS.get(name, name) for name in DIALECTS.names()], *_PRESETS]


def find_preset(provider: str) -> Preset | None:
    """Return the preset of a provider; `None` if there is no built-in provider of this name."""
    if provider in _PRESETS:
        return _PRESETS[provider]
    dialect = next((name for name, known in _PROVIDERS.items() if known == provider), provider)
    if dialect in _PROVIDERS and provider == dialect:
        return None
    return DIALECTS.load(dialect).PRESET if dialect in DIALECTS else None
