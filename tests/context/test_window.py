"""The context window of a run: what is said, what a table or a server knows, and the room for the answer."""

from importlib.util import find_spec

import pytest
from tests.models.server import Reply, serve

from treadle import Agent, Policy, ScriptedModel, model
from treadle.context.compaction_size import look_up_window, make_window
from treadle.core.types import Window
from treadle.journal.memory import MemoryJournal
from treadle.models import CacheModel, FallbackModel, RetryModel


def sized(tokens, output=None):
    made = ScriptedModel(["done"] * 9)
    made.context_tokens, made.max_output_tokens = tokens, output
    return made


@pytest.mark.parametrize(
    ("tokens", "output", "room"),
    [
        (8_000, None, 1_000),
        (200_000, None, 8_192),
        (8_000, 300, 300),
        (8_000, 32_000, 4_000),
        (100, None, 12),
    ],
)
def test_the_room_for_the_answer_is_bounded(tokens, output, room):
    """persona.md 3: no room was kept for the answer."""
    assert make_window((tokens, "said"), sized(tokens, output), Policy()) == Window(tokens, room, "said")


def test_the_policy_counts_more_than_the_model():
    assert make_window((8_000, "preset"), sized(8_000), Policy(context_tokens=4_000)).tokens == 4_000
    assert make_window(None, sized(None), Policy()) is None


async def test_wrappers_pass_the_window_on(tmp_path):
    assert await look_up_window(RetryModel(CacheModel(sized(9_000), tmp_path))) == (9_000, "said")
    assert await look_up_window(FallbackModel([sized(9_000), sized(None), sized(7_000)])) == (7_000, "said")
    assert await look_up_window(ScriptedModel([])) is None


async def test_a_window_is_given_with_the_model(tmp_path, monkeypatch):
    (tmp_path / "treadle.toml").write_text(
        '[models.own]\nmodel = "openai:m"\nbase_url = "http://localhost:1/v1"\ncontext_tokens = 6000\n'
    )
    monkeypatch.chdir(tmp_path)
    given = model("openai:m", base_url="http://localhost:1/v1", context_tokens=5000, max_output_tokens=500)
    assert await look_up_window(given) == (5000, "said")
    assert make_window((5000, "said"), given, Policy()).output_tokens == 500
    from treadle.models.config.recipe import load_config

    assert await look_up_window(load_config().model("own")) == (6000, "said")
    # Anthropic's API requires a length of the answer, so it is known.
    assert model("anthropic:claude-sonnet-4-5", api_key="k").max_output_tokens == 32_000


@pytest.mark.skipif(find_spec("genai_prices") is None, reason="the extra `cost` is not installed")
async def test_a_table_knows_the_windows_of_models():
    known = await look_up_window(model("anthropic:claude-sonnet-4-5", api_key="k"))
    assert known is not None
    assert known[0] >= 200_000
    assert known[1] == "preset"


ANSWERS = {
    "vllm": {"/v1/models": {"data": [{"id": "m", "max_model_len": 16_384}]}},
    "llama.cpp": {
        "/v1/models": {"data": [{"id": "m", "meta": {"n_ctx_train": 131_072}}]},
        "/props": {"default_generation_settings": {"n_ctx": 4_096}},
    },
    "ollama": {
        "/api/ps": {"models": []},
        "/api/show": {"parameters": 'stop "x"\nnum_ctx                        2048'},
    },
}


@pytest.mark.parametrize(("provider", "tokens"), [("vllm", 16_384), ("llama.cpp", 4_096), ("ollama", 2_048)])
async def test_servers_are_asked(provider, tokens):
    async with serve(lambda asked: Reply(ANSWERS[provider].get(asked.path, {}))) as server:
        url = server.base_url if provider != "ollama" else server.base_url.removesuffix("/v1")
        given = model(f"{provider}:m", base_url=url)
        assert await look_up_window(given) == (tokens, "probe")


async def test_servers_that_say_nothing_delay_no_run():
    async with serve(lambda asked: Reply({}, status=404)) as server:
        assert await look_up_window(model("vllm:m", base_url=server.base_url)) is None
    assert await look_up_window(model("vllm:m", base_url="http://127.0.0.1:9/v1", max_attempts=1)) is None


async def test_the_window_is_recorded_and_looked_up_once():
    asked = []

    class Told(ScriptedModel):
        @property
        def context_tokens(self):
            asked.append(self)
            return 9_000

    agent = Agent(Told(["one", "two"]), journal=MemoryJournal())
    runs = [await agent.run("hello"), await agent.run("again")]
    assert [run.state.window for run in runs] == [Window(9_000, 1_125, "said")] * 2
    assert len(asked) <= 2
    other = Agent(ScriptedModel(["three"]), policy=Policy(context_tokens=5_000), journal=agent.journal)
    fork = await other.fork(runs[0].run_id, text="more")
    assert fork.state.window == Window(5_000, 625, "said")
