"""The endpoints of vLLM.

Source: vLLM 0.11 to 0.20, `vllm/entrypoints`: chat completions and completions with `return_token_ids`,
`/inference/v1/generate`, `/tokenize`, and the endpoints for weights of its RL servers.
"""

from base64 import b64encode
from typing import Any, ClassVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from treadle.core.types import Json
from treadle.testbed.engines.answering_work import SampledAnswer
from treadle.testbed.engines.engine_app import EngineApp
from treadle.testbed.engines.engine_wire import (
    AnswerSampling,
    EngineChat,
    count_tokens,
    mask_of,
    share,
    text_ids,
    write_logprobs,
)
from treadle.testbed.engines.mock_template import Template
from treadle.testbed.server.oracle_app import HttpReply, error_reply, json_reply, stream_reply

VERSION = "0.20.0"
_CHAT, _COMPLETIONS, _GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
_IDS_PER_EVENT = 4


class _Completion(AnswerSampling, kw_only=True):
    prompt: list[int] | str
    model: str = ""
    max_tokens: int | None = 16
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str | None = None
    stream: bool | None = False


class _Generate(Struct):
    token_ids: list[int]
    sampling_params: AnswerSampling
    model: str = ""
    request_id: str | None = None
    stream: bool | None = False


class VllmApp(EngineApp):
    """A mock of vLLM."""

    owner = "vllm"
    detokenized = "prompt"
    routes: ClassVar = {
        **dict.fromkeys((_CHAT, _COMPLETIONS, _GENERATE), "POST"),
        **dict.fromkeys(("/v1/models", "/health", "/version", "/is_paused", "/weight_info"), "GET"),
        **dict.fromkeys(("/tokenize", "/detokenize", "/pause", "/resume", "/abort_requests"), "POST"),
        **dict.fromkeys(("/reset_prefix_cache", "/init_weight_transfer_engine"), "POST"),
        **dict.fromkeys(("/start_weight_update", "/update_weights", "/finish_weight_update"), "POST"),
        "/update_weight_version": "POST",
    }
    completing: ClassVar = frozenset((_CHAT, _COMPLETIONS, _GENERATE))

    def generate(self, path: str, body: bytes) -> HttpReply:
        if path == _CHAT:
            return self.chat(_decode_chat(body))
        return self._complete_text(_decode_completion(body)) if path == _COMPLETIONS else self._generate(body)

    def dress(
        self, asked: EngineChat, answer: SampledAnswer, wire: dict[str, Json], choice: dict[str, Json]
    ) -> None:
        logprobs = self._write_logprobs(asked, answer)
        choice |= {"stop_reason": None, "token_ids": None}
        choice["logprobs"] = {"content": logprobs} if asked.logprobs else None
        choice |= self._tell_experts(answer)
        if asked.return_token_ids:
            choice["token_ids"] = answer.token_ids
            wire["prompt_token_ids"] = answer.prompt_ids

    def dress_stream(
        self, asked: EngineChat, answer: SampledAnswer, first: dict[str, Json], choices: list[dict[str, Json]]
    ) -> None:
        """See `EngineApp.dress_stream`. The tokens are spread over the events that carry text."""
        told = choices[1:]  # The first one says only the role.
        ids, logprobs = share(answer.token_ids, len(told)), self._write_logprobs(asked, answer)
        for choice, own, values in zip(told, ids, share(logprobs, len(told)), strict=True):
            choice |= {
                "token_ids": own if asked.return_token_ids else None,
                "logprobs": {"content": values} if values else None,
            }
        told[-1]["stop_reason"] = None
        if asked.return_token_ids:
            first["prompt_token_ids"] = answer.prompt_ids

    def _write_logprobs(self, asked: EngineChat, answer: SampledAnswer) -> list[dict[str, Json]]:
        """Return the logprobs of an answer; none if they were not asked for."""
        bpe = self.policy(asked.model).template.bpe
        as_ids = bool(asked.return_tokens_as_token_ids)
        return write_logprobs(answer, bpe, as_ids=as_ids) if asked.logprobs else []

    def _complete_text(self, asked: _Completion) -> HttpReply:
        model = asked.model or self.settings.model
        template = self.policy(model).template
        prompt = asked.prompt
        ids = template.bpe.encode_marked(prompt) if isinstance(prompt, str) else prompt

        def write(answer: SampledAnswer) -> HttpReply:
            head = {"id": answer.request_id, "object": "text_completion", "created": 0, "model": model}
            if asked.stream:
                return stream_reply(_stream_text(asked, answer, template, head))
            choice = _text_choice(asked, answer, template, slice(0, None))
            choice |= {"finish_reason": answer.finish, **self._tell_experts(answer)}
            if asked.return_token_ids:
                choice["prompt_token_ids"] = answer.prompt_ids
            return json_reply(200, head | {"choices": [choice], "usage": count_tokens(answer)})

        return self.begin(asked.ask(ids, model, asked.request_id, "cmpl-"), write)

    def _generate(self, body: bytes) -> HttpReply:
        asked = _decode_generate(body)
        sampling = asked.sampling_params
        model = asked.model or self.settings.model
        bpe = self.policy(model).template.bpe

        def choice_of(answer: SampledAnswer, part: slice) -> dict[str, Json]:
            logprobs = None
            if sampling.logprobs is not None:
                logprobs = {"content": write_logprobs(answer, bpe, as_ids=True)[part]}
            return {
                "index": 0,
                "logprobs": logprobs,
                "finish_reason": None,
                "token_ids": answer.token_ids[part],
                "sampling_mask": mask_of(answer.token_ids[part]) if self.settings.tells_masks else None,
            }

        def write(answer: SampledAnswer) -> HttpReply:
            if asked.stream:
                parts = _parts(answer)
                events: list[dict[str, Json]] = [
                    {"request_id": answer.request_id, "choices": [choice_of(answer, part)]} for part in parts
                ]
                events[-1]["choices"][0] |= {"finish_reason": answer.finish, **self._tell_experts(answer)}
                return stream_reply(events)
            choice = choice_of(answer, slice(0, None)) | {"finish_reason": answer.finish}
            choice |= self._tell_experts(answer)
            wire = {"request_id": answer.request_id, "choices": [choice], "prompt_logprobs": None}
            return json_reply(200, wire)

        return self.begin(sampling.ask(asked.token_ids, model, asked.request_id), write)

    def _tell_experts(self, answer: SampledAnswer) -> dict[str, Json]:
        """Return the field with the experts of all tokens but the last, if there is a mixture of experts."""
        if self.settings.routed_experts is None:
            return {}
        rows, (layers, chosen) = self.experts(answer), self.settings.routed_experts
        shape = len(rows) // (layers * chosen), layers, chosen
        head = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
        head += b" " * (-(len(head) + 11) % 64) + b"\n"
        raw = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(rows)
        return {"routed_experts": b64encode(raw).decode()}

    def manage(self, path: str, query: str, asked: dict[str, Json]) -> HttpReply:
        match path:
            case "/version":
                answer: Json = {"version": VERSION}
            case "/pause":
                return self._pause(parse_qs(query).get("mode", ["abort"])[-1])
            case "/resume":
                self.resume()
                answer = {"status": "resumed"}
            case "/is_paused":
                answer = {"is_paused": self.is_paused}
            case "/abort_requests":
                names = asked.get("request_ids")
                count = sum(map(self.abort, names)) if names else self.abort()
                answer = {"status": "aborted", "aborted": count}
            case "/finish_weight_update" | "/update_weight_version":
                version = asked.get("weight_version", asked.get("new_version"))
                if version is not None:
                    self.set_version(version)
                answer = {"success": True, "new_version": version, "message": "Weight update finished"}
            case "/weight_info":
                answer = {"weight_version": self.version}
            case _:
                answer = {"message": "done", "status": "ok"}
        return json_reply(200, answer)

    def _pause(self, mode: str) -> HttpReply:
        if mode not in ("abort", "wait", "keep"):
            return error_reply(400, f"mode is {mode!r}; give abort, wait or keep", "invalid_mode")
        reply = json_reply(200, {"status": "paused"})
        self.pause(stops_running=mode != "wait")
        if mode == "abort":
            self.abort()
        return self.when_idle(reply) if mode == "wait" else reply


_decode_chat = msgspec.json.Decoder(EngineChat).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_generate = msgspec.json.Decoder(_Generate).decode


def _text_choice(
    asked: _Completion, answer: SampledAnswer, template: Template, part: slice
) -> dict[str, Json]:
    """Return the ids in `part` of an answer as a choice of `/v1/completions`."""
    bpe = template.bpe
    text = bpe.decode(text_ids(answer, template)[part])
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": None, "stop_reason": None}
    choice |= {"logprobs": None, "token_ids": answer.token_ids[part] if asked.return_token_ids else None}
    if asked.logprobs is not None:
        told = write_logprobs(answer, bpe, as_ids=bool(asked.return_tokens_as_token_ids))[part]
        choice["logprobs"] = {
            "text_offset": [0] * len(told),
            "token_logprobs": [item["logprob"] for item in told],
            "tokens": [item["token"] for item in told],
            "top_logprobs": [{item["token"]: item["logprob"]} for item in told],
        }
    return choice


def _stream_text(
    asked: _Completion, answer: SampledAnswer, template: Template, head: dict[str, Json]
) -> list[dict[str, Json]]:
    choices = [_text_choice(asked, answer, template, part) for part in _parts(answer)]
    if asked.return_token_ids:
        choices[0]["prompt_token_ids"] = answer.prompt_ids
    choices[-1]["finish_reason"] = answer.finish
    events: list[dict[str, Json]] = [{**head, "choices": [choice], "usage": None} for choice in choices]
    return [*events, {**head, "choices": [], "usage": count_tokens(answer)}]


def _parts(answer: SampledAnswer) -> list[slice]:
    """Return the slices of an answer, one for each event of a stream."""
    starts = range(0, max(1, len(answer.token_ids)), _IDS_PER_EVENT)
    return [slice(start, start + _IDS_PER_EVENT) for start in starts]
