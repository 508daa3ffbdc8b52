"""Scorers under the names of DeepFabric's metrics: which tools are called, with which arguments, and both at once.

By default they compare all calls by value. With `definition: deepfabric` they give the figures of DeepFabric for
the same answer: those of its first call alone, whose arguments are checked against the schema of the tool that was
called, and whose values count only if that tool is unknown. For a recorded conversation they give the figures of
its mode `multi_turn`: those of all calls up to the first answer without one, by the names of tools and arguments.
Source: DeepFabric 4.13, `evaluation/metrics.py`, `evaluation/evaluators/builtin/tool_calling.py` and
`Evaluator._compute_multi_turn_metrics`.
"""

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.events import InferenceCompleted
from treadle.core.types import Json
from treadle.scoring.call_matching import ExpectedCall, pair_up
from treadle.scoring.call_scorers import ComparedCalls, find_schema_fault
from treadle.scoring.expectations import find_expectation
from treadle.scoring.protocol import Score, Subject

_DEFINITIONS = ("value", "deepfabric")
_TOLERANCE = 1e-6
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
"""The Python types of the types that DeepFabric knows. It takes any other type for `string`."""


class _RateScorer:
    def __init__(self, name: str, *, definition: str = "value") -> None:
        """Make a scorer by a `definition`: `value`, or `deepfabric`. Raises: `ConfigError` for another one."""
        if definition not in _DEFINITIONS:
            raise ConfigError(
                f"definition of the reward {name!r} is {definition!r}; give one of {', '.join(_DEFINITIONS)}"
            )
        self.name = name
        self._is_legacy = definition == "deepfabric"

    async def score(self, subject: Subject) -> Score | None:
        if self._is_legacy and (made := ConversationFigures.of(subject)) is not None:
            return Score(self._score_conversation(made), "by DeepFabric's definition")
        compared = ComparedCalls.of(subject)
        if compared is None:
            return None
        if self._is_legacy:
            return Score(float(self._is_first_right(compared)), "by DeepFabric's definition")
        return self._score_all(compared)

    def _score_all(self, compared: ComparedCalls) -> Score | None:
        raise NotImplementedError

    def _is_first_right(self, compared: ComparedCalls) -> bool:
        raise NotImplementedError

    def _score_conversation(self, made: "ConversationFigures") -> float:
        raise NotImplementedError


class ConversationFigures(Struct, frozen=True):
    """What DeepFabric says about a conversation in its mode `multi_turn`."""

    coverage: float
    """The share of the expected tools that were called; if none is expected, 1 without calls, and else 0."""
    has_arguments: bool
    """True if each call of an expected tool has the arguments of the first expected call of that tool, by name."""
    is_valid: bool
    """True if a tool was called or a text was said."""

    @classmethod
    def of(cls, subject: Subject) -> "ConversationFigures | None":
        """Return the figures of a run; `None` if it has no recorded conversation."""
        expectation = find_expectation(subject)
        if not expectation.is_conversation or expectation.calls is None:
            return None
        made, text = _find_first_turn(subject)
        wanted = {call.name: call.arguments.keys() for call in reversed(expectation.calls)}
        called = {name for name, _ in made}
        coverage = len(wanted.keys() & called) / len(wanted) if wanted else float(not called)
        has_arguments = all([wanted[name] <= keys for name, keys in made if name in wanted])
        return cls(coverage, has_arguments, bool(made) or text != "")


def _find_first_turn(subject: Subject) -> tuple[list[tuple[str, Set[str]]], str]:
    """Return the names and the arguments' names of the calls up to the first answer without one, and its text."""
    answers = [body.completion.message for body in subject.bodies if isinstance(body, InferenceCompleted)]
    made: list[tuple[str, Set[str]]] = []
    text = ""
    for answer in answers[: subject.run.state.policy.max_steps]:
        text = answer.content
        if not answer.tool_calls:
            break
        for call in answer.tool_calls:
            arguments = call.parsed_or(None)
            made.append((call.name, arguments.keys() if isinstance(arguments, dict) else frozenset()))
    return made, text


class ToolSelectionScorer(_RateScorer):
    """1 if the tools that were called are the expected ones, each as often as expected, and else 0. If no call is
    expected, it is 1 for a run that made none."""

    def _score_all(self, compared: ComparedCalls) -> Score:
        wanted = Counter([call.name for call in compared.expected])
        called = Counter([call.call.name for call in compared.made])
        told = f"called {_write(called)} in place of {_write(wanted)}"
        return Score(float(wanted == called), "the tools are the expected ones" if wanted == called else told)

    def _is_first_right(self, compared: ComparedCalls) -> bool:
        return _is_first_tool(compared)

    def _score_conversation(self, made: ConversationFigures) -> float:
        return float(made.coverage == 1)


class ParameterScorer(_RateScorer):
    """The share of the expected calls that were made with the expected arguments, by value. It says nothing if no
    call is expected."""

    def _score_all(self, compared: ComparedCalls) -> Score | None:
        if not compared.expected:
            return None
        count, whole = (
            len(pair_up(compared.expected, compared.made, compared.is_same)),
            len(compared.expected),
        )
        return Score(count / whole, f"{count} of {whole} expected calls have their arguments")

    def _is_first_right(self, compared: ComparedCalls) -> bool:
        return _fits_first(compared)

    def _score_conversation(self, made: ConversationFigures) -> float:
        return float(made.has_arguments)


class ExecutionScorer(_RateScorer):
    """1 if the calls are the expected ones, by value, and the arguments of each fit the schema of its tool, and
    else 0. Nothing is run for it. It says nothing if no call is expected."""

    def _score_all(self, compared: ComparedCalls) -> Score | None:
        if not compared.expected:
            return None
        pairs = pair_up(compared.expected, compared.made, compared.is_same)
        if not len(pairs) == len(compared.expected) == len(compared.made):
            return Score(0.0, compared.explain(pairs))
        faults = [fault for call in compared.made if (fault := find_schema_fault(call, compared.schemas))]
        return Score(float(not faults), faults[0] if faults else "the calls are the expected ones")

    def _is_first_right(self, compared: ComparedCalls) -> bool:
        return _is_first_tool(compared) and _fits_first(compared)

    def _score_conversation(self, made: ConversationFigures) -> float:
        return float(made.is_valid)


class ResponseScorer(_RateScorer):
    """How alike the words of the answer and of the expected one are: the words of both over the words of either. It
    says nothing if no text is expected. By DeepFabric's definition it is 0; for a recorded conversation it is the
    share of the expected tools that were called."""

    async def score(self, subject: Subject) -> Score | None:
        if self._is_legacy:
            made = ConversationFigures.of(subject)
            return Score(0.0 if made is None else made.coverage, "by DeepFabric's definition")
        expected = find_expectation(subject).answer
        if not isinstance(expected, str):
            return None
        right, said = set(expected.lower().split()), set(subject.run.output.lower().split())
        value = len(right & said) / len(right | said) if right | said else 1.0
        return Score(value, f"{len(right & said)} of {len(right | said)} words are in both answers")


def _write(names: Counter[str]) -> str:
    return (
        ", ".join([f"{name!r}" + (f" {count} times" if count > 1 else "") for name, count in names.items()])
        or "no tool"
    )


def _is_first_tool(compared: ComparedCalls) -> bool:
    return (
        bool(compared.expected and compared.made) and compared.expected[0].name == compared.made[0].call.name
    )


def _fits_first(compared: ComparedCalls) -> bool:
    """Return whether DeepFabric takes the arguments of the first call for right."""
    if not (compared.expected and compared.made):
        return False
    wanted, call = compared.expected[0], compared.made[0]
    arguments, schema = call.arguments, compared.schemas.get(call.call.name)
    if not isinstance(arguments, dict):
        return False
    if not wanted.arguments and not arguments:
        return True
    return _is_like(wanted, arguments) if schema is None else _has_types(arguments, schema)


def _has_types(arguments: dict[str, Json], schema: Mapping[str, Any]) -> bool:
    properties = {key: item for key, item in (schema.get("properties") or {}).items() if item is not None}
    if any(key in properties and key not in arguments for key in schema.get("required") or ()):
        return False
    for key, item in properties.items():
        kind = item.get("type", "string")
        types = _TYPES.get(kind if isinstance(kind, str) else "", (str,))
        value = arguments.get(key)
        is_flag = isinstance(value, bool)
        if key in arguments and (not isinstance(value, types) or (is_flag and bool not in types)):
            return False
    return True


def _is_like(wanted: ExpectedCall, arguments: dict[str, Json]) -> bool:
    if wanted.arguments.keys() != arguments.keys():
        return False
    for key, right in wanted.arguments.items():
        made = arguments[key]
        if isinstance(right, str) and isinstance(made, str):
            is_same = right.lower().strip() == made.lower().strip()
        elif isinstance(right, int | float) and isinstance(made, int | float):
            is_same = abs(float(right) - float(made)) <= _TOLERANCE
        else:
            is_same = right == made
        if not is_same:
            return False
    return True
