"""What the calls of a multi-turn task of BFCL work on: the package's own classes, and its own checker.

A world is made from the task and the calls so far, which are in a run's state, so that another process can go on.
"""

import ast
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from treadle.core.errors import ConfigError, ToolError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json, Message, Role
from treadle.sandbox.protocol import Sandbox

_ROOM = "bfcl_eval.eval_checker.multi_turn_eval"
_STATE = "bfcl"
"""The name under which a run keeps the calls so far."""


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"the multi-turn tasks of BFCL need a part of the package bfcl-eval that cannot be imported: {error}; "
            "pip install --no-deps bfcl-eval, and the package that is named here"
        ) from error


class BfclWorld:
    """The objects that the calls of one run work on."""

    def __init__(self, entry: Mapping[str, Any], sandbox: Sandbox | None) -> None:
        self._entry = entry
        self._sandbox = sandbox
        self._name = f"run_{uuid4().hex}"
        kept = None if sandbox is None else sandbox.read_state(_STATE)
        self._calls: list[str] = [] if kept is None else msgspec.json.decode(kept, type=list[str])
        _execute(entry, self._calls, self._name)

    @classmethod
    @asynccontextmanager
    async def open(cls, entry: Mapping[str, Any], sandbox: Sandbox | None) -> AsyncIterator["BfclWorld"]:
        """Make the world of a run, as it was after its calls so far."""
        world = cls(entry, sandbox)
        try:
            yield world
        finally:
            _forget(world._name)

    def call(self, name: str, arguments: dict[str, Json]) -> str:
        """Return the result of a call. Raises: `ToolError` if it failed."""
        call = write_call(name, arguments)
        (result,) = _execute(self._entry, [call], self._name)
        self._calls.append(call)
        if self._sandbox is not None:
            self._sandbox.write_state(_STATE, msgspec.json.encode(self._calls))
        if result.startswith("Error during execution:"):
            raise ToolError(result)
        return result

    @staticmethod
    def documents(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the descriptions of the functions of a task."""
        backends = _load("bfcl_eval.constants.executable_backend_config")
        folder = Path(_load("bfcl_eval").__file__).parent / "data" / "multi_turn_func_doc"
        found = []
        for name in entry["involved_classes"]:
            lines = (folder / backends.MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]).read_bytes().splitlines()
            found += [msgspec.json.decode(line) for line in lines if line.strip()]
        return [item for item in found if item["name"] not in entry.get("excluded_function", ())]


def write_call(name: str, arguments: Mapping[str, Json]) -> str:
    """Return a call in the syntax of Python. Raises: `ToolError` if a name is no name there."""
    if not all(key.isidentifier() for key in (name, *arguments)):
        raise ToolError(f"{name!r} cannot be called with the arguments {', '.join(map(repr, arguments))}")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def read_call(text: str, names: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, Json]]:
    """Return the name and the arguments of a call in the syntax of Python; `names` has those of the parameters."""
    call = ast.parse(text.strip(), mode="eval").body
    assert isinstance(call, ast.Call)
    name = ast.unparse(call.func)
    arguments = {key: ast.literal_eval(value) for key, value in zip(names[name], call.args, strict=False)}
    return name, arguments | {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}


def _execute(entry: Mapping[str, Any], calls: Sequence[str], name: str) -> list[str]:
    utils = _load(f"{_ROOM}.multi_turn_utils")
    results: list[str] = utils.execute_multi_turn_func_call(
        list(calls),
        entry["initial_config"],
        entry["involved_classes"],
        name,
        entry["id"],
        "long_context" in entry["id"],
    )[0]
    return results


def _forget(name: str) -> None:
    """Remove the objects of a world, which the package keeps in the globals of a module."""
    held = vars(_load(f"{_ROOM}.multi_turn_utils"))
    for key in [key for key in held if key.startswith(name)]:
        del held[key]


def check_turns(
    entry: Mapping[str, Any], truth: Sequence[Sequence[str]], messages: Sequence[Message]
) -> tuple[bool, str]:
    """Return whether the calls of a transcript are right by the package's checker, and why not."""
    turns: list[list[list[str]]] = []
    for message in messages:
        if message.role is Role.USER:
            turns.append([])
        elif message.role is Role.ASSISTANT and message.tool_calls and turns:
            turns[-1].append([_describe(call.name, call.arguments) for call in message.tool_calls])
    turns += [[] for _ in range(len(truth) - len(turns))]
    checker = _load(f"{_ROOM}.multi_turn_checker")
    name = f"check_{uuid4().hex}"
    try:
        found = checker.multi_turn_checker(turns, list(truth), dict(entry), "", name)
        if found["valid"]:
            found = checker.multi_turn_irrelevance_checker(turns, list(truth))
    finally:
        _forget(name)
    if found["valid"]:
        return True, "the state and the results of each turn are the expected ones"
    return False, re.sub(r"\s+", " ", str(found.get("error_message", found)))[:200]


def _describe(name: str, arguments: str) -> str:
    try:
        return write_call(name, msgspec.json.decode(arguments or "{}", type=dict[str, Any]))
    except (*UNREADABLE, ToolError):
        return f"{name}(unreadable)" if name.isidentifier() else "unreadable()"
