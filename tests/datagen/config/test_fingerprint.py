"""The parts of a configuration that must not change while a dataset is made."""

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError
from treadle.datagen.config.fingerprint import explain_changes, fingerprint
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import READER
from treadle.jobs.config_changes import Change, find_changes

BASE: dict[str, Any] = {
    "models": {"default": "mock:teacher"},
    "topics": {"prompt": "a"},
    "tools": {"use": ["files"]},
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(**changes: Any) -> GenerationConfig:
    value = dict(BASE)
    for section, keys in changes.items():
        value[section] = {**value.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return GenerationConfig.model_validate(value)


def changes_of(before: dict[str, Any], config: GenerationConfig) -> list[Change]:
    return list(find_changes(before, fingerprint(config)))


def changed(**changes: Any) -> list[str]:
    kept = json.loads(json.dumps(fingerprint(make())))
    return [change.key for change in changes_of(kept, make(**changes))]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"generation": {"num_samples": 500, "window": 3, "max_attempts": 9, "sample_attempts": 5}},
        {"topics": {"window": 2, "max_attempts": 9}},
        {"limits": {"max_cost_usd": 5, "max_tokens": 1, "max_seconds": 1}},
        {"output": {"path": "elsewhere", "formats": ["openai"], "splits": {"test": 1}, "parquet": True}},
        {"publish": {"license": "CC-BY-4.0"}},
        {"models": {"default": {"model": "mock:teacher", "timeout_seconds": 5, "max_attempts": 1}}},
    ],
)
def test_changes_that_do_not_concern_rows(changes: dict[str, Any]) -> None:
    assert changed(**changes) == []


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"seed": 1}, ["seed"]),
        ({"topics": {"prompt": "b", "degree": 7}}, ["topics.prompt", "topics.degree"]),
        ({"models": {"agent": "mock:echo"}}, ["models.agent.model"]),
        (
            {"models": {"user": {"model": "mock:teacher", "temperature": 1}}},
            ["models.user.temperature"],
        ),
        ({"generation": {"instructions": "b"}}, ["generation.instructions"]),
        ({"generation": {"instructions": "b" * 300}}, ["generation.instructions"]),
        ({"generation": {"kinds": {"single": 1}}}, ["generation.kinds.single"]),
        ({"generation": {"conversation": {"max_turns": 3}}}, ["generation.conversation.max_turns"]),
        ({"tools": {"use": ["files", "python"]}}, ["tools.use"]),
        ({"tools": {"max_calls": 3}}, ["tools.max_calls"]),
        ({"quality": {"filters": {"language": False}}}, ["quality.filters.language"]),
        ({"output": {"system_message": "b"}}, ["output.system_message"]),
    ],
)
def test_changes_that_concern_rows(changes: dict[str, Any], keys: list[str]) -> None:
    assert changed(**changes) == keys


def test_files_count_by_their_content(tmp_path: Path) -> None:
    """A dataset may be continued from another folder, but not with other files."""
    for name in ("one", "two"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "a.txt").write_text("a")
        (tmp_path / name / "tools.py").write_text("x = 1")

    def made(name: str) -> GenerationConfig:
        folder = tmp_path / name
        return make(
            tools={"use": ["files", {"name": f"{folder}/tools.py:x"}], "files": str(folder / "data")},
        )

    before = fingerprint(made("one"))
    assert changes_of(before, made("two")) == []
    (tmp_path / "two" / "data" / "a.txt").write_text("b")
    assert [item.key for item in changes_of(before, made("two"))] == ["tools.files"]
    (tmp_path / "one" / "tools.py").write_text("x = 2")
    assert [item.key for item in changes_of(before, made("one"))] == ["tools.use[1].name"]
    with pytest.raises(ConfigError, match=r"topics.load: cannot read"):
        fingerprint(make(topics={"load": "absent.json"}))


def test_models_of_treadle_toml_count_by_their_settings(tmp_path: Path) -> None:
    file = tmp_path / "treadle.toml"
    file.write_text('[models.mine]\nmodel = "vllm:a"\n')
    config = make(models={"default": "mine"})
    before = fingerprint(config)
    file.write_text('[models.mine]\nmodel = "vllm:a"\nbase_url = "http://localhost:9/v1"\n')
    assert changes_of(before, config) == [], "the same model at another address"
    file.write_text('[models.mine]\nmodel = "vllm:b"\n')
    assert "models.agent.model" in [item.key for item in changes_of(before, config)]


def test_the_error_names_the_keys_with_both_values() -> None:
    changes = changes_of(fingerprint(make()), make(seed=1, tools={"max_calls": 3}))
    text = explain_changes(changes, "pass --change-config")
    assert "  seed was 0 and is now 1\n" in text
    assert "  tools.max_calls was not set and is now 3\n" in text
    assert text.endswith("or pass --change-config")


def test_each_section_is_considered() -> None:
    """A new section has to be put on one of the two sides."""
    sections = set(READER.keys.known(()))
    assert sections == {
        *("name", "seed", "models", "topics", "generation", "tools", "quality"),
        *("limits", "output", "publish"),
    }
