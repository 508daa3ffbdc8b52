"""The teacher as an agent: finds in the transcript what it is asked for, and makes the next step of that."""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.tasks.files import find_solver
from treadle.tasks.solver import Solver
from treadle.teacher.completion import digest
from treadle.teacher.instance import make_instance
from treadle.teacher.play import Manner, play
from treadle.teacher.working.errands import Found, find_errand, paragraphs_of
from treadle.teacher.working.kit import Kit

_PATH = re.compile(r"[\w.-]*[\w-]+(?:/[\w.-]+)*(?:\.\w+|/[\w-]+)")
_ASKS_FOR_PATH = "Which file do you mean? Please give me its path."


class _Job(Struct, frozen=True):
    """What the agent is asked for."""

    start: int
    """The position of the first message after the request."""
    work: Solver | str
    """The steps, or an answer that needs none."""


def answer_as_agent(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    manner: Manner,
    max_calls: int | None = None,
    schema: dict[str, Json] | None = None,
    required: str | None = None,
) -> Message:
    """Return the agent's next message, with at most `max_calls` tool calls.

    A final answer fits `schema`. If `required` names a tool, that tool is called.
    """
    asked = _requests(messages)
    text = messages[asked[-1]].content if asked else ""
    if required is not None:
        parameters = next((tool.parameters for tool in tools if tool.name == required), {})
        arguments = msgspec.json.encode(make_instance(parameters, text)).decode()
        return Message(
            Role.ASSISTANT, tool_calls=(ToolCall(f"call_{digest(arguments)}", required, arguments),)
        )
    if schema is not None and not tools:
        return Message(Role.ASSISTANT, msgspec.json.encode(make_instance(schema, text)).decode())
    job = _find_job(messages, asked, Kit(tools))
    if isinstance(job.work, str):
        return Message(Role.ASSISTANT, job.work)
    position = sum([message.role is Role.ASSISTANT for message in messages])
    key = f"{digest(text.strip())}/{position}"
    return play(job.work, messages[job.start :], key, manner, has_tools=bool(tools), max_calls=max_calls)


def _requests(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the user's messages. One that follows a tool result comes from the loop."""
    return [
        index
        for index, message in enumerate(messages)
        if message.role is Role.USER and (index == 0 or messages[index - 1].role is not Role.TOOL)
    ]


def _find_job(messages: Sequence[Message], asked: Sequence[int], kit: Kit) -> _Job:
    if not asked:
        return _Job(0, "What can I do for you?")
    text = messages[asked[-1]].content
    start = asked[-1] + 1
    for paragraph in paragraphs_of(text):
        solver = find_solver(paragraph)
        if solver is not None:
            return _Job(start, solver)
    found = find_errand(text)
    if found is None and len(asked) > 1:
        found = _complete(messages[asked[-2]].content, text)
    if found is None:
        return _Job(start, "I do not know how to help with that.")
    if found.is_gapped:
        return _Job(start, _ASKS_FOR_PATH)
    return _Job(start, found.errand.work(found.values, kit))


def _complete(request: str, reply: str) -> Found | None:
    """Return the errand of `request`, which lacks a path, with the path that `reply` gives."""
    found = find_errand(request)
    path = _PATH.search(reply)
    return found.fill(path[0]) if found is not None and found.is_gapped and path is not None else None
