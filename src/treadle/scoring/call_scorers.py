"""Scorers of the calls that a run made: by value, as a trajectory, against schemas and rules.

They compare with what is expected of the run (`expectations`). Each says nothing (`None`) about a run that it does
not fit.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.events import InferenceCompleted, QuestionAsked
from treadle.core.types import Effect, Json
from treadle.scoring.call_matching import ExpectedCall, MatchRules, count_in_order, find_call_fault, pair_up
from treadle.scoring.expectations import (
    CallMade,
    Expectation,
    NamedTools,
    find_expectation,
    find_made_calls,
    schemas_of,
)
from treadle.scoring.protocol import Score, Subject
from treadle.scoring.reference_runs import find_reference
from treadle.tools.schema.validation import ArgumentChecker


class ComparedCalls(Struct, frozen=True):
    """The expected calls of a run, and those that it made."""

    expected: list[ExpectedCall]
    made: list[CallMade]
    """The calls without those that are allowed and not expected."""
    schemas: Mapping[str, Mapping[str, Json]]
    """The schemas of the parameters of the run's tools, by name."""
    rules: MatchRules = MatchRules()

    @classmethod
    def of(
        cls, subject: Subject, rules: MatchRules = MatchRules(), expected: list[ExpectedCall] | None = None
    ) -> "ComparedCalls | None":
        """Return the calls of a run with those that are expected of it, by default as its task or label says;
        `None` if nothing is known."""
        expectation = find_expectation(subject) if expected is None else Expectation(calls=expected)
        return cls.make(expectation, find_made_calls(subject.bodies), schemas_of(subject), rules)

    @classmethod
    def make(
        cls,
        expectation: Expectation,
        made: list[CallMade],
        schemas: Mapping[str, Mapping[str, Json]],
        rules: MatchRules = MatchRules(),
    ) -> "ComparedCalls | None":
        """Return calls with those that are expected; `None` if nothing is known."""
        if expectation.calls is None:
            return None
        found = cls(expectation.calls, list(made), schemas, rules)
        for allowed in expectation.allowed:
            for call in [item for item in found.made if found.is_same(allowed, item)]:
                rest = replace(found, made=[item for item in found.made if item is not call])
                # A call that is expected too stays where its place in the order counts.
                if rest._count_matches() == found._count_matches():
                    found = rest
                    break
        return found

    def _count_matches(self) -> tuple[int, int]:
        return (
            len(pair_up(self.expected, self.made, self.is_same)),
            count_in_order(self.expected, self.made, self.is_same),
        )

    def find_fault(self, wanted: ExpectedCall, call: CallMade) -> str | None:
        """Return how a call differs from an expected one; `None` if it is the same."""
        schema = self.schemas.get(wanted.name)
        return find_call_fault(wanted, call.call.name, call.arguments, schema, self.rules)

    def is_same(self, wanted: ExpectedCall, call: CallMade) -> bool:
        """Return whether a call is an expected one."""
        return self.find_fault(wanted, call) is None

    def explain(self, pairs: Mapping[int, int]) -> str:
        """Return the first difference between expected calls without a partner in `pairs` and made ones."""
        missing = [wanted for place, wanted in enumerate(self.expected) if place not in pairs]
        extra = [call for place, call in enumerate(self.made) if place not in pairs.values()]
        for wanted in missing:
            for call in extra:
                if call.call.name == wanted.name:
                    return str(self.find_fault(wanted, call))
        if missing and extra:
            return str(self.find_fault(missing[0], extra[0]))
        if missing:
            return f"{missing[0].name!r} was not called"
        if extra:
            return f"{extra[0].call.name!r} was called, which was not expected"
        return "the calls have another order"


class CallsScorer:
    """1 if the run made exactly the expected calls, by value, and else 0; with `partial`, their F1 value.

    If no call is expected, it is 1 for a run that made none.
    """

    def __init__(
        self,
        name: str = "calls",
        *,
        partial: bool = False,
        ordered: bool = False,
        ignore_case: bool = False,
        ignore_order: bool = False,
        ignore_marks: bool = False,
        literal: bool = False,
    ) -> None:
        """Make a scorer. With `ordered`, the calls must come in the expected order; `ignore_case`, `ignore_marks`
        and `ignore_order` are about texts and lists in their arguments. With `literal`, types count too."""
        self.name = name
        self._is_partial = partial
        self._is_ordered = ordered
        self._rules = MatchRules(
            ignores_case=ignore_case,
            ignores_order=ignore_order,
            ignores_marks=ignore_marks,
            is_literal=literal,
        )

    async def score(self, subject: Subject) -> Score | None:
        compared = ComparedCalls.of(subject, self._rules)
        if compared is None:
            return None
        return score_calls(compared, is_partial=self._is_partial, is_ordered=self._is_ordered)


def score_calls(compared: ComparedCalls, *, is_partial: bool = False, is_ordered: bool = False) -> Score:
    """Return the score of calls: 1 if they are the expected ones, by value, and else 0; with `is_partial` their F1
    value. With `is_ordered`, they must come in the expected order."""
    expected, made, is_same = compared.expected, compared.made, compared.is_same
    pairs = pair_up(expected, made, is_same)
    matched = count_in_order(expected, made, is_same) if is_ordered else len(pairs)
    precision = matched / len(made) if made else float(not expected)
    recall = matched / len(expected) if expected else float(not made)
    names = pair_up(expected, made, lambda wanted, call: wanted.name == call.call.name)
    metrics = {
        "precision": precision,
        "recall": recall,
        "names": len(names) / max(len(expected), len(made)) if expected or made else 1.0,
    }
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    detail = "the calls are the expected ones" if f1 == 1 else compared.explain(pairs)
    return Score(f1 if is_partial else float(f1 == 1), detail, metrics)


_MODES = ("exact", "in_order", "any_order", "subset")


class TrajectoryScorer:
    """How far the calls of the whole run follow the expected ones, or those of a reference.

    `mode`: `exact` (1 if they are the same in the same order), `in_order` (the share of the expected calls that
    come in their order, with others between them), `any_order` (the share that come at all), `subset` (the
    share of the run's calls that are expected).
    """

    def __init__(
        self, name: str = "trajectory", *, mode: str = "in_order", reference: str = "oracle"
    ) -> None:
        """Make a scorer. `reference` is the model whose run is followed if nothing is expected of the task."""
        if mode not in _MODES:
            raise ConfigError(f"mode of the reward {name!r} is {mode!r}; give one of {', '.join(_MODES)}")
        self.name = name
        self._mode = mode
        self._reference = reference

    async def score(self, subject: Subject) -> Score | None:
        compared = ComparedCalls.of(subject)
        if compared is None:
            reference = await find_reference(self._reference, subject)
            compared = None if reference is None else ComparedCalls.of(subject, expected=reference.calls)
        if compared is None:
            return None
        expected, made, is_same = compared.expected, compared.made, compared.is_same
        if self._mode in ("exact", "in_order"):
            count = count_in_order(expected, made, is_same)
        else:
            count = len(pair_up(expected, made, is_same))
        whole = len(made) if self._mode == "subset" else len(expected)
        value = count / whole if whole else 1.0
        if self._mode == "exact":
            value = float(count == len(expected) == len(made))
        metrics = {"followed": float(count), "expected": float(len(expected)), "made": float(len(made))}
        return Score(value, f"{count} of {len(expected)} expected calls, among {len(made)}", metrics)


class ArgumentsScorer:
    """The share of the run's calls whose arguments fit the schema of their tool. It says nothing about runs without
    calls."""

    def __init__(self, name: str = "arguments") -> None:
        self.name = name

    async def score(self, subject: Subject) -> Score | None:
        made, schemas = find_made_calls(subject.bodies), schemas_of(subject)
        if not made:
            return None
        faults = [find_schema_fault(call, schemas) for call in made]
        wrong = [fault for fault in faults if fault is not None]
        detail = wrong[0] if wrong else "the arguments of all calls fit their schemas"
        return Score(1 - len(wrong) / len(made), detail)


def find_schema_fault(call: CallMade, schemas: Mapping[str, Mapping[str, Json]]) -> str | None:
    """Return how the arguments of a call do not fit the schema of its tool; `None` if they fit."""
    schema = schemas.get(call.call.name)
    if schema is None:
        return f"there is no tool {call.call.name!r}"
    fault = ArgumentChecker(dict(schema)).find_fault(call.arguments)
    return None if fault is None else f"{call.call.name!r}: {fault.replace(chr(10), ' ')}"


class ParallelScorer:
    """The share of the expected calls that the run made in one step. It says nothing if fewer than two are
    expected."""

    def __init__(self, name: str = "parallel") -> None:
        self.name = name

    async def score(self, subject: Subject) -> Score | None:
        compared = ComparedCalls.of(subject)
        if compared is None or len(compared.expected) < 2:
            return None
        expected, steps = compared.expected, dict[int, list[CallMade]]()
        for call in compared.made:
            steps.setdefault(call.step, []).append(call)
        most = max([len(pair_up(expected, calls, compared.is_same)) for calls in steps.values()], default=0)
        return Score(most / len(expected), f"{most} of {len(expected)} expected calls were made in one step")


class AbstainScorer:
    """1 if the run made no call where no tool fits, and else 0. It says nothing if calls are expected, or
    nothing is known."""

    def __init__(self, name: str = "abstain") -> None:
        self.name = name

    async def score(self, subject: Subject) -> Score | None:
        expectation = find_expectation(subject)
        if expectation.calls != [] or expectation.allowed:
            return None
        made = find_made_calls(subject.bodies)
        detail = f"{made[0].call.name!r} was called, although no tool fits" if made else "no tool was called"
        return Score(float(not made), detail)


class AskingScorer:
    """1 if the run asked the user for what is missing before it called a tool that is not pure, or asked nothing
    where nothing is missing. A final answer with a question mark and no call before it counts as a question.

    The metric `named` is the share of the missing things whose names are in the question.
    """

    def __init__(self, name: str = "asks_when_missing") -> None:
        self.name = name

    async def score(self, subject: Subject) -> Score | None:
        missing = find_expectation(subject).missing
        if missing is None:
            return None
        asked = [body for body in subject.bodies if isinstance(body, QuestionAsked)]
        texts = [body.text for body in asked]
        made = find_made_calls(subject.bodies)
        if not asked and not made and "?" in subject.run.output:
            texts = [subject.run.output]
        if not missing:
            return Score(float(not texts), f"it asked {texts[0]!r:.100}" if texts else "nothing was asked")
        if not texts:
            return Score(0.0, f"it did not ask for {missing[0]!r}", {"named": 0.0})
        text = " ".join(texts).casefold()
        named = fmean([item.casefold().replace("_", " ") in text for item in missing])
        if asked and (acted := self._find_acted(subject, made, asked[0])) is not None:
            return Score(
                0.0, f"{acted!r} was called before the answer to {texts[0]!r:.100}", {"named": named}
            )
        return Score(1.0, f"it asked {texts[0]!r:.100}", {"named": named})

    @staticmethod
    def _find_acted(subject: Subject, made: Sequence[CallMade], first: QuestionAsked) -> str | None:
        """Return the tool with an effect that was called before the answer to the first question; `None` if none
        was. Calls of one step do not wait for each other."""
        place = next(place for place, body in enumerate(subject.bodies) if body is first)
        step = sum([isinstance(body, InferenceCompleted) for body in subject.bodies[:place]])
        acting = {spec.name for spec in subject.tools if spec.effect is not Effect.PURE}
        asking = {body.call_id for body in subject.bodies if isinstance(body, QuestionAsked)}
        return next(
            (
                call.call.name
                for call in made
                if call.step <= step
                and call.call.name in acting
                and call.call.call_id not in asking
                and not (call.result is not None and call.result.is_models_fault)
            ),
            None,
        )


class RecoveryScorer:
    """The share of the failed calls after which a call of the same tool succeeded in a later step. It says nothing
    about runs without failed calls."""

    def __init__(self, name: str = "recovers") -> None:
        self.name = name

    async def score(self, subject: Subject) -> Score | None:
        made = [call for call in find_made_calls(subject.bodies) if call.result is not None]
        failed = [place for place, call in enumerate(made) if call.result and call.result.is_error]
        if not failed:
            return None
        lost = [
            made[place].call.name
            for place in failed
            if not any(
                later.call.name == made[place].call.name
                and later.step > made[place].step
                and later.result
                and not later.result.is_error
                for later in made[place + 1 :]
            )
        ]
        detail = f"{lost[0]!r} failed and never succeeded" if lost else "after each failure, a call succeeded"
        return Score(1 - len(lost) / len(failed), detail, {"failures": float(len(failed))})


class PolicyScorer:
    """1 if the run kept rules about its calls, and else 0.

    `never` are tools that must not be called, by name or pattern such as `delete_*`. `first` says which tool must
    have succeeded in an earlier step before another is called. `at_most` says how often a tool may be called.
    """

    def __init__(
        self,
        name: str = "policy",
        *,
        never: Sequence[str] = (),
        first: Mapping[str, str] | None = None,
        at_most: Mapping[str, int] | None = None,
    ) -> None:
        if isinstance(never, str) or not (never or first or at_most):
            raise ConfigError(
                f"the reward {name!r} has no rule; give 'never' (a list of names), 'first' or 'at_most'"
            )
        if wrong := [tool for tool, most in (at_most or {}).items() if most < 0]:
            raise ConfigError(
                f"at_most of the reward {name!r} has {wrong[0]!r}: {(at_most or {})[wrong[0]]}; give 0 or more"
            )
        self.name = name
        self._never = tuple(never)
        self._first = dict(first or {})
        self._at_most = dict(at_most or {})
        self._named = NamedTools(name, [*never, *self._first, *self._first.values(), *self._at_most])

    async def score(self, subject: Subject) -> Score | None:
        self._named.check(subject)
        broken = self._find_broken(find_made_calls(subject.bodies))
        return Score(float(broken is None), broken or "the rules were kept")

    def _find_broken(self, made: list[CallMade]) -> str | None:
        counts: dict[str, int] = {}
        done: dict[str, int] = {}
        for call in made:
            name = call.call.name
            counts[name] = counts.get(name, 0) + 1
            if any(fnmatchcase(name, pattern) for pattern in self._never):
                return f"{name!r} was called, which is forbidden"
            if (before := self._first.get(name)) is not None and done.get(before, call.step) >= call.step:
                return f"{name!r} was called before {before!r} had succeeded"
            if counts[name] > self._at_most.get(name, counts[name]):
                return f"{name!r} was called more than {self._at_most[name]} times"
            if call.result is None or not call.result.is_error:
                done.setdefault(name, call.step)
        return None
