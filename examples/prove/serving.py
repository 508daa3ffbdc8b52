"""Networks behind the endpoints of vLLM: a server that samples for all waiting prompts together."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from treadle.core.errors import ConfigError
from treadle.core.tokens.packed import pack_ids
from treadle.renderers.registry import load_renderer
from treadle.testbed.engines import DrawnToken, EngineSettings, SampledAnswer, VllmApp
from treadle.testbed.engines.answering_work import IdsRequest
from treadle.testbed.server.oracle_app import HttpReply

BLIND = "blind"
"""The beginning of the names of models that see the message of another task."""
_MAX_TOKENS = 16_384
"""The most ids of a prompt and its answer."""
_PAUSE_SECONDS = 0.002
"""How long a request waits for others that are sampled with it."""


class NetworkApp(VllmApp):
    """A server of networks by name, each with a method `sample`. A request names the one that answers it."""

    def __init__(self, networks: Mapping[str, Any], renderer: str, blind_text: str) -> None:
        """`blind_text` is the message that a model sees whose name begins with `BLIND`."""
        found: Any = load_renderer(renderer)
        self.networks = dict(networks)
        self._ends = set(found.stop_token_ids)
        self._start, self._end = found.tokenizer.special_ids.get("<|im_start|>"), found.stop_token_ids[0]
        self._blind_ids = found.encode(f"user\n{blind_text}")
        bpe = SimpleNamespace(decode=found.decode, content=lambda ids: found.decode(ids).encode(), size=None)
        template = SimpleNamespace(bpe=bpe, end=self._end, opening="")
        self._waiting: list[_Waiting] = []
        self._drawn: dict[int, list[DrawnToken]] = {}
        policy: Any = SimpleNamespace(template=template)
        super().__init__(EngineSettings(model=next(iter(networks)), max_tokens=_MAX_TOKENS), policy)

    def begin(self, ask: IdsRequest, write: Callable[[SampledAnswer], HttpReply]) -> HttpReply:
        """See `EngineApp.begin`."""
        return HttpReply(200, (), {}, pending=_Waiting(self, ask, write))

    def finish(self, ask: IdsRequest, write: Callable[[SampledAnswer], HttpReply]) -> HttpReply:
        """Return the response to a request whose answer was sampled."""
        return super().begin(ask, write)

    def draw(
        self, ask: IdsRequest, ids: Sequence[int], seed: str, version: str, room: int
    ) -> list[DrawnToken]:
        """See `EngineApp.draw`."""
        return self._drawn.pop(id(ask), [])

    def add_waiting(self, waiting: "_Waiting") -> None:
        """Sample for a request together with those that arrive at the same time."""
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._sample)

    def _sample(self) -> None:
        waiting, self._waiting = self._waiting, []
        for name in {item.ask.model for item in waiting}:
            own = [item for item in waiting if item.ask.model == name]
            prompts = [list(item.ask.prompt_ids) for item in own]
            answers = self.networks[name].sample(
                [self._hide(prompt) for prompt in prompts] if name.startswith(BLIND) else prompts,
                [Random(f"{item.ask.seed}/{crc32(pack_ids(item.ask.prompt_ids))}") for item in own],
                [
                    min(item.ask.limit or 256, self.settings.max_tokens - len(item.ask.prompt_ids))
                    for item in own
                ],
                self._ends,
                [item.ask.temperature for item in own],
            )
            for item, answer in zip(own, answers, strict=True):
                self._drawn[id(item.ask)] = [DrawnToken(number, value) for number, value in answer]
        for item in waiting:
            item.deliver()

    def _hide(self, prompt: list[int]) -> list[int]:
        """Return a prompt of ChatML with another message in place of the user's first."""
        if self._start not in prompt:
            raise ConfigError("only models with the template ChatML can be shown the message of another task")
        start = prompt.index(self._start, 1)
        return [*prompt[: start + 1], *self._blind_ids, *prompt[prompt.index(self._end, start) :]]


class _Waiting:
    """A request that waits until it is sampled; see `PendingReply`."""

    def __init__(self, app: NetworkApp, ask: IdsRequest, write: Callable[[SampledAnswer], HttpReply]) -> None:
        self.ask = ask
        self._app, self._write = app, write
        self._done: Callable[[HttpReply], None] | None = None

    def start(self, done: Callable[[HttpReply], None]) -> None:
        self._done = done
        self._app.add_waiting(self)

    def deliver(self) -> None:
        reply = self._app.finish(self.ask, self._write)
        if self._done is not None:
            self._done(reply)

    def cancel(self) -> None:
        self._done = None


def describe(url: str, name: str, renderer: str, max_output_tokens: int) -> dict[str, Any]:
    """Return the model `name` of a server as a job takes it."""
    return {
        "model": f"vllm:{name}",
        "base_url": url,
        "renderer": renderer,
        "engine": "vllm_generate",
        "max_output_tokens": max_output_tokens,
        "temperature": 1.0,
    }
