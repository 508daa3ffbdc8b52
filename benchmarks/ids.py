"""Answers of 200 tokens by engines that take and return token ids, and the same texts by a chat server."""

import json
from functools import cache, partial
from random import Random
from typing import Any

from benchmarks.wires import Answer, Wire
from treadle.renderers.chatml import ChatmlRenderer
from treadle.renderers.tokenizer import CHATML_TOKENS, BpeTokenizer
from treadle.testbed.engines.bpe import read_tokenizer_file, tokenizer

TOKENS = 200
_WORDS = (" the", " of", "ing", " test", "er", " x1")
_CALL = '<tool_call>\n{"name": "add", "arguments": {"a":1,"b":2}}\n</tool_call>'
_FIRST = 20_000
_SPECIAL = 151_643


@cache
def renderer() -> ChatmlRenderer:
    """Return a renderer over a small vocabulary, whose ids are as long in JSON as those of a large one."""
    bpe, model = tokenizer(), read_tokenizer_file()["model"]
    contents = {_FIRST + number: content for number, content in bpe.contents.items()}
    merges = [tuple([_FIRST + model["vocab"][name] for name in pair]) for pair in model["merges"]]
    special = {text: _SPECIAL + at for at, text in enumerate(CHATML_TOKENS)}
    return ChatmlRenderer(
        BpeTokenizer(contents, merges, special_ids=special, pattern=r" ?[^ \n]+|\n+| +"), name="bench"
    )


PROMPT = "PROMPT"


def _sample_texts(call_id: str | None, number: int) -> tuple[str, list[int], list[float], list[str]]:
    """Return the text of an answer, the ids and log probabilities of its tokens, and their texts."""
    _, ids, logprobs = _sample(call_id, number)
    return renderer().decode(ids[:-1]), ids, logprobs, [renderer().decode([token]) for token in ids]


def _sample(call_id: str | None, number: int) -> tuple[str, list[int], list[float]]:
    """Return the text of an answer before its call, the ids of the whole answer, and log probabilities."""
    encode, random = renderer().encode, Random(number)
    call = [] if call_id is None else encode("\n" + _CALL)
    count = TOKENS - 1 - len(call)
    said = encode("".join([random.choice(_WORDS) for _ in range(2 * TOKENS)]))[:count]
    logprobs = [round(-3 * random.random(), 7) for _ in range(TOKENS)]
    return renderer().decode(said), [*said, *call, renderer().stop_token_ids[0]], logprobs


def write_chat(call_id: str | None, number: int) -> bytes:
    """Return the answer of a chat server, with the message that the ids say."""
    said, ids, _ = _sample(call_id, number)
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if call_id is not None:
        function = {"name": "add", "arguments": '{"a":1,"b":2}'}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    reason = "stop" if call_id is None else "tool_calls"
    usage = {"prompt_tokens": 1000, "completion_tokens": len(ids), "total_tokens": 1000 + len(ids)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench"}
    return _encode({**head, "choices": [choice], "usage": usage})


def write_completions(call_id: str | None, number: int) -> bytes:
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


def write_generate(call_id: str | None, number: int) -> bytes:
    """Return the answer of vLLM's `/inference/v1/generate`."""
    _, ids, logprobs = _sample(call_id, number)
    content: list[dict[str, Any]] = []
    for token, logprob in zip(ids, logprobs, strict=True):
        told = {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}
        content.append({**told, "top_logprobs": [told]})
    choice = {"index": 0, "logprobs": {"content": content}, "finish_reason": "stop", "token_ids": ids}
    return _encode({"request_id": "r", "choices": [choice], "prompt_logprobs": None})


def write_sglang(call_id: str | None, number: int) -> bytes:
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


_WRITERS = {
    "ids_chat": write_chat,
    "ids_completions": write_completions,
    "ids_generate": write_generate,
    "ids_sglang": write_sglang,
}


def make_wire(name: str) -> Wire:
    """Return the responses of a server."""
    # The ids that end each tool result in a prompt.
    mark = json.dumps(renderer().encode("\n</tool_response>"), separators=(",", ":"))[1:-1].encode()
    return Wire(
        partial(_answer, name),
        b'"role":"tool"' if name == "ids_chat" else mark,
        prompt=b'"prompt":[' if name == "ids_completions" else b"",
    )


def _answer(name: str, call_id: str | None, words: list[str], number: int) -> Answer:
    return Answer(_WRITERS[name](call_id, number), [])


def _encode(raw: object) -> bytes:
    return json.dumps(raw, separators=(",", ":")).encode()
