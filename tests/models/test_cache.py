"""Cached responses: which requests are equal, and what a cache hit contains."""

import json
import subprocess

import pytest
from msgspec.structs import replace
from tests.forks.process import FORKS
from tests.models.answers import REQUEST, Listener, answer

from treadle import Agent, Policy, tool
from treadle.core.errors import ConfigError, ServerError
from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.log import Log
from treadle.core.types import (
    Completion,
    FinishReason,
    Message,
    Request,
    Role,
    Settings,
    ToolCall,
    ToolSpec,
    Usage,
)
from treadle.journal.memory import MemoryJournal
from treadle.models import (
    CacheModel,
    HttpResponse,
    InProcessTransport,
    OpenAIChatModel,
    ScriptedModel,
    Watch,
    Wrapper,
    call,
)


def text(content, *, tools=(), **more):
    return Request(Log([Message(Role.USER, content)]), tools, **more)


async def ask(model, request=REQUEST):
    return await model.infer(request, Watch())


class Shouting(Wrapper):
    """Adds a mark to answers, and says so in its identity."""

    def __init__(self, inner, mark):
        super().__init__(inner)
        self.mark = mark

    @property
    def identity(self):
        return f"{super().identity}+{self.mark}"

    async def infer(self, request, watch):
        found = await self.inner.infer(request, watch)
        return replace(found, message=replace(found.message, content=found.message.content + self.mark))


async def test_a_wrapper_of_ones_own_has_an_identity_of_its_own(tmp_path):
    """Rules out answers of another wrapper around the same model."""
    said = []
    for mark in ("!", "?", "!"):
        model = CacheModel(Shouting(ScriptedModel(["plain"]), mark), tmp_path / "cache")
        said.append((await ask(model)).message.content)
    assert said == ["plain!", "plain?", "plain!"]


async def test_an_equal_request_is_not_asked_again(tmp_path):
    inner = ScriptedModel(["one", "two"])
    model = CacheModel(inner, tmp_path / "cache")
    first, again = await ask(model), await ask(model)
    assert (first.message, first.is_cached) == (again.message, False)
    assert (again.is_cached, again.cost_usd, again.usage) == (True, 0.0, Usage())
    # This simulates another process with the same folder.
    assert (await ask(CacheModel(ScriptedModel([]), tmp_path / "cache"))).message.content == "one"
    assert len(inner.requests) == 1


SPEC = ToolSpec("f", "does it", {"type": "object"})


@pytest.mark.parametrize(
    "other",
    [
        text("hello!"),
        Request(Log([Message(Role.SYSTEM, "hello")])),
        Request(Log([Message(Role.USER, "hel"), Message(Role.USER, "lo")])),
        text("hello", tools=(SPEC,)),
        text("hello", output_schema={"type": "object"}),
        text("hello", required_tool="f"),
        text("hello", place="1.0"),
    ],
)
async def test_requests_that_differ_are_asked(tmp_path, other):
    model = CacheModel(ScriptedModel(["one", "two"]), tmp_path)
    assert (await ask(model, text("hello"))).message.content == "one"
    assert (await ask(model, other)).message.content == "two"


async def test_models_and_settings_that_differ_do_not_share(tmp_path):
    transport = InProcessTransport(lambda _: HttpResponse(answer()))

    def make(name="m", url="http://h/v1", key=None, **settings):
        inner = OpenAIChatModel(
            name, base_url=url, settings=Settings(**settings), transport=transport, api_key=key
        )
        return CacheModel(inner, tmp_path)

    for model in (
        make(),
        make("n"),
        make(url="http://g/v1"),
        make(seed=1),
        make(seed=2),
        make(extra={"k": 1}),
    ):
        assert not (await ask(model)).is_cached
    # The API key does not change the response.
    assert (await ask(make(key="k"))).is_cached
    assert b"h/v1" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))


async def test_a_hit_is_streamed_to_who_listens(tmp_path):
    said = Message(Role.ASSISTANT, "text", (ToolCall("c", "f", "{}"),), reasoning="hm")
    model = CacheModel(ScriptedModel([said]), tmp_path)
    await ask(model)
    listener = Listener()
    completion = await model.infer(REQUEST, listener.watch)
    assert completion.message == said
    assert listener.deltas == [ReasoningDelta("hm"), TextDelta("text"), ToolCallDelta(0, "c", "f", "{}")]


async def test_what_failed_or_was_cut_off_is_not_kept(tmp_path):
    cut = Completion(Message(Role.ASSISTANT, "ha"), FinishReason.LENGTH)
    model = CacheModel(ScriptedModel([ServerError("no"), cut, "whole"]), tmp_path)
    with pytest.raises(ServerError):
        await ask(model)
    assert (await ask(model)).finish_reason is FinishReason.LENGTH
    assert (await ask(model)).message.content == "whole"
    assert (await ask(model)).is_cached


async def test_damage_is_asked_again_and_mended(tmp_path):
    model = CacheModel(ScriptedModel(["one", "two"]), tmp_path)
    await ask(model)
    (kept,) = tmp_path.rglob("*.json")
    kept.write_bytes(kept.read_bytes()[:-5])
    assert (await ask(model)).message.content == "two"
    assert (await ask(model)).message.content == "two"


async def test_a_folder_that_cannot_be_written_loses_nothing(tmp_path):
    model = CacheModel(ScriptedModel(["one", "two"]), tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("a file in its place")
    assert [(await ask(model)).message.content for _ in range(2)] == ["one", "two"]
    with pytest.raises(ConfigError, match="cannot be made"):
        CacheModel(ScriptedModel([]), tmp_path / "cache")


async def test_a_run_on_cached_answers_costs_nothing_and_says_so(tmp_path):
    @tool(effect="pure")
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    script = [[call("add", {"a": 1, "b": 2})], "3"]
    runs = []
    for answers in (script, []):
        model = CacheModel(ScriptedModel(answers), tmp_path)
        policy = Policy(max_tokens=100_000, max_cost_usd=1.0)
        agent = Agent(model, tools=[add], journal=MemoryJournal(), policy=policy)
        runs.append(await agent.run("Add 1 and 2."))
    assert [run.output for run in runs] == ["3", "3"]
    assert runs[0].usage.total_tokens > 0
    assert (runs[1].usage.total_tokens, runs[1].cost_usd) == (0, 0.0)
    completions = [event.body.completion for event in runs[1].events if event.type == "inference_completed"]
    assert [item.is_cached for item in completions] == [True, True]


FILL = """
import asyncio, sys
from treadle.core.log import Log
from treadle.core.types import Message, Request, Role
from treadle.models import CacheModel, ScriptedModel, Watch
model = CacheModel(ScriptedModel([sys.argv[2]]), sys.argv[1])
request = Request(Log([Message(Role.USER, "hello")]))
print(asyncio.run(model.infer(request, Watch())).message.content)
"""


def test_processes_share_a_folder(tmp_path):
    started = [
        FORKS.start("-c", FILL, str(tmp_path), str(number), stdout=subprocess.PIPE) for number in range(6)
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in started]
    assert all(process.returncode == 0 for process in started)
    (kept,) = tmp_path.rglob("*.json")
    assert json.loads(kept.read_bytes())["message"]["content"] in said
    # No partly written file is left.
    assert list(tmp_path.rglob(".*")) == []
