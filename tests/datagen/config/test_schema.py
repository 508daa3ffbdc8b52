"""The JSON Schema offers editors what the code knows, and the starter follows it."""

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from treadle.datagen.config.config_schema import dump, schema, starter
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import READER, check_plan, load_config
from treadle.datagen.quality.duplicates import DuplicateSettings
from treadle.datagen.scenarios.scenario import Kind
from treadle.export.exporter import FORMATS


def section(name: str) -> dict[str, Any]:
    found: Any = schema()["$defs"]
    properties: dict[str, Any] = found[name]["properties"]
    return properties


def test_an_editor_completes_kinds_formats_toolsets_and_filters() -> None:
    kinds = section("Generation")["kinds"]
    assert [*kinds["properties"]] == [kind.value for kind in Kind]
    assert (
        kinds["properties"]["chained"]["description"]
        == "A later tool call needs the result of an earlier one."
    )
    assert kinds["additionalProperties"] is False
    assert section("OutputSection")["formats"]["items"]["anyOf"][0]["enum"] == FORMATS.names()
    assert "vfs" in section("Tools")["use"]["items"]["anyOf"][0]["anyOf"][0]["enum"]
    filters = section("Quality")["filters"]["properties"]
    assert {"grounding", "verified", "duplicates"} <= filters.keys()
    assert all(item["description"] for item in filters.values())
    assert READER.keys.known(("quality", "filters", "duplicates")) == tuple(DuplicateSettings.model_fields)
    assert section("Conversation")["type"]["enum"] == ["basic", "cot", "agent"]


def test_every_key_has_a_description() -> None:
    found: Any = schema()["$defs"]
    for name in {*found} - {"ModelTable", "PriceTable", "Kind", "Difficulty"}:
        for key, value in found[name]["properties"].items():
            assert value.get("description") or "$ref" in value, f"{name}.{key}"
    assert READER.keys.known(("models", "agent"))
    assert READER.keys.known(("tools", "use", 0)) == ("name", "settings")


@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({}, True),
        ({"generation": {"kinds": {"single": 1}}}, True),
        ({"generation": {"kinds": {"singel": 1}}}, False),
        ({"output": {"formats": ["trl"]}}, True),
        ({"topics": {"promt": "a"}}, False),
        ({"quality": {"filters": {"language": False, "duplicates": {"similarity": 1}}}}, True),
        ({"quality": {"filters": {"langage": False}}}, False),
        ({"quality": {"filters": {"duplicates": {"similarty": 1}}}}, False),
        ({"models": {"agent": {"model": "a", "temperature": 1}}}, True),
        ({"models": {"agent": {"modle": "a"}}}, False),
        ({"generation": {"num_samples": "50%"}}, True),
        ({"generation": {"num_samples": "half"}}, False),
    ],
)
def test_the_schema_is_valid_and_agrees_with_the_models(changes: dict[str, Any], is_valid: bool) -> None:
    checker = jsonschema_rs.validator_for(schema())
    assert checker.is_valid({"topics": {"prompt": "a"}, **changes}) is is_valid


def test_the_starter_works_unchanged_and_with_a_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "starter.yaml"
    file.write_text(starter())
    loaded = load_config(file)
    check_plan(loaded)
    jsonschema_rs.validator_for(schema()).validate(yaml.safe_load(starter()))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    file.write_text(starter().replace("mock:teacher", "anthropic:claude-sonnet-4-5"))
    check_plan(load_config(file))


def test_every_example_in_a_comment_of_the_starter_can_be_used(tmp_path: Path) -> None:
    lines = [
        line.replace("# ", "", 1)
        if ":" in line.partition("#")[2] and line.lstrip().startswith("# ")
        else line
        for line in starter().splitlines()[4:]
    ]
    text = "\n".join(line for line in lines if not line.strip().startswith(("A built-in", "A role", "load:")))
    (tmp_path / "test.jsonl").write_text("")
    file = tmp_path / "all.yaml"
    file.write_text(text)
    config = load_config(file).config
    assert config.publish.huggingface is not None
    assert config.generation.kinds
    assert config.limits.max_cost_usd == 5


def test_the_file_of_a_configuration_makes_the_same_one(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(starter())
    config = load_config(file).config.model_copy(update={"seed": 5})
    (tmp_path / "below").mkdir()
    copy = tmp_path / "below" / "b.yaml"
    copy.write_text(dump(config))
    assert load_config(copy).config == config
    assert isinstance(config, GenerationConfig)
