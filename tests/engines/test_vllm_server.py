"""What else a real vLLM does: the check of a model, tools by its own parser, streams, schemas, speed."""

import asyncio
import json
import subprocess
import sys
import time

import pytest
from jsonschema import validate
from tests.engines.engine_server import NAME, serve
from tests.engines.test_tokens_of_engines import TASKS, check_ends, make_agent

from treadle import model
from treadle.core.errors import ContextOverflowError
from treadle.core.events import TextDelta
from treadle.core.log import Log
from treadle.core.tokens.packed import unpack_ids
from treadle.core.types import UNREADABLE_CALL, FinishReason, Message, Request, Role, Settings, ToolSpec
from treadle.http.transport import HttpTransport
from treadle.models.config.logprobs_probe import find_logprobs_mode
from treadle.models.protocol import Watch
from treadle.renderers.registry import load_renderer
from treadle.tasks.files import TASK_SET

pytestmark = pytest.mark.xdist_group("engines")
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bergen"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORECAST = ToolSpec("forecast", "The weather of the next days.", CITY)


def check_model(vllm, *options):
    command = [
        sys.executable,
        "-m",
        "treadle",
        "models",
        "check",
        f"vllm:{NAME}",
        "--base-url",
        vllm.url,
        "--json",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *findings, result = map(json.loads, done.stdout.splitlines())
    return {item["name"]: item for item in findings}, result


@pytest.mark.parametrize("has_renderer", [False, True])
def test_the_check_of_a_model(vllm, has_renderer):
    found, result = check_model(vllm, *(["--renderer", f"hf:{vllm.model}"] if has_renderer else []))
    assert result["grade"] == "token_exact"
    assert result["has_policy_logprobs"] is True
    assert found["engine"]["seen"].startswith("vllm 0.")
    assert found["context length"]["seen"] == "8,192 tokens"
    assert found["tokens in"]["seen"] == "/v1/completions and /inference/v1/generate"
    count = int(found["logprobs"]["seen"].split()[1].replace(",", ""))
    assert 0 < count <= 8192
    # A small model may answer with a word.
    assert found["streaming"]["is_there"] is not False
    for name in ("logprobs", "token ids", "logprobs of", "weight updates"):
        assert found[name]["is_there"], found[name]
    assert found["logprobs of"]["seen"].startswith("the model's own")
    if has_renderer:
        assert found["same template"]["is_there"], found["same template"]


@pytest.mark.full
async def test_what_logprobs_are_of(environment, vllm, tmp_path):
    """An engine that was started otherwise, and one whose model has settings of its own."""
    asked = {"temperature": 0.7, "top_p": 0.9}
    for options, mode, is_policy in (
        (("--logprobs-mode", "processed_logprobs"), "processed", True),
        (("--override-generation-config", '{"top_k": 5}'), "raw_defaults", False),
    ):
        with serve(environment, vllm.model, tmp_path / "vllm.log", *options) as server:

            def make(url=server.url, **settings):
                return model(f"vllm:{NAME}", base_url=url, **{**asked, **settings})

            found = await find_logprobs_mode(make, Settings(**asked))
        assert found == mode
        assert Settings(**asked, logprobs_mode=found).has_policy_logprobs is is_policy


async def test_calls_by_the_engines_own_parser(vllm, recorder):
    """What the server's parser reads in an answer, the renderer reads in its ids. A call that the parser gives back
    as text counts as one that cannot be read."""
    agent = make_agent("vllm_chat", vllm, recorder, temperature=0.0, max_output_tokens=400)
    runs = [await agent.run(TASK_SET.get(name), run_id=name) for name in TASKS]
    check_ends(runs)
    renderer = load_renderer(f"hf:{vllm.model}")
    called = unreadable = 0
    for run in runs:
        for event in run.events:
            # A call that the limit cuts off is another matter.
            if event.type == "inference_completed" and event.body.completion.finish_reason != "length":
                body = event.body.completion
                ids = unpack_ids(body.tokens.token_ids)
                read = renderer.read(ids, run.events[0].body.tools, finish=body.finish_reason)
                calls = body.message.tool_calls
                if calls and calls[0].name == UNREADABLE_CALL:
                    unreadable += 1
                    assert renderer.decode(ids).startswith(calls[0].arguments)
                elif calls:
                    called += len(calls)
                    assert _values(read.tool_calls) == _values(calls)
    print(f"{called} calls, {unreadable} answers that the engine's parser could not read")
    assert called > 1


def _values(calls):
    # The engine's parser writes the arguments anew.
    return [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("endpoint", ["vllm_chat", "vllm_completions"])
async def test_streams_say_what_the_answers_say(vllm, recorder, endpoint):
    texts: list[str] = []
    for seed in (3, 5, 7):
        agent = make_agent(endpoint, vllm, recorder, seed=seed)
        begin = len(texts)
        run = await agent.run(
            "Say something.",
            run_id="talk",
            on_event=lambda it: texts.append(it.text) if isinstance(it, TextDelta) else None,
        )
        said = [message.content for message in run.messages if message.role is Role.ASSISTANT]
        assert "".join("".join(texts[begin:]).split()) == "".join("".join(said).split())
    assert len(texts) > 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_calls_and_answers_within_a_schema(vllm, is_streamed):
    """The engine constrains what is sampled, so a model that knows nothing keeps to a schema.

    Without `strict_tools`, vLLM makes sure of the call and of nothing in its arguments. Its grammar of calls allows
    blanks without end, so that some calls of such a model are cut off.
    """
    options = {"temperature": 1.0, "max_output_tokens": 400, "strict_tools": True}
    made = model(f"vllm:{NAME}", base_url=vllm.url, **options)
    asked = Log([Message(Role.USER, "How will it be in Oslo?")])
    watch = Watch(lambda delta: None) if is_streamed else Watch()
    called = 0
    for _ in range(6):
        forced = await made.infer(Request(asked, (FORECAST,), None, "forecast"), watch)
        if forced.finish_reason is not FinishReason.LENGTH:
            (call,) = forced.message.tool_calls
            assert call.name == "forecast"
            validate(json.loads(call.arguments), CITY)
            called += 1
        answered = await made.infer(Request(asked, (), CITY), watch)
        validate(json.loads(answered.message.content), CITY)
    assert called


async def test_speed(vllm, recorder, tmp_path):
    """Print how many tokens per second arrive in runs, and how many if the same requests are sent by themselves."""
    agent = make_agent("vllm_completions", vllm, recorder, seed=5)
    start = time.monotonic()
    runs = [agent.run(TASK_SET.get(name), run_id=f"{number}-{name}") for number in range(6) for name in TASKS]
    await asyncio.gather(*runs)
    await recorder.settle()
    ours = sum(len(answer.token_ids) for answer in recorder.sampled) / (time.monotonic() - start)
    asked = [json.dumps(body).encode() for _, body in recorder.requests if "prompt" in body]
    transport, start, count = HttpTransport(), time.monotonic(), 0

    async def ask(bodies):
        nonlocal count
        for body in bodies:
            answer = await transport.post(
                f"{vllm.url}/completions", {"content-type": "application/json"}, body
            )
            count += json.loads(answer.body)["usage"]["completion_tokens"]

    await asyncio.gather(*[ask(asked[number::12]) for number in range(12)])
    bare = count / (time.monotonic() - start)
    print(
        f"{ours:.0f} tokens/s in 12 runs in flight; {bare:.0f} tokens/s for the same requests sent without runs"
    )


@pytest.mark.parametrize("has_renderer", [False, True])
@pytest.mark.parametrize("limit", [None, 20])
async def test_a_prompt_that_the_window_does_not_hold(vllm, has_renderer, limit):
    """A session compacts itself after this error, and after no other one."""
    options = {"renderer": f"hf:{vllm.model}"} if has_renderer else {}
    made = model(f"vllm:{NAME}", base_url=vllm.url, max_output_tokens=limit, **options)
    asked = Log([Message(Role.USER, "fish and bread " * 9000)])
    with pytest.raises(ContextOverflowError):
        await made.infer(Request(asked, ()), Watch())
