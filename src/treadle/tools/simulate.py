"""A model that answers in the place of a tool.

It is told what the tool is, what was called before in the run and what came of it, so that the world that it makes
up holds together. Its answers are kept by what they answer: the same call after the same history gives the same.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.core.errors import ConfigError, ProviderError, ToolError
from treadle.core.log import Log
from treadle.core.types import Json, Message, Request, Role, ToolSpec
from treadle.models.protocol import Watch
from treadle.registry import load
from treadle.tools.protocol import ToolOutput
from treadle.tools.validation import ArgumentChecker

if TYPE_CHECKING:
    from treadle.models.protocol import Model

ATTEMPTS = 3
MAX_HISTORY = 50
"""Earlier calls that the model is told of, the newest."""

_INSTRUCTIONS = (
    "You play a tool in a simulated world. Answer each call exactly as the real tool would: only its result, no "
    "remarks, no code fence. Stay consistent with every earlier call and result. Invent plausible details where "
    'nothing is known. If the real tool would fail, answer with one line that begins with "ERROR: ".'
)


class Simulator:
    """Answers calls of any tool."""

    def __init__(self, model: "Model | str", seed: int = 0, cache: str | Path | None = None) -> None:
        """`cache` is a folder in which answers are kept for other processes; it is made if it is not there."""
        self._model: Model = (
            load("treadle.models:model")(model, seed=seed) if isinstance(model, str) else model
        )
        self._seed = seed
        self._kept: dict[str, ToolOutput] = {}
        self._folder = None if cache is None else Path(cache)

    async def answer(
        self, spec: ToolSpec, arguments: dict[str, Json], history: Sequence[tuple[str, Json, str]]
    ) -> ToolOutput:
        """What the tool would answer. Raises: `ToolError` if the model gives nothing that fits."""
        definition = {
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
            "output_schema": spec.output_schema,
        }
        key = hashlib.sha256(
            msgspec.json.encode(
                [self._seed, self._model.name, definition, arguments, list(history)], order="sorted"
            )
        ).hexdigest()
        if key not in self._kept:
            self._kept[key] = self._read_kept(key) or await self._ask(spec, definition, arguments, history)
            self._write_kept(key, self._kept[key])
        return self._kept[key]

    def _read_kept(self, key: str) -> ToolOutput | None:
        if self._folder is None:
            return None
        try:
            return msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=ToolOutput)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _write_kept(self, key: str, output: ToolOutput) -> None:
        if self._folder is None or (self._folder / f"{key}.json").exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole, so that nobody reads half of it.
        part = self._folder / f"{key}.{os.getpid()}.part"
        part.write_bytes(msgspec.json.encode(output))
        part.replace(self._folder / f"{key}.json")

    async def _ask(
        self, spec: ToolSpec, definition: Json, arguments: Json, history: Sequence[tuple[str, Json, str]]
    ) -> ToolOutput:
        told = [
            {"tool": name, "arguments": given, "result": result}
            for name, given, result in history[-MAX_HISTORY:]
        ]
        question = msgspec.json.encode(
            {"seed": self._seed, "tool": definition, "earlier_calls": told, "arguments": arguments}
        ).decode()
        if spec.output_schema is not None:
            question += "\n\nAnswer with one JSON value that fits output_schema."
        messages = [Message(Role.SYSTEM, _INSTRUCTIONS), Message(Role.USER, question)]
        problem = ""
        for _ in range(ATTEMPTS):
            text = await self._infer(messages)
            output, problem = _read(spec, text)
            if output is not None:
                return output
            messages += [Message(Role.ASSISTANT, text), Message(Role.USER, f"That does not fit: {problem}")]
        raise ToolError(f"the simulated {spec.name} gave no answer that fits its output schema: {problem}")

    async def _infer(self, messages: list[Message]) -> str:
        try:
            completion = await self._model.infer(Request(Log(messages)), Watch())
        except ProviderError as error:
            raise ToolError(f"the model that simulates this tool failed: {error}") from error
        return completion.message.content.strip()


def _read(spec: ToolSpec, text: str) -> tuple[ToolOutput | None, str]:
    """The output that the model's text says, or what is wrong with it."""
    text = _unfence(text)
    if text.startswith("ERROR:"):
        return ToolOutput(text.removeprefix("ERROR:").strip(), is_error=True, is_simulated=True), ""
    if not text:
        return None, "the answer is empty"
    if spec.output_schema is None:
        return ToolOutput(text, is_simulated=True), ""
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return None, f"it is not JSON ({error})"
    wrapped: dict[str, Json] = {"type": "object", "properties": {"result": spec.output_schema}}
    if "$defs" in spec.output_schema:
        wrapped["$defs"] = spec.output_schema["$defs"]
    try:
        fault = ArgumentChecker(wrapped).find_fault({"result": value})
    except ConfigError as error:
        return None, str(error)
    if fault is not None:
        return None, fault
    return ToolOutput(text, is_simulated=True, structured=value), ""


def _unfence(text: str) -> str:
    if not text.startswith("```") or not text.endswith("```") or text.count("```") != 2:
        return text
    return text[3:-3].partition("\n")[2].strip()
