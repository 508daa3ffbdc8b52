"""The Python examples of the pages pass the type checkers as they stand."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.typed_pages import write_modules

_MYPY = (
    *("-m", "mypy", "--strict", "--no-error-summary", "--ignore-missing-imports", "--implicit-reexport"),
    # A page uses a name again for something else, as a notebook does.
    *("--allow-redefinition-new", "--local-partial-types"),
)


@pytest.mark.full
def test_mypy_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    write_modules(tmp_path)
    modules = sorted(path.name for path in tmp_path.glob("*.py"))
    assert len(modules) > 30
    done = subprocess.run([sys.executable, *_MYPY, *modules], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.skipif(shutil.which("pyright") is None, reason="needs pyright")
def test_pyright_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    write_modules(tmp_path)
    command = ["pyright", "--pythonpath", sys.executable, "--level", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
