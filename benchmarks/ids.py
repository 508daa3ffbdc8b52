"""Answers of 200 tokens by engines that take and return token ids, and the same texts by a chat server."""

import json
from random import Random
from typing import Any

from treadle.renderers.chatml import ChatmlRenderer
from treadle.renderers.tokenizer import CHATML_TOKENS, BpeTokenizer

TOKENS = 200
_WORDS = (" the", " of", "ing", "\n", " test", "er", " x1")
_CALL = '<tool_call>\n{"name": "add", "arguments": {"a":1,"b":2}}\n</tool_call>'
_FIRST = 20_000
"""The id of the first byte. Ids of five digits are as long in JSON as those of large vocabularies."""
_SPECIAL = 151_643


def _tokenizer() -> BpeTokenizer:
    pieces = [*[bytes([byte]) for byte in range(256)], *[word.encode() for word in _WORDS]]
    special = {text: _SPECIAL + at for at, text in enumerate(CHATML_TOKENS)}
    return BpeTokenizer({_FIRST + at: piece for at, piece in enumerate(pieces)}, special_ids=special)


RENDERER = ChatmlRenderer(_tokenizer())
RESULT = json.dumps(RENDERER.encode("\n</tool_response>"), separators=(",", ":"))[1:-1].encode()
"""The ids that end each tool result in a prompt."""


PROMPT = "PROMPT"


def _sample_texts(call_id: str | None, number: int) -> tuple[str, list[int], list[float], list[str]]:
    """Return the text of an answer, the ids and log probabilities of its tokens, and their texts."""
    _, ids, logprobs = _sample(call_id, number)
    return RENDERER.decode(ids[:-1]), ids, logprobs, [RENDERER.decode([token]) for token in ids]


def _sample(call_id: str | None, number: int) -> tuple[list[str], list[int], list[float]]:
    """Return the words of an answer before its call, the ids of the whole answer, and log probabilities."""
    call = [] if call_id is None else RENDERER.encode("\n" + _CALL)
    random = Random(number)
    words = [random.choice(_WORDS[:3] + _WORDS[4:]) for _ in range(TOKENS - 1 - len(call))]
    ids = [_FIRST + 256 + _WORDS.index(word) for word in words]
    logprobs = [round(-3 * random.random(), 7) for _ in range(TOKENS)]
    return words, [*ids, *call, RENDERER.stop_token_ids[0]], logprobs


def write_chat(call_id: str | None, words: list[str], number: int) -> bytes:
    """Return the answer of a chat server, with the message that the ids say."""
    said, ids, _ = _sample(call_id, number)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(said)}
    if call_id is not None:
        function = {"name": "add", "arguments": '{"a":1,"b":2}'}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    reason = "stop" if call_id is None else "tool_calls"
    usage = {"prompt_tokens": 1000, "completion_tokens": len(ids), "total_tokens": 1000 + len(ids)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench"}
    return _encode({**head, "choices": [choice], "usage": usage})


def write_completions(call_id: str | None, words: list[str], number: int) -> bytes:
    """Return the answer of vLLM's `/v1/completions`, with `PROMPT` in the place of the ids of the prompt."""
    text, ids, logprobs, texts = _sample_texts(call_id, number)
    told = {
        "text_offset": list(range(TOKENS)),
        "token_logprobs": logprobs,
        "tokens": texts,
        "top_logprobs": [{item: logprob} for item, logprob in zip(texts, logprobs, strict=True)],
    }
    choice = {"index": 0, "text": text, "logprobs": told, "finish_reason": "stop", "stop_reason": None}
    choice |= {"token_ids": ids, "prompt_logprobs": None, "prompt_token_ids": PROMPT}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "bench"}
    return _encode({**head, "choices": [choice]})


def write_generate(call_id: str | None, words: list[str], number: int) -> bytes:
    """Return the answer of vLLM's `/inference/v1/generate`."""
    _, ids, logprobs = _sample(call_id, number)
    content: list[dict[str, Any]] = []
    for token, logprob in zip(ids, logprobs, strict=True):
        told = {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}
        content.append({**told, "top_logprobs": [told]})
    choice = {"index": 0, "logprobs": {"content": content}, "finish_reason": "stop", "token_ids": ids}
    return _encode({"request_id": "r", "choices": [choice], "prompt_logprobs": None})


def write_sglang(call_id: str | None, words: list[str], number: int) -> bytes:
    """Return the answer of SGLang's `/generate`."""
    text, ids, logprobs, _ = _sample_texts(call_id, number)
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "weight_version": "default",
        "total_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [
            [logprob, token, None] for token, logprob in zip(ids, logprobs, strict=True)
        ],
        "completion_tokens": len(ids),
        "cached_tokens": 900,
        "e2e_latency": 0.1,
    }
    return _encode({"text": text, "output_ids": ids, "meta_info": meta})


def _encode(raw: object) -> bytes:
    return json.dumps(raw, separators=(",", ":")).encode()
