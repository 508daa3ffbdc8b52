"""Probing an endpoint, with servers of different abilities."""

from itertools import count

import msgspec
import pytest
from tests.models.answers import USAGE, answer, error

from treadle.core.errors import TransportError
from treadle.core.types import Settings
from treadle.models import FormatModel, HttpResponse, InProcessTransport, OpenAIChatModel, RetryModel
from treadle.models.config.probe import Prober, find_token_settings


def call(number, city="Oslo"):
    arguments = msgspec.json.encode({"city": city}).decode()
    return {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }


class Server:
    """A server that behaves like an engine with the given abilities."""

    def __init__(self, *abilities):
        self.abilities = set(abilities)
        self.drawn = count(2)

    def __call__(self, request):
        if request.url.endswith("/models"):
            owner = "vllm" if "engine" in self.abilities else "someone"
            models = [{"id": "m", "max_model_len": 4096, "owned_by": owner}, {"id": "n"}]
            return HttpResponse({"data": models})
        if request.url.endswith("/version"):
            return HttpResponse({"version": "0.11.2"})
        if not request.body:
            is_there = request.url.endswith(("/v1/completions", "/inference/v1/generate", "/pause"))
            return HttpResponse({"detail": "?"}, 405 if is_there and "engine" in self.abilities else 404)
        if request.url.endswith("/inference/v1/generate"):
            return HttpResponse({"detail": "?"}, 403 if "disabled" in self.abilities else 400)
        body = request.json()
        asked = body["messages"][0]["content"]
        fields = {}
        if body.get("tools"):
            if "tools" not in self.abilities:
                return HttpResponse(error("tools are not supported"), 400)
            if len(body["messages"]) > 1:
                raw = answer("4 degrees")
            elif body.get("tool_choice") and "forced" not in self.abilities:
                raw = answer("hello to you")
            else:
                two = "Rome" in asked and "parallel" in self.abilities
                raw = answer(
                    None, finish="tool_calls", tool_calls=[call(1), *([call(2, "Rome")] if two else [])]
                )
        elif body.get("response_format"):
            raw = answer(
                '{"capital":"Oslo","letters":4}' if "schema" in self.abilities else "Oslo, of course"
            )
        else:
            fields = {"reasoning_content": "hm"} if "reasoning" in self.abilities else {}
            raw = answer("ready", **fields)
        choice = raw["choices"][0]
        if body.get("logprobs") and "logprobs" in self.abilities:
            choice["logprobs"] = {"content": [{"token": "a", "logprob": -0.5}]}
        if body.get("return_token_ids") and "ids" in self.abilities:
            is_drawn = "no seeds" in self.abilities and "seed" in body
            choice["token_ids"] = [next(self.drawn) if is_drawn else 1]
            raw["prompt_token_ids"] = [1, 2]
            raw["usage"] = {"prompt_tokens": 2, "completion_tokens": 1}
        if body.get("stream"):
            pieces = ["1 ", "2 "] if "streaming" in self.abilities else ["1 2 3 4 5 6 7 8 9 10 11"]
            pieces = ["1"] if "one word" in self.abilities else pieces
            events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE})
            data = [b"data: %s\n\n" % msgspec.json.encode(event) for event in events]
            return HttpResponse([*data, b"data: [DONE]\n\n"], headers={"content-type": "text/event-stream"})
        return HttpResponse(raw)


async def probe(server):
    transport = InProcessTransport(server)

    def make(**settings):
        return OpenAIChatModel(
            "m", base_url="http://h/v1", settings=Settings(**settings), transport=transport
        )

    prober = Prober(make)
    found = {item.name: item.is_there async for item in prober.findings()}
    return found, prober.result()


ALL = ("engine", "tools", "parallel", "forced", "schema", "logprobs", "ids", "reasoning", "streaming")


async def test_an_engine_that_can_all():
    found, probed = await probe(Server(*ALL))
    assert set(found.values()) == {True}
    assert (probed.grade, probed.output_mode, probed.is_usable) == ("token_exact", "native", True)
    seen = {item.name: item.seen for item in probed.findings}
    assert seen["engine"] == "vllm 0.11.2"
    assert seen["tokens in"] == "/v1/completions and /inference/v1/generate"
    assert seen["weight updates"] == "/pause pauses it"
    assert probed.findings[-1].seen == "4,096 tokens"
    assert probed.has_policy_logprobs


async def test_an_endpoint_that_is_not_allowed_is_not_there():
    """vLLM 0.32 lists the endpoint for ids, and refuses its requests unless it was started for them."""
    _, probed = await probe(Server(*ALL, "disabled"))
    assert {item.name: item.seen for item in probed.findings}["tokens in"] == "/v1/completions"


@pytest.mark.parametrize(
    ("lacks", "name", "grade", "mode"),
    [
        ("streaming", "streaming", "token_exact", "native"),
        ("tools", "tools", "token_exact", "native"),
        ("parallel", "parallel calls", "token_exact", "native"),
        ("forced", "forced tool", "token_exact", "native"),
        ("schema", "json schema", "token_exact", "tool"),
        ("logprobs", "logprobs", "token_ids", "native"),
        ("ids", "token ids", "text", "native"),
        ("reasoning", "reasoning", "token_exact", "native"),
    ],
)
async def test_what_is_missing_is_seen(lacks, name, grade, mode):
    found, probed = await probe(Server(*[item for item in ALL if item != lacks]))
    assert not found[name]
    assert [item for item, is_there in found.items() if not is_there] == [name]
    assert (probed.grade, probed.output_mode) == (grade, mode)


async def test_a_server_that_ignores_seeds_may_sample_by_settings_of_its_own():
    """Then the advice is what leaves nothing to the server, and not a mode of the engine."""
    found, probed = await probe(Server(*ALL, "no seeds"))
    assert found["logprobs of"] is None
    (item,) = [item for item in probed.findings if item.name == "logprobs of"]
    assert "may have" in item.seen
    assert item.advice is not None
    assert item.advice.startswith("leave no setting to the server")


async def test_an_answer_of_one_word_does_not_tell_whether_a_server_streams():
    found, _ = await probe(Server(*ALL, "one word"))
    assert found["streaming"] is None


async def test_a_server_whose_engine_is_not_known_is_graded_text():
    """Rules out that ids are taken for the engine's because a server has fields of the same names."""
    found, probed = await probe(Server(*[item for item in ALL if item != "engine"]))
    assert (found["engine"], found["token ids"], found["logprobs"]) == (False, True, True)
    assert "tokens in" not in found
    assert probed.grade == "text"


@pytest.mark.parametrize(
    ("name", "version", "is_asked"),
    [
        ("vllm", "0.11.2", True),
        ("vllm", "0.10.2rc1.dev3+g12", True),
        ("vllm", "0.10.1", False),
        ("sglang", "0.5.13", True),
        ("sglang", "0.5.9.post1", False),
        ("vllm", None, False),
        ("llama.cpp", "9", False),
    ],
)
async def test_token_ids_are_asked_for_if_the_engine_gives_them(name, version, is_asked):
    def handle(request):
        if request.url.endswith("/models"):
            return HttpResponse({"data": [{"id": "m", "owned_by": name}]})
        is_there = version is not None and request.url.endswith(("/version", "/get_server_info"))
        return HttpResponse({"version": version}) if is_there else HttpResponse({}, 404)

    model = OpenAIChatModel("m", base_url="http://h/v1", transport=InProcessTransport(handle))
    asked = {"logprobs": True, "return_token_ids": True}
    assert await find_token_settings(RetryModel(model)) == (asked if is_asked else {})


async def test_one_that_does_not_answer():
    found, probed = await probe(lambda _: HttpResponse(error("no such model"), 404))
    assert found == {"answers": False}
    assert not probed.is_usable
    assert "model not found" in probed.findings[0].seen


async def test_one_without_schema_and_tools_is_asked_in_the_text():
    _, probed = await probe(Server())
    assert (probed.output_mode, probed.grade) == ("text", "text")


def handle_engine(reply, *, tokens=lambda body: 2):
    """Return a handler like that of vLLM: `reply` returns the answer to a request, and `tokens` the size of its
    prompt. `asked` of the handler has all requests."""

    def handle(request):
        if not request.body:
            found = {"data": [{"id": "m", "owned_by": "vllm"}]}
            return HttpResponse(found if request.url.endswith("/models") else {"version": "0.11.2"})
        body = request.json()
        handle.asked.append(body)
        raw = reply(body)
        return HttpResponse(
            raw | {"usage": {"prompt_tokens": tokens(body), "completion_tokens": 9, "total_tokens": 11}}
        )

    handle.asked = []
    return handle


async def probe_handler(handle, **settings):
    transport = InProcessTransport(handle)

    def make(**given):
        return OpenAIChatModel(
            "m", base_url="http://h/v1", settings=Settings(**settings | given), transport=transport
        )

    prober = Prober(make)
    return {item.name: item async for item in prober.findings()}


async def test_answers_of_an_engine_have_a_limit_and_a_cut_is_told():
    """A weak model that goes on until its context is full would else be told to send nothing."""
    handle = handle_engine(lambda body: answer("on and on", finish="length"))
    found = await probe_handler(handle)
    assert found["answers"].seen.startswith("'on and on', cut off after 9 tokens, ")
    assert found["json schema"].seen == "'on and on', cut off after 9 tokens"
    assert {body.get("max_tokens") for body in handle.asked} == {512}
    # The limit of the model itself is kept, and a server that is no engine is sent none.
    handle = handle_engine(lambda body: answer("on"))
    await probe_handler(handle, max_output_tokens=70)
    assert {body.get("max_tokens") for body in handle.asked} == {70}
    asked = []

    def handle_other(request):
        asked.append(request.json() if request.body else {})
        return HttpResponse(answer("ready") if request.body else {})

    await probe_handler(handle_other)
    assert not any("max_tokens" in body for body in asked)


@pytest.mark.parametrize("is_hidden", [False, True])
async def test_a_template_without_a_place_for_tools_is_told(is_hidden):
    handle = handle_engine(
        lambda body: answer("Sunny."),
        tokens=lambda body: 40 + 90 * (bool(body.get("tools")) and not is_hidden),
    )
    found = (await probe_handler(handle))["tools"]
    assert found.is_there is False
    if is_hidden:
        assert found.seen == "the prompt has 40 tokens with the tool and without it; no call, but 'Sunny.'"
        assert found.advice.startswith("the server's chat template does not show tools")
    else:
        assert found.seen == "no call, but 'Sunny.'"
        assert found.advice.startswith("for a model whose tool calls are text")


async def test_a_model_whose_tools_are_text_already_gets_no_advice_to_make_them_text():
    handle = handle_engine(lambda body: answer("Sunny."), tokens=lambda body: len(str(body["messages"])))
    transport = InProcessTransport(handle)
    prober = Prober(
        lambda **given: FormatModel(
            OpenAIChatModel("m", base_url="http://h/v1", settings=Settings(**given), transport=transport),
            "hermes",
        )
    )
    found = {item.name: item async for item in prober.findings()}["tools"]
    assert (found.is_there, found.advice) == (False, None)


async def test_a_call_that_cannot_be_read_is_shown_in_one_line():
    arguments = '<tool_call>\n{"name": "get_weather"'
    made = [{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]
    handle = handle_engine(lambda body: answer(None, finish="tool_calls", tool_calls=made))
    found = (await probe_handler(handle))["tools"]
    assert (found.is_there, found.advice) == (False, None)
    assert found.seen == f"a call that cannot be read: {f'get_weather({arguments})'!r}"


async def test_an_answer_that_was_lost_says_nothing_about_an_ability():
    def handle(request):
        if request.body and request.json().get("tools"):
            raise TransportError("sent nothing for 120 s")
        return HttpResponse(answer("ready") if request.body else {})

    found = await probe_handler(handle)
    assert (found["tools"].is_there, found["tools"].advice) == (None, None)
    assert "sent nothing" in found["tools"].seen
