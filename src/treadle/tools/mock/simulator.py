"""A model that answers in place of a tool.

The model is told what the tool is, and which calls were made before in the run and with what results, so that its
answers are consistent. Answers are kept: the same call after the same calls gets the same answer. The model's cost
does not count towards a run's budget.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from treadle.core.answering import strip_answer
from treadle.core.errors import ConfigError, ProviderError
from treadle.core.log import Log
from treadle.core.spec import PartSpec
from treadle.core.texts.documents import read_data
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Completion, FinishReason, Json, Message, Request, Role, ToolSpec
from treadle.models.protocol import Watch, part_of
from treadle.models.wrappers.cache import AnswerFolder
from treadle.tools.protocol import ToolOutput
from treadle.tools.schema.validation import OutputChecker

if TYPE_CHECKING:
    from treadle.models.protocol import Model

ATTEMPTS = 2
MAX_KEPT = 10_000
"""How many answers are kept in memory."""
_FAILURE = "ERROR:"
_INSTRUCTIONS: str = read_data("treadle.tools", "prompts")["simulator"]


class _Answer(Struct, frozen=True, omit_defaults=True):
    """An answer in the cache."""

    content: str
    is_error: bool = False
    structured: Json = None


class Simulator:
    """A model that answers the calls of any tools, for any number of runs at the same time."""

    def __init__(
        self, model: "Model | str", *, seed: int | None = None, cache: str | Path | None = None
    ) -> None:
        """Make a simulator. Each `seed` gives different answers; it is also sent to a model that is given by name.

        `cache` is a folder for the answers, which several processes may share. Without it they are kept in memory.
        Raises: `ConfigError` for an unknown model, or a folder that cannot be made.
        """
        self.part = _part_of(model, seed, cache)
        if isinstance(model, str):
            from treadle.models.config.recipe import make_model

            model = make_model(model, seed=seed)
        self._model: Model = model
        self._seed = seed
        self._kept: dict[str, _Answer] = {}
        self._folder = None if cache is None else AnswerFolder(cache, _Answer)

    async def answer(self, spec: ToolSpec, arguments: dict[str, Json], earlier: Sequence[Json]) -> ToolOutput:
        """Return the tool's answer after the `earlier` calls, oldest first. A second failure is an error."""
        question = {
            "seed": self._seed,
            "earlier_calls": list(earlier),
            "tool": {
                "name": spec.name,
                "description": spec.description,
                "parameters": spec.parameters,
                "output_schema": spec.output_schema,
            },
            "arguments": arguments,
        }
        asked = msgspec.json.encode([_INSTRUCTIONS, self._model.name, question], order="sorted")
        key = hashlib.sha256(asked).hexdigest()
        folder = self._folder
        found = self._kept.get(key) or (None if folder is None else folder.read(key))
        if found is None:
            answer, is_good = await self._ask(spec, question)
            # If two runs asked at the same time, the first answer counts for both.
            found = self._kept.get(key)
            if found is None and is_good and folder is not None:
                found = folder.write(key, answer)
            found = found or answer
            if not is_good:
                return _to_output(found)
        self._kept[key] = found
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return _to_output(found)

    async def _ask(self, spec: ToolSpec, question: Json) -> tuple[_Answer, bool]:
        """Ask the model. Return its answer and `True`, or an error and `False`."""
        text = msgspec.json.encode(question).decode()
        if spec.output_schema is not None:
            text += "\n\nAnswer with one JSON value that fits output_schema, or with the line of an error."
        messages = [Message(Role.SYSTEM, _INSTRUCTIONS), Message(Role.USER, text)]
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                completion = await self._model.infer(Request(Log(messages)), Watch())
            except ProviderError as error:
                return _Answer(f"the model that simulates {spec.name} failed: {error}", is_error=True), False
            answer, problem = _read_answer(spec, completion)
            if answer is not None:
                return answer, True
            said = completion.message.content
            messages += [
                Message(Role.ASSISTANT, said),
                Message(Role.USER, f"That is not a valid answer: {problem}"),
            ]
        return _Answer(f"the simulated {spec.name} gave no answer: {problem}", is_error=True), False


def _part_of(model: "Model | str", seed: int | None, cache: str | Path | None) -> PartSpec | None:
    """Return the model's name, with the seed and the folder as settings, if the model has a name."""
    part = PartSpec(name=model) if isinstance(model, str) else part_of(model)
    # Settings of the model itself cannot be part of a simulator's settings.
    if part.missing is not None or part.settings is not None:
        return None
    settings = {"seed": seed, "cache": None if cache is None else str(cache)}
    return PartSpec(
        name=part.name, settings={key: value for key, value in settings.items() if value is not None}
    )


def _to_output(answer: _Answer) -> ToolOutput:
    return ToolOutput(
        answer.content, is_error=answer.is_error, is_simulated=True, structured=answer.structured
    )


def _read_answer(spec: ToolSpec, completion: Completion) -> tuple[_Answer | None, str]:
    """Return the answer in the model's text, or `None` and what is wrong with the text."""
    text = strip_answer(completion.message.content)
    if completion.finish_reason is FinishReason.LENGTH:
        return None, "it was cut off by the output limit; answer shorter"
    if not text:
        return None, "it is empty"
    if text.startswith(_FAILURE):
        return _Answer(text.removeprefix(_FAILURE).strip(), is_error=True), ""
    if spec.output_schema is None:
        return _Answer(text), ""
    try:
        value: Json = decode_json(text)
    except msgspec.DecodeError as error:
        return None, f"it is not JSON ({error})"
    try:
        fault = OutputChecker(spec.output_schema).find_fault(value)
    except ConfigError as error:
        fault = str(error)
    if fault is not None:
        return None, f"it does not fit output_schema: {fault}"
    return _Answer(msgspec.json.encode(value).decode(), structured=value), ""
