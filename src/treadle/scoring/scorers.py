"""The scorers: the check of the task, the shape of tool use, the length, functions, and a model with a rubric."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from treadle.agent.agent import Agent
from treadle.core.errors import (
    ConfigError,
    LimitReachedError,
    ProviderError,
    RequestError,
    ServerError,
)
from treadle.core.prompts.fence import fence
from treadle.core.turns import is_retriable
from treadle.core.types import Effect, Fault, Json, Message, Role, StopReason, ToolCall, ToolErrorKind
from treadle.journal.protocol import Journal
from treadle.models.protocol import Model, identity_of
from treadle.runs.ensure import ensure_run
from treadle.runs.options import StreamOptions
from treadle.runs.run import Run
from treadle.scoring.expectations import NamedTools, find_made_calls
from treadle.scoring.outcome_scorers import check_run
from treadle.scoring.protocol import Score, Subject
from treadle.tools.threads import THREADS
from treadle.tools.toolset_parts import load_function


class CheckScorer:
    """The verdict of `Task.check` on the final answer and the final files. It says nothing about runs without a
    task."""

    def __init__(self, name: str = "check") -> None:
        self.name = name

    async def score(self, subject: Subject) -> Score | None:
        return None if subject.task is None else await check_run(subject.task, subject.run)


_MALFORMED = frozenset(
    (
        ToolErrorKind.INVALID_JSON,
        ToolErrorKind.TRUNCATED,
        ToolErrorKind.INVALID_ARGUMENTS,
        ToolErrorKind.UNKNOWN_TOOL,
        ToolErrorKind.OVER_LIMIT,
        ToolErrorKind.REFUSED,
    )
)
"""Errors of a call that are the model's mistake. A tool that failed is not."""


class ToolUseScorer:
    """The share of the model's calls that are well-formed and not repeated; 1 if there are no calls.

    A call is repeated if an earlier one has the same name and arguments, and no call in between had an effect. The
    reward is 0 if a tool of `forbidden` was called, or one of `required` was not, and with
    `max_calls` no more than that many calls count as good.
    """

    def __init__(
        self,
        name: str = "tool_use",
        *,
        required: Sequence[str] = (),
        forbidden: Sequence[str] = (),
        max_calls: int | None = None,
    ) -> None:
        if max_calls is not None and max_calls < 1:
            raise ConfigError(f"max_calls of the reward {name!r} is {max_calls!r}; give a number from 1")
        self.name = name
        self._required = frozenset(required)
        self._forbidden = frozenset(forbidden)
        self._max_calls = max_calls
        self._named = NamedTools(name, forbidden)

    async def score(self, subject: Subject) -> Score | None:
        self._named.check(subject)
        made = find_made_calls(subject.bodies)
        calls = [one.call for one in made]
        called = {call.name for call in calls}
        if wrong := sorted(called & self._forbidden):
            return Score(0.0, f"the tool {wrong[0]!r} was called, which is forbidden")
        if missing := sorted(self._required - called):
            return Score(0.0, f"the tool {missing[0]!r} was not called")
        if not calls:
            return Score(1.0, "no tool was called")
        kinds = {one.call.call_id: one.result.error_kind for one in made if one.result is not None}
        effects = {spec.name: spec.effect for spec in subject.tools}
        malformed = [call for call in calls if kinds.get(call.call_id) in _MALFORMED]
        repeated = [call for call in _repeats(calls, effects) if kinds.get(call.call_id) not in _MALFORMED]
        good = len(calls) - len(malformed) - len(repeated)
        counted = len(calls)
        detail = f"{good} of {counted} calls are well-formed and not repeated"
        if self._max_calls is not None and len(calls) > self._max_calls:
            detail += f", and {len(calls) - self._max_calls} are over the limit of {self._max_calls}"
            good, counted = min(good, self._max_calls), len(calls)
        return Score(good / counted, detail)


def _repeats(calls: Iterable[ToolCall], effects: dict[str, Effect]) -> list[ToolCall]:
    seen: set[tuple[str, str]] = set()
    found = []
    for call in calls:
        key = call.name, call.arguments
        if key in seen:
            found.append(call)
        if effects.get(call.name, Effect.ONCE) is not Effect.PURE:
            # What was read before may have changed.
            seen.clear()
        seen.add(key)
    return found


class LengthScorer:
    """A reward of 1 up to `max_tokens` output tokens, falling evenly to 0 at `zero_tokens`.

    Source: the soft penalty for overlong answers of DAPO (arXiv 2503.14476, section 3.4), shifted to 0..1.
    """

    def __init__(self, name: str = "length", *, max_tokens: int, zero_tokens: int | None = None) -> None:
        """Make a scorer. `zero_tokens` is twice `max_tokens` unless it is given. Raises: `ConfigError`."""
        zero_tokens = 2 * max_tokens if zero_tokens is None else zero_tokens
        if not 0 < max_tokens < zero_tokens:
            raise ConfigError(
                f"the reward {name!r} has max_tokens {max_tokens!r} and zero_tokens {zero_tokens!r}; give positive "
                "numbers, the second one larger"
            )
        self.name = name
        self._max_tokens = max_tokens
        self._zero_tokens = zero_tokens

    async def score(self, subject: Subject) -> Score | None:
        tokens = subject.run.usage.output_tokens
        over = (tokens - self._max_tokens) / (self._zero_tokens - self._max_tokens)
        return Score(min(1.0, max(0.0, 1.0 - over)), f"{tokens:,} output tokens")


class FunctionScorer:
    """The number that a function returns for a `Subject`: a float, a bool, a `Score`, or `None`. A coroutine
    function is awaited; any other function is called in a thread."""

    def __init__(self, name: str, *, function: str | Callable[[Subject], Any]) -> None:
        """Make a scorer. `function` is a function, `package.module:function` or `file.py:function`.

        Raises: `ConfigError` if it cannot be loaded.
        """
        self.name = name
        self._function = load_function(function, "a Subject")

    async def score(self, subject: Subject) -> Score | None:
        found: Any = await THREADS.run(partial(self._function, subject), {})
        if found is None or isinstance(found, Score):
            return found
        if not isinstance(found, int | float) or not math.isfinite(found):
            raise ConfigError(
                f"the function of the reward {self.name!r} returned {found!r}; return a number, "
                "a Score or None"
            )
        return Score(float(found))


_INSTRUCTIONS = (
    "You grade one conversation between a user and an agent that uses tools. Judge it only by the rubric. Give a "
    "score from 0, useless, to 1, perfect, and the reason in one sentence."
)
T = TypeVar("T")
_MAX_CHARS = 4000
"""How much of each message the judge reads."""


JUDGE_LABELS: Mapping[str, str] = {"role": "judge"}
"""The labels of the runs of judges."""


class RubricJudgement(BaseModel):
    """A judge's answer."""

    model_config = ConfigDict(title="Judgement")

    score: Annotated[float, Field(ge=0, le=1)]
    reason: str


def make_judge(model: Model, journal: Journal) -> Agent[RubricJudgement]:
    """Return the agent that grades conversations."""
    return Agent(model, instructions=_INSTRUCTIONS, schema=RubricJudgement, journal=journal)


def check_judgement(run: Run[T]) -> T:
    """Return the value of a judge's run.

    Raises: `ServerError` if the run has no judgement; `RequestError` if it will never have one, because the prompt
    is too long for the judge, for example; `LimitReachedError` if a limit of the job is the reason; `ConfigError`
    if no request to the judge can succeed.
    """
    is_overflow = run.stop_reason is StopReason.CONTEXT_OVERFLOW
    if run.fault is Fault.USER and not is_overflow:
        raise ConfigError(f"the judge of run {run.run_id!r} cannot be asked: {run.error}")
    if run.error is not None or run.stop_reason != "completed":
        may_pass = is_retriable(run.stop_reason, run.fault) and not is_overflow
        kind: type[ProviderError] = ServerError if may_pass else RequestError
        if run.error_type == LimitReachedError.__name__:
            kind = LimitReachedError
        raise kind(f"the judge gave no judgement in run {run.run_id!r}: {run.error or run.stop_reason}")
    return run.value


def write_messages(messages: Iterable[Message]) -> list[dict[str, Json]]:
    """Return a conversation as a judge reads it: without system messages, and with long messages shortened."""
    return [_write_message(message) for message in messages if message.role is not Role.SYSTEM]


class JudgeScorer:
    """The score that a model gives by a rubric.

    The judgement is a run in the same journal. It is asked for once for the same run, model and rubric, so that
    grading again costs nothing.
    """

    def __init__(self, name: str = "judge", *, model: str | Model, rubric: str) -> None:
        """Make a scorer. `model` is a model or its name. Raises: `ConfigError`."""
        if not isinstance(rubric, str) or not rubric.strip():
            raise ConfigError(f"the rubric of the reward {name!r} is {rubric!r}; write what a good run does")
        self.name = name
        if isinstance(model, str):
            from treadle.models.config.recipe import make_model

            model = make_model(model)
        if not hasattr(model, "infer"):
            raise ConfigError(
                f"the model of the reward {name!r} is {model!r:.100}; give its name, such as 'openai:gpt-5-mini', "
                "or that of a model in treadle.toml, which may have settings such as base_url"
            )
        self.model = model
        """The model that is asked."""
        self._rubric = rubric
        self._key = hashlib.sha256(f"{identity_of(model)}\n{rubric}".encode()).hexdigest()[:8]

    async def score(self, subject: Subject) -> Score | None:
        """See `Scorer.score`. Raises: as `check_judgement` does."""
        run = subject.run
        run_id = f"{run.run_id}-{self.name}-{self._key}"
        options: StreamOptions = {"metadata": {**JUDGE_LABELS, "run": run.run_id}}
        judge = make_judge(self.model, subject.journal)
        found = check_judgement(await ensure_run(judge, run_id, self._write(subject), options=options))
        return Score(found.score, found.reason)

    def _write(self, subject: Subject) -> str:
        said = msgspec.json.encode(write_messages(subject.messages)).decode()
        return f"The rubric:\n{self._rubric}\n\nThe conversation:\n{fence('conversation', said)}"


def _write_message(message: Message) -> dict[str, Json]:
    written: dict[str, Any] = {"role": message.role.value, "content": message.content[:_MAX_CHARS]}
    if message.tool_calls:
        written["calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return written
