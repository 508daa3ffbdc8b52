"""Models, which answer requests. The names below are loaded when they are first used.

Read first: `protocol.py` (what a model is), `config/recipe.py` (how a name becomes a model), `wire/http_model.py`
(how a request is sent and its answer read) and `dialects/openai_chat/` (the dialect that is used most). A part
imports only the parts before it: `wire/` (what dialects share), `dialects/` (one for each wire format), `tokens/`
(models that are sent token ids), `wrappers/` (retry, limit, cost, fallback, cache, tiers, text formats),
`config/` (names, providers, treadle.toml, stored keys).

How to add
- a provider with a dialect that exists: an entry in `config/presets.toml`, and its name in `docs/models.md`.
  `tests/models/test_config.py` tests all entries. What a server wants otherwise in requests is a field of `Quirks`
  in `wire/provider.py`. What it writes otherwise in answers needs no quirk: the dialect reads the forms of all
  servers.
- a dialect: a subclass of `HttpModel` with its `PRESET` in `dialects/`, a line in `DIALECTS` of
  `config/presets.py`, and a module in `tests/models/wire` with a server's responses; the contract tests then run
  it. Raise the errors of `core/errors`, because they decide what is tried again. Texts of servers' errors belong
  in `wire/faults.toml`. Data without a field is kept in `opaque` under the dialect's name, which `_FOREIGN_KEYS`
  of `openai_chat` then needs too.
- an engine that takes token ids: a subclass of `HttpTokenEngine` in `tokens/engines/`, a line in its
  `registry.py`, its paths in `wire/endpoint.py`, and its endpoints in the mock of `testbed/engines/`.
Other packages register entry points: `treadle.models` (a function from a `ModelConfig` to a `Model`),
`treadle.dialects` and `treadle.token_engines` (a class).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.http.transport import (
        Answer,
        HttpRequest,
        HttpResponse,
        HttpTransport,
        InProcessTransport,
        StreamedAnswer,
        Transport,
    )
    from treadle.models.config.bare import ModelConfig
    from treadle.models.config.recipe import Config, load_config, model
    from treadle.models.dialects.anthropic.request import AnthropicModel
    from treadle.models.dialects.completions import CompletionsModel
    from treadle.models.dialects.gemini.request import GeminiModel
    from treadle.models.dialects.ollama import OllamaModel
    from treadle.models.dialects.openai_chat.request import OpenAIChatModel
    from treadle.models.dialects.openai_responses.request import OpenAIResponsesModel
    from treadle.models.protocol import Model, ModelLike, RateLimits, Watch
    from treadle.models.scripted import ScriptedModel, call
    from treadle.models.tokens.token_model import TokenModel
    from treadle.models.wire.provider import Price
    from treadle.models.wrappers.cache import CacheModel
    from treadle.models.wrappers.cost import CostModel
    from treadle.models.wrappers.fallback import FallbackModel
    from treadle.models.wrappers.format_model import FormatModel
    from treadle.models.wrappers.limiter import Limiter, LimitModel
    from treadle.models.wrappers.retry import RetryModel
    from treadle.models.wrappers.tiered import Tier, TieredModel
    from treadle.models.wrappers.wrapper import Wrapper

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
    "Tier",
    "TieredModel",
    "TokenModel",
    "Transport",
    "Watch",
    "Wrapper",
    "call",
    "load_config",
    "model",
]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)
