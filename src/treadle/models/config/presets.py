"""The providers that a model's name may begin with, and the dialects that they speak.

A dialect is one line in `DIALECTS`; its own provider is the `PRESET` of its class. Another provider of a dialect
is an entry in `_PRESETS`.
"""

from typing import TYPE_CHECKING, Any

from treadle.core.registry import Registry
from treadle.core.types import OutputMode
from treadle.models.wire.preset import Preset, Quirks

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
        "ollama": "treadle.models.dialects.ollama.request:OllamaModel",
        "completions": "treadle.models.dialects.completions.request:CompletionsModel",
    },
)
"""The classes of models, by dialect."""

_PROVIDERS = {"openai_chat": "openai"}
"""The names of dialects' own providers, if they differ from the names of the dialects."""


def _chat(base_url: str, key_variable: str, price_provider: str, **more: Any) -> Preset:
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
    "groq": _chat("https://api.groq.com/openai/v1", "GROQ_API_KEY", "groq", decodes_beside_tools=False),
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
    """Return the names of all built-in providers, and of those that are dialects of other packages."""
    return [*[_PROVIDERS.get(name, name) for name in DIALECTS.names()], *_PRESETS]


def find_preset(provider: str) -> Preset | None:
    """Return the preset of a provider; `None` if there is no built-in provider of this name."""
    if provider in _PRESETS:
        return _PRESETS[provider]
    dialect = next((name for name, known in _PROVIDERS.items() if known == provider), provider)
    if dialect in _PROVIDERS and provider == dialect:
        return None
    return DIALECTS.load(dialect).PRESET if dialect in DIALECTS else None
