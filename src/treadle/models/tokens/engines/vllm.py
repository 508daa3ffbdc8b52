"""The endpoints of vLLM that take and return token ids: `/v1/completions` and `/inference/v1/generate`.

Source: vLLM 0.11 to 0.33, `return_token_ids`; vLLM 0.12 to 0.33, `GenerateRequest`.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from treadle.core.events import Delta
from treadle.core.types import Json, Settings
from treadle.models.tokens.engines.http_engine import (
    HttpTokenEngine,
    TokenCollector,
    make_generated,
    write_sampling,
)
from treadle.models.tokens.protocol import Generated, PromptIds
from treadle.models.wire.expert_fields import read_mask, read_npy
from treadle.models.wire.openai_style import PlainUsage
from treadle.models.wire.server import Server
from treadle.models.wire.token_records import ID_MARK, cut_logprobs, encode_ids, find_prompt

_HEAD = ("request_id", "id", "model", "usage")
_NEWEST = ("prompt_token_ids", "weight_versions", "routed_experts")
_LOGPROBS = ("token_logprobs", "content")
"""The lists of log probabilities of the two endpoints."""


class _Logprob(Struct, gc=False):
    logprob: float | None = None
    token_id: int | None = None
    token: str | None = None
    """The id in another form, `token_id:N`, before vLLM 0.33."""


class _Logprobs(Struct, gc=False):
    """The log probabilities of an answer, in the form of one of the endpoints."""

    token_logprobs: list[float | None] | None = None
    """Those of `/v1/completions`."""
    content: list[_Logprob] | None = None
    """Those of `/inference/v1/generate`."""

    def values(self, ids: list[int] | None) -> list[float | None] | None:
        """Return the log probabilities; `None` if there are none, or they are those of other ids."""
        content = self.content
        if content is None:
            return self.token_logprobs
        if content and content[0].token_id is not None:
            if [item.token_id for item in content] != ids:
                return None
        elif content and (content[0].token or "").startswith(ID_MARK):
            # One text with all names is compared, because reading each name takes several times as long.
            named = "".join([item.token or "" for item in content])
            if named != ID_MARK + encode_ids(ids or ()).decode().replace(",", ID_MARK):
                return None
        return [item.logprob for item in content]


class _Choice(Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[dict[str, Json]] | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None
    prompt_token_ids: list[int] | None = None


class _Answer(Struct, gc=False):
    choices: tuple[_Choice]
    request_id: str | None = None
    id: str | None = None
    model: str | None = None
    usage: PlainUsage | None = None


class VllmCollector(TokenCollector):
    """A collector of streamed choices. Each event has new ids and their log probabilities."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._choice: dict[str, Json] = {}
        self._mask: list[Json] = []
        self._logprobs: dict[str, list[Json]] = {}

    def add(self, event: Json) -> None:
        self._head |= {name: event[name] for name in _HEAD if event.get(name) is not None}
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            for name, new in (choice.get("logprobs") or {}).items():
                if name in _LOGPROBS and new is not None:
                    self._logprobs.setdefault(name, []).extend(new)
            self._take_ids(choice.get("token_ids") or [])
            self._mask += choice.get("sampling_mask") or []
            self._choice |= {name: choice[name] for name in _NEWEST if choice.get(name)}
            self._finish = choice.get("finish_reason") or self._finish

    def raw(self) -> Json:
        choice = {
            **self._choice,
            "token_ids": self.token_ids,
            "logprobs": self._logprobs,
            "finish_reason": self._finish,
            "sampling_mask": self._mask or None,
        }
        return {**self._head, "choices": [choice]}


class VllmEngine(HttpTokenEngine):
    """An endpoint of vLLM."""

    BASE_URL = "http://localhost:8000/v1"
    ANSWER = _Answer
    COLLECTOR = VllmCollector

    def _write_sampling(
        self, settings: Settings, stop_token_ids: Sequence[int], limit: int
    ) -> dict[str, Json]:
        # The number of alternatives to the sampled token, whose own log probability is always there.
        logprobs = None if settings.logprobs is False else 0
        return write_sampling(
            settings, stop_token_ids, max_tokens=limit, seed=settings.seed, logprobs=logprobs
        )

    def _read(self, answer: _Answer, prompt: PromptIds) -> Generated:
        choice, usage = answer.choices[0], answer.usage
        return make_generated(
            choice.token_ids,
            None if choice.logprobs is None else choice.logprobs.values(choice.token_ids),
            choice.finish_reason,
            prompt=(prompt, None if usage is None else usage.prompt_tokens),
            counted=None if usage is None else usage.completion_tokens,
            spans=choice.weight_versions,
            experts=None if choice.routed_experts is None else read_npy(choice.routed_experts),
            sampling_mask=read_mask(choice.sampling_mask, len(choice.token_ids or ())),
            seen=choice.prompt_token_ids,
            model=answer.model,
            response_id=answer.id or answer.request_id,
            engine=self._info,
            cached_tokens=0 if usage is None else usage.read().cached_input_tokens,
        )


_STREAM: dict[str, Json] = {"stream": True, "stream_options": {"include_usage": True}}


class VllmCompletions(VllmEngine):
    """The completions endpoint of vLLM."""

    PATH = "/completions"
    PROMPT = "prompt"

    def _decode(self, body: bytes, prompt: PromptIds) -> _Answer:
        # The ids that were sent, and the texts beside the log probabilities, are not read.
        start = find_prompt(body, prompt.text)
        if start != -1:
            body = body[:start] + body[start + len(prompt.text) :]
        body, values = cut_logprobs(body)
        answer: _Answer = self._decode_plain(body)
        if values is not None:
            answer.choices[0].logprobs = _Logprobs(values)
        return answer

    def _fields(
        self, settings: Settings, stop_token_ids: Sequence[int], limit: int, *, is_stream: bool
    ) -> dict[str, Json]:
        return {
            "model": self.model,
            "return_token_ids": True,
            "return_weight_versions": True,
            **self._write_sampling(settings, stop_token_ids, limit),
            **(_STREAM if is_stream else {}),
            **(settings.extra or {}),
        }


class VllmGenerate(VllmEngine):
    """The endpoint of vLLM that takes and returns only ids."""

    PATH = ""
    PROMPT = "token_ids"
    ROOT_PATH = "/inference/v1/generate"
    TOP_LEVEL = frozenset(("cache_salt", "features", "kv_transfer_params", "priority", "request_id"))

    def _constrain(self, schema: dict[str, Json] | None) -> dict[str, Json]:
        return {} if schema is None else {"structured_outputs": {"json": schema}}

    def _fields(
        self, settings: Settings, stop_token_ids: Sequence[int], limit: int, *, is_stream: bool
    ) -> dict[str, Json]:
        more, sampling = self._split(settings.extra)
        return {
            "model": self.model,
            "sampling_params": self._write_sampling(settings, stop_token_ids, limit) | sampling,
            **(_STREAM if is_stream else {}),
            **more,
        }
