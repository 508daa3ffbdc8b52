"""The dialect `completions`: the exact prompt, responses, streams and tokens."""

import json
import math

import pytest
from tests.models.answers import Listener

from treadle.core.errors import ConfigError, ContextOverflowError, ServerError, TransportError
from treadle.core.events import TextDelta
from treadle.core.log import Log
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import FinishReason, Message, Request, Role, Settings, ToolSpec, Usage
from treadle.models import CompletionsModel, HttpResponse, InProcessTransport, Watch, model
from treadle.models.dialects.completions import TEMPLATES

TRANSCRIPT = Log(
    [
        Message(Role.SYSTEM, 'Be "brief".'),
        Message(Role.USER, "Hé\nthere"),
        Message(Role.ASSISTANT, "Hello."),
        Message(Role.USER, "Go on."),
    ]
)


def answer(text=" Sunny.", finish="stop", **more):
    choice = {"index": 0, "text": text, "finish_reason": finish, **more}
    count = len(more["token_ids"]) if isinstance(more.get("token_ids"), list) else 3
    prompt = len(more["prompt_token_ids"]) if isinstance(more.get("prompt_token_ids"), list) else 7
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "m-1",
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": 10},
    }


def make(response, **options):
    handler = response if callable(response) else lambda _: HttpResponse(response)
    transport = InProcessTransport(handler)
    return CompletionsModel("m", base_url="http://h/v1", transport=transport, **options), transport


async def ask(response, request=Request(TRANSCRIPT), watch=None, **options):
    made, transport = make(response, **options)
    completion = await made.infer(request, watch or Watch())
    return completion, transport.requests[0]


CHATML = (
    '<|im_start|>system\nBe "brief".<|im_end|>\n<|im_start|>user\nHé\nthere<|im_end|>\n'
    "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
)
LLAMA3 = (
    '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "brief".<|eot_id|>'
    "<|start_header_id|>user<|end_header_id|>\n\nHé\nthere<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nGo on.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
PLAIN = 'Be "brief".\n\nUser: Hé\nthere\n\nAssistant: Hello.\n\nUser: Go on.\n\nAssistant:'


@pytest.mark.parametrize(
    ("template", "prompt"),
    [("chatml", CHATML), ("llama3", LLAMA3), ("plain", PLAIN), ("none", 'Be "brief".Hé\nthereHello.Go on.')],
)
async def test_the_prompt(template, prompt):
    _, request = await ask(answer(), template=template)
    assert request.url == "http://h/v1/completions"
    assert request.json()["prompt"] == prompt


async def test_settings_arrive():
    settings = Settings(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=5,
        seed=1,
        stop=("END",),
        logprobs=True,
        return_token_ids=True,
        extra={"top_k": 3},
    )
    first = Request(Log(list(TRANSCRIPT)[:2]))  # later requests have seeds of their own
    _, request = await ask(answer(), first, settings=settings, api_key="k")
    body = request.json()
    del body["prompt"]
    assert body == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 5,
        "seed": 1,
        "stop": ["END", "<|im_end|>"],
        "logprobs": 0,
        "return_token_ids": True,
        "top_k": 3,
    }
    assert request.headers["authorization"] == "Bearer k"


async def test_a_schema_is_decoded_in():
    _, request = await ask(answer("{}"), Request(TRANSCRIPT, output_schema={"type": "object"}))
    assert request.json()["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert request.json()["prompt"] == CHATML


def test_the_fast_way_says_what_the_other_says():
    made, _ = make(answer(), settings=Settings(return_token_ids=True))
    details = {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    ids = {"token_ids": [1, 2, 3], "prompt_token_ids": [*range(7)]}
    raws = [
        answer(**ids),
        answer(text="", stop_reason=None, **ids),
        answer(finish="length", logprobs=None, **ids),
        answer(**ids) | {"usage": None},
        answer(**ids) | {"usage": {"prompt_tokens": 7, "completion_tokens": 3, **details}},
    ]
    for raw in raws:
        fast = made._read_plain(json.dumps(raw).encode())
        assert fast is not None
        assert fast == made.read(made._decode_answer(json.dumps(raw).encode()))
    for raw in (answer(), answer(**ids) | {"weight": 1}, answer(**ids) | {"error": {}}):
        assert made._read_plain(json.dumps(raw).encode()) is None
    made, _ = make(answer())
    assert made._read_plain(json.dumps(answer()).encode()) is None


async def test_an_answer():
    completion, _ = await ask(answer(system_fingerprint="f", stop_reason=7))
    assert completion.message == Message(Role.ASSISTANT, " Sunny.")
    assert completion.finish_reason is FinishReason.STOP
    assert (completion.usage, completion.model, completion.response_id) == (Usage(7, 3), "m-1", "cmpl-1")


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        (None, "stop"),
        ("content_filter", "content_filter"),
        ("eos", "stop"),
    ],
)
async def test_why_it_ended(finish, reason):
    completion, _ = await ask(answer(finish=finish))
    assert completion.finish_reason == reason
    assert (completion.opaque == {"finish_reason": "eos"}) is (finish == "eos")


@pytest.mark.parametrize("prompt_in_choice", [True, False])
async def test_tokens(prompt_in_choice):
    raw = answer(
        token_ids=[5, 6],
        logprobs={"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0]},
        **({"prompt_token_ids": [1, 2]} if prompt_in_choice else {}),
    )
    if not prompt_in_choice:
        raw["prompt_token_ids"] = [1, 2]
        raw["usage"]["prompt_tokens"] = 2
    completion, _ = await ask(raw)
    assert completion.tokens == TokenRecord.of(prompt=(1, 2), output=(5, 6), logprobs=(-0.5, -1.0))
    completion, _ = await ask(answer(logprobs={"tokens": ["a"], "token_logprobs": [-0.5]}))
    assert completion.tokens == TokenRecord.of(logprobs=(-0.5,), tokens=("a",))
    completion, _ = await ask(answer(logprobs={"tokens": ["a"], "token_logprobs": [None]}))
    assert completion.tokens == TokenRecord.of(logprobs=[math.nan], tokens=("a",))


def stream(*events, end=b"data: [DONE]\n\n"):
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + end


def piece(text="", finish=None, **more):
    return {
        "id": "cmpl-1",
        "model": "m-1",
        "choices": [{"index": 0, "text": text, "finish_reason": finish, **more}],
    }


USAGE = {"id": "cmpl-1", "model": "m-1", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}}


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_stream_is_as_the_whole(size):
    events = (
        piece(
            " Sun",
            token_ids=[5],
            logprobs={"tokens": ["a"], "token_logprobs": [-0.5]},
            prompt_token_ids=[1, 2],
        ),
        piece("ny.", token_ids=[6], logprobs={"tokens": ["b"], "token_logprobs": [-1.0]}),
        piece(finish="stop"),
        USAGE,
    )
    data = stream(*events)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    response = HttpResponse(chunks, headers={"content-type": "text/event-stream"})
    listener = Listener()
    completion, request = await ask(lambda _: response, watch=listener.watch)
    assert listener.deltas == [TextDelta(" Sun"), TextDelta("ny.")]
    assert request.json()["stream_options"] == {"include_usage": True}
    whole, _ = await ask(
        answer(
            token_ids=[5, 6],
            logprobs={"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0]},
            prompt_token_ids=[1, 2],
        )
    )
    assert completion == whole


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (stream(piece("a"), end=b""), TransportError),
        (b"data: {oops\n\n", ServerError),
        (stream({"error": {"message": "boom"}}), ServerError),
        (stream({"choices": [7]}), ServerError),
        (stream({"choices": [{"text": 7}]}, piece(finish="stop")), ServerError),
    ],
)
async def test_streams_that_are_damaged(data, error):
    with pytest.raises(error):
        await ask(
            lambda _: HttpResponse(data, headers={"content-type": "text/event-stream"}),
            watch=Listener().watch,
        )


@pytest.mark.parametrize(
    "raw",
    [{}, {"choices": []}, answer(None), answer(7), [], {"choices": [{"text": []}]}],
)
async def test_nonsense_is_a_servers_error(raw):
    with pytest.raises(ServerError, match="makes no sense"):
        await ask(raw)


async def test_errors_are_typed():
    with pytest.raises(ContextOverflowError):
        await ask(lambda _: HttpResponse({"error": {"message": "maximum context length is 10"}}, 400))


async def test_it_takes_no_tools():
    request = Request(TRANSCRIPT, (ToolSpec("f", "does", {"type": "object"}),))
    with pytest.raises(ConfigError, match=r"no place for tools; .*format='hermes'"):
        await ask(answer(), request)


def test_templates():
    with pytest.raises(ConfigError, match="unknown prompt template 'chatlm'; the templates are chatml"):
        make(answer(), template="chatlm")
    assert set(TEMPLATES) == {"chatml", "llama3", "plain", "none"}
    made = model("completions:m", base_url="http://h/v1", template="plain")
    assert (made.name, made.output_mode) == ("completions:m", "text")
    assert "plain" in made.identity
