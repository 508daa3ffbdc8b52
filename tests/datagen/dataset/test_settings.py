"""The copy of the configuration in the folder of a dataset."""

from pathlib import Path

import pytest

from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import read_config, write_config


@pytest.mark.parametrize(
    "given",
    [
        {"topics": {"prompt": "Office work"}, "tools": {"use": ["files"]}},
        {"topics": {"load": "topics.json"}, "generation": {"conversation": {"type": "basic"}}},
        {"topics": {"prompt": "Work", "mode": "graph"}, "tools": {"use": ["files"], "max_calls": 3}},
    ],
)
def test_what_is_written_can_be_read(given: Json, tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text("{}")
    if "load" in given["topics"]:
        given = {**given, "topics": {"load": str(tmp_path / "topics.json")}}
    config = GenerationConfig.model_validate(given)
    write_config(tmp_path, config)
    found = read_config(tmp_path)
    assert found is not None
    assert found.model_copy(update={"output": config.output}) == config
