"""`model()`: names, the environment, settings and what is refused."""

import subprocess
import sys

import pytest
from tests.models.answers import REQUEST, answer

from treadle.core.errors import ConfigError
from treadle.models import HttpResponse, InProcessTransport, ModelConfig, Price, Watch, model
from treadle.models.config import PROVIDERS

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
    with pytest.raises(ConfigError, match=r"set the environment variable OPENAI_API_KEY, or pass api_key="):
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("openia:gpt-x", r"unknown provider 'openia'.*did you mean 'openai:gpt-x'\?"),
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


def test_a_provider_is_one_line_in_the_registry(monkeypatch):
    monkeypatch.setitem(PROVIDERS, "mine", f"{__name__}:make_mine")
    made = model("mine:m", temperature=0.5, max_attempts=2)
    assert made.name == "mine:m 0.5"


def make_mine(config: ModelConfig):
    from treadle.models import ScriptedModel

    return ScriptedModel(["hello"], name=f"mine:{config.name} {config.settings.temperature}")


def test_no_repr_shows_the_key():
    config = ModelConfig(name="m", api_key="sk-secret", headers={"api-key": "sk-2"})
    assert "sk-" not in repr(config)
    made = model("m", api_key="sk-secret", headers={"api-key": "sk-2"})
    assert "sk-" not in repr(made)
    assert "sk-" not in repr(vars(made))


def test_names_are_loaded_when_they_are_used():
    code = (
        "import sys, treadle.models as models\n"
        "assert not [name for name in sys.modules if name.startswith(('pyreqwest', 'tenacity', 'msgspec'))]\n"
        "for name in models.__all__: getattr(models, name)\n"
        "assert not [name for name in sys.modules if name.startswith(('pyreqwest', 'tenacity'))]\n"
        "models.model('m', api_key='k')\n"
        "assert not [name for name in sys.modules if name.startswith(('pyreqwest', 'tenacity'))]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    import treadle.models

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        treadle.models.nonsense  # noqa: B018
