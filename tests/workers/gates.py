"""A tool in the working directory that tells which process runs it, and waits until a test opens a gate."""

import asyncio
import itertools
import sys
from pathlib import Path

import pytest

CODE = """
import asyncio, os
from pathlib import Path
from treadle import tool

@tool(effect="{effect}")
async def hold(name: str) -> str:
    "Wait at the gate."
    with open("pids-" + name, "a") as file:
        print(os.getpid(), file=file)
    while not Path("gate").exists():
        await asyncio.sleep(0.01)
    return "passed " + name
"""
_numbers = itertools.count()


class Gate:
    """The working directory of a test, with the tool."""

    def __init__(self, folder: Path, effect: str = "idempotent") -> None:
        self.folder = folder
        module = f"gate_{next(_numbers)}"
        (folder / f"{module}.py").write_text(CODE.format(effect=effect))
        self.tool = f"{module}:hold"
        """The name of the tool."""

    def open(self) -> None:
        """Let all calls pass."""
        (self.folder / "gate").touch()

    def pids(self, name: str) -> list[int]:
        """Return the processes that have begun the call with this name, in order."""
        path = self.folder / f"pids-{name}"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def reached(self, name: str, times: int = 1) -> int:
        """Wait until the call with this name has begun so many times, and return the newest process."""
        while len(found := self.pids(name)) < times:
            await asyncio.sleep(0.01)
        return found[-1]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Return the gate of the test, whose working directory is `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    # Other tests may have left their folders there.
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Gate(tmp_path)


def message(name: str) -> str:
    """Return a message that makes `mock:echo` call the tool."""
    return f'call hold {{"name": "{name}"}}\nthen\nsay done {name}'
