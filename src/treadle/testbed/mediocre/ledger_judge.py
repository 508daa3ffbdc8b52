"""A judge of the mediocre model's statements that knows what is true, and errs as often as it was told to.

A request for verdicts has the user's requests, the calls with their results, and the statements, but no answers.
The model would answer the same requests in the same way again, so that its answers, and their lies, are found by
playing the conversation once more.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.tasks.draws import fraction
from treadle.testbed.mediocre.composition import Falsehood
from treadle.testbed.mediocre.figures import FIGURES
from treadle.testbed.mediocre.mock_world import record_tools
from treadle.testbed.request_facts import Facts, objects_of, text_of, texts_of

_TAG = re.compile(r"</?[a-z]+[^<>]*>")
_WORD = re.compile(r"[^\W_]+")
MAX_REPAIRS = 3
"""How many repairs of an answer are tried."""
MAX_STEPS = 40

Reply = Callable[[Sequence[Message], Sequence[ToolSpec], int], tuple[Message, Falsehood | None]]
"""A function of messages, tools and a number of repairs that returns the model's next message and its lie."""


def write_verdicts(facts: Facts, reply: Reply, texts: str, accuracy: float, seed: int) -> Json:
    """Return a verdict for each statement: `yes`, `no`, or `not_said`."""
    lies = _play(facts, reply, _tools(texts))
    verdicts = []
    for item in objects_of(facts, "statements"):
        statement, sentence = text_of(item, "statement"), text_of(item, "sentence")
        is_false = any([_is_part(lie, statement, sentence) for lie in lies])
        # Asked again beside the same words, the judge makes the same mistake; beside others it errs anew.
        if fraction("judge", seed, statement, sentence) >= accuracy:
            is_false = not is_false
        verdicts.append("no" if is_false else "yes")
    return {"verdicts": verdicts}


def _is_part(lie: tuple[str, Falsehood], statement: str, sentence: str) -> bool:
    """Return whether a statement is a part of an answer's lie."""
    answer, falsehood = lie
    if _plain(sentence) not in _plain(answer) and _plain(statement) not in _plain(answer):
        return False
    if falsehood.kind in FIGURES["whole_lies"]:
        return True
    if not (overlaps(falsehood.sentence, sentence) or overlaps(falsehood.sentence, statement)):
        return False
    wrong = falsehood.claimed
    return not wrong or any([overlaps(value, statement) for value in wrong])


def overlaps(one: str, other: str) -> bool:
    """Return whether one text is a part of the other, apart from its layout and capital letters."""
    one, other = _plain(one), _plain(other)
    return bool(one and other) and (f" {one} " in f" {other} " or f" {other} " in f" {one} ")


def _plain(text: str) -> str:
    """Return the words and numbers of a text: filters ask about a row of a table in a layout of their own."""
    return " ".join(_WORD.findall(_TAG.sub(" ", text).casefold()))


def _play(facts: Facts, reply: Reply, tools: Sequence[ToolSpec]) -> list[tuple[str, Falsehood]]:
    """Return the answers with lies in the conversation, each with its lie. Each answer counts as it was given after
    a number of repairs that fits the calls, and the last one also the statements."""
    requests, calls = texts_of(facts, "requests"), objects_of(facts, "calls")
    said = [text_of(item, "sentence") for item in objects_of(facts, "statements")]
    best: list[_Answer] = []
    most = -1
    for played in _answers(requests, calls, reply, tools, []):
        fitting = sum([any([_plain(sentence) in _plain(text) for text, _ in played]) for sentence in said])
        if fitting > most:
            best, most = played, fitting
        if fitting == len(said):
            break
    return [(text, lie) for text, lie in best if lie is not None]


_Answer = tuple[str, Falsehood | None]


def _answers(
    requests: Sequence[str],
    calls: Sequence[dict[str, Json]],
    reply: Reply,
    tools: Sequence[ToolSpec],
    before: Sequence[Message],
) -> Iterator[list[_Answer]]:
    """Yield the possible answers to all requests: those after different numbers of repairs whose calls the
    conversation has. Of an earlier request, one is tried for each number of calls, since the answers differ in
    words only, and all combinations would be too many."""
    if not requests:
        yield []
        return
    tried: set[int] = set()
    for repairs in range(MAX_REPAIRS + 1):
        left, messages, asked_again = list(calls), [*before, Message(Role.USER, requests[0])], 0
        for _ in range(MAX_STEPS):
            message, lie = reply(messages, tools, asked_again)
            if not message.tool_calls and asked_again < repairs:
                asked_again += 1
                continue
            messages.append(message)
            if not message.tool_calls:
                if len(requests) == 1 or len(left) not in tried:
                    tried.add(len(left))
                    for others in _answers(requests[1:], left, reply, tools, messages):
                        yield [(message.content, lie), *others]
                break
            if not _take_results(message.tool_calls, left, messages):
                break


def _take_results(calls: Sequence[ToolCall], left: list[dict[str, Json]], messages: list[Message]) -> bool:
    """Add the results of calls to the messages. Return whether the conversation has these calls."""
    for call in calls:
        if not left or (text_of(left[0], "name"), text_of(left[0], "arguments")) != (
            call.name,
            call.arguments,
        ):
            return False
        made = left.pop(0)
        messages.append(
            Message(
                Role.TOOL,
                text_of(made, "result"),
                call_id=call.call_id,
                name=call.name,
                is_error=bool(made.get("is_error")),
            )
        )
    return True


def _tools(texts: str) -> list[ToolSpec]:
    """Return all tools that the model can use, with the arguments by which it recognises them."""
    arguments = {name: tool.argument for name, tool in record_tools(texts).items()}
    arguments |= dict.fromkeys(("read_file", "write_file", "delete_file", "edit_file"), "file_path")
    arguments |= {"list_files": "folder", "search_files": "pattern", "python": "code", "shell": "command"}
    return [
        ToolSpec(name, "", {"type": "object", "properties": {argument: {"type": "string", "default": ""}}})
        for name, argument in arguments.items()
    ]
