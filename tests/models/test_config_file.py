"""`treadle.toml`: its content, its precedence, and the message for each mistake."""

import json
import os
import tomllib

import jsonschema_rs
import pytest
from tests.models.answers import REQUEST, answer, error

import treadle
from treadle.core.errors import ConfigError
from treadle.journal.identity import Trust, record_trust
from treadle.models import (
    CacheModel,
    FallbackModel,
    HttpResponse,
    InProcessTransport,
    LimitModel,
    RetryModel,
    Watch,
    load_config,
)
from treadle.models.config.toml_file import config_schema, digest_of, find_config, starter_file


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in ("TREADLE_CONFIG", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def write(folder, text, name="treadle.toml"):
    path = folder / name
    path.write_text(text)
    return path


FULL = """
model = "fast"
[models.fast]
model = "openai:gpt-5-mini"
base_url = "http://h/v1"
api_key_env = "MY_KEY"
temperature = 0.5
top_p = 0.9
max_output_tokens = 5
seed = 1
stop = ["END"]
logprobs = true
return_token_ids = true
extra = { top_k = 3 }
headers = { "x-team" = "${TEAM}-a" }
price = { input_usd_per_million = 1e6, output_usd_per_million = 0 }
"""


async def test_everything_arrives(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "the-key")
    monkeypatch.setenv("TEAM", "weavers")
    path = write(tmp_path, FULL)
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    made = load_config(path).model(transport=transport)
    completion = await made.infer(REQUEST, Watch())
    (request,) = transport.requests
    body = request.json()
    del body["messages"]
    assert body == {
        "model": "gpt-5-mini",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 5,
        "seed": 1,
        "stop": ["END"],
        "logprobs": True,
        "return_token_ids": True,
        "top_k": 3,
    }
    assert request.headers["authorization"] == "Bearer the-key"
    assert request.headers["x-team"] == "weavers-a"
    assert (made.name, completion.cost_usd) == ("openai:gpt-5-mini", 12.0)


async def test_what_is_said_wins_over_the_environment_and_that_over_the_file(tmp_path, monkeypatch):
    write(tmp_path, '[models.my-model]\nmodel = "vllm:m"\nseed = 1\ntemperature = 0.5\n')
    monkeypatch.setenv("TREADLE_MODELS__MY_MODEL__SEED", "2")
    monkeypatch.setenv("TREADLE_MODELS__MY_MODEL__EXTRA__TOP_K", "7")
    monkeypatch.setenv("TREADLE_MODELS__MY_MODEL__BASE_URL", "http://env/v1")
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    await load_config().model("my-model", transport=transport, temperature=0.1).infer(REQUEST, Watch())
    body = transport.requests[0].json()
    assert (body["seed"], body["temperature"], body["top_k"]) == (2, 0.1, 7)
    assert transport.requests[0].url == "http://env/v1/chat/completions"


async def test_yaml_is_the_same(tmp_path):
    write(tmp_path, "models:\n  fast:\n    model: vllm:m\n    seed: 3\n", "treadle.yaml")
    assert load_config().file.models["fast"].seed == 3


async def test_a_chain_with_a_cache(tmp_path):
    write(
        tmp_path,
        '[models.a]\nmodel = "vllm:a"\nfallback = ["b"]\ncache = "kept"\nmax_attempts = 1\n'
        '[models.b]\nmodel = "sglang:b"\n',
    )

    def serve(request):
        is_first = request.json()["model"] == "a"
        return HttpResponse(error(), 503) if is_first else HttpResponse(answer("from b"))

    made = load_config().model("a", transport=InProcessTransport(serve))
    assert isinstance(made, CacheModel)
    chain = made.inner
    assert isinstance(chain, FallbackModel)
    assert [model.name for model in chain.models] == ["vllm:a", "sglang:b"]
    assert all(isinstance(model, RetryModel) for model in chain.models)
    assert (tmp_path / "kept").is_dir()


async def test_models_share_the_limit_that_they_name(tmp_path, monkeypatch):
    write(
        tmp_path,
        '[models.a]\nmodel = "vllm:a"\nlimit = "mine"\n[models.b]\nmodel = "anthropic:b"\nlimit = "mine"\n'
        "[limits.mine]\nrequests_per_minute = 600\nmax_concurrency = 4\n",
    )
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("TREADLE_LIMITS__MINE__MAX_CONCURRENCY", "5")
    config = load_config()
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    first, second = config.model("a", transport=transport), config.model("b")
    limiter = first.inner.limiter
    assert isinstance(first, RetryModel)
    assert isinstance(first.inner, LimitModel)
    assert second.inner.limiter is limiter
    assert limiter._max_concurrency == 5
    await first.infer(REQUEST, Watch())
    assert limiter.stats().admitted == 1


def test_the_nearest_file_upwards_counts(tmp_path, monkeypatch):
    path = write(tmp_path, "")
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert find_config() == path
    nearer = write(tmp_path / "a", "")
    assert find_config() == nearer
    other = write(tmp_path, "", "other.toml")
    monkeypatch.setenv("TREADLE_CONFIG", str(other))
    assert find_config() == other
    monkeypatch.setenv("TREADLE_CONFIG", "absent.toml")
    with pytest.raises(ConfigError, match="which is not a file"):
        find_config()


def test_a_file_above_the_working_tree_is_not_looked_for(tmp_path, monkeypatch):
    write(tmp_path, "")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert find_config() is None
    (tmp_path / "a" / ".git").mkdir()
    assert find_config() is None
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a" / ".git").rmdir()
    assert find_config() == tmp_path / "treadle.toml"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_needs_trust(tmp_path):
    path = write(tmp_path, '[models.a]\nmodel = "vllm:a"\n')
    os.chown(path, 65_530, 65_530)
    with pytest.raises(
        ConfigError, match="belongs to another user; look at it, and run `treadle models trust`"
    ):
        load_config()
    assert "a" in load_config(path).file.models
    record_trust("configuration", digest_of(path), Trust.TRUSTED, "")
    assert "a" in load_config().file.models


LOCAL, OTHER = "http://127.0.0.1:1/v1", "https://elsewhere.example/v1"
SENDING = {
    "own server": ('model = "openai:m"', True),
    "another key of its own": ('model = "openai:m"\napi_key_env = "MY_OPENAI_KEY"', True),
    "another variable for the own server": ('model = "openai:m"\napi_key_env = "WORK"', False),
    "a header for the own server": ('model = "openai:m"\nheaders = { x-a = "${WORK}" }', False),
    "own server by its address": (
        'model = "openai:m"\nbase_url = "https://api.openai.com/v2"\napi_key_env = "MY_OPENAI_KEY"',
        True,
    ),
    "another variable for its address": (
        'model = "openai:m"\nbase_url = "https://api.openai.com/v2"\napi_key_env = "WORK"',
        False,
    ),
    "own server without TLS": ('model = "openai:m"\nbase_url = "http://api.openai.com/v1"', False),
    "usual key to this machine": (f'model = "openai:m"\nbase_url = "{LOCAL}"', True),
    "another variable to this machine": (
        f'model = "openai:m"\nbase_url = "{LOCAL}"\napi_key_env = "WORK"',
        False,
    ),
    "a header to this machine": (
        f'model = "openai:m"\nbase_url = "{LOCAL}"\nheaders = {{ x-a = "Bearer ${{WORK}}" }}',
        False,
    ),
    "usual key elsewhere": (f'model = "openai:m"\nbase_url = "{OTHER}"', False),
    "the conversation elsewhere": (f'model = "vllm:m"\nbase_url = "{OTHER}"\napi_key_env = ""', False),
    "an address among the options": (f'model = "openai:m"\noptions = {{ base_url = "{OTHER}" }}', False),
    "a key among the options": (
        f'model = "openai:m"\nbase_url = "{LOCAL}"\noptions = {{ api_key_env = "WORK" }}',
        False,
    ),
}


@pytest.mark.parametrize("way", ["model", "bare", "fallback", "tier"])
@pytest.mark.parametrize("name", SENDING)
def test_a_found_file_sends_nothing_elsewhere_before_it_is_trusted(tmp_path, monkeypatch, name, way):
    """Whatever is made of the table: the model, the model without wrappers, a fallback or a tier."""
    monkeypatch.setenv("OPENAI_API_KEY", "usual")
    monkeypatch.setenv("WORK", "secret")
    monkeypatch.setenv("MY_OPENAI_KEY", "own")
    text, is_allowed = SENDING[name]
    rest = '[models.b]\nmodel = "vllm:b"\nfallback = ["a"]\n[tiers]\nsmall = "a"\n'
    path = write(tmp_path, f"[models.a]\n{text}\n{rest}")
    make = {
        "model": lambda config: config.model("a"),
        "bare": lambda config: config.bare("a"),
        "fallback": lambda config: config.model("b"),
        "tier": lambda config: config.model("tier:small"),
    }[way]
    make(load_config(path))
    if not is_allowed:
        with pytest.raises(ConfigError, match=r"found and is not trusted: it would send the conversation to"):
            make(load_config())
        assert list(load_config().find_untrusted()) == ["a"]
        record_trust("configuration", digest_of(path), Trust.TRUSTED, "")
    make(load_config())
    write(tmp_path, path.read_text() + "# changed\n")
    assert bool(load_config().find_untrusted()) is not is_allowed


@pytest.mark.parametrize(
    "url",
    [
        "https://elsewhere.example\\@api.openai.com/v1",
        "http://elsewhere.example\\@127.0.0.1:1/v1",
        "https://api.openai.com\\.elsewhere.example/v1",
        "https://[elsewhere/v1",
        "https://api.openai.com\uff0f@elsewhere.example/v1",
    ],
)
def test_a_url_that_clients_read_differently_is_refused(tmp_path, monkeypatch, url):
    """Rules out that the host which is checked is not the host which is sent the key: in some of these, a client
    takes a backslash for a slash."""
    monkeypatch.setenv("OPENAI_API_KEY", "usual")
    write(tmp_path, f"[models.a]\nmodel = 'openai:m'\nbase_url = '{url}'\n")
    with pytest.raises(ConfigError):
        load_config().model("a")
    with pytest.raises(ConfigError, match="base_url is"):
        treadle.model("openai:m", base_url=url)


def test_what_the_environment_says_needs_no_trust(tmp_path, monkeypatch):
    write(tmp_path, '[models.a]\nmodel = "vllm:m"\napi_key_env = "WORK"\n')
    monkeypatch.setenv("WORK", "secret")
    monkeypatch.setenv("TREADLE_MODELS__A__BASE_URL", OTHER)
    assert load_config().model("a")
    monkeypatch.delenv("TREADLE_MODELS__A__BASE_URL")
    monkeypatch.setenv(
        "TREADLE_CONFIG", str(write(tmp_path, f'[models.a]\nmodel = "vllm:m"\nbase_url = "{OTHER}"'))
    )
    assert load_config().model("a")


@pytest.mark.parametrize("text", ['cache = "../kept"', 'cache = "/tmp/kept"', 'cache = "link/kept"'])
def test_a_found_file_names_no_files_elsewhere_before_it_is_trusted(tmp_path, text):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    path = write(folder, f'[models.a]\nmodel = "vllm:a"\n{text}\n')
    os.chdir(folder)
    with pytest.raises(ConfigError, match="was found and is not trusted: it would use the file"):
        load_config().model("a")
    record_trust("configuration", digest_of(path), Trust.TRUSTED, "")
    assert load_config().model("a")


def test_without_a_file_names_of_providers_still_work():
    config = load_config()
    assert (config.path, config.default_model) == (None, None)
    assert config.model("vllm:m").name == "vllm:m"
    with pytest.raises(ConfigError, match="no model was given"):
        config.model()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'x'", "modle: there is no such key; did you mean 'model'?"),
        ("[model.fast]", "the table of one is [models.NAME]"),
        (
            "[models.fast]\nmodel='a:b'\ntemprature=1",
            "models.fast.temprature: there is no such key; did you",
        ),
        ("[models.fast]\nmodel='a:b'\nzzz=1", "zzz: there is no such key; known are model, base_url"),
        ("[models.fast]\nbase_url='http://h'", "models.fast.model: it is missing, and it is required"),
        ("[models.fast]\nmodel='a:b'\nseed='x'", "models.fast.seed: it should be a valid integer"),
        ("[models.fast]\nmodel='a:b'\ntop_p=2", "models.fast.top_p: it should be less than or equal to 1"),
        ("[models.fast]\nmodel='a:b'\napi_key='sk-1'", "keys do not belong in a file"),
        ("[models.fast]\nmodel='a:b'\nheaders='sk-1'", "models.fast.headers: it should be a mapping"),
        ("[limits.y]\nseed=1", "there is such a key in 'models.*'"),
        ("[models.fast]\nmodel='a:b'\nprice={inpt=1}", "models.fast.price.inpt: there is no such key"),
        ("[limits.x]\nstore='runs.db'", "limits.x.store: processes do not share limits; delete it"),
        (
            "[models.fast]\nmodel='a:b'\nfallback=['slow']",
            "models.fast.fallback: there is no model 'slow'; the models are fast",
        ),
        ("[models.fast]\nmodel='a:b'\nfallback=['fast']", "names 'fast' itself"),
        (
            "".join([f"[models.{a}]\nmodel='a:b'\nfallback=['{b}']\n" for a, b in ("xy", "yz", "zx")]),
            "models.x.fallback: it leads back to 'x' (x → y → z → x)",
        ),
        (
            "model = 'quick'\n[models.fast]\nmodel='a:b'",
            "model: there is no model 'quick'; the models are fast",
        ),
        ("[models.'a:b']\nmodel='a:b'", "has a colon in its name"),
        (
            "[models.fast]\nmodel='a:b'\nlimit='x'\n[limits.y]",
            "models.fast.limit: there is no limit 'x'; the limits are y",
        ),
        (
            "[serve.keys.kim]\nsha256='x'\nscope=['read']",
            "serve.keys.kim.scope: there is no such key; did you mean 'scopes'?",
        ),
        ("[serve.keys.kim]\nzzz=1", "known are sha256, scopes, expires, requests_per_minute"),
        ("[limits.y]\nrequest_per_minute=1", "there is no such key; did you mean 'requests"),
        ("[limits.y]\nmax_concurrency=0", "limits.y.max_concurrency: it should be greater"),
        ("[models", "is not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "sk-1" not in str(caught.value)


def test_all_mistakes_are_told_with_their_lines(tmp_path):
    text = """# models
modle = 'x'

[models.fast]  # the first
model = 'a:b'
temprature = 1
price = { input_usd_per_million = 1, output_usd_per_million = 1, inpt = 1 }
limit = 'x'
note = \"\"\"
seed = 'x' in a text
\"\"\"
seed = 'x'
stop = [
  'a=b',
]

[models."other.name"]
top_p = 2

[serve.keys.kim]
sha256 = 'HASH'
scope = ['read']
""".replace("HASH", "0" * 64)
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config()
    found = str(caught.value).splitlines()
    assert found[0] == f"{str(path)!r} has 8 mistakes:"
    assert [line.removeprefix(f"{path}:").split(": ")[:2] for line in found[1:]] == [
        ["2", "modle"],
        ["6", "models.fast.temprature"],
        ["7", "models.fast.price.inpt"],
        ["9", "models.fast.note"],
        ["12", "models.fast.seed"],
        ["17", "models.other.name.model"],
        ["18", "models.other.name.top_p"],
        ["22", "serve.keys.kim.scope"],
    ]
    write(tmp_path, "[models.a]\nmodel='a:b'\nlimit='x'\nfallback=['a']\n[tiers]\nsmall='z'\n")
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert [line.removeprefix(f"{path}:").split(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        "3",
        "4",
        "6",
    ]
    write(tmp_path, "".join([f"odd{number} = 1\n" for number in range(22)]))
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert str(caught.value).splitlines()[-2:] == [
        f"{path}:20: odd19: there is no such key; known {str(caught.value).split('known ', 1)[1].splitlines()[0]}",
        "and 2 more",
    ]
    path.unlink()
    path = write(tmp_path, "models:\n  a:\n    model: a:b\n    sed: 1\n", "treadle.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert str(caught.value) == f"{path}:4: models.a.sed: there is no such key; did you mean 'seed'?"


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("TREADLE_MODELS__FST__SEED", "TREADLE_MODELS__FST__SEED names 'fst'; did you mean 'fast'?"),
        ("TREADLE_MODELS__FAST", "names 'fast'; "),
        ("TREADLE_MODELS__FAST__SED", "models.fast.sed: there is no such key; did you mean 'seed'?"),
    ],
)
def test_a_mistake_in_the_environment_too(tmp_path, monkeypatch, variable, message):
    write(tmp_path, "[models.fast]\nmodel = 'vllm:m'")
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert message in str(caught.value)


def test_what_is_missing_at_use_is_told_then(tmp_path):
    path = write(
        tmp_path,
        "[models.fast]\nmodel = 'openai:m'\napi_key_env = 'NO_SUCH_KEY'\n"
        "[models.other]\nmodel = 'vllm:m'\nheaders = { a = '${NO_SUCH}' }\n[models.odd]\nmodel = 'vllm:m'\n"
        "options = { cach = true }",
    )
    config = load_config(path)
    with pytest.raises(ConfigError, match=r"the key of 'openai:m' is to come from .* NO_SUCH_KEY"):
        config.model("fast")
    with pytest.raises(ConfigError, match="a header is to come from the environment variable NO_SUCH"):
        config.model("other")
    with pytest.raises(ConfigError, match="no option 'cach'"):
        config.model("odd")
    with pytest.raises(ConfigError, match=r"there is no model 'othr' in .*; did you mean 'other'"):
        config.model("othr")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path / "absent.toml")
    write(tmp_path, "- 1", "x.yaml")
    with pytest.raises(ConfigError, match="must hold a table"):
        load_config(tmp_path / "x.yaml")


def test_the_schema_takes_what_the_loader_takes():
    schema = config_schema()
    validator = jsonschema_rs.validator_for(schema)
    values = tomllib.loads(starter_file())
    assert validator.is_valid(values)
    commented = "\n".join(
        line.removeprefix("# ")
        for line in starter_file().splitlines()
        if not line.startswith("# ") or " = " in line
    )
    # Every key that the template offers in a comment is a real one.
    lines = [line for line in commented.splitlines() if "TREADLE_" not in line and "schema" not in line]
    assert validator.is_valid(tomllib.loads("\n".join(lines)))
    assert not validator.is_valid({**values, "modle": 1})
    described = schema["$defs"]["ModelTable"]["properties"]["api_key_env"]["description"]
    assert "environment variable" in described
    json.dumps(schema)


def test_the_endpoint_of_a_renderer_is_a_key(tmp_path):
    text = '[models.own]\nmodel = "vllm:m"\nrenderer = "chatml"\nengine = "vllm_generate"\n'
    write(tmp_path, text)
    assert type(load_config().model("own").inner.engine).__name__ == "VllmGenerate"
    write(tmp_path, text.replace('renderer = "chatml"\n', ""))
    with pytest.raises(ConfigError, match="has no option 'engine'"):
        load_config().model("own")
