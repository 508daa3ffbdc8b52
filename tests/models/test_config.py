"""`model()`: names, environment variables, settings and errors."""

import inspect
import subprocess
import sys

import pytest
from tests.models.answers import REQUEST, answer

from treadle.core.errors import ConfigError, ProviderError
from treadle.core.log import Log
from treadle.core.types import Message, Request, Role, ToolCall
from treadle.models import HttpResponse, InProcessTransport, ModelConfig, Price, Watch, model
from treadle.models.config.bare import GENERAL_OPTIONS
from treadle.models.config.presets import DIALECTS, find_preset, provider_names
from treadle.models.config.recipe import load_config
from treadle.models.protocol import can_call_tools, output_mode_of

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


async def sent(name="openai:gpt-x", **options):
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    made = model(name, transport=transport, **options)
    completion = await made.infer(REQUEST, Watch())
    return transport.requests[0], made, completion


@pytest.mark.parametrize(
    ("name", "known_as", "sent_as"),
    [
        ("openai:gpt-x", "openai:gpt-x", "gpt-x"),
        ("gpt-x", "openai:gpt-x", "gpt-x"),
        ("org/model", "openai:org/model", "org/model"),
        ("openai:llama3:8b", "openai:llama3:8b", "llama3:8b"),
    ],
)
async def test_names(name, known_as, sent_as):
    request, made, _ = await sent(name, api_key="k")
    assert made.name == known_as
    assert request.json()["model"] == sent_as


async def test_openai_by_default():
    request, _, _ = await sent(api_key="k")
    assert request.url == "https://api.openai.com/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k"


async def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env/v1/")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    request, _, _ = await sent()
    assert request.url == "http://env/v1/chat/completions"
    assert request.headers == {
        "content-type": "application/json",
        "authorization": "Bearer from-env",
        "openai-organization": "org-1",
        "openai-project": "proj-1",
    }


async def test_arguments_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env/v1")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    request, _, _ = await sent(
        api_key="k", base_url="http://mine/v1", headers={"OpenAI-Organization": "org-2"}
    )
    assert request.url == "http://mine/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["openai-organization"] == "org-2"


@pytest.mark.parametrize("key", [None, ""])
def test_a_missing_key_is_told_before_the_first_request(monkeypatch, key):
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigError, match=r"set the environment variable OPENAI_API_KEY, or store the key"):
        model("gpt-x")


async def test_another_server_needs_no_key():
    request, _, _ = await sent(base_url="http://localhost:8000/v1")
    assert "authorization" not in request.headers


async def test_settings_and_price_arrive():
    request, _, completion = await sent(
        base_url="http://h/v1",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=5,
        seed=1,
        stop="END",
        logprobs=True,
        return_token_ids=True,
        extra={"top_k": 3},
        price=Price(1e6, 0),
    )
    body = request.json()
    del body["messages"]
    assert body == {
        "model": "gpt-x",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 5,
        "seed": 1,
        "stop": ["END"],
        "logprobs": True,
        "return_token_ids": True,
        "top_k": 3,
    }
    assert completion.cost_usd == 12.0


async def test_a_setting_that_a_provider_lacks_is_not_sent():
    request, _, _ = await sent("groq:m", api_key="k", logprobs=False)
    assert set(request.json()) == {"model", "messages"}
    with pytest.raises(ConfigError, match="has no logprobs"):
        model("groq:m", api_key="k", logprobs=True)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("openai:m", {"seed": 45}),
        ("ollama:m", {"options": {"seed": 45}}),
        ("gemini:m", {"generationConfig": {"seed": 45}}),
    ],
)
async def test_a_seed_among_the_extra_fields_is_sent_unchanged(name, extra):
    said = (*REQUEST.messages, Message(Role.ASSISTANT, "Yes?"), Message(Role.USER, "Go on."))
    transport = InProcessTransport(lambda _: HttpResponse(status=400, body=b"{}"))
    made = model(name, transport=transport, api_key="k", seed=4, extra=extra)
    with pytest.raises(ProviderError):
        await made.infer(Request(Log(said)), Watch())
    body = transport.requests[0].json()
    assert {**body, **extra} == body


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("openia:gpt-x", r"unknown provider 'openia'.*did you mean 'openai:gpt-x'\?"),
        ("oracl:0.4", r"unknown provider 'oracl'.*did you mean 'oracle:0.4'\?.* ollama, openai.* oracle, "),
        ("llama3:8b", r"unknown provider 'llama3'.*'openai:llama3:8b'"),
        ("openai:", "names no model"),
        ("", "names no model"),
    ],
)
def test_names_that_say_nothing_are_refused(name, text):
    with pytest.raises(ConfigError, match=text):
        model(name, api_key="k")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"top_p": 1.5},
        {"max_output_tokens": 0},
        {"max_attempts": 0},
        {"timeout_seconds": 0},
        {"connect_timeout_seconds": -1},
        {"total_timeout_seconds": 0},
        {"base_url": "nonsense"},
        {"extra": {"messages": []}},
    ],
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options)).removeprefix("extra") or "messages"):
        model("gpt-x", api_key="k", **options)


def test_a_provider_of_another_package_is_an_entry_point(monkeypatch, tmp_path):
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[treadle.models]\nmine = {__name__}:make_mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = model("mine:m", temperature=0.5, max_attempts=2)
    assert made.name == "mine:m 0.5"


def make_mine(config: ModelConfig):
    from treadle.models import ScriptedModel

    return ScriptedModel(["hello"], name=f"mine:{config.name} {config.settings.temperature}")


@pytest.mark.parametrize(
    "provider", [name for name in provider_names() if find_preset(name).dialect == "openai_chat"]
)
async def test_every_preset_reaches_its_server(provider, monkeypatch):
    preset = find_preset(provider)
    for variable in (preset.key_variable, preset.base_url_variable):
        if variable:
            monkeypatch.delenv(variable, raising=False)
    if preset.needs_key:
        with pytest.raises(ConfigError, match=f"set the environment variable {preset.key_variable}"):
            model(f"{provider}:m")
    monkeypatch.setenv(preset.key_variable, "the-key")
    request, made, _ = await sent(f"{provider}:m", seed=1)
    assert made.name == f"{provider}:m"
    assert request.url == (preset.base_url or "https://api.openai.com/v1") + "/chat/completions"
    assert request.headers["authorization"] == "Bearer the-key"
    assert request.json()[preset.quirks.renamed.get("seed", "seed")] == 1
    if preset.base_url_variable:
        monkeypatch.setenv(preset.base_url_variable, "http://elsewhere:9/v1")
        assert (await sent(f"{provider}:m"))[0].url == "http://elsewhere:9/v1/chat/completions"


def test_every_preset_has_a_dialect():
    assert {find_preset(name).dialect for name in provider_names()} == set(DIALECTS.names())
    assert find_preset("openai_chat") is None


async def test_mistral_gets_no_reasoning_and_short_ids():
    calls = (ToolCall("call_with_a_long_id", "f", "{}"), ToolCall("abcdefgh1", "f", "{}"))
    said = Message(Role.ASSISTANT, "", calls, reasoning="hm")
    result = Message(Role.TOOL, "x", call_id="call_with_a_long_id", name="f")
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    made = model("mistral:m", api_key="k", transport=transport)
    await made.infer(Request(Log([said, result])), Watch())
    first, second = transport.requests[0].json()["messages"]
    assert "reasoning_content" not in first
    ids = [call["id"] for call in first["tool_calls"]]
    assert (ids[1], second["tool_call_id"]) == ("abcdefgh1", ids[0])
    assert len(ids[0]) == 9
    assert ids[0].isalnum()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temprature": 1}, r"no option 'temprature'; did you mean 'temperature'\?"),
        ({"cache": True}, r"a model of 'openai' has no option 'cache'; it takes base_url"),
        ({"output_mode": "nativ"}, r"output_mode: 'nativ' is unknown; did you mean 'native'"),
    ],
)
def test_options_that_nobody_has_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        model("gpt-x", api_key="k", **options)


def test_no_repr_shows_the_key():
    config = ModelConfig(name="m", api_key="sk-secret", headers={"api-key": "sk-2"})
    assert "sk-" not in repr(config)
    made = model("m", api_key="sk-secret", headers={"api-key": "sk-2"})
    assert "sk-" not in repr(made)
    assert "sk-" not in repr(vars(made))


def test_names_are_loaded_when_they_are_used():
    code = (
        "import sys, treadle.models as models\n"
        "assert not [name for name in sys.modules if name.startswith(('pyreqwest', 'msgspec'))]\n"
        "for name in models.__all__: getattr(models, name)\n"
        "assert not [name for name in sys.modules if name.startswith('pyreqwest')]\n"
        "models.model('m', api_key='k')\n"
        "assert not [name for name in sys.modules if name.startswith('pyreqwest')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    import treadle.models

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        treadle.models.nonsense  # noqa: B018


@pytest.mark.parametrize("provider", ["gemini", "ollama", "groq"])
def test_a_schema_beside_tools_is_asked_for_by_a_tool_where_the_server_takes_none(provider):
    schema = {"type": "object"}
    made = model(f"{provider}:m", api_key="k")
    assert output_mode_of(made, schema, has_tools=True) == "tool"
    assert output_mode_of(made, schema) == "native"
    # An explicit setting wins.
    made = model(f"{provider}:m", api_key="k", output_mode="native")
    assert output_mode_of(made, schema, has_tools=True) == "native"


def test_every_parameter_of_model_is_a_general_option():
    parameters = set(inspect.signature(model).parameters)
    assert parameters - {"name", "options"} == set(GENERAL_OPTIONS)


def test_a_model_can_be_marked_as_not_calling_tools(tmp_path):
    path = tmp_path / "treadle.toml"
    path.write_text(
        "[models.plain]\nmodel = 'ollama:small'\ncan_call_tools = false\nfallback = ['other']\n"
        "[models.other]\nmodel = 'ollama:large'\n"
    )
    config = load_config(path)
    assert not can_call_tools(config.model("plain"))
    assert can_call_tools(config.model("other"))
    marked = model("openai:gpt-5-mini", api_key="k", can_call_tools=False)
    assert not can_call_tools(marked)
    assert marked.part.settings["can_call_tools"] is False
