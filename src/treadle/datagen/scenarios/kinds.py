"""Kinds of tool use: which kind each sample of the plan aims at, and which kinds a transcript shows."""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from treadle.core.texts.documents import read_data
from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.quality.exchanges import leaves_of
from treadle.datagen.quality.languages import pattern
from treadle.datagen.scenarios.scenario import Difficulty, Kind
from treadle.routing.judging.inabilities import is_refusal
from treadle.tasks.draws import fraction, pick_weighted

WEIGHTS, MIN_CALLS, MIN_STEPS = [
    {Kind(name): number for name, number in read_data(__package__, "kinds")[table].items()}
    for table in ("weights", "min_calls", "min_steps")
]
TASK_KINDS = frozenset((Kind.CHAINED, Kind.PARALLEL, Kind.RECOVERY))
"""The kinds for which the writer of scenarios may ask for the task of an environment, so that its check applies."""

_KIND_RATIO = 0.6180339887498949
_DIFFICULTY_RATIO = 0.41421356237309515
"""The multiples of such a number, modulo 1, are evenly spread in every prefix. Kinds and difficulties have
different numbers, so that they do not depend on each other."""


def possible_kinds(
    weights: Mapping[Kind, float],
    *,
    has_tools: bool,
    max_calls: int | None = None,
    max_steps: int | None = None,
) -> dict[Kind, float]:
    """Return the kinds that can occur, with their weights; `weights` may be empty for the built-in mix.

    Without tools no kind can occur. Kinds that need two calls, or two steps with calls and an answer, are left out
    if the limits are lower.
    """
    if not has_tools:
        return {}
    found = {kind: weight for kind, weight in (weights or WEIGHTS).items() if weight > 0}
    if max_calls == 1:
        found = {kind: weight for kind, weight in found.items() if MIN_CALLS.get(kind, 0) < 2}
    if max_steps is not None and max_steps < 3:
        found = {kind: weight for kind, weight in found.items() if MIN_STEPS.get(kind, 0) < 3}
    return found


def plan_kind(
    number: int, weights: Mapping[Kind, float], *, seed: int = 0, kept: Mapping[Kind, int] | None = None
) -> Kind | None:
    """Return the kind that sample `number` aims at; `None` if no kind is possible.

    `weights` has the possible kinds. For any n, the kinds of the first n samples are nearly in proportion to the
    weights. If `kept`, the number of kept rows by kind, is given, the kind is one of those that are missing.
    Samples that are made at the same time then get different missing kinds.
    """
    if not weights:
        return None
    if kept is not None:
        share = (sum(kept.values()) + 1) / sum(weights.values())
        missing = {kind: weight * share - kept.get(kind, 0) for kind, weight in weights.items()}
        weights = {kind: count for kind, count in missing.items() if count > 0}
    return pick_weighted(weights, (fraction(seed, "kind") + number * _KIND_RATIO) % 1.0)


def plan_difficulty(number: int, weights: Mapping[Difficulty, float], *, seed: int = 0) -> Difficulty:
    """Return the difficulty of sample `number`. Without weights, all difficulties are equally frequent."""
    chosen = {item: weight for item, weight in weights.items() if weight > 0} or dict.fromkeys(Difficulty, 1)
    return pick_weighted(chosen, (fraction(seed, "difficulty") + number * _DIFFICULTY_RATIO) % 1.0)


class _Step(Struct):
    """One assistant message with calls, and the results by call id."""

    calls: tuple[ToolCall, ...]
    results: dict[str, Message]

    def is_failed(self, call: ToolCall) -> bool:
        result = self.results.get(call.call_id)
        return result is None or result.is_error

    @property
    def has_success(self) -> bool:
        return any(not self.is_failed(call) for call in self.calls)


class _Turn(Struct):
    """The steps of one turn, and the text of its answer."""

    steps: list[_Step]
    answer: str = ""

    @property
    def has_success(self) -> bool:
        return any(step.has_success for step in self.steps)


def kinds_of(messages: Sequence[Message]) -> tuple[Kind, ...]:
    """Return the kinds of tool use that a transcript shows, in the order of `Kind`.

    - `single`: exactly one call.
    - `chained`: a call was made after a successful result of its turn, or one of its arguments contains a value
      from an earlier result.
    - `parallel`: a step with at least two calls.
    - `recovery`: a call failed, and a later one succeeded that has the same tool or the same value, or that led to
      the answer of the turn.
    - `missing_parameter`: an answer asks the user something (after calls, in its last sentence), and the
      conversation ends there or the next turn has calls.
    - `refusal`: the agent says in a turn without a successful call that it cannot or will not help.
    - `no_tool`: there are no calls, and the agent neither asks nor refuses.
    """
    turns = list(_turns(messages))
    steps = [step for turn in turns for step in turn.steps]
    count = sum(len(step.calls) for step in steps)
    found = set()
    if count == 1:
        found.add(Kind.SINGLE)
    has_step_after = any(step.has_success for turn in turns for step in turn.steps[:-1])
    if has_step_after or _passes_value(steps):
        found.add(Kind.CHAINED)
    if any(len(step.calls) > 1 for step in steps):
        found.add(Kind.PARALLEL)
    if _is_recovery(steps) or any(_is_recovered(turn) for turn in turns):
        found.add(Kind.RECOVERY)
    for index, turn in enumerate(turns):
        following = turns[index + 1] if index + 1 < len(turns) else None
        is_asking = is_question(turn.answer, at_end=bool(turn.steps))
        if is_asking and (following is None or following.steps):
            found.add(Kind.MISSING_PARAMETER)
        elif not turn.has_success and is_refusal(turn.answer):
            found.add(Kind.REFUSAL)
    if not count and turns and not found:
        found.add(Kind.NO_TOOL)
    return tuple(kind for kind in Kind if kind in found)


_COURTESY = pattern("questions", "courtesy")
_SENTENCE = re.compile(r"(?<![^.!?\uff1f\u061f\n])[^.!?\uff1f\u061f\n]*+[?\uff1f\u061f]")


def is_question(text: str, *, at_end: bool = False) -> bool:
    """Return whether an answer asks the user for something; with `at_end`, whether its last sentence does.

    Offers of further help are not questions.
    """
    found = [match for match in _SENTENCE.finditer(text) if _COURTESY.search(match[0]) is None]
    return bool(found) and (not at_end or found[-1].end() == len(text.rstrip()))


def _turns(messages: Sequence[Message]) -> Iterator[_Turn]:
    """Yield the turns of a transcript. Messages that Treadle injected within a turn do not begin another one."""
    turn: _Turn | None = None
    for message in messages:
        if message.role is Role.USER:
            if turn is not None and (turn.answer or turn.steps):
                yield turn
                turn = None
            turn = turn or _Turn([])
        elif turn is None:
            continue
        elif message.role is Role.ASSISTANT and message.tool_calls:
            turn.steps.append(_Step(message.tool_calls, {}))
        elif message.role is Role.ASSISTANT:
            turn.answer = message.content
        elif message.role is Role.TOOL and turn.steps and message.call_id is not None:
            turn.steps[-1].results[message.call_id] = message
    if turn is not None:
        yield turn


_MIN_VALUE_CHARS = 4


def _passes_value(steps: Sequence[_Step]) -> bool:
    """Return whether an argument is a value that occurs in an earlier result and not in an earlier argument."""
    seen: list[str] = []
    known: set[str] = set()
    for step in steps:
        values = {value for call in step.calls for value in _values(call)}
        if any(value in text for value in values - known for text in seen):
            return True
        known |= values
        seen += [result.content for result in step.results.values() if not result.is_error]
    return False


def _is_recovery(steps: Sequence[_Step]) -> bool:
    failed: list[ToolCall] = []
    for step in steps:
        for call in step.calls:
            if not step.is_failed(call) and any(
                call.name == other.name or not _values(call).isdisjoint(_values(other)) for other in failed
            ):
                return True
        failed += [call for call in step.calls if step.is_failed(call)]
    return False


def _is_recovered(turn: _Turn) -> bool:
    """Return whether a turn with a failed call reached its answer in another way."""
    failures = [index for index, step in enumerate(turn.steps) if any(map(step.is_failed, step.calls))]
    if not failures or not any(step.has_success for step in turn.steps[failures[0] + 1 :]):
        return False
    return bool(turn.answer) and not is_refusal(turn.answer) and not is_question(turn.answer, at_end=True)


def _values(call: ToolCall) -> set[str]:
    """Return the texts and numbers in the arguments of a call that are too long to be equal by chance."""
    leaves = leaves_of(call.parsed_or([]))
    values = {str(value) for value in leaves if value is not None and not isinstance(value, bool)}
    return {value for value in values if len(value) >= _MIN_VALUE_CHARS}
