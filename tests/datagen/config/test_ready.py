"""What would stop a generation is found before anything is paid for."""

import os
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import check_plan, load_config

TASKS = {"prompt": "Files"}
PRICE = {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, without keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


def make(**sections: Any) -> GenerationConfig:
    value = {"models": {"default": "mock:teacher"}, "topics": TASKS, "tools": {"use": ["files"]}}
    return GenerationConfig.model_validate(value | sections)


def obstacles_to(leaves: int | None = None, **sections: Any) -> str:
    with pytest.raises(ConfigError) as error:
        check_plan(make(**sections), leaves)
    return str(error.value)


def test_a_good_configuration_passes() -> None:
    check_plan(make())
    check_plan(make(tools={"use": ["files"], "files": "tasks:files"}), 25)
    check_plan(make(tools={"files": "tasks:files"}), 25)


def test_more_samples_than_topics_are_possible() -> None:
    check_plan(make(generation={"num_samples": 100}), 3)


def test_a_missing_key_names_its_variable() -> None:
    found = obstacles_to(models={"default": "openai:gpt-5-mini"})
    assert found.startswith("models.default: no API key")
    assert "OPENAI_API_KEY" in found
    found = obstacles_to(
        models={"default": "mock:teacher", "agent": {"model": "openai:x", "api_key_env": "MINE"}}
    )
    assert found.startswith("models.agent: the key of 'openai:x'")
    assert "MINE" in found


def test_all_models_are_checked_together_and_a_missing_one_names_a_free_one() -> None:
    found = obstacles_to(models={"default": "mock:teacher", "agent": "opnai:x", "user": "mock:nobody"})
    assert "models.agent: unknown provider 'opnai'" in found
    assert "did you mean 'openai:x'?" in found
    assert "models.user: " in found
    found = obstacles_to(models={})
    assert found.startswith("models.default: there is no model; name one such as")
    assert "mock:teacher" in found


def test_mistakes_have_lines_if_the_file_is_known(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("topics: {prompt: a}\ntools:\n  use: [fils]\nmodels:\n  default: mock:teacher\n")
    with pytest.raises(
        ConfigError, match=r"c.yaml:3: tools.use.0: unknown toolset 'fils'; did you mean 'files'"
    ):
        check_plan(load_config(file))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    found = obstacles_to(
        topics={"load": str(tmp_path / "topics.json")},
        tools={"use": ["tools.py"], "files": str(tmp_path / "absent")},
        quality={"evaluation_sets": ["test.jsonl"]},
    )
    for key in ("topics.load", "tools.files", "tools.use.0", "quality.evaluation_sets.0"):
        assert f"{key}: " in found, key
    assert "tools.files: unknown task set 'fils'" in obstacles_to(
        tools={"use": ["files"], "files": "tasks:fils"}
    )


def test_tools_that_cannot_work_together() -> None:
    assert "tools.use.1: it has a tool 'read_file', and 'files' has one too" in obstacles_to(
        tools={"use": ["files", "vfs"]}
    )
    assert "need the toolset 'files'" in obstacles_to(tools={"use": ["python"], "files": "tasks:files"})
    found = obstacles_to(
        tools={"definitions": [{"name": "a", "parameters": [{"name": "b", "type": "colour"}]}]}
    )
    assert found.startswith("tools.definitions: ")


def test_the_output_must_be_a_folder_for_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("")
    assert "is a file; name a folder" in obstacles_to(output={"path": "file"})
    assert "is a file; name a folder" in obstacles_to(output={"path": "file/below"})
    assert "no dataset of Treadle" in obstacles_to(output={"path": "full"})
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "ledger.lock").write_text("")
    check_plan(make(output={"path": "left"}))
    (tmp_path / "full" / "ledger.db").write_text("")
    check_plan(make(output={"path": "full"}))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_an_output_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot be written to" in obstacles_to(output={"path": "locked/below"})


def test_more_splits_than_topics() -> None:
    splits = {"splits": {"train": 8, "test": 1, "dev": 1}}
    check_plan(make(output=splits), 3)
    assert "output.splits: 2 leaf topics cannot fill 3 splits" in obstacles_to(2, output=splits)


def test_a_limit_of_the_cost_needs_prices() -> None:
    model = {"model": "vllm:m", "base_url": "http://localhost:1/v1"}
    found = obstacles_to(models={"default": model}, limits={"max_cost_usd": 5})
    assert found.startswith(
        "models.default: the price of 'vllm:m' is not known, and limits.max_cost_usd needs it"
    )
    check_plan(make(models={"default": model | {"price": PRICE}}, limits={"max_cost_usd": 5}))
    check_plan(make(limits={"max_cost_usd": 5}))


def test_limits_that_the_estimate_exceeds() -> None:
    priced = {"default": {"model": "vllm:m", "base_url": "http://localhost:1/v1", "price": PRICE}}
    generation = {"num_samples": 10_000}
    found = obstacles_to(
        models=priced,
        generation=generation,
        limits={"max_cost_usd": 0.01, "max_tokens": 1000, "max_seconds": 1},
    )
    for key in ("max_cost_usd", "max_tokens", "max_seconds"):
        assert f"limits.{key}: 10,000 rows are expected to take" in found
    high = {"max_cost_usd": 1e4, "max_tokens": 10**9, "max_seconds": 1e6}
    check_plan(make(models=priced, generation=generation, limits=high))


def test_prompts_that_do_not_fit_into_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("genai_prices")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    texts = {f"f{number}": "word " * 400 for number in range(24)}
    long = "Be kind. " * 60_000
    models = {"default": "openai:gpt-4o"}
    check_plan(make(models=models, tools={"use": ["files"], "files": texts}))
    found = obstacles_to(models=models, generation={"instructions": long, "guidance": long})
    assert "tokens is expected, and 'openai:gpt-4o' takes at most 128,000" in found
    assert "for 'agent'" in found
    assert "for 'scenarios'" in found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mcp:absent.json", "cannot read the MCP servers of 'absent.json': No such file"),
        ("mcp:python 'x", "is not a command line"),
        ("mcp:no-such-server --port 1", "'no-such-server' of the MCP server 'no-such-server' was not found"),
        ("mcp:./no/server", "was not found; install it"),
        ("mcp:/etc/passwd", "cannot be executed; is it a program?"),
        ("spin:here", "'here' is not the URL of a server"),
        ("mock:absent.json", "absent.json"),
    ],
)
def test_servers_are_checked_without_asking_them(name: str, why: str) -> None:
    for imports in (True, False):
        with pytest.raises(ConfigError) as error:
            check_plan(make(tools={"use": [name]}), imports=imports)
        assert str(error.value).startswith("tools.use.0: ")
        assert why in str(error.value)
        assert "is not a toolset" not in str(error.value)


def test_a_server_that_does_not_run_is_no_obstacle_to_a_plan() -> None:
    check_plan(make(tools={"use": ["mcp:http://127.0.0.1:1/mcp", "spin:http://127.0.0.1:1"]}))
