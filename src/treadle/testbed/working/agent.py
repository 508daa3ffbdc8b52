"""The teacher as an agent: finds the request in the transcript, and makes the next step of its work."""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.tasks.files import find_solver
from treadle.tasks.solver import Solver, Step
from treadle.testbed.built_in import digest
from treadle.testbed.instance import make_instance
from treadle.testbed.play import Manner, play
from treadle.testbed.working.calls import find_gap, read_arguments, work_on
from treadle.testbed.working.errands.errand import Work, one_line
from treadle.testbed.working.fitting import fit, text_of
from treadle.testbed.working.kit import Kit, paths_in
from treadle.testbed.working.request import Request, find_request
from treadle.testbed.working.talks.talk import Reply

_PATH = re.compile(r"[\w.-]*\w(?:/[\w. -]*\w)*\.\w+|[\w.-]+(?:/[\w.-]*\w)+")
_ASKS_FOR_PATH = "Which file do you mean? Please give me its path."
_ASKS_FOR_ARGUMENT = "For this call I need {name}. What is its value? You can write it as {name} = ..."


class _Job(Struct, frozen=True):
    """What the agent has to do."""

    start: int
    """The position of the first message after the request."""
    work: Solver | Reply
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
    asked = _positions(messages)
    text = messages[asked[-1]].content if asked else ""
    if required is not None:
        parameters = next((tool.parameters for tool in tools if tool.name == required), {})
        arguments = msgspec.json.encode(make_instance(parameters, text)).decode()
        call = ToolCall(f"call_{digest(f'{len(messages)}/{arguments}')}", required, arguments)
        return Message(Role.ASSISTANT, tool_calls=(call,))
    job = _find_job(messages, asked, tools)
    if isinstance(job.work, Reply):
        message = Message(Role.ASSISTANT, job.work.text, reasoning=job.work.reasoning or None)
    else:
        position = sum([message.role is Role.ASSISTANT for message in messages])
        key = f"{digest(text.strip())}/{position}"
        message = play(
            job.work, messages[job.start :], key, manner, has_tools=bool(tools), max_calls=max_calls
        )
    if schema is None or message.tool_calls:
        return message
    return replace(message, content=fit(message, text, schema))


def _positions(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the user's messages. One that follows a tool result comes from the loop."""
    return [
        index
        for index, message in enumerate(messages)
        if message.role is Role.USER and (index == 0 or messages[index - 1].role is not Role.TOOL)
    ]


def _find_job(messages: Sequence[Message], asked: Sequence[int], tools: Sequence[ToolSpec]) -> _Job:
    if not asked:
        return _Job(0, Reply("What can I do for you?"))
    text, start = messages[asked[-1]].content, asked[-1] + 1
    request = find_request(text)
    if request is None and len(asked) > 1:
        request = _complete(find_request(messages[asked[-2]].content), text, tools)
    if request is None:
        return _Job(start, _look_around(text, Kit(tools)))
    if request.is_restatement:
        return _Job(start, _restate(messages[: asked[-1]]))
    return _Job(start, _do(request, tools))


def _do(request: Request, tools: Sequence[ToolSpec]) -> Solver | Reply:
    """Return the steps for a request, or an answer that needs none."""
    kit = Kit(tools)
    if request.talk is not None:
        talk, values = request.talk
        return talk.reply(values, [tool.name for tool in tools])
    if request.wishes is not None:
        gap = find_gap(request.wishes, tools)
        if gap is not None:
            return Reply(_ASKS_FOR_ARGUMENT.format(name=gap), f"{gap} is needed, and I was not told it.")
        return work_on(request.wishes, tools)
    if request.errand is not None:
        if request.errand.is_gapped:
            return Reply(_ASKS_FOR_PATH, "The request does not say which file, and guessing could be wrong.")
        if not kit.can(*request.errand.errand.needs):
            return Reply("I can't do that: I have no tool for it.", "None of my tools fits the request.")
        return request.errand.errand.work(request.errand.values, kit)
    solver = find_solver(request.task or "")
    assert solver is not None, "find_request found the task"
    return solver


def _complete(request: Request | None, reply: str, tools: Sequence[ToolSpec]) -> Request | None:
    """Return a request that lacked a fact, with the fact from the user's reply."""
    if request is None:
        return None
    if request.errand is not None and request.errand.is_gapped:
        path = _PATH.search(reply)
        return None if path is None else Request(errand=request.errand.fill(path[0]))
    gap = None if request.wishes is None else find_gap(request.wishes, tools)
    if request.wishes is None or gap is None:
        return None
    return Request(wishes=request.wishes.complete(read_arguments(reply) or {gap: reply.strip()}))


def _restate(messages: Sequence[Message]) -> Reply:
    """Return the last answer in one sentence."""
    answers = [item.content for item in messages if item.role is Role.ASSISTANT and item.content.strip()]
    if not answers:
        return Reply("There is nothing to repeat yet.")
    lines = [line.strip() for line in text_of(answers[-1]).splitlines() if line.strip()]
    line = lines[-1].removeprefix("Answer: ").strip()
    return Reply(f"In one sentence: {one_line(line)}", "The result is known, so I only have to say it again.")


def _look_around(text: str, kit: Kit) -> Solver | Reply:
    """Return the work on a message that is not a known request: read the file that it names, or list the files."""
    if kit.can("read") and (path := _PATH.search(text)) is not None:
        return _show(path[0], kit)
    if kit.can("list"):
        return _list(kit)
    first = one_line(text.strip().partition("\n")[0])
    return Reply(f"I can say little about this: {first or 'there is no question.'}")


def _show(path: str, kit: Kit) -> Work:
    found, text = yield from kit.find_text(path)
    if found is None:
        return text
    lines = text.splitlines() or [""]
    return f"{found} has {len(lines)} lines and begins with: {one_line(lines[0])}"


def _list(kit: Kit) -> Work:
    (listing,) = yield Step([kit.list()], "I do not know what this is about, so I look at the files.")
    paths = paths_in(listing)
    return f"I found {len(paths)} files: {', '.join(paths[:20])}." if paths else "I found no files."
