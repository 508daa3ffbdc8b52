"""The engines by name, and the choice of an engine by a server's endpoints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.core.types import Settings
from treadle.models.protocol import Watch
from treadle.models.tokens.protocol import Generated, TokenEngine
from treadle.models.wire.endpoint import TOKEN_PATHS, EngineInfo, HttpEndpoint

if TYPE_CHECKING:
    from treadle.models.tokens.engines.http_engine import HttpTokenEngine

ENGINES: "Registry[type[HttpTokenEngine]]" = Registry(
    "token engine",
    "treadle.token_engines",
    {
        "vllm_completions": "treadle.models.tokens.engines.vllm:VllmCompletions",
        "vllm_generate": "treadle.models.tokens.engines.vllm:VllmGenerate",
        "sglang_generate": "treadle.models.tokens.engines.sglang:SglangGenerate",
    },
)
"""The classes of engines. The first one in this order whose endpoints a server has is used."""


def make_engine(model: str, *, kind: str | None = None, **options: Any) -> TokenEngine:
    """Return an engine of `ENGINES`, by default the one that the server is found to have when it is first asked.

    `options` are those of `HttpTokenEngine`. Raises: `ConfigError` for an unknown `kind`.
    """
    return ProbedEngine(model, **options) if kind is None else ENGINES.load(kind)(model, **options)


class ProbedEngine(HttpEndpoint):
    """An engine that is chosen by the server's endpoints before the first request."""

    BASE_URL = "http://localhost:8000/v1"
    PATH = ""

    def __init__(
        self, model: str, *, name: str | None = None, context_tokens: int | None = None, **options: Any
    ) -> None:
        """Make an engine; see `HttpTokenEngine`."""
        super().__init__(model, **options)
        self.name = name or model
        self._options = {**options, "name": name, "context_tokens": context_tokens}
        self._found: HttpTokenEngine | None = None

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        """Return what the found engine samples; see `TokenEngine.generate`.

        Raises: `ConfigError` if the server has no endpoint that takes and returns token ids.
        """
        if self._found is None:
            info = await self.find_engine()
            paths = (
                await self.find_paths(TOKEN_PATHS[info.name].values()) if info is not None else frozenset()
            )
            kind = find_kind(info, paths, self.server.origin)
            self._found = ENGINES.load(kind)(self.model, **self._options)
        self._found.weights = self.weights
        return await self._found.generate(prompt_ids, settings, stop_token_ids, watch)


def find_kind(info: EngineInfo | None, paths: frozenset[str], origin: str) -> str:
    """Return the name of the engine to use for a server with these endpoints.

    Raises: `ConfigError` if there is none.
    """
    if info is None:
        raise ConfigError(
            f"{origin} is neither vLLM nor SGLang, so it takes no token ids; use its model without a renderer"
        )
    for kind, path in TOKEN_PATHS[info.name].items():
        # Older completions of vLLM take ids and do not return any.
        if path in paths and (kind != "vllm_completions" or info.gives_ids or not info.numbers):
            return kind
    raise ConfigError(
        f"{origin} runs {info}, which has no endpoint that takes and returns token ids; update it"
    )
