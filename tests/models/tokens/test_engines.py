"""Engines that take and return token ids, with answers as real servers send them, over real sockets."""

import asyncio
import itertools
import struct
from contextlib import suppress

import msgspec
import pytest
from tests.models.server import End, Reply, serve
from tests.models.tokens.recorded import (
    IDS,
    LOGPROBS,
    PROMPT,
    RECORDED,
    SGLANG_INCREMENTAL_EVENTS,
    VLLM_COMPLETION,
    VLLM_GENERATE_NEW,
    Recorded,
    sse,
)

from treadle.core.errors import (
    ConfigError,
    ContextOverflowError,
    RateLimitError,
    RequestError,
    ServerError,
    TransportError,
)
from treadle.core.tokens.packed import pack_ids, unpack_ids, unpack_logprobs
from treadle.core.types import FinishReason, Settings
from treadle.models import model
from treadle.models.protocol import Watch
from treadle.models.tokens.engines.registry import ENGINES, make_engine
from treadle.models.tokens.token_model import TokenModel
from treadle.renderers.registry import load_renderer

ALL = pytest.mark.parametrize("kind", RECORDED)
PACKED_LOGPROBS = struct.pack("<4f", *LOGPROBS)


def handler(recorded: Recorded, reply=None):
    """Return a server's function, which answers inferences with `reply`, by default as recorded."""

    def handle(request):
        if request.path == "/v1/models":
            return Reply(recorded.models)
        if request.path in recorded.info:
            return Reply(recorded.info[request.path])
        if request.path != recorded.path:
            return Reply({"detail": "Not Found"}, 404)
        if not request.body:
            return Reply({"detail": "Method Not Allowed"}, 405)
        if reply is not None:
            return reply
        is_stream = request.json().get("stream", False)
        return Reply(sse(recorded.events) if is_stream else recorded.whole)

    return handle


async def ask(kind, reply=None, *, settings=Settings(max_output_tokens=16), watch=None, **options):
    recorded = RECORDED[kind]
    async with serve(handler(recorded, reply)) as server:
        engine = recorded.engine("m", base_url=server.base_url, **options)
        made = await engine.generate(PROMPT, settings, (151645,), watch or Watch())
        return made, [item for item in server.requests if item.body]


@ALL
async def test_an_answer_has_the_ids_and_logprobs_of_the_engine(kind):
    """Rules out invented log probabilities: each is bit for bit the engine's, as a 32-bit float."""
    made, requests = await ask(kind)
    assert unpack_ids(made.token_ids) == IDS
    assert made.logprobs == PACKED_LOGPROBS
    assert made.finish is FinishReason.STOP
    assert made.engine == RECORDED[kind].name
    assert made.weight_version == RECORDED[kind].weight_version
    assert made.cached_tokens == (0 if kind == "vllm_generate" else 2)
    assert [item.path for item in requests] == [RECORDED[kind].path]


@ALL
async def test_a_streamed_answer_equals_the_whole_one_and_reports_its_ids(kind):
    heard = []
    made, _ = await ask(kind, watch=Watch(on_token_ids=lambda ids: heard.append(tuple(ids))))
    whole, _ = await ask(kind)
    assert heard == [IDS[:2], IDS[2:]]
    assert made == whole


async def test_incremental_events_of_sglang_are_joined():
    heard = []
    made, _ = await ask(
        "sglang_generate", Reply(sse(SGLANG_INCREMENTAL_EVENTS)), watch=Watch(on_token_ids=heard.extend)
    )
    assert (unpack_ids(made.token_ids), made.logprobs, tuple(heard)) == (IDS, PACKED_LOGPROBS, IDS)


@ALL
async def test_a_request_sends_the_ids_and_all_settings(kind):
    settings = Settings(
        temperature=0.5, top_p=0.9, max_output_tokens=16, seed=7, stop=("x",), extra={"top_k": 5}
    )
    _, requests = await ask(kind, settings=settings)
    body = requests[0].json()
    sampling = body.get("sampling_params", body)
    limit, seed = ("max_new_tokens", "sampling_seed") if kind == "sglang_generate" else ("max_tokens", "seed")
    names = {"prompt", "token_ids", "input_ids"} & body.keys()
    assert [body[name] for name in names] == [list(PROMPT)]
    assert (sampling[limit], sampling["top_k"]) == (16, 5)
    assert 0 <= sampling[seed] < 2**31
    assert (sampling["temperature"], sampling["top_p"], sampling["stop"]) == (0.5, 0.9, ["x"])
    assert sampling["stop_token_ids"] == [151645]
    if kind == "sglang_generate":
        assert body["return_logprob"] is True
    else:
        assert sampling["logprobs"] == 0


@ALL
async def test_the_seed_of_a_request_depends_on_its_prompt(kind):
    """With the same random numbers, an engine would repeat its choices from step to step."""

    async def seed_of(seed, prompt):
        async with serve(handler(RECORDED[kind], None)) as server:
            engine = RECORDED[kind].engine("m", base_url=server.base_url)
            with suppress(RequestError):  # the answer is recorded for `PROMPT` alone
                await engine.generate(prompt, Settings(max_output_tokens=16, seed=seed), (151645,), Watch())
        (body,) = [item.json() for item in server.requests if item.body]
        return body.get("sampling_params", body)["sampling_seed" if kind == "sglang_generate" else "seed"]

    begin = await seed_of(7, PROMPT)
    assert begin == await seed_of(7, PROMPT)
    assert len({begin, await seed_of(8, PROMPT), await seed_of(7, (*PROMPT[:-1], 1))}) == 3


@ALL
@pytest.mark.parametrize("form", ["text", "json_object", "json_schema"])
async def test_an_engine_is_asked_for_the_form_of_an_answer(kind, form):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    asked = {"type": form} if form != "json_schema" else {"type": form, "json_schema": {"schema": schema}}
    wanted = schema if form == "json_schema" else {"type": "object"}
    _, requests = await ask(kind, settings=Settings(extra={"response_format": asked}))
    body = requests[0].json()
    if kind == "vllm_completions":
        assert body["response_format"] == asked
        return
    sampling = body["sampling_params"]
    assert "response_format" not in sampling
    if kind == "vllm_generate":
        assert sampling.get("structured_outputs") == (None if form == "text" else {"json": wanted})
    else:
        told = sampling.get("json_schema")
        assert (told and msgspec.json.decode(told)) == (None if form == "text" else wanted)


def change(kind, **fields):
    """Return the recorded answer with other values of ids, logprobs and so on."""
    raw = msgspec.json.decode(RECORDED[kind].whole)
    where = raw["meta_info"] if kind == "sglang_generate" else raw["choices"][0]
    for name, value in fields.items():
        if name == "finish":
            where["finish_reason"] = {"type": value} if kind == "sglang_generate" else value
        elif name == "ids":
            (raw if kind == "sglang_generate" else where)[
                "output_ids" if kind == "sglang_generate" else "token_ids"
            ] = value
            if kind == "sglang_generate":
                where["completion_tokens"] = len(value)
            elif "usage" in raw:
                raw["usage"]["completion_tokens"] = len(value)
        elif name == "logprobs":
            if kind == "sglang_generate":
                where["output_token_logprobs"] = [[lp, at, None] for lp, at in zip(value, IDS, strict=False)]
            elif kind == "vllm_completions":
                where["logprobs"]["token_logprobs"] = value
            else:
                pairs = zip(itertools.cycle(IDS), value, strict=False)
                where["logprobs"]["content"] = [
                    {"token": f"token_id:{at}", "logprob": lp} for at, lp in pairs
                ]
    return Reply(raw)


@ALL
async def test_an_answer_that_the_limit_cut_off_says_so(kind):
    """Rules out the defect that a parser's `stop` replaced the engine's `length`."""
    made, _ = await ask(kind, change(kind, finish="length"))
    assert made.finish is FinishReason.LENGTH


@ALL
async def test_an_aborted_answer_keeps_its_partial_ids(kind):
    made, _ = await ask(kind, change(kind, finish="abort", ids=list(IDS[:2]), logprobs=list(LOGPROBS[:2])))
    assert made.finish is None
    assert unpack_ids(made.token_ids) == IDS[:2]
    assert made.logprobs == PACKED_LOGPROBS[:8]


@ALL
async def test_an_answer_that_was_aborted_before_its_first_token_is_empty(kind):
    made, _ = await ask(kind, change(kind, finish="abort", ids=[], logprobs=[]))
    assert made.finish is None
    assert made.token_ids == b""


@ALL
@pytest.mark.parametrize("count", [0, 3, 5])
async def test_logprobs_of_another_number_than_the_ids_are_left_out(kind, count):
    """Rules out the defect that short lists were padded with 1.0 and long lists cut: nothing is invented."""
    values = [-0.5] * count
    if kind == "sglang_generate" and count == 5:
        pytest.skip("SGLang's log probabilities carry their own ids")
    made, _ = await ask(kind, change(kind, logprobs=values))
    assert unpack_ids(made.token_ids) == IDS
    assert made.logprobs is None


@ALL
@pytest.mark.parametrize("unknown", [None, -9999.0])
async def test_a_logprob_that_the_engine_does_not_know_is_not_a_number(kind, unknown):
    """Rules out that vLLM's -9999.0, which stands for no log probability, is trained on as a real one."""
    made, _ = await ask(kind, change(kind, logprobs=[-0.5, unknown, -0.5, -0.5]))
    values = unpack_logprobs(made.logprobs)
    assert values[1] != values[1]
    assert (values[0], *values[2:]) == (-0.5, -0.5, -0.5)


@pytest.mark.parametrize("kind", ["vllm_completions", "sglang_generate"])
async def test_ids_of_another_number_than_the_engine_counted_are_refused(kind):
    raw = msgspec.json.decode(RECORDED[kind].whole)
    (raw.get("usage") or raw["meta_info"])["completion_tokens"] = 5
    with pytest.raises(ServerError, match="4 ids of 5 sampled tokens"):
        await ask(kind, Reply(raw))


@pytest.mark.parametrize("kind", ["vllm_completions", "sglang_generate"])
async def test_an_engine_that_cut_the_prompt_is_refused(kind):
    raw = msgspec.json.decode(RECORDED[kind].whole)
    (raw.get("usage") or raw["meta_info"])["prompt_tokens"] = 2
    with pytest.raises(RequestError, match="3 token ids were sent"):
        await ask(kind, Reply(raw))


@ALL
async def test_an_unknown_finish_reason_is_an_error(kind):
    with pytest.raises(ServerError, match="melted"):
        await ask(kind, change(kind, finish="melted"))


@ALL
async def test_a_finished_answer_without_ids_is_an_error(kind):
    with pytest.raises(ServerError, match="no token ids"):
        await ask(kind, change(kind, ids=[], logprobs=[]))


async def test_a_server_that_ignores_return_token_ids_is_an_error():
    raw = msgspec.json.decode(VLLM_COMPLETION)
    del raw["choices"][0]["token_ids"]
    with pytest.raises(ServerError, match="0 ids of 4 sampled tokens"):
        await ask("vllm_completions", Reply(raw))


@ALL
async def test_a_connection_that_breaks_within_a_stream_leaves_an_aborted_answer(kind):
    """Rules out the defect that an error threw away the tokens that were sampled before it."""
    recorded, heard = RECORDED[kind], []
    pieces = [sse(recorded.events[:1]), b"data: {"]
    made, _ = await ask(kind, Reply(pieces=pieces, end=End.RESET), watch=Watch(on_token_ids=heard.extend))
    assert made.finish is None
    assert unpack_ids(made.token_ids) == IDS[:2] == tuple(heard)
    assert made.logprobs == PACKED_LOGPROBS[:8]
    assert made.weight_version == recorded.weight_version


@ALL
async def test_a_connection_that_breaks_before_the_first_id_is_an_error(kind):
    with pytest.raises(TransportError):
        await ask(kind, Reply(pieces=[b"data: {"], end=End.RESET), watch=Watch(on_token_ids=print))


@ALL
@pytest.mark.parametrize("is_stream", [False, True])
async def test_errors_are_typed(kind, is_stream):
    watch = Watch(on_token_ids=print if is_stream else None)
    busy = Reply({"error": {"message": "too many requests"}}, 429, headers={"retry-after": "3"})
    with pytest.raises(RateLimitError) as caught:
        await ask(kind, busy, watch=watch)
    assert caught.value.retry_after_seconds == 3
    too_long = {"error": {"message": "This model's maximum context length is 64 tokens.", "code": 400}}
    with pytest.raises(ContextOverflowError):
        await ask(kind, Reply(too_long, 400), watch=watch)
    with pytest.raises(ServerError):
        await ask(kind, Reply({"detail": "EngineDeadError"}, 500), watch=watch)


@ALL
async def test_an_error_within_a_stream_is_typed(kind):
    recorded = RECORDED[kind]
    stream = sse([recorded.events[0], b'{"error":{"message":"out of memory","code":500}}', b"[DONE]"])
    with pytest.raises(ServerError, match="out of memory"):
        await ask(kind, Reply(stream), watch=Watch(on_token_ids=print))


@ALL
async def test_without_a_limit_the_rest_of_the_context_is_the_limit(kind):
    """Rules out that an engine's own low default cuts answers off, which is 16 tokens in vLLM and 128 in SGLang."""
    _, requests = await ask(kind, settings=Settings())
    body = requests[0].json()
    sampling = body.get("sampling_params", body)
    assert sampling["max_new_tokens" if kind == "sglang_generate" else "max_tokens"] == 64 - len(PROMPT)


async def test_a_prompt_that_fills_the_context_is_refused():
    with pytest.raises(ContextOverflowError, match="the prompt has 3 tokens"):
        await ask("vllm_completions", settings=Settings(), context_tokens=3)


async def test_cancelling_closes_the_connection():
    recorded = RECORDED["vllm_completions"]
    stalled = Reply(pieces=[sse(recorded.events[:1])], end=End.STALL)
    async with serve(handler(recorded, stalled)) as server:
        engine = recorded.engine("m", base_url=server.base_url)
        heard = asyncio.Event()
        watch = Watch(on_token_ids=lambda ids: heard.set())
        task = asyncio.create_task(engine.generate(PROMPT, Settings(max_output_tokens=9), (), watch))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.gone.wait()


@pytest.mark.parametrize("spans", [None, "two", "gap"])
async def test_sglang_says_which_weights_sampled_which_tokens(spans):
    raw = msgspec.json.decode(RECORDED["sglang_generate"].whole)
    if spans is not None:
        second = 3 if spans == "two" else 2
        raw["meta_info"]["weight_version"] = "8"
        raw["meta_info"]["weight_versions"] = [
            {"version": "7", "start": 0, "end": 3},
            {"version": "8", "start": second, "end": 4},
        ]
    made, _ = await ask("sglang_generate", Reply(raw))
    assert made.versions == (((3, "7"), (1, "8")) if spans == "two" else ())
    assert made.weight_version == ("7" if spans is None else "8")


async def test_newer_vllm_says_which_weights_sampled_which_tokens():
    made, _ = await ask("vllm_generate", Reply(VLLM_GENERATE_NEW))
    assert (unpack_ids(made.token_ids), made.logprobs, made.finish) == (
        IDS,
        PACKED_LOGPROBS,
        FinishReason.STOP,
    )
    assert (made.versions, made.weight_version) == (((3, "7"), (1, "8")), "8")
    _, requests = await ask("vllm_completions")
    assert requests[0].json()["return_weight_versions"] is True


@ALL
async def test_the_engine_of_a_server_is_found(kind):
    recorded = RECORDED[kind]
    async with serve(handler(recorded)) as server:
        engine = make_engine("m", base_url=server.base_url)
        made = await engine.generate(PROMPT, Settings(max_output_tokens=4), (), Watch())
        await engine.generate(PROMPT, Settings(max_output_tokens=4), (), Watch())
        asked = [item.path for item in server.requests if len(item.body) > 2]
    assert made.token_ids == pack_ids(IDS)
    assert asked == [recorded.path, recorded.path]


@pytest.mark.parametrize(
    ("paths", "match"),
    [
        ({"/v1/models": {"data": [{"id": "m", "owned_by": "openai"}]}}, "neither vLLM nor SGLang"),
        ({}, "neither vLLM nor SGLang"),
        (
            {"/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]}, "/version": {"version": "0.9.1"}},
            "vllm 0.9.1",
        ),
    ],
)
async def test_a_server_that_takes_no_ids_is_refused(paths, match):
    def handle(request):
        if request.path in paths:
            return Reply(paths[request.path])
        return Reply({}, 405 if request.path == "/v1/completions" else 404)

    async with serve(handle) as server:
        engine = make_engine("m", base_url=server.base_url)
        with pytest.raises(ConfigError, match=match):
            await engine.generate(PROMPT, Settings(max_output_tokens=4), (), Watch())


@ALL
@pytest.mark.parametrize("is_chosen", [False, True])
async def test_a_server_that_is_starting_is_waited_for(kind, is_chosen):
    """A gateway whose server is starting must not count as a server without ids, or without a known context."""
    recorded = RECORDED[kind]
    starting = iter(range(4))

    def handle(request):
        if next(starting, None) is not None:
            return Reply({"error": "no healthy upstream"}, 503)
        return handler(recorded)(request)

    async with serve(handle) as server:
        engine = make_engine("m", base_url=server.base_url, kind=kind if is_chosen else None)
        for _ in range(4):
            with pytest.raises(TransportError, match="answered 503"):
                await engine.generate(PROMPT, Settings(), (), Watch())
        made = await engine.generate(PROMPT, Settings(), (), Watch())
    assert unpack_ids(made.token_ids) == IDS


@ALL
async def test_a_gateway_that_does_not_pass_the_version_on_is_not_waited_for(kind):
    """A server that lists its models has started, whatever else is refused."""
    recorded = RECORDED[kind]

    def handle(request):
        return (
            Reply({"error": "no upstream"}, 503)
            if request.path in recorded.info
            else handler(recorded)(request)
        )

    async with serve(handle) as server:
        made = await make_engine("m", base_url=server.base_url).generate(PROMPT, Settings(), (), Watch())
    assert unpack_ids(made.token_ids) == IDS
    assert made.engine in ("vllm", "sglang")


def test_every_engine_is_tested():
    assert set(ENGINES.names()) == set(RECORDED)
    with pytest.raises(ConfigError, match="vllm_generate"):
        make_engine("m", kind="vllm_generat")


@pytest.mark.parametrize("kind", ["vllm_generate", "sglang_generate"])
@pytest.mark.parametrize("shift", [1, -1, 7])
async def test_logprobs_of_other_ids_are_left_out(kind, shift):
    """Rules out that probabilities which are shifted by a token, or are those of other tokens, are trained on."""
    raw = msgspec.json.decode(RECORDED[kind].whole)
    if kind == "sglang_generate":
        for item in raw["meta_info"]["output_token_logprobs"]:
            item[1] += shift
    else:
        for item in raw["choices"][0]["logprobs"]["content"]:
            item["token"] = f"token_id:{int(item['token'].removeprefix('token_id:')) + shift}"
    made, _ = await ask(kind, Reply(msgspec.json.encode(raw)))
    assert (unpack_ids(made.token_ids), made.logprobs) == (IDS, None)
    newer = msgspec.json.decode(VLLM_GENERATE_NEW)
    newer["choices"][0]["logprobs"]["content"][-1]["token_id"] += shift
    made, _ = await ask("vllm_generate", Reply(msgspec.json.encode(newer)))
    assert made.logprobs is None


@ALL
@pytest.mark.parametrize("wrong", [-1, -103, True])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_numbers_that_are_no_ids_are_an_error(kind, wrong, is_streamed):
    raw = msgspec.json.decode(RECORDED[kind].whole)
    ids = raw["output_ids"] if kind == "sglang_generate" else raw["choices"][0]["token_ids"]
    ids[1] = wrong
    body = msgspec.json.encode(raw)
    watch = Watch(on_token_ids=lambda _: None) if is_streamed else None
    with pytest.raises(ServerError, match="cannot be read as token ids"):
        await ask(kind, Reply(sse([body, b"[DONE]"])) if is_streamed else Reply(body), watch=watch)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_engine_that_saw_another_prompt_is_an_error(is_streamed):
    """Rules out that what was sampled after other ids is recorded as the answer to those that were sent."""
    raw = msgspec.json.decode(VLLM_COMPLETION)
    raw["choices"][0]["prompt_token_ids"] = [151644, 872, 199]
    body = msgspec.json.encode(raw)
    watch = Watch(on_token_ids=lambda _: None) if is_streamed else None
    with pytest.raises(RequestError, match="the engine returned other ones"):
        await ask(
            "vllm_completions", Reply(sse([body, b"[DONE]"])) if is_streamed else Reply(body), watch=watch
        )


@ALL
async def test_more_than_one_answer_is_refused_and_never_joined(kind):
    """Rules out that the ids of several answers become one."""
    with pytest.raises(ConfigError, match=r"Settings\.extra has n=2"):
        TokenModel(RECORDED[kind].engine("m"), load_renderer("chatml"), settings=Settings(extra={"n": 2}))
    with pytest.raises(ConfigError, match=r"Settings\.extra has best_of=3"):
        model("vllm:m", extra={"best_of": 3})
    events = [msgspec.json.decode(event) for event in RECORDED[kind].events if event != b"[DONE]"]
    both = []
    for event in events:
        other = msgspec.json.decode(msgspec.json.encode(event))
        for choice in [other] if kind == "sglang_generate" else other["choices"]:
            choice["index"] = 1
        both += [other, event]
    sent = [msgspec.json.encode(event) for event in both]
    made, _ = await ask(kind, Reply(sse([*sent, b"[DONE]"])), watch=Watch(on_token_ids=lambda _: None))
    assert (unpack_ids(made.token_ids), made.logprobs) == (IDS, PACKED_LOGPROBS)


async def test_weights_that_change_within_a_stream_are_told_for_each_token():
    events = [msgspec.json.decode(event) for event in SGLANG_INCREMENTAL_EVENTS if event != b"[DONE]"]
    for event, version in zip(events, ("7", "8"), strict=False):
        event["meta_info"]["weight_version"] = version
    sent = [msgspec.json.encode(event) for event in events]
    made, _ = await ask(
        "sglang_generate", Reply(sse([*sent, b"[DONE]"])), watch=Watch(on_token_ids=lambda _: None)
    )
    assert (made.versions, made.weight_version) == (((2, "7"), (2, "8")), "8")


async def test_an_abort_of_sglang_with_a_status_is_that_error():
    """Rules out that a request which the engine refuses is made again and again, and its reason lost."""
    finish = {"type": "abort", "message": "Input length 99 exceeds the limit", "status_code": 400}
    event = msgspec.json.encode(
        {"output_ids": [], "meta_info": {"id": "x", "finish_reason": finish, "completion_tokens": 0}}
    )
    for reply, watch in (
        (Reply(sse([event, b"[DONE]"])), Watch(on_token_ids=lambda _: None)),
        (Reply(event), None),
    ):
        with pytest.raises(RequestError, match="Input length 99 exceeds the limit"):
            await ask("sglang_generate", reply, watch=watch)
