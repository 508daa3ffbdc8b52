"""Chat with token ids: answers of vLLM and SGLang as real servers send them, over real sockets."""

import msgspec
import pytest
from tests.models.answers import REQUEST, Listener
from tests.models.server import Reply, serve
from tests.models.tokens.recorded import (
    IDS,
    LOGPROBS,
    PROMPT,
    SGLANG_CHAT,
    SGLANG_INFO,
    SGLANG_MODELS,
    VLLM_CHAT,
    VLLM_CHAT_EVENTS,
    VLLM_MODELS,
    VLLM_VERSION,
    sse,
)

from treadle.core.errors import ServerError
from treadle.core.events import TextDelta
from treadle.core.tokens.packed import unpack_logprobs
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import FinishReason, Settings
from treadle.models import OpenAIChatModel, Watch, model
from treadle.models.wire.token_records import make_record

RECORD = TokenRecord.of(prompt=PROMPT, output=IDS, logprobs=LOGPROBS)
PLACES = {
    "/v1/models": {"vllm": VLLM_MODELS, "sglang": SGLANG_MODELS},
    "/version": {"vllm": VLLM_VERSION},
    "/server_info": {"sglang": SGLANG_INFO},
}


async def ask(provider, body=None, *, watch=None, **options):
    whole = VLLM_CHAT if provider == "vllm" else SGLANG_CHAT

    def handle(request):
        if not request.body:
            known = PLACES.get(request.path, {})
            return Reply(known[provider]) if provider in known else Reply({}, 404)
        if body is not None:
            return Reply(body)
        return Reply(sse(VLLM_CHAT_EVENTS) if request.json().get("stream") else whole)

    async with serve(handle) as server:
        options = {"logprobs": True, "return_token_ids": True, "max_attempts": 1} | options
        made = model(f"{provider}:m", base_url=server.base_url, **options)
        completion = await made.infer(REQUEST, watch or Watch())
        return completion, [item.json() for item in server.requests if item.body]


@pytest.mark.parametrize(
    ("provider", "engine", "weights"), [("vllm", "vllm 0.11.2", None), ("sglang", "sglang 0.5.23", "7")]
)
async def test_an_answer_has_the_engines_tokens(provider, engine, weights):
    completion, requests = await ask(provider)
    assert completion.tokens == RECORD
    assert (completion.engine, completion.weight_version) == (engine, weights)
    assert completion.message.content == "The answer is"
    assert completion.finish_reason is FinishReason.STOP
    assert (requests[0]["logprobs"], requests[0]["return_token_ids"]) == (True, True)


async def test_every_answer_with_ids_names_the_engine():
    """Rules out that only the first answer, for which the server is asked, names it; whole, streamed, or with a
    field that only the slow reader knows."""
    odd = {**msgspec.json.decode(VLLM_CHAT), "other": 1}
    plain = msgspec.json.decode(VLLM_CHAT)
    del plain["choices"][0]["token_ids"], plain["prompt_token_ids"]
    answers = [VLLM_CHAT, VLLM_CHAT, odd, plain, VLLM_CHAT]

    def handle(request):
        if not request.body:
            found = PLACES.get(request.path, {})
            return Reply(found["vllm"]) if "vllm" in found else Reply({}, 404)
        return Reply(sse(VLLM_CHAT_EVENTS) if request.json().get("stream") else answers.pop(0))

    async with serve(handle) as server:
        made = model("vllm:m", base_url=server.base_url, logprobs=True, return_token_ids=True)
        found = [(await made.infer(REQUEST, Watch())).engine for _ in range(4)]
        found.append((await made.infer(REQUEST, Listener().watch)).engine)
        found.append((await made.infer(REQUEST, Watch())).engine)
        asked = [item.path for item in server.requests if not item.body]
    assert found == ["vllm 0.11.2"] * 3 + [None] + ["vllm 0.11.2"] * 2
    assert asked == ["/v1/models", "/version"]


async def test_a_streamed_answer_equals_the_whole_one():
    listener = Listener()
    streamed, requests = await ask("vllm", watch=listener.watch)
    whole, _ = await ask("vllm")
    assert requests[0]["stream"] is True
    assert listener.deltas == [TextDelta("The answer"), TextDelta(" is")]
    assert streamed == whole


async def test_sglang_is_asked_for_a_whole_answer_because_its_streams_have_no_ids():
    listener = Listener()
    completion, requests = await ask("sglang", watch=listener.watch)
    assert "stream" not in requests[0]
    assert requests[0]["return_prompt_token_ids"] is requests[0]["return_meta_info"] is True
    assert listener.deltas == [TextDelta("The answer is")]
    assert completion.tokens == RECORD
    completion, requests = await ask("sglang", SGLANG_CHAT, return_token_ids=None)
    assert "return_meta_info" not in requests[0]


async def test_older_sglang_has_ids_only_in_its_meta_info():
    raw = msgspec.json.decode(SGLANG_CHAT)
    del raw["choices"][0]["response_token_ids"]
    completion, _ = await ask("sglang", raw)
    assert completion.tokens == RECORD
    raw["choices"][0]["meta_info"] |= {
        "weight_version": "8",
        "weight_versions": [
            {"version": "7", "start": 0, "end": 3},
            {"version": "8", "start": 3, "end": 4},
        ],
    }
    raw["metadata"]["weight_version"] = "8"
    completion, _ = await ask("sglang", raw)
    assert completion.tokens.versions == ((3, "7"), (1, "8"))
    assert completion.weight_version == "8"


def reader(**options):
    settings = Settings(logprobs=True, return_token_ids=True)
    return OpenAIChatModel("m", base_url="http://h/v1", settings=settings, **options)


def changed(**fields):
    raw = msgspec.json.decode(VLLM_CHAT)
    raw["choices"][0] |= fields
    return raw


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}


@pytest.mark.parametrize(
    "raw",
    [
        changed(),
        changed(finish_reason="length"),
        changed(logprobs=None),
        changed(logprobs={"content": [{"token": "a", "logprob": -1, "bytes": None, "top_logprobs": []}]}),
        changed(token_ids=[1, 2, 3]),
        changed(
            finish_reason="tool_calls", message={"role": "assistant", "content": None, "tool_calls": [CALL]}
        ),
        changed(finish_reason="length", message={"role": "assistant", "content": None, "tool_calls": [CALL]}),
        changed(message={"role": "assistant", "content": "a", "reasoning": "b"}),
        changed(matched_stop=7),
        changed(weight_versions=None),
        changed(weight_versions=[{"version": "7", "start": 0, "end": 4}]),
        changed(
            weight_versions=[{"version": "7", "start": 0, "end": 3}, {"version": "8", "start": 3, "end": 4}]
        ),
        changed(weight_versions=[{"version": "7", "start": 0, "end": 3}]),
        changed(prompt_token_ids=[1]) | {"prompt_token_ids": None, "metadata": {"weight_version": "7"}},
    ],
)
def test_the_fast_way_says_what_the_other_says(raw):
    made = reader()
    fast = made._read_plain(msgspec.json.encode(raw))
    assert fast is not None
    assert fast == made.read(raw)


async def test_vllm_says_which_weights_sampled_which_tokens():
    spans = [{"version": "7", "start": 0, "end": 3}, {"version": "8", "start": 3, "end": 4}]
    completion, requests = await ask("vllm", changed(weight_versions=spans))
    assert requests[0]["return_weight_versions"] is True
    assert completion.tokens.versions == ((3, "7"), (1, "8"))
    assert completion.weight_version == "8"
    completion, _ = await ask("vllm", changed(weight_versions=spans[:1]))
    assert (completion.tokens.versions, completion.weight_version) == ((), None)


def test_an_answer_that_the_limit_cut_off_within_a_call_says_so():
    """Rules out the defect that a parser of calls replaced `length` by `tool_calls` or `stop`."""
    raw = changed(
        finish_reason="length", message={"role": "assistant", "content": None, "tool_calls": [CALL]}
    )
    made = reader()
    assert made.read(raw).finish_reason is FinishReason.LENGTH
    fast = made._read_plain(msgspec.json.encode(raw))
    assert fast is not None
    assert fast.finish_reason is FinishReason.LENGTH


async def test_an_aborted_answer_is_an_error_and_not_the_end():
    with pytest.raises(ServerError, match="'abort'"):
        await ask("vllm", changed(finish_reason="abort"))


async def test_a_stream_that_lost_ids_has_none():
    """Rules out that ids are taken for whole which a server left out of some chunks, as with calls being parsed."""
    completion, _ = await ask(
        "vllm", sse([*VLLM_CHAT_EVENTS[:1], *VLLM_CHAT_EVENTS[2:]]), watch=Listener().watch
    )
    assert completion.tokens == TokenRecord.of(prompt=PROMPT)


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_logprobs_are_neither_padded_nor_cut(count):
    """Rules out the defects that missing log probabilities were padded with 1.0 and that long lists were cut."""
    record = make_record(PROMPT, IDS, [-0.5] * count, counted=4)
    assert record == TokenRecord.of(prompt=PROMPT, output=IDS)


def test_unknown_logprobs_are_not_numbers():
    """Rules out that a made-up log probability, 0.0 or -9999.0, stands for one that is not known."""
    record = make_record(PROMPT, IDS, [-0.5, None, -9999.0, 0.0], counted=4)
    first, *unknown, last = unpack_logprobs(record.logprobs)
    assert (first, last) == (-0.5, 0.0)
    assert all(value != value for value in unknown)


@pytest.mark.parametrize("wrong", [0.93, 0.0005, 1.0, 17.0, 1e37])
def test_numbers_that_cannot_be_log_probabilities_are_not_kept(wrong):
    """Rules out that a server's probabilities, or ranks, are trained on as logarithms. A rounding error is none."""
    record = make_record(PROMPT, IDS, [-0.5, wrong, 1e-7, -9998.0], counted=4)
    first, unknown, *rest = unpack_logprobs(record.logprobs)
    assert unknown != unknown
    assert (first, rest) == (-0.5, [pytest.approx(1e-7), -9998.0])
    assert record.token_ids == RECORD.token_ids


def test_ids_that_are_not_all_there_are_left_out():
    assert make_record(PROMPT, IDS, LOGPROBS, counted=5) == TokenRecord.of(prompt=PROMPT)
    assert make_record(None, IDS, LOGPROBS, counted=5) is None
    assert make_record(None, ["a"], None) is None
    assert make_record(None, [2**31], None) is None


@pytest.mark.parametrize("shift", [0, 1, -3])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_logprobs_of_other_ids_are_left_out(shift, is_streamed):
    """Rules out that probabilities of other tokens count as exact, wherever an answer names both ids."""
    raw = msgspec.json.decode(VLLM_CHAT)
    for item, number in zip(raw["choices"][0]["logprobs"]["content"], IDS, strict=True):
        item["token"] = f"token_id:{number + shift}"
    if is_streamed:
        raw["choices"][0]["delta"] = raw["choices"][0].pop("message")
    body = msgspec.json.encode(raw)
    watch = Listener().watch if is_streamed else None
    completion, _ = await ask("vllm", sse([body, b"[DONE]"]) if is_streamed else body, watch=watch)
    expected = RECORD if not shift else TokenRecord.of(prompt=PROMPT, output=IDS)
    assert completion.tokens == expected
    raw = msgspec.json.decode(SGLANG_CHAT)
    for item in raw["choices"][0]["meta_info"]["output_token_logprobs"]:
        item[1] += shift
    completion, _ = await ask("sglang", raw)
    assert completion.tokens == expected


@pytest.mark.parametrize("wrong", [[*PROMPT, 5], PROMPT[1:], [True, *PROMPT[1:]], [*PROMPT[:-1], -1]])
@pytest.mark.parametrize("is_fast", [False, True])
async def test_ids_of_a_prompt_that_the_server_did_not_count_are_left_out(wrong, is_fast):
    """Rules out that an answer is trained on behind a prompt that the model did not see, such as a cut one."""
    raw = msgspec.json.decode(VLLM_CHAT)
    raw["prompt_token_ids"] = wrong
    body = raw if is_fast else raw | {"unheard_of": 1}
    completion, _ = await ask("vllm", body)
    assert completion.tokens in (None, TokenRecord.of(output=IDS, logprobs=LOGPROBS))


async def test_ids_of_a_prompt_that_changes_within_a_stream_are_left_out():
    events = [msgspec.json.decode(event) for event in VLLM_CHAT_EVENTS if event != b"[DONE]"]
    for events[1]["prompt_token_ids"] in (PROMPT, [number + 1 for number in PROMPT]):
        sent = [msgspec.json.encode(event) for event in events]
        completion, _ = await ask("vllm", sse([*sent, b"[DONE]"]), watch=Listener().watch)
        is_same = events[1]["prompt_token_ids"] == PROMPT
        assert completion.tokens == (RECORD if is_same else TokenRecord.of(output=IDS, logprobs=LOGPROBS))


@pytest.mark.parametrize("wrong", [-1, -103, True])
async def test_numbers_that_are_no_ids_are_left_out(wrong):
    raw = msgspec.json.decode(VLLM_CHAT)
    raw["choices"][0]["token_ids"][1] = wrong
    completion, _ = await ask("vllm", raw)
    assert completion.tokens is None or completion.tokens.token_ids is None
    with pytest.raises(OverflowError, match=r"-\d+ is not a token id"):
        TokenRecord.of(output=[5, -abs(wrong), 7])


async def test_ids_that_are_fewer_than_the_logprobs_are_left_out():
    raw = msgspec.json.decode(VLLM_CHAT)
    del raw["choices"][0]["token_ids"][-1], raw["usage"]
    completion, _ = await ask("vllm", raw)
    assert completion.tokens == TokenRecord.of(prompt=PROMPT)


async def test_weights_that_change_within_a_stream_are_told_for_each_token():
    events = [msgspec.json.decode(event) for event in VLLM_CHAT_EVENTS if event != b"[DONE]"]
    version = 7
    for event in events:
        if event["choices"] and event["choices"][0].get("token_ids"):
            event["metadata"] = {"weight_version": str(version)}
            version += 1
    sent = [msgspec.json.encode(event) for event in events]
    completion, _ = await ask("vllm", sse([*sent, b"[DONE]"]), watch=Listener().watch)
    assert version == 9
    assert [name for _, name in completion.tokens.versions] == ["7", "8"]
    assert sum(count for count, _ in completion.tokens.versions) == len(IDS)
