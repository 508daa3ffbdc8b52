"""The examples of the documentation run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["agents.md"]


def examples() -> list[tuple[str, str]]:
    """Return the Python examples of all pages, each with a name."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
        found += [(f"{page}-{number}", block) for number, block in enumerate(blocks, 1)]
    return found


@pytest.mark.parametrize("block", [pytest.param(block, id=name) for name, block in examples()])
def test_an_example_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_page_has_examples() -> None:
    assert len(examples()) >= len(PAGES)
