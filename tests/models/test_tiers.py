"""Tiers in treadle.toml and in the environment, and the message for each mistake."""

import jsonschema_rs
import pytest
from tests.models.answers import REQUEST, answer

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.core.types import Artifact, OutputMode, Usage
from treadle.models import (
    FallbackModel,
    HttpResponse,
    InProcessTransport,
    OpenAIChatModel,
    Price,
    ScriptedModel,
    Watch,
    load_config,
    model,
)
from treadle.models.config.known_models import demands_of_model
from treadle.models.config.recipe import make_model
from treadle.models.config.toml_file import config_schema
from treadle.models.protocol import check_parts, estimate_cost_usd, has_price, output_mode_of
from treadle.models.wrappers.tiered import TieredModel, window_of


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in ("TREADLE_CONFIG", "TREADLE_TIERS_PREFIX", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def write(folder, text):
    (folder / "treadle.toml").write_text(text)


FILE = """
router = { name = "scored", options = { haste = 0.3 } }
[models.local]
model = "vllm:qwen"
[tiers]
frontier = "openai:gpt-5"
[tiers.small]
model = "local"
fallback = ["sglang:qwen"]
price = { input_usd_per_million = 0.1, output_usd_per_million = 0.2 }
context_tokens = 8000
sees_images = false
max_output_tokens = 77
"""


def test_tiers_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    write(tmp_path, FILE)
    config = load_config()
    assert config.default_model == "auto"
    made = config.model()
    assert isinstance(made, TieredModel)
    assert (made.name, made.router, made.options) == ("auto", "scored", {"haste": 0.3})
    assert list(made.tiers) == ["frontier", "small"]
    small = made.tiers["small"]
    assert isinstance(small.model, FallbackModel)
    assert [item.name for item in small.model.models] == ["vllm:qwen", "sglang:qwen"]
    assert (window_of(small), small.sees_images) == (8000, False)
    assert estimate_cost_usd(small.model, Usage(1_000_000, 0)) == 0.1
    for name in ("tier:small", "small"):
        fixed = config.model(name, temperature=0.5)
        assert (fixed.name, fixed.router) == ("tier:small", "fixed")
        assert fixed.part == PartSpec(name="tier:small", settings={"temperature": 0.5})
    assert config.model("auto:rules").options == {}
    # A journal names the model, and it is made again from there.
    assert make_model(PartSpec(name="auto:cascade")).router == "cascade"
    jsonschema_rs.validator_for(config_schema()).validate(
        {"tiers": {"small": "local", "mid": {"model": "x"}}, "router": "rules"}
    )


async def test_settings_of_a_tier_hold_for_each_of_its_models(tmp_path, monkeypatch):
    """The reference ignores the settings of a tier for models that are in a list."""
    monkeypatch.setenv("TREADLE_SMALL_MODELS", "vllm/a, sglang/b")
    monkeypatch.setenv("TREADLE_SMALL_MAX_TOKENS", "9")
    monkeypatch.setenv("TREADLE_SMALL_TEMPERATURE", "0.5")
    monkeypatch.setenv("TREADLE_SMALL_EXTRA_BODY", '{"top_k": 3}')
    monkeypatch.setenv("TREADLE_SMALL_COST_INPUT_PER_1K", "0.005")
    monkeypatch.setenv("TREADLE_SMALL_COST_OUTPUT_PER_1K", "0.008")
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    tier = load_config().model("tier:small", transport=transport).tiers["small"]
    for item in tier.model.models:
        await item.infer(REQUEST, Watch())
        assert estimate_cost_usd(item, Usage(1_000_000, 1_000_000)) == pytest.approx(0.05 + 0.08)
    for request in transport.requests:
        body = request.json()
        assert (body["max_tokens"], body["temperature"], body["top_k"]) == (9, 0.5, 3)


def test_a_list_in_the_environment_with_a_prefix_of_choice(tmp_path, monkeypatch):
    write(tmp_path, 'tiers_prefix = "PERSONA"\n[tiers]\nsmall = "vllm:x"\nmid = "vllm:y"\n')
    monkeypatch.setenv("PERSONA_SMALL_MODELS", "openrouter/meta/llama-3, openai/gpt-5-nano")
    monkeypatch.setenv("PERSONA_OPENROUTER_API_KEY", "sk-1")
    monkeypatch.setenv("PERSONA_OPENROUTER_BASE_URL", "http://or/v1")
    monkeypatch.setenv("PERSONA_OPENAI_API_KEY", "sk-2")
    config = load_config()
    tiers = config.model("auto").tiers
    assert [item.name for item in tiers["small"].model.models] == [
        "openrouter:meta/llama-3",
        "openai:gpt-5-nano",
    ]
    assert tiers["mid"].model.name == "vllm:y", "the environment replaces only the tiers that it names"
    demands = demands_of_model(PartSpec(name="auto"))
    assert any("http://or/v1" in item and "PERSONA_OPENROUTER_API_KEY" in item for item in demands)
    assert not any("sk-" in item for item in demands)


def test_a_model_without_its_key_is_left_out_and_named_nowhere(monkeypatch):
    """The reference reports the first model of a list although its key is missing and another answers."""
    monkeypatch.setenv("TREADLE_MID_MODELS", "openai/gpt-5,vllm/y")
    config = load_config()
    tier = config.model("auto").tiers["mid"]
    assert tier.model.name == "vllm:y"
    assert config.notices == (
        "TREADLE_MID_MODELS: 'openai/gpt-5' is left out, because TREADLE_OPENAI_API_KEY is not set",
    )


def test_single_settings_of_a_tier(monkeypatch):
    monkeypatch.setenv("TREADLE_FRONTIER_PROVIDER", "openai")
    monkeypatch.setenv("TREADLE_FRONTIER_MODEL", "gpt-5")
    monkeypatch.setenv("TREADLE_FRONTIER_API_KEY", "k")
    monkeypatch.setenv("TREADLE_FRONTIER_BASE_URL", "http://mine/v1")
    monkeypatch.setenv("TREADLE_FRONTIER_CONTEXT_WINDOW", "32768")
    monkeypatch.setenv("TREADLE_FRONTIER_TOOL_STRENGTH", "medium")
    monkeypatch.setenv("TREADLE_FRONTIER_FIRST_TOKEN_LATENCY_MS", "800")
    tier = load_config().model("auto").tiers["frontier"]
    assert (tier.model.name, window_of(tier), tier.tool_strength) == ("openai:gpt-5", 32768, "medium")
    assert tier.first_token_seconds == 0.8


def test_one_model_for_everything(monkeypatch):
    monkeypatch.setenv("TREADLE_PROVIDER", "vllm")
    monkeypatch.setenv("TREADLE_MODEL", "qwen")
    made = load_config().model("tier:small")
    assert {name: tier.model.name for name, tier in made.tiers.items()} == {"frontier": "vllm:qwen"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SMALL_MODELS": " "}, "TREADLE_SMALL_MODELS is empty"),
        ({"SMALL_MODELS": "vllm/a,,vllm/b"}, "TREADLE_SMALL_MODELS is 'vllm/a,,vllm/b', which has an empty entry"),
        ({"SMALL_MODELS": "gpt-5"}, "TREADLE_SMALL_MODELS: 'gpt-5' has no slash"),
        ({"SMALL_MODELS": "opnai/gpt"}, "TREADLE_SMALL_MODELS: unknown provider 'opnai'; did you mean 'openai'"),
        ({"SMALL_MODELS": "openai/"}, "TREADLE_SMALL_MODELS: 'openai/' names no model"),
        ({"SMALL_MODELS": "openai/gpt"}, "no model is left; .*TREADLE_OPENAI_API_KEY is not set"),
        (
            {"SMALL_MODELS": "openai/gpt", "OPENAI_API_KEY": " "},
            "TREADLE_OPENAI_API_KEY is set and blank",
        ),
        (
            {"MID_PROVIDER": "openai", "MID_MODEL": "gpt"},
            "'mid' is incomplete: TREADLE_MID_PROVIDER, TREADLE_MID_MODEL is set; set also TREADLE_MID_API_KEY",
        ),
        ({"MID_MODEL": "gpt"}, "set also TREADLE_MID_PROVIDER, TREADLE_MID_API_KEY"),
        (
            {"MID_PROVIDER": "openai", "MID_MODEL": "gpt", "MID_API_KEY": " "},
            "set also TREADLE_MID_API_KEY",
        ),
        ({"MID_MODELS": "vllm/a", "MID_MAX_TOKENS": "many"}, "TREADLE_MID_MAX_TOKENS is 'many'; give a whole"),
        ({"MID_MODELS": "vllm/a", "MID_TOOL_STRENGTH": "huge"}, "TREADLE_MID_TOOL_STRENGTH is 'huge'"),
        ({"MID_MODELS": "vllm/a", "MID_EXTRA_BODY": "[1]"}, "TREADLE_MID_EXTRA_BODY is .*give a JSON object"),
        (
            {"MID_MODELS": "vllm/a", "MID_COST_INPUT_PER_1K": "0.1"},
            "the price is incomplete; set also TREADLE_MID_COST_OUTPUT_PER_1K",
        ),
    ],
)  # fmt: skip
def test_each_mistake_in_the_environment_names_its_variable(monkeypatch, variables, message):
    """The reference ignores metadata that is incomplete, and says so only in its debug log."""
    for name, value in variables.items():
        monkeypatch.setenv(f"TREADLE_{name}", value)
    with pytest.raises(ConfigError, match=message):
        load_config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tiers]\nsmal = "vllm:x"\n', "tiers.smal"),
        ('[tiers.small]\nmodel = "vllm:x"\nqualty = 1\n', "there is no such key; did you mean 'quality'"),
        ('[tiers]\nsmall = "fst"\n[models.fast]\nmodel = "vllm:x"\n', "tiers.small: there is no model 'fst'; did"),
        ('[tiers]\nsmall = "auto"\n', "tiers.small: there is no model 'auto'"),
        ('[models.auto]\nmodel = "vllm:x"\n', "'auto' stands for the tiers"),
        ('[tiers]\nfronteir = "a:b"\n', "tiers.fronteir: 'fronteir' is unknown; did you mean 'frontier'?"),
        ('[chat]\npersnoa = "x"\n', "chat.persnoa: there is no such key; did you mean 'persona'?"),
        ('[router]\nnam = "x"\n', "there is no such key; did you mean 'name'"),
    ],
)  # fmt: skip
def test_each_mistake_in_the_file_is_named(tmp_path, text, message):
    write(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        load_config()


def test_what_needs_one_model_refuses_several(tmp_path):
    with pytest.raises(ConfigError, match="needs tiers: add for example"):
        load_config().model("auto")
    write(tmp_path, '[tiers]\nsmall = "vllm:x"\n')
    with pytest.raises(ConfigError, match="base_url cannot be given for the model 'auto'"):
        load_config().model("auto", base_url="http://h/v1")
    with pytest.raises(ConfigError, match="one single model is needed here"):
        model("auto")
    with pytest.raises(ConfigError, match="there is no tier 'smal'; did you mean 'small'"):
        TieredModel({"smal": ScriptedModel([])})


def test_what_is_said_of_the_model_holds_for_all_tiers():
    def chat(name, **more):
        return OpenAIChatModel(name, **more)

    price = Price(1, 2)
    both = TieredModel({"mid": chat("a", price=price), "small": chat("b")})
    assert not has_price(both)
    assert has_price(TieredModel({"mid": chat("a", price=price), "small": chat("b", price=Price(0.1, 0.2))}))
    mixed = TieredModel({"mid": chat("a"), "small": chat("b", output_mode="text")})
    assert output_mode_of(mixed) is OutputMode.TEXT
    # One tier that accepts a part is enough, since the router chooses it.
    check_parts(both, [Artifact("image", mime_type="image/png")])
    assert estimate_cost_usd(both, Usage(1_000_000, 0)) == 1


async def test_asked_without_a_router_the_strongest_tier_answers():
    model = TieredModel({"small": ScriptedModel(["no"]), "frontier": ScriptedModel(["yes"])})
    assert (await model.infer(REQUEST, Watch())).message.content == "yes"
