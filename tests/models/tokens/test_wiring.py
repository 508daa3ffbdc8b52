"""Models with a renderer, made by name, from treadle.toml, on the command line, and again from a journal."""

import asyncio
import json
import re
from dataclasses import replace

import pytest
from tests.cli.command import Cli
from tests.models.server import STALL, Reply, serve
from tests.models.tokens.recorded import VLLM, VLLM_MODELS
from tests.renderers.folders import make_folder
from tests.renderers.kinds import make

from treadle import Agent, Run, model, tool
from treadle.core.errors import ConfigError
from treadle.core.events import InferenceCompleted
from treadle.core.spec import PartSpec
from treadle.core.tokens.packed import unpack_ids
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.journal.memory import MemoryJournal
from treadle.journal.sqlite.sqlite_journal import SqliteJournal
from treadle.models import load_config
from treadle.models.config.known_models import demands_of_model
from treadle.models.config.probe import Prober
from treadle.models.config.recipe import make_model
from treadle.models.protocol import part_of

CHATML = make("chatml")
CALL = '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'


@tool(effect="pure")
def list_files() -> str:
    """List the files."""
    return "a.txt"


def answer(prompt: str) -> str:
    return "There is a.txt." if "<tool_response>" in prompt or "# Tools" not in prompt else CALL


def read_messages(body):
    """Return the messages of a chat request. The model `forgetful` is shown no result of a tool."""
    return [
        Message(
            Role(raw["role"]),
            raw["content"] or "",
            tuple(
                ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in raw.get("tool_calls", ())
            ),
            raw.get("tool_call_id"),
            "get_weather" if raw["role"] == "tool" else None,
            reasoning=raw.get("reasoning_content"),
        )
        for raw in body["messages"]
        if body["model"] != "forgetful" or raw["role"] != "tool"
    ]


def read_tool(raw):
    function = raw["function"]
    return ToolSpec(function["name"], function["description"], function["parameters"])


def handle(request):
    """Answer as vLLM does, with bytes as ids."""
    if request.path == "/v1/models":
        return Reply(VLLM_MODELS.replace(b'"max_model_len":64', b'"max_model_len":65536'))
    if request.path in VLLM:
        return Reply(VLLM[request.path])
    if not request.body:
        return Reply({"detail": "Method Not Allowed"}, 405 if request.path == "/v1/completions" else 404)
    body = request.json()
    if request.path == "/detokenize":
        return Reply({"prompt": CHATML.decode(body["tokens"])})
    if request.path == "/v1/chat/completions":
        prompt = CHATML.render(read_messages(body), [read_tool(item) for item in body.get("tools", ())])
        message = {"role": "assistant", "content": "one"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [111, 257]}
    else:
        prompt = body["prompt"]
        text = answer(CHATML.decode(prompt))
        ids = [*CHATML.encode(text), 257]
        logprobs = {"token_logprobs": [-0.5] * len(ids), "tokens": ["t"] * len(ids)}
        choice = {"index": 0, "text": text, "finish_reason": "stop", "token_ids": ids, "logprobs": logprobs}
        choice["prompt_token_ids"] = prompt
    count = len(choice["token_ids"])
    usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": len(prompt) + count}
    raw = {"id": "r", "object": "o", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    raw["prompt_token_ids"] = prompt
    if not body.get("stream"):
        return Reply(raw)
    events = [raw | {"usage": None}, raw | {"choices": []}]
    lines = "".join([f"data: {json.dumps(event)}\n\n" for event in events])
    return Reply(f"{lines}data: [DONE]\n\n".encode(), headers={"content-type": "text/event-stream"})


async def test_a_model_with_a_renderer_and_the_same_model_from_its_part():
    async with serve(handle) as server:
        made = model("vllm:m", base_url=server.base_url, renderer="chatml", temperature=0.5)
        agent = Agent(made, tools=[list_files], journal=MemoryJournal())
        done = await agent.run("Which files are there?")
        assert done.output == "There is a.txt."
        completions = [
            item.body.completion for item in done.events if isinstance(item.body, InferenceCompleted)
        ]
        assert [item.engine for item in completions] == ["vllm 0.11.2"] * 2
        assert completions[1].tokens.prompt_shared_tokens > len(unpack_ids(completions[0].tokens.token_ids))
        asked = [item.json() for item in server.requests if item.path == "/v1/completions" and item.body]
        assert asked[1]["prompt"][: len(asked[0]["prompt"])] == asked[0]["prompt"]
        assert asked[0]["temperature"] == 0.5

        again = make_model(part_of(made))
        assert part_of(again) == part_of(made)
        assert part_of(made).settings["renderer"] == "chatml"
        done = await Agent(again, tools=[list_files], journal=MemoryJournal()).run("Which files are there?")
        assert done.output == "There is a.txt."


def test_a_folder_is_found_from_anywhere(tmp_path, monkeypatch):
    make_folder(tmp_path / "qwen", "qwen")
    monkeypatch.chdir(tmp_path)
    made = model("vllm:m", base_url="http://h/v1", renderer="hf:qwen")
    assert part_of(made).settings["renderer"] == f"hf:{tmp_path}/qwen"
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "treadle.toml").write_text('[models.own]\nmodel = "vllm:m"\nrenderer = "hf:qwen"\n')
    monkeypatch.chdir(tmp_path / "sub")
    named = load_config().model("own")
    assert named.inner.renderer.name == f"hf:{tmp_path}/qwen"
    assert part_of(named) == PartSpec(name="own")


def test_a_renderer_is_named_where_trust_is_asked_for():
    part = part_of(model("vllm:m", base_url="http://h/v1", renderer="chatml"))
    assert demands_of_model(part) == [
        "send the conversation to 'http://h/v1' for the model 'vllm:m', with the keys in VLLM_API_KEY, "
        "and load the renderer 'chatml'"
    ]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("anthropic:m", {"renderer": "chatml"}, "a model of 'anthropic' takes no token ids"),
        ("vllm:m", {"renderer": "chatml", "format": "hermes"}, r"'hf:FOLDER\?format=hermes'"),
        ("vllm:m", {"renderer": "chatml", "output_mode": "native"}, "does not decode within a schema"),
        ("vllm:m", {"renderer": "chatml", "engine": "vllm"}, "unknown token engine 'vllm'"),
        ("vllm:m", {"renderer": "chatml", "endpoint": "x"}, "a model of 'vllm' has no option 'endpoint'"),
        ("vllm:m", {"renderer": "chatlm"}, "unknown renderer 'chatlm'; did you mean 'chatml'"),
    ],
)
def test_what_is_wrong_is_said_at_once(name, options, said):
    with pytest.raises(ConfigError, match=said):
        model(name, base_url="http://h/v1", api_key="k", **options)


async def probe(base_url, renderer, name="m"):
    prober = Prober(
        lambda **given: load_config().bare(
            f"vllm:{name}", base_url=base_url, **{"renderer": renderer, **given}
        )
    )
    return {item.name: item async for item in prober.findings()}, prober.result()


async def test_the_probe_compares_the_templates():
    async with serve(handle) as server:
        findings, result = await probe(server.base_url, "chatml")
        assert (result.grade, result.output_mode) == ("token_exact", "text")
        same = findings["same template"]
        assert same.is_there is True, same
        prompts = "one message (37 ids), tools (…), a call (…), thinking (…), two turns (…)"
        assert re.sub(r"\(\d{3,} ids\)", "(…)", same.seen) == f"chatml and the server agree on {prompts}"
        findings, _ = await probe(server.base_url, "chatml?thinking=open")
        other = findings["same template"]
        assert other.is_there is False
        assert other.seen == "one message: from id 37: '<think>\\n', the server ''"
        assert other.advice == "the model sees another prompt than it was trained on"
        # A difference that one message does not show.
        found = (await probe(server.base_url, "chatml", "forgetful"))[0]["same template"]
        assert found.is_there is False
        assert found.seen.startswith("a call: from id ")


async def test_the_probe_does_not_compare_tools_that_the_server_leaves_out():
    """The renderer writes them as text, which is right, and the server's template has no place for them."""

    def handle_plain(request):
        body = request.json() if request.body else {}
        if not request.path.endswith("/chat/completions"):
            return handle(request)
        kept = {name: value for name, value in body.items() if name != "tools"}
        return handle(replace(request, body=json.dumps(kept).encode()))

    async with serve(handle_plain) as server:
        findings, _ = await probe(server.base_url, "chatml")
    same = findings["same template"]
    assert same.is_there is None
    assert same.seen.startswith(
        "chatml and the server agree on one message (37 ids); not compared: tools (the server's"
    )


async def test_the_probe_sees_at_once_that_the_renderer_is_for_another_model():
    """The model would be asked in ids that mean something else to it."""

    def answer_other(request):
        return Reply({"prompt": "other words"}) if request.path == "/detokenize" else handle(request)

    async with serve(answer_other) as server:
        findings, result = await probe(server.base_url, "chatml")
        assert not result.is_usable
        assert list(findings) == ["same vocabulary"]
        assert "is for another model" in findings["same vocabulary"].seen
        assert not [item for item in server.requests if item.path.endswith("completions") and item.body]


async def test_the_probe_counts_tokens_and_not_bytes():
    async with serve(handle) as server:
        findings, _ = await probe(server.base_url, "chatml")
    assert findings["token ids"].seen == "37 of the prompt, 16 of the answer"
    assert findings["logprobs"].seen == "of 16 tokens"


async def test_the_check_keeps_to_the_time_out_of_the_model(tmp_path):
    cli = Cli(tmp_path)
    async with serve(lambda request: STALL if request.body else handle(request)) as server:
        table = f'[models.slow]\nmodel = "vllm:m"\nbase_url = "{server.base_url}"\ntimeout_seconds = 0.2\n'
        (tmp_path / "treadle.toml").write_text(table + "max_attempts = 1\n")
        checked = await asyncio.to_thread(cli, "models", "check", "slow")
    assert "sent nothing for 0.2 s" in checked.out, checked


async def test_the_commands(tmp_path):
    cli = Cli(tmp_path)
    async with serve(handle) as server:
        where = ("--base-url", server.base_url, "--renderer", "chatml")
        checked = await asyncio.to_thread(cli, "models", "check", "vllm:m", *where)
        assert "same template" in checked.out, checked
        asked = ("run", "Which files are there?", "--tools", "files", "--model", "vllm:m", *where)
        done = await asyncio.to_thread(cli, *asked, "--journal", "runs.db", "--run-id", "one")
        assert done.code == 0, done
        assert "There is a.txt." in done.out
    journal = SqliteJournal(tmp_path / "runs.db")
    try:
        assert Run.load("one", journal).spec.model.settings["renderer"] == "chatml"
    finally:
        journal.close()
