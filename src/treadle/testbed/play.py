"""The play of a solver: the next message of a transcript in which a solver makes its steps, with mistakes on
purpose. Nothing is kept between requests. For each request the solver runs again over the tool results in the
transcript, so the work can continue after a crash, in another process, or over HTTP. Every choice depends only on
the transcript."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from treadle.core.texts.documents import read_data
from treadle.core.types import Message, Role, ToolCall
from treadle.tasks.draws import fraction, pick
from treadle.tasks.solver import Ask, Pursuit, Solver, WantedCall
from treadle.testbed.built_in import digest

_SAID = read_data(__package__, "play")
"""What is thought before a call is made again."""


class Manner(Struct, frozen=True, kw_only=True):
    """The manner in which a model shows the steps of a solver."""

    mistake_rate: float = 0.0
    """The probability of a mistake in each step."""
    reasoning_rate: float = 1.0
    """The share of steps whose reasoning is part of the message."""


def play(
    solver: Solver,
    messages: Sequence[Message],
    key: str,
    manner: Manner,
    *,
    has_tools: bool = True,
    max_calls: int | None = None,
) -> Message:
    """Return the message that follows `messages`, which begin after the request that `solver` solves.

    It has at most `max_calls` tool calls, and none if `has_tools` is false. Choices depend on `key`.
    """
    plan = _replay(solver, _rounds(messages))
    if isinstance(plan, str):
        return Message(Role.ASSISTANT, plan)
    if not has_tools:
        return Message(Role.ASSISTANT, plan.step.draft or _excuse(messages))
    return _next_message(plan.wanted()[:max_calls], plan, key, manner)


def _next_message(wanted: Sequence[WantedCall], plan: Pursuit, key: str, manner: Manner) -> Message:
    calls = []
    slip = -1
    if plan.rounds == 0 and fraction(key, "mistake") < manner.mistake_rate:
        slip = int(fraction(key, "slip") * len(wanted))
    for index, call in enumerate(wanted):
        if index == slip:
            name, arguments = spoil(call, key)
        else:
            name, arguments = call.name, msgspec.json.encode(call.arguments).decode()
        calls.append(ToolCall(f"call_{digest(f'{key}/{index}')}", name, arguments))
    reasoning = None
    if fraction(key, "reasoning") < manner.reasoning_rate:
        reasoning = _reason(plan, key) or None
    return Message(Role.ASSISTANT, tool_calls=tuple(calls), reasoning=reasoning)


def _replay(solver: Solver, rounds: Iterator["_Round"]) -> Pursuit | str:
    """Return the step that the transcript has reached, or the next message to the user."""
    try:
        step = next(solver)
        while True:
            if isinstance(step, Ask):
                reply = next((seen.reply for seen in rounds if seen.reply is not None), None)
                if reply is None:
                    return step.text
                step = solver.send([reply])
                continue
            pursuit = Pursuit(step)
            while not pursuit.is_over:
                seen = next((item for item in rounds if item.reply is None), None)
                if seen is None:
                    return pursuit
                pursuit.observe(seen.message, seen.results)
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


class _Round(Struct):
    """A message of the model, with what came back."""

    message: Message
    results: dict[str, Message] = {}
    """The tool messages that answer its calls, by call id."""
    reply: str | None = None
    """What the user said to a message without calls; `None` for a message with calls."""


def _rounds(messages: Sequence[Message]) -> Iterator[_Round]:
    """Yield each message with tool calls, and each message that the user replied to."""
    current: _Round | None = None
    for message in messages:
        if message.role is Role.TOOL:
            if message.call_id is not None and current is not None:
                current.results[message.call_id] = message
        elif message.role is Role.ASSISTANT:
            if current is not None and current.message.tool_calls:
                yield current
            current = _Round(message)
        elif message.role is Role.USER and current is not None and not current.message.tool_calls:
            yield _Round(current.message, reply=message.content)
            current = None
    if current is not None and current.message.tool_calls:
        yield current


def _reason(plan: Pursuit, key: str) -> str:
    if plan.is_looking:
        return str(pick(_SAID["looks"], key))
    if plan.error is not None:
        first_line = plan.error.strip().partition("\n")[0][:160]
        return str(pick(_SAID["recoveries"], key)).format(error=first_line.rstrip(".") + ".")
    return plan.step.reasoning


def _excuse(messages: Sequence[Message]) -> str:
    count = sum([message.role is Role.TOOL for message in messages])
    return f"I had to stop before I was done: after {count} tool results I have no answer yet."


def spoil(call: WantedCall, key: str) -> tuple[str, str]:
    """Return the name and the arguments of `call` with a mistake in them. Equal keys give equal mistakes."""
    arguments = msgspec.json.encode(call.arguments).decode()
    kinds = ["tool", "json"]
    if call.arguments:
        kinds += ["missing", "type"]
    if call.path_argument is not None:
        kinds += ["path", "path"]
    kind = pick(kinds, key, "kind")
    if kind == "tool":
        return _misname(call.name, key), arguments
    if kind == "json":
        return call.name, arguments[: -1 - int(fraction(key, "cut") * min(4, len(arguments) - 2))]
    changed = dict(call.arguments)
    first = next(iter(changed))
    if kind == "missing":
        del changed[first]
    elif kind == "type":
        changed[first] = [changed[first]]
    else:
        path = call.path_argument or first
        changed[path] = misspell(str(changed[path]), key)
    return call.name, msgspec.json.encode(changed).decode()


def _misname(name: str, key: str) -> str:
    verb, _, noun = name.partition("_")
    return pick((f"{verb}{noun.title()}", f"{noun}_{verb}", f"{verb}_{noun}_content"), key, "name")


def misspell(path: str, key: str) -> str:
    """Return `path` with one letter of its file name doubled.

    Digits are not doubled, because the result could be the name of another file.
    """
    start = path.rfind("/") + 1
    letters = [index for index in range(start, len(path)) if path[index].isalpha()]
    if not letters:
        return path + "x"
    index = pick(letters, key, "letter")
    return path[:index] + path[index] + path[index:]
