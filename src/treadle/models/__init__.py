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
    from treadle.http.transport import Answer as Answer
    from treadle.http.transport import HttpRequest as HttpRequest
    from treadle.http.transport import HttpResponse as HttpResponse
    from treadle.http.transport import HttpTransport as HttpTransport
    from treadle.http.transport import InProcessTransport as InProcessTransport
    from treadle.http.transport import StreamedAnswer as StreamedAnswer
    from treadle.http.transport import Transport as Transport
    from treadle.models.config.bare import ModelConfig as ModelConfig
    from treadle.models.config.recipe import Config as Config
    from treadle.models.config.recipe import load_config as load_config
    from treadle.models.config.recipe import model as model
    from treadle.models.dialects.anthropic.request import AnthropicModel as AnthropicModel
    from treadle.models.dialects.completions import CompletionsModel as CompletionsModel
    from treadle.models.dialects.gemini.request import GeminiModel as GeminiModel
    from treadle.models.dialects.ollama import OllamaModel as OllamaModel
    from treadle.models.dialects.openai_chat.request import OpenAIChatModel as OpenAIChatModel
    from treadle.models.dialects.openai_responses.request import OpenAIResponsesModel as OpenAIResponsesModel
    from treadle.models.protocol import Model as Model
    from treadle.models.protocol import ModelLike as ModelLike
    from treadle.models.protocol import RateLimits as RateLimits
    from treadle.models.protocol import Watch as Watch
    from treadle.models.scripted import ScriptedModel as ScriptedModel
    from treadle.models.scripted import call as call
    from treadle.models.tokens.token_model import TokenModel as TokenModel
    from treadle.models.wire.provider import Price as Price
    from treadle.models.wrappers.cache import CacheModel as CacheModel
    from treadle.models.wrappers.cost import CostModel as CostModel
    from treadle.models.wrappers.fallback import FallbackModel as FallbackModel
    from treadle.models.wrappers.format_model import FormatModel as FormatModel
    from treadle.models.wrappers.limiter import Limiter as Limiter
    from treadle.models.wrappers.limiter import LimitModel as LimitModel
    from treadle.models.wrappers.retry import RetryModel as RetryModel
    from treadle.models.wrappers.tiered import Tier as Tier
    from treadle.models.wrappers.tiered import TieredModel as TieredModel
    from treadle.models.wrappers.wrapper import Wrapper as Wrapper


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)
