"""What is expected of a run: calls, an answer, files; and the calls that it made.

An expectation comes from the run's own labels (`expected`, as the samples of rows have it) or from `data` of
its task. Without one, scorers of trajectories compare with a run of the oracle on the same task.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.events import DurableBody, InferenceCompleted, ToolCompleted
from treadle.core.registry import NamedFields, did_you_mean
from treadle.core.types import Json, ToolCall, ToolResult
from treadle.scoring.call_matching import ExpectedCall
from treadle.scoring.protocol import Subject

LABEL = "expected"
"""The label of a run with its expectation."""


class Expectation(Struct, frozen=True, omit_defaults=True, metaclass=NamedFields):
    """What a good run does. What is `None` is not expected of it."""

    calls: list[ExpectedCall] | None = None
    """The calls; an empty list if no tool fits."""
    allowed: list[ExpectedCall] = []
    """Calls that are neither demanded nor wrong, each once."""
    answer: Json = None
    """The final answer: a text, a number, or a list of texts or numbers that are all right."""
    files: dict[str, str | None] | None = None
    """The files that differ from the initial ones, by path; `None` for a file that is deleted."""
    missing: list[str] | None = None
    """What the user has not said and the agent must ask for; an empty list if nothing is missing."""
    is_conversation: bool = False
    """True if the calls and the answer are those of a recorded conversation."""


def find_expectation(subject: Subject) -> Expectation:
    """Return what is expected of a run; an empty expectation if nothing is known.

    Raises: `ConfigError` if it is given in another form.
    """
    task = subject.task
    raw = subject.run.metadata.get(LABEL) or (None if task is None else getattr(task, "data", None))
    if isinstance(raw, Expectation):
        return raw
    if not isinstance(raw, Mapping):
        return Expectation()
    try:
        return msgspec.convert(dict(raw), Expectation)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"what is expected of run {subject.run.run_id!r} cannot be read: {error}; give 'calls' (each with "
            "'name' and 'arguments'), 'allowed', 'answer', 'files' or 'missing'"
        ) from error


class CallMade(Struct, frozen=True):
    """A call of a model."""

    call: ToolCall
    step: int
    """The number of its step, from 1."""
    result: ToolResult | None
    """Its result; `None` if it has none."""

    @property
    def arguments(self) -> Json:
        """The decoded arguments; `None` if they are not JSON."""
        return self.call.parsed_or(None)


def find_made_calls(bodies: Iterable[DurableBody]) -> list[CallMade]:
    """Return the calls of the model in order, without those that tools made and those of answers that were thrown
    away."""
    found: list[CallMade] = []
    places: dict[str, int] = {}
    step = 0
    for body in bodies:
        if isinstance(body, InferenceCompleted):
            step += 1
            for call in body.completion.message.tool_calls:
                places[call.call_id] = len(found)
                found.append(CallMade(call, step, None))
        elif isinstance(body, ToolCompleted) and body.parent_call_id is None and body.call_id in places:
            # Two conversations of a program may have the same ids.
            at = places.pop(body.call_id)
            found[at] = replace(found[at], result=body.result)
    return found


def schemas_of(subject: Subject) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the parameters of the run's tools, by name."""
    return {spec.name: spec.parameters for spec in subject.tools}


class NamedTools:
    """The names of tools in the settings of a scorer. A misspelt name would make a rule that is never broken."""

    def __init__(self, scorer: str, names: Iterable[str]) -> None:
        self._scorer = scorer
        self._unseen = {name for name in names if not set("*?[") & set(name)}

    def check(self, subject: Subject) -> None:
        """Warn once of each name that is not that of a tool of the run and similar to one."""
        tools = [spec.name for spec in subject.tools]
        for name in sorted(self._unseen.difference(tools)):
            if hint := did_you_mean(name, tools, cutoff=0.75):
                self._unseen.discard(name)
                logging.getLogger("treadle").warning(
                    "the reward %r has a rule for the tool %r, which run %r does not have%s",
                    *(self._scorer, name, subject.run.run_id, hint),
                )
        self._unseen.difference_update(tools)
