"""vLLM's `/inference/v1/generate`, which never makes text. Source: vLLM 0.12 to 0.33, `GenerateRequest`."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from treadle.core.events import Delta
from treadle.core.types import Json, Settings
from treadle.models.tokens.engines.engine import HttpTokenEngine, TokenCollector, make_generated
from treadle.models.tokens.protocol import Generated
from treadle.models.wire.openai import PlainUsage
from treadle.models.wire.server import Server


class _Logprob(Struct, gc=False):
    logprob: float | None = None


class _Logprobs(Struct, gc=False):
    content: list[_Logprob] | None = None


class _Choice(Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[dict[str, Json]] | None = None


class _Answer(Struct, gc=False):
    choices: tuple[_Choice]
    request_id: str | None = None
    id: str | None = None
    model: str | None = None
    usage: PlainUsage | None = None


class GenerateCollector(TokenCollector):
    """A collector of streamed pieces of ids."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._spans: Json = None
        self._content: list[Json] | None = None

    def add(self, event: Json) -> None:
        names = ("request_id", "id", "model", "usage")
        self._head |= {name: event[name] for name in names if event.get(name) is not None}
        for choice in event.get("choices") or ():
            if (told := choice.get("logprobs")) is not None:
                self._content = (self._content or []) + told["content"]
            self._take_ids(choice.get("token_ids") or [])
            self._spans = choice.get("weight_versions") or self._spans
            self._finish = choice.get("finish_reason") or self._finish

    def raw(self) -> Json:
        logprobs = None if self._content is None else {"content": self._content}
        choice = {
            "token_ids": self.token_ids,
            "logprobs": logprobs,
            "finish_reason": self._finish,
            "weight_versions": self._spans,
        }
        return {**self._head, "choices": [choice]}


class VllmGenerate(HttpTokenEngine):
    """The endpoint of vLLM that takes and returns only ids."""

    BASE_URL = "http://localhost:8000/v1"
    PATH = ""
    ROOT_PATH = "/inference/v1/generate"
    ANSWER = _Answer
    COLLECTOR = GenerateCollector
    TOP_LEVEL = frozenset(("cache_salt", "features", "kv_transfer_params", "priority", "request_id"))

    def _body(
        self,
        prompt_ids: Sequence[int],
        settings: Settings,
        stop_token_ids: Sequence[int],
        limit: int,
        *,
        is_stream: bool,
    ) -> dict[str, Json]:
        more, sampling = self._split(settings.extra)
        parameters: dict[str, Json] = {
            "max_tokens": limit,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
            "stop": settings.stop,
            "stop_token_ids": list(stop_token_ids) or None,
            "logprobs": None if settings.logprobs is False else 0,
        }
        body: dict[str, Json] = {
            "model": self.model,
            "token_ids": list(prompt_ids),
            "sampling_params": {name: value for name, value in parameters.items() if value is not None}
            | sampling,
        }
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | more

    def _read(self, answer: _Answer, sent: int) -> Generated:
        choice, usage = answer.choices[0], answer.usage
        content = None if choice.logprobs is None else choice.logprobs.content
        return make_generated(
            choice.token_ids,
            None if content is None else [item.logprob for item in content],
            choice.finish_reason,
            prompt=(sent, None if usage is None else usage.prompt_tokens),
            counted=None if usage is None else usage.completion_tokens,
            spans=choice.weight_versions,
            model=answer.model,
            response_id=answer.id or answer.request_id,
            cached_tokens=0 if usage is None else usage.read().cached_input_tokens,
        )
