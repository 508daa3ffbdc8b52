"""The oracle: a model that solves tasks by acting on what it observes, and that can make mistakes on purpose.

It keeps no state between requests. For each request it replays the task's solver over the tool results in the
transcript, so it can continue after a crash, in another process, or over HTTP. Every choice depends only on
the transcript.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import msgspec

from treadle.agent.task import Task
from treadle.core.errors import ConfigError, RequestError
from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.spec import PartSpec
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall, Usage
from treadle.models.protocol import Model, Watch
from treadle.tasks.draw import fraction, pick
from treadle.tasks.solver import Call, Pursuit, Solvable, Solver
from treadle.teacher.mistakes import spoil

REASONING_RATE = 0.6
"""The share of steps whose reasoning is part of the message."""

_CHUNK_CHARS = 24
_RECOVERIES = (
    "That did not work ({error}). I will make the call again, correctly this time.",
    "The tool says: {error} That was my slip; once more.",
    "My last call failed ({error}), so I have to repeat it with the right arguments.",
)
_LOOKS = (
    "I do not know whether that took effect, so I look before I do it again.",
    "The outcome is open. I check what is there now.",
)


def oracle_for(task: Task, *, mistake_rate: float = 0.0) -> Model | None:
    """Return a model that solves `task`, or `None` if the task is not `Solvable`.

    `mistake_rate` is the probability, at each step, of a mistake that the model then recovers from.
    Raises: `ConfigError` if `mistake_rate` is not between 0 and 1.
    """
    if not isinstance(task, Solvable):
        return None
    return OracleModel(task.find_solver, mistake_rate=mistake_rate)


class OracleModel:
    """A model that solves the tasks for whose prompts `find_solver` returns a solver."""

    def __init__(
        self,
        find_solver: Callable[[str], Solver | None],
        *,
        mistake_rate: float = 0.0,
        name: str | None = None,
    ) -> None:
        if not 0.0 <= mistake_rate <= 1.0:
            raise ConfigError(f"mistake_rate is {mistake_rate!r}; give a number from 0 to 1")
        self.name = name or ("oracle" if mistake_rate == 0 else f"oracle:{mistake_rate:g}")
        self.part = PartSpec(name=self.name, missing=None if name is None else "it has a name of the program")
        """The description for the agent spec."""
        self._find_solver = find_solver
        self._mistake_rate = mistake_rate

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the next step of the task in the last user message that is a known prompt."""
        completion = self.complete(list(request.messages), has_tools=bool(request.tools))
        if watch.on_delta is not None:
            for delta in stream(completion.message):
                watch.on_delta(delta)
        return completion

    def complete(
        self, messages: Sequence[Message], *, has_tools: bool, max_calls: int | None = None
    ) -> Completion:
        """Return the message that follows `messages`, with at most `max_calls` tool calls.

        Raises: `RequestError` if no user message is a known prompt.
        """
        prompt, start, solver = self._find_task(messages)
        position = sum([message.role is Role.ASSISTANT for message in messages])
        key = f"{prompt}/{position}"
        plan = _replay(solver, _rounds(messages[start:]))
        if isinstance(plan, str):
            message = Message(Role.ASSISTANT, plan)
        elif not has_tools:
            message = Message(Role.ASSISTANT, plan.step.draft or _excuse(messages[start:]))
        else:
            message = self._next_message(plan.wanted()[:max_calls], plan, key)
        reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
        usage = Usage(
            sum(map(count_chars, messages)) // 4 + 1,
            count_chars(message) // 4 + 1,
            reasoning_tokens=len(message.reasoning or "") // 4,
        )
        response_id = f"oracle-{digest(key)}"
        return Completion(message, reason, usage, 0.0, self.name, response_id)

    def _find_task(self, messages: Sequence[Message]) -> tuple[str, int, Solver]:
        for index in range(len(messages) - 1, -1, -1):
            if messages[index].role is Role.USER:
                solver = self._find_solver(messages[index].content)
                if solver is not None:
                    return digest(messages[index].content.strip()), index + 1, solver
        raise RequestError(
            "none of the user messages is the input of a task that the oracle knows; "
            "send the input of a task of its set, word for word",
            status=400,
        )

    def _next_message(self, wanted: Sequence[Call], plan: Pursuit, key: str) -> Message:
        calls = []
        slip = -1
        if plan.rounds == 0 and fraction(key, "mistake") < self._mistake_rate:
            slip = int(fraction(key, "slip") * len(wanted))
        for index, call in enumerate(wanted):
            if index == slip:
                name, arguments = spoil(call, key)
            else:
                name, arguments = call.name, msgspec.json.encode(call.arguments).decode()
            calls.append(ToolCall(f"call_{digest(f'{key}/{index}')}", name, arguments))
        reasoning = None
        if fraction(key, "reasoning") < REASONING_RATE:
            reasoning = _reason(plan, key) or None
        return Message(Role.ASSISTANT, tool_calls=tuple(calls), reasoning=reasoning)


def _replay(solver: Solver, rounds: Iterator[tuple[Message, dict[str, Message]]]) -> Pursuit | str:
    """Return the step that the transcript has reached, or the final answer."""
    try:
        step = next(solver)
        while True:
            pursuit = Pursuit(step)
            while not pursuit.is_over:
                seen = next(rounds, None)
                if seen is None:
                    return pursuit
                pursuit.observe(*seen)
            results = pursuit.results
            if results is None:
                return f"I could not finish this: {pursuit.error or 'my calls were not made'}"
            step = solver.send(results)
    except StopIteration as end:
        return str(end.value)
    except (ValueError, LookupError, ArithmeticError) as error:
        # The files may differ from what the task says. That is not an error of the server.
        return f"I could not make sense of what I read ({error!r}), so I have no answer."
    finally:
        solver.close()


def _rounds(messages: Sequence[Message]) -> Iterator[tuple[Message, dict[str, Message]]]:
    """Yield each assistant message with tool calls, and the tool messages that answer it, by call id."""
    current: Message | None = None
    results: dict[str, Message] = {}
    for message in messages:
        if message.role is Role.TOOL:
            if message.call_id is not None:
                results[message.call_id] = message
        elif message.role is Role.ASSISTANT:
            if current is not None:
                yield current, results
            current, results = (message if message.tool_calls else None), {}
    if current is not None:
        yield current, results


def _reason(plan: Pursuit, key: str) -> str:
    if plan.is_looking:
        return pick(_LOOKS, key)
    if plan.error is not None:
        first_line = plan.error.strip().partition("\n")[0][:160]
        return pick(_RECOVERIES, key).format(error=first_line.rstrip(".") + ".")
    return plan.step.reasoning


def _excuse(messages: Sequence[Message]) -> str:
    count = sum([message.role is Role.TOOL for message in messages])
    return f"I had to stop before I was done: after {count} tool results I have no answer yet."


def stream(message: Message) -> Iterator[TextDelta | ReasoningDelta | ToolCallDelta]:
    """Yield the message in pieces, as a server streams it."""
    for text in _chunks(message.reasoning or ""):
        yield ReasoningDelta(text)
    for text in _chunks(message.content):
        yield TextDelta(text)
    for index, call in enumerate(message.tool_calls):
        yield ToolCallDelta(index, call.call_id, call.name, "")
        for text in _chunks(call.arguments):
            yield ToolCallDelta(index, None, None, text)


def _chunks(text: str) -> Iterator[str]:
    for start in range(0, len(text), _CHUNK_CHARS):
        yield text[start : start + _CHUNK_CHARS]


def count_chars(message: Message) -> int:
    """Return the size of `message`, for estimates of its tokens."""
    count = len(message.content) + len(message.reasoning or "") + 12
    for call in message.tool_calls:
        count += len(call.name) + len(call.arguments) + 16
    return count


def digest(text: str) -> str:
    """Return 12 hexadecimal digits that depend only on `text`."""
    return blake2b(text.encode(), digest_size=6).hexdigest()
