"""A model made by name describes itself for the agent spec, so that it can be made again, without secrets."""

from pathlib import Path

import msgspec
import pytest

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.models import (
    CacheModel,
    CostModel,
    FallbackModel,
    FormatModel,
    HttpResponse,
    InProcessTransport,
    Limiter,
    LimitModel,
    OpenAIChatModel,
    Price,
    RetryModel,
    ScriptedModel,
    Wrapper,
    load_config,
    model,
)
from treadle.models.config.recipe import make_model
from treadle.models.protocol import part_of

SECRET = "planted-secret-0123456789"


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("TREADLE_CONFIG", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "k")


def test_a_model_by_name_is_its_name_and_what_was_asked_for():
    made = model("gpt-x", base_url="http://localhost:1/v1", temperature=0.5, stop=["x"], api_key=SECRET)
    assert part_of(made) == PartSpec(
        name="openai:gpt-x",
        settings={
            "base_url": "http://localhost:1/v1",
            "temperature": 0.5,
            "stop": ["x"],
            "api_key_env": "",
        },
    )
    assert part_of(model("openai:gpt-x")) == PartSpec(name="openai:gpt-x")
    made = model(
        "anthropic:m", api_key=SECRET, cache=False, max_attempts=2, price=Price(1.0, 2.0), output_mode="tool"
    )
    price = {
        "input_usd_per_million": 1.0,
        "output_usd_per_million": 2.0,
        "cached_input_usd_per_million": None,
        "cache_write_usd_per_million": None,
    }
    settings = {"cache": False, "max_attempts": 2, "price": price, "output_mode": "tool"}
    assert part_of(made) == PartSpec(name="anthropic:m", settings=settings)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("openai:m", {"temperature": 0.5, "seed": 3, "stop": ("a", "b"), "logprobs": True}),
        ("vllm:m", {"base_url": "http://h:1/v1", "extra": {"top_k": 3}, "total_timeout_seconds": 5.0}),
        ("completions:m", {"format": "hermes", "template": "llama3"}),
        ("ollama:m", {"num_ctx": 4096, "think": True, "price": Price(1.0, 2.0)}),
        ("openai_responses:m", {"server_tools": [{"type": "web_search"}], "state": "previous_response_id"}),
    ],
)
def test_a_model_is_built_again_from_its_part(name, options):
    made = model(name, **options)
    part = msgspec.json.decode(msgspec.json.encode(part_of(made)), type=PartSpec)
    again = make_model(part)
    assert part_of(again) == part
    assert repr(again) == repr(made)
    assert again.identity == made.identity
    assert repr(load_config().model(part.name, **part.settings)) == repr(made)
    assert make_model(part.name, **part.settings).identity == made.identity


def test_a_key_is_given_anew(monkeypatch):
    part = part_of(model("openai:m", api_key=SECRET))
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="no API key"):
        make_model(part)
    assert make_model(part, api_key="other").name == "openai:m"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": f"http://u:{SECRET}@h/v1"}, "its base URL holds a user, a password or a query"),
        ({"base_url": f"http://h/v1?key={SECRET}"}, "name the model in treadle.toml"),
        ({"headers": {"x-key": SECRET}}, "the option headers was set by the program"),
        ({"extra": {"nested": [{"api_key": SECRET}]}}, "the option extra may hold a secret"),
        ({"transport": InProcessTransport(lambda _: HttpResponse({}))}, "the option transport was set"),
    ],
)
def test_what_may_be_secret_is_not_written_down(options, words):
    part = part_of(model("openai:m", **options))
    assert words in part.missing
    assert SECRET not in repr(part)
    with pytest.raises(ConfigError, match="the model 'openai:m' cannot be built again"):
        make_model(part)


def test_a_server_tool_with_a_key_is_not_written_down():
    tool = {"type": "mcp", "require_approval": "never", "authorization": SECRET}
    part = part_of(model("openai_responses:m", server_tools=[tool]))
    assert part.missing is not None
    assert SECRET not in repr(part)


def test_a_named_model_of_the_file_is_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", SECRET)
    monkeypatch.setenv("TREADLE_CONFIG", str(tmp_path / "treadle.toml"))
    (tmp_path / "treadle.toml").write_text(
        '[models.fast]\nmodel = "openai:m"\nbase_url = "http://u:p@h/v1?x=1"\napi_key_env = "MY_KEY"\n'
        'headers = {x-key = "${MY_KEY}"}\nfallback = ["slow"]\ncache = "answers"\n'
        '[models.slow]\nmodel = "vllm:m"\n'
    )
    made = load_config().model("fast", temperature=0.25)
    assert part_of(made) == PartSpec(name="fast", settings={"temperature": 0.25})
    again = make_model(part_of(made))
    assert repr(again) == repr(made)
    assert part_of(load_config().model("slow")) == PartSpec(name="slow")
    assert part_of(load_config().model("vllm:other")) == PartSpec(name="vllm:other")


def test_wrappers_say_what_they_are(tmp_path):
    made = model("openai:m")
    part = part_of(made)
    for wrapped in (
        RetryModel(made),
        CacheModel(made, tmp_path),
        CostModel(made),
        LimitModel(made, limiter=Limiter(max_concurrency=1)),
    ):
        assert part_of(wrapped) == part
    assert part_of(FormatModel(made, "hermes")).missing == "the program put a FormatModel around it"
    assert part_of(FallbackModel([made])).missing == "the program made a FallbackModel of several models"

    class Other(Wrapper):
        """A user's own."""

    assert part_of(Other(made)).missing == "the program put a Other around it"


def test_an_object_of_the_program_says_so():
    for made in (ScriptedModel(["x"], name="s"), OpenAIChatModel("m", name="s")):
        assert part_of(made) == PartSpec(name="s", missing="it is an object of the program")
    assert part_of(RetryModel(ScriptedModel([]))).missing == "it is an object of the program"


def test_a_configured_model_is_not_asked_elsewhere_once_its_configuration_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    (tmp_path / "treadle.toml").write_text(
        '[models.toy]\nmodel = "openai:m"\nbase_url = "http://localhost:1/v1"\n'
    )
    part = part_of(load_config().model("toy"))
    assert part == PartSpec(name="toy")
    (tmp_path / "treadle.toml").unlink()
    with pytest.raises(ConfigError, match=r"'toy' was named in a treadle\.toml"):
        make_model(part)
