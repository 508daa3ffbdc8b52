"""How many files of Treadle one piece of work enters: a tool call, a chat turn, a sample, a rollout.

A file is entered if one of its functions runs; what modules do when they are imported does not count. The number
says how much of the code somebody has to know who follows one call through it.
"""

import asyncio
import inspect
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import treadle
from benchmarks.common import Figure
from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.models import call

_MAY_RESUME = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_FIRST_RESUME = 8
"""Instructions before this offset are the beginning of a coroutine; later ones resume it, which enters nothing."""
ROOT = str(Path(treadle.__file__).parent)
WANTED = {"a tool call": 14, "a chat turn": 60, "a sample": 80, "a rollout": 90}


class Walk:
    """The files that were entered while the walk was on."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = True

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or code.co_name == "<module>":
            return
        is_resumed = code.co_flags & _MAY_RESUME and frame.f_lasti > _FIRST_RESUME
        if code.co_filename.startswith(ROOT) and not is_resumed:
            self.files.add(code.co_filename.removeprefix(ROOT + "/"))


@contextmanager
def walking() -> Iterator[Walk]:
    """Note the files that are entered, in this thread and in those that start meanwhile."""
    walk = Walk()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class _Model(ScriptedModel):
    """A model that switches the walk on with its first answer, and off when it is asked again."""

    walk: Walk
    asked = 0

    async def infer(self, *given: Any, **options: Any) -> Any:
        self.asked += 1
        if self.asked == 2:
            self.walk.is_on = False
        found = await super().infer(*given, **options)
        if self.asked == 1:
            self.walk.files.clear()
            self.walk.is_on = True
        return found


def walk_tool_call(folder: Path) -> set[str]:
    """Return the files between the answer that asks for a call and the request with its result, on SQLite."""
    with walking() as walk:
        model = _Model([[call("add", {"a": 1, "b": 2})], "3"])
        model.walk = walk
        with open_journal(folder / "call.db") as journal:
            run = Agent(model, tools=[add], journal=journal).run_sync("Add 1 and 2.")
            assert run.output == "3", run.error
    return walk.files


def walk_chat_turn(folder: Path) -> set[str]:
    """Return the files of the second turn of a session with a persona that remembers."""

    async def talk(walk: Walk) -> None:
        with open_journal(folder / "chat.db") as journal:
            agent = Agent(
                ScriptedModel(["Hello.", "Noted."]),
                persona={"name": "Ada", "role": "an assistant", "memory": True},
                journal=journal,
            )
            async with agent.session() as session:
                await session.send("Hello")
                walk.files.clear()
                run = await session.send("I am vegetarian.")
                assert run.output == "Noted.", run.error
                walk.is_on = False

    with walking() as walk:
        asyncio.run(talk(walk))
    return walk.files


def walk_sample(folder: Path) -> set[str]:
    """Return the files that the second sample of a generation enters, from the first row to the second."""
    from treadle.datagen.config.generation_config import GenerationConfig
    from treadle.datagen.dataset.dataset_folder import DatasetFolder
    from treadle.datagen.generation import generate

    config = GenerationConfig.model_validate(
        {
            "name": "walk",
            "models": {"default": "mock:teacher"},
            "topics": {"prompt": "Office work", "depth": 1, "degree": 1},
            "generation": {"num_samples": 2, "window": 1},
            "tools": {"use": ["files"], "files": "tasks:files"},
            "output": {"path": str(folder / "dataset")},
        }
    )
    ended = []

    def note(notice: object, _: object) -> None:
        if type(notice).__name__ == "SampleEnded":
            ended.append(notice)
            walk.is_on = len(ended) == 1

    with walking() as walk:
        walk.is_on = False
        result = asyncio.run(generate(config, DatasetFolder(folder / "dataset"), listener=note))
    assert result.progress.kept == 2, result.end
    return walk.files


def walk_rollout(folder: Path) -> set[str]:
    """Return the files of a group with one rollout, from its configuration to its rows."""
    from treadle.rollout import Rollouts

    with walking() as walk:
        result = asyncio.run(
            Rollouts(model="oracle", tasks=["files"], groups=1, group_size=1, path=folder / "rollouts").run()
        )
    assert result.progress.rewards.mean == 1.0, result
    return walk.files


async def measure() -> list[Figure]:
    """Count the files of each piece of work."""
    figures = []
    walks = {
        "a tool call": walk_tool_call,
        "a chat turn": walk_chat_turn,
        "a sample": walk_sample,
        "a rollout": walk_rollout,
    }
    for name, walk in walks.items():
        with tempfile.TemporaryDirectory() as folder:
            files = await asyncio.to_thread(walk, Path(folder))
        rooms = sorted({file.partition("/")[0] for file in files})
        figures.append(
            Figure(f"files that {name} enters", len(files), f"<= {WANTED[name]}", ", ".join(rooms))
        )
        if "-v" in sys.argv:
            print("", name, *sorted(files), "", sep="\n")
    return figures


if __name__ == "__main__":
    for figure in asyncio.run(measure()):
        print(figure)
