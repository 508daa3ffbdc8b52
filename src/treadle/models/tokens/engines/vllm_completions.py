"""vLLM's `/v1/completions` with token ids in and out. Source: vLLM 0.11 to 0.33, `return_token_ids`."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from treadle.core.events import Delta
from treadle.core.types import Json, Settings
from treadle.models.tokens.engines.engine import HttpTokenEngine, TokenCollector, make_generated
from treadle.models.tokens.protocol import Generated
from treadle.models.wire.openai import PlainUsage
from treadle.models.wire.server import Server


class _Logprobs(Struct, gc=False):
    token_logprobs: list[float | None] | None = None


class _Choice(Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[dict[str, Json]] | None = None


class _Answer(Struct, gc=False):
    choices: tuple[_Choice]
    id: str | None = None
    model: str | None = None
    usage: PlainUsage | None = None


class CompletionsCollector(TokenCollector):
    """A collector of streamed completions with token ids."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._spans: Json = None
        self._logprobs: list[float | None] | None = None

    def add(self, event: Json) -> None:
        self._head |= {name: event[name] for name in ("id", "model", "usage") if event.get(name) is not None}
        for choice in event.get("choices") or ():
            if (told := choice.get("logprobs")) is not None:
                self._logprobs = (self._logprobs or []) + told["token_logprobs"]
            self._take_ids(choice.get("token_ids") or [])
            self._spans = choice.get("weight_versions") or self._spans
            self._finish = choice.get("finish_reason") or self._finish

    def raw(self) -> Json:
        choice = {
            "token_ids": self.token_ids,
            "logprobs": {"token_logprobs": self._logprobs},
            "finish_reason": self._finish,
            "weight_versions": self._spans,
        }
        return {**self._head, "choices": [choice]}


class VllmCompletions(HttpTokenEngine):
    """The completions endpoint of vLLM."""

    BASE_URL = "http://localhost:8000/v1"
    PATH = "/completions"
    ANSWER = _Answer
    COLLECTOR = CompletionsCollector

    def _body(
        self,
        prompt_ids: Sequence[int],
        settings: Settings,
        stop_token_ids: Sequence[int],
        limit: int,
        *,
        is_stream: bool,
    ) -> dict[str, Json]:
        fields: dict[str, Json] = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": limit,
            "return_token_ids": True,
            "return_weight_versions": True,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
            "stop": settings.stop,
            "stop_token_ids": list(stop_token_ids) or None,
            # The number of alternatives to the sampled token, whose own log probability is always there.
            "logprobs": None if settings.logprobs is False else 0,
        }
        if is_stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in fields.items() if value is not None} | (settings.extra or {})

    def _read(self, answer: _Answer, sent: int) -> Generated:
        choice, usage = answer.choices[0], answer.usage
        return make_generated(
            choice.token_ids,
            None if choice.logprobs is None else choice.logprobs.token_logprobs,
            choice.finish_reason,
            prompt=(sent, None if usage is None else usage.prompt_tokens),
            counted=None if usage is None else usage.completion_tokens,
            spans=choice.weight_versions,
            model=answer.model,
            response_id=answer.id,
            cached_tokens=0 if usage is None else usage.read().cached_input_tokens,
        )
