"""The operations of the loop with a model that is sent token ids."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.loop.test_providers import OPERATIONS
from tests.models.strict.providers import Provider, StrictServer, with_written_calls
from tests.models.tokens.scripted import ScriptedEngine

from treadle.core.errors import RequestError, ServerError
from treadle.core.types import FinishReason, Settings
from treadle.http.transport import HttpResponse
from treadle.models import TokenModel
from treadle.models.protocol import Model, Watch
from treadle.models.tokens.protocol import Generated
from treadle.renderers.protocol import Renderer
from treadle.renderers.registry import load_renderer

OTHERS = (
    *("a_refusal", "all_settings", "an_error_in_the_stream", "attached", "images_in_results", "priced"),
    "steps_with_a_seed",
)
"""The operations that need an API. `test_model.py` tests refusals, streams and prices with token ids, and
`test_engines.py` seeds."""


class AnsweringEngine(ScriptedEngine):
    """An engine that gives the answers of a server's list, and notes the prompts there as texts."""

    def __init__(self, renderer: Renderer, server: StrictServer) -> None:
        super().__init__(renderer, [])
        self._server = server

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        self._server.bodies.append({"prompt": self._renderer.decode(list(prompt_ids)), "tools": []})
        said: Any = next(self._server.answers)
        said = said() if callable(said) else said
        if isinstance(said, HttpResponse):
            kind = ServerError if said.status >= 500 else RequestError
            self._answers.append(kind("down", status=said.status))
        else:
            finish = FinishReason(said.name or "stop")
            end = stop_token_ids[:1] if finish is FinishReason.STOP else ()
            text = with_written_calls(replace(said, name=None)).content
            self._answers.append(self.sampled(text, end, finish))
        return await super().generate(prompt_ids, settings, stop_token_ids, watch)


class TokenProvider(Provider):
    """A provider whose models are sent token ids."""

    def make(self, server: StrictServer, **options: Any) -> Model:
        renderer = load_renderer("chatml")
        return TokenModel(AnsweringEngine(renderer, server), renderer)


PROVIDER = TokenProvider("vllm:m", "completions", lambda _: None, thoughts=None, writes_calls=True)


@pytest.mark.sets(20)
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in OTHERS])
async def test_every_operation_with_token_ids(operation: str, is_streamed: bool) -> None:
    await OPERATIONS[operation](PROVIDER, is_streamed=is_streamed)
