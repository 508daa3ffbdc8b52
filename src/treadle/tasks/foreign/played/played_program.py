"""The program that lists and plays tasks of others: `python played_program.py list|play KIND REFERENCE`.

It is run with the Python that has the package of the kind, and imports nothing of Treadle.
`treadle.server.gateway.environments` says what it reads and writes.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import parse_qsl

MAX_LINE_CHARS = 2000
_LINES = ("error", "detail")
PLAYERS = {
    "verifiers": ("verifiers_player", "VerifiersPlayer"),
    "inspect": ("inspect_player", "InspectPlayer"),
    "openenv": ("openenv_player", "OpenEnvPlayer"),
}
"""The module and the class of each kind."""
Told = dict[str, Any]


class Player(Protocol):
    """The tasks that a reference names. It is made with the name and the settings of `NAME?KEY=VALUE&KEY=VALUE`.

    An exception of any method is shown as the error of the environment, or of the task.
    """

    def describe_tasks(self) -> list[Told]:
        """Return the tasks, each with `id`, `input` and `instructions`, which may be `None`."""

    async def play(self, asked: Told) -> Told:
        """Play a task with the model at the address that is asked for, and return the outcome."""

    async def close(self) -> None:
        """Stop what was started."""


def make_player(kind: str, reference: str) -> Player:
    """Load the tasks of `NAME` or `NAME?KEY=VALUE&KEY=VALUE`. Values are JSON, or texts."""
    name, _, query = reference.partition("?")
    settings = {key: _read_value(text) for key, text in parse_qsl(query, keep_blank_values=True)}
    module, made = PLAYERS[kind]
    player: Player = getattr(import_module(module), made)(name, settings)
    return player


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _explain(error: BaseException) -> Told:
    return {"error": f"{type(error).__name__}: {error}"}


def _shorten(told: Told) -> Told:
    """Return an outcome whose explanation, or error, is one line."""
    lines = {key: " ".join(text.split())[:MAX_LINE_CHARS] for key, text in told.items() if key in _LINES}
    return told | lines


def _forget(playing: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    del playing[number]


async def serve(player: Player, write: Callable[[Told], None]) -> None:
    """Play what is asked for on standard input until it ends."""
    reader, playing = asyncio.StreamReader(limit=2**24), dict[int, asyncio.Task[None]]()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )

    async def answer(asked: Told) -> None:
        try:
            write({"id": asked["id"], **_shorten(await player.play(asked))})
        except Exception as error:
            write({"id": asked["id"], **_shorten(_explain(error))})

    while line := await reader.readline():
        asked = json.loads(line)
        if (stopped := asked.get("cancel")) is not None:
            if stopped in playing:
                playing[stopped].cancel()
            continue
        task = playing[asked["id"]] = asyncio.ensure_future(answer(asked))
        task.add_done_callback(partial(_forget, playing, asked["id"]))
    for task in playing.values():
        task.cancel()
    await asyncio.gather(*playing.values(), return_exceptions=True)
    await player.close()


def main() -> None:
    """List the tasks of an environment, or play them."""
    # Environments print what they like, which is no part of the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # The modules beside this one must not hide those of environments.
    sys.path.append(sys.path.pop(0))

    def write(told: Told) -> None:
        answers.write(json.dumps(told) + "\n")
        answers.flush()

    command, kind, reference = sys.argv[1:]
    try:
        player = make_player(kind, reference)
        told: Told = {"tasks": player.describe_tasks() if command == "list" else []}
    except Exception as error:
        write(_shorten(_explain(error)))
        return
    write(told)
    if command == "play":
        asyncio.run(serve(player, write))


if __name__ == "__main__":
    main()
