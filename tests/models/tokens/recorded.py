"""Answers of engines as they are on the wire, written down from the servers' own models of their answers.

Source: vLLM 0.11 to 0.33 (`CompletionResponse`, `GenerateResponse`, `ChatCompletionResponse`), SGLang 0.5.23
(`TokenizerManager._handle_batch_output`, `ChatCompletionResponse`).
"""

from dataclasses import dataclass
from typing import Any

from treadle.models.tokens.engines.sglang import SglangGenerate
from treadle.models.tokens.engines.vllm import VllmCompletions, VllmGenerate

PROMPT = (151644, 872, 198)
IDS = (785, 4226, 374, 151645)
LOGPROBS = (-0.2513, -1.5, -0.0078125, -0.0001)

VLLM_MODELS = (
    b'{"object":"list","data":[{"id":"m","object":"model","created":1760000000,"owned_by":"vllm","root":"m",'
    b'"parent":null,"max_model_len":64,"permission":[{"id":"modelperm-1","object":"model_permission"}]}]}'
)
VLLM_VERSION = b'{"version":"0.11.2"}'
SGLANG_MODELS = (
    b'{"object":"list","data":[{"id":"m","object":"model","created":1760000000,"owned_by":"sglang","root":"m",'
    b'"parent":null,"max_model_len":64}]}'
)
SGLANG_INFO = (
    b'{"model_path":"m","tokenizer_path":"m","weight_version":"default","internal_states":[{}],'
    b'"version":"0.5.23"}'
)

VLLM_COMPLETION = (
    b'{"id":"cmpl-6a1f","object":"text_completion","created":1760000000,"model":"m","choices":[{"index":0,'
    b'"text":"The answer is","logprobs":{"text_offset":[0,3,10,13],"token_logprobs":[-0.2513,-1.5,-0.0078125,'
    b'-0.0001],"tokens":["The"," answer"," is","<|im_end|>"],"top_logprobs":[{"The":-0.2513},{" answer":-1.5},'
    b'{" is":-0.0078125},{"<|im_end|>":-0.0001}]},"finish_reason":"stop","stop_reason":null,"token_ids":[785,4226,'
    b'374,151645],"prompt_logprobs":null,"prompt_token_ids":[151644,872,198]}],"service_tier":null,'
    b'"system_fingerprint":null,"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":2}},"kv_transfer_params":null}'
)
VLLM_COMPLETION_EVENTS = [
    b'{"id":"cmpl-6a1f","object":"text_completion","created":1760000000,"model":"m","choices":[{"index":0,"text":'
    b'"The answer","logprobs":{"text_offset":[0,3],"token_logprobs":[-0.2513,-1.5],"tokens":["The"," answer"],'
    b'"top_logprobs":[{"The":-0.2513},{" answer":-1.5}]},"finish_reason":null,"stop_reason":null,'
    b'"prompt_token_ids":[151644,872,198],"token_ids":[785,4226]}],"usage":null}',
    b'{"id":"cmpl-6a1f","object":"text_completion","created":1760000000,"model":"m","choices":[{"index":0,"text":'
    b'" is","logprobs":{"text_offset":[10,13],"token_logprobs":[-0.0078125,-0.0001],"tokens":[" is","<|im_end|>"],'
    b'"top_logprobs":[{" is":-0.0078125},{"<|im_end|>":-0.0001}]},"finish_reason":"stop","stop_reason":null,'
    b'"token_ids":[374,151645]}],"usage":null}',
    b'{"id":"cmpl-6a1f","object":"text_completion","created":1760000000,"model":"m","choices":[],"usage":'
    b'{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}',
    b"[DONE]",
]


def _content(first: int, last: int) -> bytes:
    return b",".join(
        b'{"token":"token_id:%d","logprob":%s,"bytes":null,"top_logprobs":[{"token":"token_id:%d","logprob":%s,'
        b'"bytes":null}]}' % (IDS[at], str(LOGPROBS[at]).encode(), IDS[at], str(LOGPROBS[at]).encode())
        for at in range(first, last)
    )


VLLM_GENERATE = (
    b'{"request_id":"8b3c","choices":[{"index":0,"logprobs":{"content":['
    + _content(0, 4)
    + b']},"finish_reason":'
    b'"stop","token_ids":[785,4226,374,151645]}],"prompt_logprobs":null,"kv_transfer_params":null}'
)
VLLM_GENERATE_NEW = (
    b'{"request_id":"8b3c","id":"generate-tokens-8b3c","created":1760000000,"model":"m","choices":[{"index":0,'
    b'"finish_reason":"stop","stop_reason":null,"token_ids":[785,4226,374,151645],"routed_experts":null,'
    b'"sampling_mask":null,"weight_versions":[{"version":"7","start":0,"end":3},{"version":"8","start":3,"end":4}],'
    b'"logprobs":{"content":['
    + b",".join(
        b'{"token_id":%d,"logprob":%s,"rank":1,"top_logprobs":[]}' % (number, str(value).encode())
        for number, value in zip(IDS, LOGPROBS, strict=True)
    )
    + b']}}],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4},"prompt_logprobs":null,'
    b'"kv_transfer_params":null}'
)
"""The same from vLLM 0.33, whose weights changed before the last token."""
VLLM_GENERATE_EVENTS = [
    b'{"request_id":"8b3c","choices":[{"index":0,"logprobs":{"content":['
    + _content(0, 2)
    + b']},"finish_reason":'
    b'null,"token_ids":[785,4226]}],"usage":null}',
    b'{"request_id":"8b3c","choices":[{"index":0,"logprobs":{"content":['
    + _content(2, 4)
    + b']},"finish_reason":'
    b'"stop","token_ids":[374,151645]}],"usage":null}',
    b'{"request_id":"8b3c","choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4}}',
    b"[DONE]",
]

SGLANG_GENERATE = (
    b'{"text":"The answer is","output_ids":[785,4226,374,151645],"meta_info":{"id":"0fe2","finish_reason":{"type":'
    b'"stop","matched":151645},"prompt_tokens":3,"weight_version":"7","total_retractions":0,"input_token_logprobs":'
    b'[],"output_token_logprobs":[[-0.2513,785,null],[-1.5,4226,null],[-0.0078125,374,null],[-0.0001,151645,null]],'
    b'"output_token_logprobs_length":4,"completion_tokens":4,"cached_tokens":2,"cached_tokens_details":null,'
    b'"dp_rank":null,"e2e_latency":0.21}}'
)
SGLANG_GENERATE_EVENTS = [
    b'{"text":"The answer","output_ids":[785,4226],"meta_info":{"id":"0fe2","finish_reason":null,"prompt_tokens":3,'
    b'"weight_version":"7","total_retractions":0,"input_token_logprobs":[],"output_token_logprobs":[[-0.2513,785,'
    b'null],[-1.5,4226,null]],"output_token_logprobs_length":2,"completion_tokens":2,"cached_tokens":2}}',
    b'{"text":"The answer is","output_ids":[785,4226,374,151645],"meta_info":{"id":"0fe2","finish_reason":{"type":'
    b'"stop","matched":151645},"prompt_tokens":3,"weight_version":"7","total_retractions":0,"input_token_logprobs":'
    b'[],"output_token_logprobs":[[-0.2513,785,null],[-1.5,4226,null],[-0.0078125,374,null],[-0.0001,151645,null]],'
    b'"output_token_logprobs_length":4,"completion_tokens":4,"cached_tokens":2,"e2e_latency":0.21}}',
    b"[DONE]",
]
SGLANG_INCREMENTAL_EVENTS = [
    SGLANG_GENERATE_EVENTS[0],
    b'{"text":" is","output_ids":[374,151645],"meta_info":{"id":"0fe2","finish_reason":{"type":"stop","matched":'
    b'151645},"prompt_tokens":3,"weight_version":"7","total_retractions":0,"input_token_logprobs":[],'
    b'"output_token_logprobs":[[-0.0078125,374,null],[-0.0001,151645,null]],"completion_tokens":4,'
    b'"cached_tokens":2,"e2e_latency":0.21}}',
    b"[DONE]",
]
"""The same with `--incremental-streaming-output`."""


@dataclass
class Recorded:
    """The answers of one endpoint."""

    engine: Any
    path: str
    models: bytes
    info: dict[str, bytes]
    """Further paths, with what they answer."""
    name: str
    whole: bytes
    events: list[bytes]
    weight_version: str | None = None


VLLM = {"/version": VLLM_VERSION}
SGLANG = {"/server_info": SGLANG_INFO}
RECORDED = {
    "vllm_completions": Recorded(
        VllmCompletions,
        "/v1/completions",
        VLLM_MODELS,
        VLLM,
        "vllm 0.11.2",
        VLLM_COMPLETION,
        VLLM_COMPLETION_EVENTS,
    ),
    "vllm_generate": Recorded(
        VllmGenerate,
        "/inference/v1/generate",
        VLLM_MODELS,
        VLLM,
        "vllm 0.11.2",
        VLLM_GENERATE,
        VLLM_GENERATE_EVENTS,
    ),
    "sglang_generate": Recorded(
        SglangGenerate,
        "/generate",
        SGLANG_MODELS,
        SGLANG,
        "sglang 0.5.23",
        SGLANG_GENERATE,
        SGLANG_GENERATE_EVENTS,
        "7",
    ),
}


def sse(events: list[bytes]) -> bytes:
    """Return the bytes of a stream of events."""
    return b"".join(b"data: " + event + b"\n\n" for event in events)


def _chat_content(first: int, last: int) -> bytes:
    texts = (b"The", b" answer", b" is", b"<|im_end|>")
    return b",".join(
        b'{"token":"%s","logprob":%s,"bytes":[%s],"top_logprobs":[]}'
        % (texts[at], str(LOGPROBS[at]).encode(), b",".join(b"%d" % byte for byte in texts[at]))
        for at in range(first, last)
    )


VLLM_CHAT = (
    b'{"id":"chatcmpl-77","object":"chat.completion","created":1760000000,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"The answer is","refusal":null,"annotations":null,"audio":null,'
    b'"function_call":null,"tool_calls":[],"reasoning_content":null},"logprobs":{"content":['
    + _chat_content(0, 4)
    + b']},"finish_reason":"stop","stop_reason":null,"token_ids":[785,4226,374,151645]}],"service_tier":null,'
    b'"system_fingerprint":null,"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,'
    b'"prompt_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":[151644,872,198],'
    b'"kv_transfer_params":null}'
)
_CHUNK = b'{"id":"chatcmpl-77","object":"chat.completion.chunk","created":1760000000,"model":"m","choices":['
VLLM_CHAT_EVENTS = [
    _CHUNK + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":[151644,872,198]}',
    _CHUNK
    + b'{"index":0,"delta":{"content":"The answer"},"logprobs":{"content":['
    + _chat_content(0, 2)
    + b']},"finish_reason":null,"token_ids":[785,4226]}]}',
    _CHUNK
    + b'{"index":0,"delta":{"content":" is"},"logprobs":{"content":['
    + _chat_content(2, 4)
    + b']},"finish_reason":"stop","stop_reason":null,"token_ids":[374,151645]}]}',
    _CHUNK + b'],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4}}',
    b"[DONE]",
]
SGLANG_CHAT = (
    b'{"id":"0fe2","object":"chat.completion","created":1760000000,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"The answer is","reasoning_content":null,"tool_calls":null},"logprobs":'
    b'{"content":[' + _chat_content(0, 4) + b']},"finish_reason":"stop","matched_stop":151645,'
    b'"prompt_token_ids":[151644,872,198],"response_token_ids":[785,4226,374,151645],"meta_info":{"id":"0fe2",'
    b'"finish_reason":{"type":"stop","matched":151645},"prompt_tokens":3,"weight_version":"7",'
    b'"output_token_logprobs":[[-0.2513,785,null],[-1.5,4226,null],[-0.0078125,374,null],[-0.0001,151645,null]],'
    b'"completion_tokens":4,"cached_tokens":0}}],"usage":{"prompt_tokens":3,"total_tokens":7,'
    b'"completion_tokens":4,"prompt_tokens_details":null,"reasoning_tokens":0},"metadata":{"weight_version":"7"}}'
)
