"""Models: what answers a request. Names only, each loaded when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.models.config import ModelConfig, model
    from treadle.models.openai_chat import OpenAIChatModel
    from treadle.models.price import Price
    from treadle.models.protocol import Model, ModelLike, Watch
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

__all__ = [
    "Answer",
    "HttpRequest",
    "HttpResponse",
    "HttpTransport",
    "InProcessTransport",
    "Model",
    "ModelConfig",
    "ModelLike",
    "OpenAIChatModel",
    "Price",
    "RetryModel",
    "ScriptedModel",
    "StreamedAnswer",
    "Transport",
    "Watch",
    "call",
    "model",
]

_MODULES = {
    "config": ("ModelConfig", "model"),
    "openai_chat": ("OpenAIChatModel",),
    "price": ("Price",),
    "protocol": ("Model", "ModelLike", "Watch"),
    "retry": ("RetryModel",),
    "scripted": ("ScriptedModel", "call"),
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
