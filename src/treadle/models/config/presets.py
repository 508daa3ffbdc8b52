"""Providers as data: which dialect each speaks, where it is, and what is odd about it.

Adding one is an entry here. A dialect is an entry in `DIALECTS`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from treadle.core.types import OutputMode

DIALECTS = {
    "openai_chat": "treadle.models.dialects.openai_chat.request:OpenAIChatModel",
    "openai_responses": "treadle.models.dialects.openai_responses.request:OpenAIResponsesModel",
    "anthropic": "treadle.models.dialects.anthropic.request:AnthropicModel",
    "gemini": "treadle.models.dialects.gemini.request:GeminiModel",
    "ollama": "treadle.models.dialects.ollama.request:OllamaModel",
    "completions": "treadle.models.dialects.completions.request:CompletionsModel",
}
"""Dialect to `module:class`."""


class Quirks(Struct, frozen=True, omit_defaults=True):
    """In what a server of a dialect differs from the others."""

    renamed: Mapping[str, str] = {}
    """Field of the request to the name that the server has for it."""
    has_reasoning: bool = True
    """Takes the reasoning of earlier messages back."""
    has_short_ids: bool = False
    """Takes only ids of calls that are nine letters and digits."""


class Preset(Struct, frozen=True, kw_only=True):
    """One provider."""

    dialect: str
    base_url: str | None = None
    """`None`: the dialect's own."""
    key_variable: str | None = None
    """The environment variable with the key."""
    needs_key: bool = True
    """At `base_url`; another server may need none."""
    base_url_variable: str | None = None
    header_variables: Mapping[str, str] = {}
    """Header to the environment variable that it is read from, if it is set."""
    output_mode: OutputMode = OutputMode.NATIVE
    decodes_beside_tools: bool = True
    """Takes a schema for the answer in a request that has tools."""
    quirks: Quirks = Quirks()
    price_provider: str | None = None
    """As genai-prices names it; `None`: nothing is to be paid, or it is not known."""


def _chat(base_url: str, key_variable: str, price_provider: str, **more: Any) -> Preset:
    return Preset(
        dialect="openai_chat",
        base_url=base_url,
        key_variable=key_variable,
        price_provider=price_provider,
        **more,
    )


def _local(base_url: str, stem: str) -> Preset:
    return Preset(
        dialect="openai_chat",
        base_url=base_url,
        key_variable=f"{stem}_API_KEY",
        needs_key=False,
        base_url_variable=f"{stem}_BASE_URL",
    )


PRESETS: dict[str, Preset] = {
    "openai": Preset(
        dialect="openai_chat",
        key_variable="OPENAI_API_KEY",
        base_url_variable="OPENAI_BASE_URL",
        header_variables={"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"},
        price_provider="openai",
    ),
    "openai_responses": Preset(
        dialect="openai_responses",
        key_variable="OPENAI_API_KEY",
        base_url_variable="OPENAI_BASE_URL",
        header_variables={"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"},
        price_provider="openai",
    ),
    "anthropic": Preset(
        dialect="anthropic",
        key_variable="ANTHROPIC_API_KEY",
        base_url_variable="ANTHROPIC_BASE_URL",
        price_provider="anthropic",
    ),
    "gemini": Preset(
        dialect="gemini",
        key_variable="GEMINI_API_KEY",
        base_url_variable="GEMINI_BASE_URL",
        # Most Gemini models refuse it.
        decodes_beside_tools=False,
        price_provider="google",
    ),
    "ollama": Preset(
        dialect="ollama",
        key_variable="OLLAMA_API_KEY",
        needs_key=False,
        base_url_variable="OLLAMA_HOST",
        # With a format, Ollama's models call no tools.
        decodes_beside_tools=False,
    ),
    "completions": Preset(
        dialect="completions",
        key_variable="OPENAI_API_KEY",
        base_url_variable="OPENAI_BASE_URL",
        needs_key=False,
        output_mode=OutputMode.TEXT,
    ),
    "openrouter": _chat("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openrouter"),
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
    "vllm": _local("http://localhost:8000/v1", "VLLM"),
    "sglang": _local("http://localhost:30000/v1", "SGLANG"),
    "llama.cpp": _local("http://localhost:8080/v1", "LLAMA"),
    "lmstudio": _local("http://localhost:1234/v1", "LMSTUDIO"),
}
"""Provider, as before the colon of a model's name, to what it is."""
