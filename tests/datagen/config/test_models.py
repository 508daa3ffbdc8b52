"""The models of a generation are made by the code that makes those of treadle.toml."""

from pathlib import Path
from typing import Any

import pytest

from treadle.core.log import Log
from treadle.core.types import Message, Request, Role, Usage
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.roles import make_models, used_roles
from treadle.models.config.recipe import make_model
from treadle.models.protocol import Model, Watch, estimate_cost_usd, part_of
from treadle.models.wrappers.limiter import LimitModel
from treadle.testbed.server import serve

TOML = """
model = "fast"
[models.fast]
model = "vllm:fast"
base_url = "http://localhost:1/v1"
limit = "local"
[models.strong]
model = "vllm:strong"
base_url = "http://localhost:1/v1"
price = {input_usd_per_million = 1, output_usd_per_million = 1}
[limits.local]
max_concurrency = 3
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def make(models: dict[str, Any], **sections: Any) -> GenerationConfig:
    return GenerationConfig.model_validate({"topics": {"prompt": "a"}, "models": models, **sections})


def limiter_of(model: Model) -> object:
    inner: Any = model
    while not isinstance(inner, LimitModel):
        inner = inner.inner
    return inner.limiter


def test_a_role_without_a_model_has_the_default_one_and_equal_ones_are_shared() -> None:
    models = make_models(make({"default": "mock:teacher", "user": "mock:echo"}))
    assert models["topics"] is models["agent"]
    assert models["user"] is not models["agent"]
    assert "judge" not in models


def test_only_roles_with_work_need_a_model() -> None:
    config = make({}, topics={"load": "a.json"}, quality={"judge": {"rubric": "good"}})
    assert used_roles(config) == ("scenarios", "agent", "user", "judge")


def test_names_of_treadle_toml_are_models(tmp_path: Path) -> None:
    (tmp_path / "treadle.toml").write_text(TOML)
    models = make_models(make({"agent": "strong"}))
    assert models["agent"].name == "vllm:strong"
    assert models["topics"].name == "vllm:fast", "the default of treadle.toml"
    assert part_of(models["agent"]).name == "strong"
    assert estimate_cost_usd(models["agent"], Usage(10**6, 10**6)) == 2.0
    assert limiter_of(models["topics"]) is not limiter_of(models["agent"])


def test_a_model_with_settings_can_be_built_again_from_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "secret-key")
    (tmp_path / "treadle.toml").write_text(TOML)
    table = {
        "model": "vllm:own",
        "base_url": "http://localhost:2/v1",
        "api_key_env": "MINE",
        "temperature": 0.5,
    }
    model = make_models(make({"default": table | {"limit": "local"}}, seed=7))["agent"]
    part = part_of(model)
    assert part.name == "vllm:own"
    assert part.settings == {
        "base_url": "http://localhost:2/v1",
        "api_key_env": "MINE",
        "temperature": 0.5,
        "seed": 7,
    }
    assert part_of(make_model(part)) == part


def test_models_of_one_server_share_a_limiter() -> None:
    """In the reference system all concurrent samples hammer a server that has refused one of them."""
    url = "http://localhost:3/v1"
    models = make_models(
        make(
            {
                "default": {"model": "vllm:a", "base_url": url},
                "agent": {"model": "vllm:b", "base_url": url},
                "user": {"model": "vllm:b", "base_url": "http://localhost:4/v1"},
            }
        )
    )
    assert limiter_of(models["topics"]) is limiter_of(models["agent"])
    assert limiter_of(models["user"]) is not limiter_of(models["agent"])


def test_models_whose_servers_take_no_seed_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    model = make_models(make({"default": "anthropic:claude-sonnet-4-5"}, seed=7))["agent"]
    assert "seed" not in (part_of(model).settings or {})
    table = {"model": "vllm:m", "base_url": "http://localhost:1/v1", "seed": 3}
    model = make_models(make({"default": table}, seed=7))["agent"]
    assert (part_of(model).settings or {})["seed"] == 3, "a model's own seed is used"


async def test_the_base_url_of_a_server_is_asked() -> None:
    """The reference system drops `base_url` for the provider openai, and asks OpenAI's own server."""
    server = await serve()
    table = {"model": "openai:echo", "base_url": server.url, "api_key_env": ""}
    model = make_models(make({"default": table}))["agent"]
    completion = await model.infer(Request(Log([Message(Role.USER, "hi")]), ()), Watch())
    await server.close()
    assert completion.message.content.startswith("You said: hi")
