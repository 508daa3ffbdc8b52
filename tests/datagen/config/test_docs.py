"""The configurations in the documentation can be used."""

import re
from pathlib import Path

import pytest

from treadle.datagen.config.loading import load_config

PAGE = Path(__file__).parents[3] / "docs" / "generate-config.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_each_example_is_a_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert load_config(file).notes == ()
