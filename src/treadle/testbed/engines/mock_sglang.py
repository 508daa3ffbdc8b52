"""The endpoints of SGLang.

Source: SGLang 0.5.23, `sglang/srt/entrypoints`: `/generate`, chat completions with `return_token_ids`, and the
endpoints for weights.
"""

from array import array
from base64 import b64encode
from typing import ClassVar

import msgspec
from msgspec import Struct, field

from treadle.core.types import Json
from treadle.testbed.engines.answering_work import SampledAnswer
from treadle.testbed.engines.engine_app import EngineApp
from treadle.testbed.engines.engine_wire import AnswerSampling, EngineChat, mask_of, text_ids, write_logprobs
from treadle.testbed.engines.mock_template import Template
from treadle.testbed.server.oracle_app import HttpReply, error_reply, json_reply, stream_reply

VERSION = "0.5.23"
_CHAT, _GENERATE = "/v1/chat/completions", "/generate"
_IDS_PER_EVENT = 4
_ORIGINS = ("disk", "tensor", "distributed")


class _Sampling(AnswerSampling, kw_only=True):
    max_tokens: int | None = field(name="max_new_tokens", default=128)
    seed: int | None = field(name="sampling_seed", default=None)


class _Generate(Struct):
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: _Sampling = field(default_factory=_Sampling)
    return_logprob: bool | None = None
    stream: bool = False
    rid: str | None = None
    return_routed_experts: bool = False
    return_sampling_mask: bool = False


class SglangApp(EngineApp):
    """A mock of SGLang."""

    owner = "sglang"
    detokenized = "text"
    routes: ClassVar = {
        **dict.fromkeys((_CHAT, _GENERATE), "POST"),
        **dict.fromkeys(("/v1/models", "/health", "/get_model_info", "/model_info"), "GET"),
        **dict.fromkeys(("/get_server_info", "/server_info"), "GET"),
        **dict.fromkeys(("/get_weight_version", "/weight_version"), "GET"),
        **dict.fromkeys(("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize"), "POST"),
        **dict.fromkeys(
            ("/abort_request", "/pause_generation", "/continue_generation", "/flush_cache"), "POST"
        ),
        **dict.fromkeys([f"/update_weights_from_{origin}" for origin in _ORIGINS], "POST"),
        "/update_weight_version": "POST",
    }
    completing: ClassVar = frozenset((_CHAT, _GENERATE))

    def generate(self, path: str, body: bytes) -> HttpReply:
        return self._chat(_decode_chat(body)) if path == _CHAT else self._generate(_decode_generate(body))

    def _generate(self, asked: _Generate) -> HttpReply:
        template = self.policy("").template
        ids = asked.input_ids
        if ids is None:
            if asked.text is None:
                return error_reply(400, "Either text or input_ids should be provided.", "invalid_body")
            ids = template.bpe.encode_marked(asked.text)

        def write(answer: SampledAnswer) -> HttpReply:
            if not asked.stream:
                whole = _output(asked, answer, template, None)
                whole["meta_info"] |= self._tell(asked, answer, None)
                return json_reply(200, whole)
            ends = [*range(_IDS_PER_EVENT, len(answer.token_ids), _IDS_PER_EVENT), None]
            events = [_output(asked, answer, template, end) for end in ends]
            for event, end in zip(events, ends, strict=True):
                event["meta_info"] |= self._tell(asked, answer, end)
            return stream_reply(events)

        return self.begin(asked.sampling_params.ask(ids, self.settings.model, asked.rid), write)

    def _tell(self, asked: _Generate | EngineChat, answer: SampledAnswer, end: int | None) -> dict[str, Json]:
        """Return the masks of the first `end` ids of an answer, and with all ids the experts."""
        told: dict[str, Json] = {}
        if asked.return_sampling_mask and self.settings.tells_masks:
            told["output_token_sampling_mask"] = mask_of(answer.token_ids[:end])
        if asked.return_routed_experts and self.settings.routed_experts is not None and end is None:
            told["routed_experts"] = b64encode(array("i", self.experts(answer))).decode()
        return told

    def _chat(self, asked: EngineChat) -> HttpReply:
        if asked.stream:
            for name in ("return_token_ids", "return_prompt_token_ids", "return_meta_info"):
                if getattr(asked, name):
                    return error_reply(400, f"{name} is not supported with streaming.", "invalid_body")
        return self.chat(asked)

    def dress(
        self, asked: EngineChat, answer: SampledAnswer, wire: dict[str, Json], choice: dict[str, Json]
    ) -> None:
        template = self.policy(asked.model).template
        told = {"content": write_logprobs(answer, template.bpe)} if asked.logprobs else None
        choice |= {"logprobs": told, "matched_stop": None}
        if asked.return_token_ids or asked.return_prompt_token_ids:
            choice["prompt_token_ids"] = answer.prompt_ids
        if asked.return_token_ids:
            choice["response_token_ids"] = answer.token_ids
        if asked.return_meta_info:
            choice["meta_info"] = _meta_info(answer, template, len(answer.token_ids), bool(asked.logprobs))
            choice["meta_info"] |= self._tell(asked, answer, None)
        elif asked.return_routed_experts:
            wire["sglext"] = self._tell(asked, answer, None)
        wire["metadata"] = _versions(answer)

    def manage(self, path: str, query: str, asked: dict[str, Json]) -> HttpReply:
        match path:
            case "/get_model_info" | "/model_info":
                model = {"model_path": self.settings.model, "served_model_name": self.settings.model}
                return json_reply(200, model | {"is_generation": True, "weight_version": self.version})
            case "/get_server_info" | "/server_info":
                return json_reply(200, {"version": VERSION, "model_path": self.settings.model})
            case "/get_weight_version" | "/weight_version":
                return json_reply(200, {"weight_version": self.version})
            case "/abort_request":
                name = None if asked.get("abort_all") else asked.get("rid") or ""
                self.abort(name)
                return HttpReply(200, (b"",), {})
            case "/pause_generation":
                self.pause()
                if asked.get("mode", "abort") == "abort":
                    self.abort()
                return json_reply(200, {"message": "Generation paused successfully.", "status": "ok"})
            case "/continue_generation":
                self.resume()
                return json_reply(200, {"message": "Generation continued successfully.", "status": "ok"})
            case "/health" | "/flush_cache":
                return HttpReply(200, (b"",), {})
        return self._update(path, asked)

    def _update(self, path: str, asked: dict[str, Json]) -> HttpReply:
        is_version = path == "/update_weight_version"
        if asked.get("abort_all_requests", is_version):
            self.abort()
        version = asked["new_version"] if is_version else asked.get("weight_version")
        if version is not None:
            self.set_version(version)
        answer = {"success": True, "message": "Success.", "num_paused_requests": 0}
        return json_reply(200, answer | ({"new_version": version} if is_version else {}))


_decode_chat = msgspec.json.Decoder(EngineChat).decode
_decode_generate = msgspec.json.Decoder(_Generate).decode


def _output(asked: _Generate, answer: SampledAnswer, template: Template, end: int | None) -> dict[str, Json]:
    """Return the response of `/generate` with the first `end` ids; `None`: all, and the finish reason."""
    ids = answer.token_ids[:end]
    meta = _meta_info(answer, template, len(ids), bool(asked.return_logprob))
    if end is not None:
        meta["finish_reason"] = None
    text = template.bpe.decode(text_ids(answer, template)[:end])
    return {"text": text, "output_ids": ids, "meta_info": meta}


def _meta_info(answer: SampledAnswer, template: Template, count: int, has_logprobs: bool) -> dict[str, Json]:
    """Return the facts about the first `count` ids of an answer."""
    reasons: dict[str, dict[str, Json]] = {
        "stop": {"type": "stop", "matched": template.end},
        "length": {"type": "length", "length": len(answer.token_ids)},
        "abort": {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
    }
    meta: dict[str, Json] = {
        "id": answer.request_id,
        "finish_reason": reasons[answer.finish],
        "prompt_tokens": len(answer.prompt_ids),
        "completion_tokens": count,
        "cached_tokens": 0,
        "e2e_latency": 0.0,
        **_versions(answer),
    }
    if has_logprobs:
        pairs = zip(answer.logprobs[:count], answer.token_ids, strict=False)
        meta["output_token_logprobs"] = [[value, number, None] for value, number in pairs]
    return meta


def _versions(answer: SampledAnswer) -> dict[str, Json]:
    """Return which weights sampled which ids."""
    spans, start = [], 0
    for count, version in answer.versions:
        spans.append({"version": version, "start": start, "end": start + count})
        start += count
    return {"weight_version": answer.version} | ({"weight_versions": spans} if len(spans) > 1 else {})
