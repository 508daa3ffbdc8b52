"""Models: what answers a request. Names only, each loaded when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.models.anthropic import AnthropicModel
    from treadle.models.cache import CacheModel
    from treadle.models.completions import CompletionsModel
    from treadle.models.config import ModelConfig, model
    from treadle.models.config_file import Config, load_config
    from treadle.models.cost import CostModel
    from treadle.models.fallback import FallbackModel
    from treadle.models.format_model import FormatModel
    from treadle.models.gemini import GeminiModel
    from treadle.models.limit import Limiter, LimitModel
    from treadle.models.ollama import OllamaModel
    from treadle.models.openai_chat import OpenAIChatModel
    from treadle.models.openai_responses import OpenAIResponsesModel
    from treadle.models.price import Price
    from treadle.models.protocol import Model, ModelLike, RateLimits, Watch
    from treadle.models.retry import RetryModel
    from treadle.models.scripted import ScriptedModel, call
    from treadle.models.transport import (
        Answer,
        HttpRequest,
        HttpResponse,
        HttpTransport,
        InProcessTransport,
        StreamedAnswer,
        Transport,
    )
    from treadle.models.wrapper import Wrapper

__all__ = [
    "Answer",
    "AnthropicModel",
    "CacheModel",
    "CompletionsModel",
    "Config",
    "CostModel",
    "FallbackModel",
    "FormatModel",
    "GeminiModel",
    "HttpRequest",
    "HttpResponse",
    "HttpTransport",
    "InProcessTransport",
    "LimitModel",
    "Limiter",
    "Model",
    "ModelConfig",
    "ModelLike",
    "OllamaModel",
    "OpenAIChatModel",
    "OpenAIResponsesModel",
    "Price",
    "RateLimits",
    "RetryModel",
    "ScriptedModel",
    "StreamedAnswer",
    "Transport",
    "Watch",
    "Wrapper",
    "call",
    "load_config",
    "model",
]

_MODULES = {
    "anthropic": ("AnthropicModel",),
    "cache": ("CacheModel",),
    "config": ("ModelConfig", "model"),
    "completions": ("CompletionsModel",),
    "config_file": ("Config", "load_config"),
    "cost": ("CostModel",),
    "fallback": ("FallbackModel",),
    "format_model": ("FormatModel",),
    "gemini": ("GeminiModel",),
    "limit": ("LimitModel", "Limiter"),
    "ollama": ("OllamaModel",),
    "openai_chat": ("OpenAIChatModel",),
    "openai_responses": ("OpenAIResponsesModel",),
    "price": ("Price",),
    "protocol": ("Model", "ModelLike", "RateLimits", "Watch"),
    "retry": ("RetryModel",),
    "scripted": ("ScriptedModel", "call"),
    "wrapper": ("Wrapper",),
    "transport": (
        "Answer",
        "HttpRequest",
        "HttpResponse",
        "HttpTransport",
        "InProcessTransport",
        "StreamedAnswer",
        "Transport",
    ),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"treadle.models.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
