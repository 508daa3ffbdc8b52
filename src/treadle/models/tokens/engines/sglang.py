"""SGLang's `/generate` with token ids in and out. Source: SGLang 0.5, `GenerateReqInput` and `meta_info`."""

from collections.abc import Callable, Sequence

import msgspec
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
from treadle.models.wire.expert_fields import read_ints, read_mask
from treadle.models.wire.server import Server, explain_error
from treadle.models.wire.token_records import VersionNotes

_LISTS = ("output_token_logprobs", "output_token_sampling_mask")
"""The fields of `meta_info` with an item for each sampled token."""


class _Finish(Struct, gc=False):
    type: str
    status_code: int | None = None
    message: str | None = None


class SampledToken(Struct, array_like=True, gc=False):
    """One sampled token: its log probability and its id, and its text, which is not read."""

    logprob: float | None
    token_id: int


class _Meta(Struct, gc=False):
    finish_reason: _Finish | None = None
    id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_version: str | None = None
    weight_versions: list[dict[str, Json]] | None = None
    output_token_logprobs: list[SampledToken] | None = None
    output_token_sampling_mask: list[list[int]] | None = None
    routed_experts: str | None = None


class _Answer(Struct, gc=False):
    meta_info: _Meta
    output_ids: list[int] | None = None


class SglangCollector(TokenCollector):
    """A collector of streamed pieces. An event has all ids so far, or with `--incremental-streaming-output` the new
    ones; log probabilities and sampling masks likewise."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._meta: dict[str, Json] = {}
        self._lists: dict[str, list[Json]] = {}
        self._versions = VersionNotes()

    def add(self, event: Json) -> None:
        meta = event["meta_info"]
        total = meta.get("completion_tokens")
        if event.get("index"):
            return
        for name in _LISTS:
            new = meta.pop(name, None)
            if new is not None:
                self._lists[name] = new if len(new) == total else self._lists.get(name, []) + new
        finish = meta.get("finish_reason")
        if finish is not None and finish.get("status_code"):
            # The server refuses the request; another one would be refused too.
            raise explain_error(self._server, int(finish["status_code"]), finish)
        self._meta |= {name: value for name, value in meta.items() if value is not None}
        ids = event.get("output_ids") or []
        before = len(self.token_ids)
        if len(ids) == total:
            ids = ids[before:]
        self._take_ids(ids)
        self._versions.note(meta.get("weight_version"), before, len(self.token_ids))
        if meta.get("finish_reason") is not None:
            self._finish = meta["finish_reason"]["type"]

    def raw(self) -> Json:
        meta = {
            "weight_versions": self._versions.spans,
            **self._meta,
            "finish_reason": {"type": self._finish},
            **self._lists,
        }
        return {"output_ids": self.token_ids, "meta_info": meta}


class SglangGenerate(HttpTokenEngine):
    """The generate endpoint of SGLang."""

    BASE_URL = "http://localhost:30000/v1"
    PATH = ""
    PROMPT = "input_ids"
    ROOT_PATH = "/generate"
    ANSWER = _Answer
    COLLECTOR = SglangCollector
    TOP_LEVEL = frozenset(
        (
            "extra_key",
            "lora_path",
            "priority",
            "rid",
            "return_routed_experts",
            "return_sampling_mask",
            "session_id",
        )
    )

    def _fields(
        self, settings: Settings, stop_token_ids: Sequence[int], limit: int, *, is_stream: bool
    ) -> dict[str, Json]:
        more, sampling = self._split(settings.extra)
        parameters = write_sampling(
            settings,
            stop_token_ids,
            max_new_tokens=limit,
            sampling_seed=settings.seed,
            skip_special_tokens=False,
        )
        body: dict[str, Json] = {
            "sampling_params": parameters | sampling,
            "return_logprob": settings.logprobs is not False,
        }
        if is_stream:
            body["stream"] = True
        return body | more

    def _constrain(self, schema: dict[str, Json] | None) -> dict[str, Json]:
        return {} if schema is None else {"json_schema": msgspec.json.encode(schema).decode()}

    def _read(self, answer: _Answer, prompt: PromptIds) -> Generated:
        meta = answer.meta_info
        if meta.finish_reason is not None and meta.finish_reason.status_code:
            told = msgspec.to_builtins(meta.finish_reason)
            raise explain_error(self.server, meta.finish_reason.status_code, told)
        sampled, ids = meta.output_token_logprobs, answer.output_ids
        known = None if sampled is None else [item.token_id for item in sampled]
        ids = known if ids is None else ids
        experts, finish = meta.routed_experts, None if meta.finish_reason is None else meta.finish_reason.type
        # How many tokens of an aborted answer were sent through the model is not known.
        rows = 0 if finish == "abort" else len(prompt) + len(ids or ()) - 1
        return make_generated(
            ids,
            [item.logprob for item in sampled] if sampled is not None and known == ids else None,
            finish,
            prompt=(prompt, meta.prompt_tokens),
            counted=meta.completion_tokens,
            spans=meta.weight_versions,
            experts=None if experts is None else read_ints(experts, rows),
            sampling_mask=read_mask(meta.output_token_sampling_mask, len(ids or ())),
            weight_version=meta.weight_version,
            response_id=meta.id,
            engine=self._info,
            cached_tokens=meta.cached_tokens or 0,
        )
