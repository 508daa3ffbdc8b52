"""A small driver that runs a model with the real file tools, without a journal."""

from collections.abc import Awaitable, Callable, Mapping

import pytest
from tests.loop.workbench import make_call

from treadle.core.log import Log
from treadle.core.types import Effect, Message, Request, Role, ToolCall, ToolResult
from treadle.loop.calls.results import read_call
from treadle.models.protocol import Model, Watch
from treadle.runs.task import Task
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.file_tools import files as toolset

TOOLS = {tool.spec.name: tool for tool in toolset.tools()}
SPECS = tuple([tool.spec for tool in TOOLS.values()])
UNKNOWN = "The outcome of this call is unknown: it was started, and the process was interrupted."

Result = tuple[list[Message], dict[str, bytes]]
Play = Callable[..., Awaitable[Result]]


class Doubt:
    """A simulation that loses the outcome of each kind of change once, before or after it took effect."""

    def __init__(self, *, takes_effect: bool, is_flagged: bool) -> None:
        self.takes_effect = takes_effect
        self.is_flagged = is_flagged
        self.lost: set[str] = set()

    def loses(self, call: ToolCall) -> bool:
        if call.name in self.lost or TOOLS[call.name].spec.effect is Effect.PURE:
            return False
        self.lost.add(call.name)
        return True


async def _play(
    task: Task,
    model: Model | Callable[[], Model],
    *,
    files: Mapping[str, bytes] | None = None,
    doubt: Doubt | None = None,
    is_flagged: bool = True,
    step_limit: int = 60,
) -> Result:
    """Return the transcript and the final files.

    Without `is_flagged`, results have no `is_error`, as in some wire formats.
    """
    box = MemorySandbox(task.files if files is None else files)
    log = Log([Message(Role.SYSTEM, task.instructions or ""), Message(Role.USER, task.input)])
    for step in range(step_limit):
        present = model() if isinstance(model, Callable) else model
        completion = await present.infer(Request(log, SPECS), Watch())
        log = log.append(completion.message)
        if not completion.message.tool_calls:
            return list(log), {path: box.read(path) for path in box.paths()}
        for call in completion.message.tool_calls:
            found = read_call(call, TOOLS)
            if not isinstance(found, ToolResult):
                loses = doubt is not None and doubt.loses(call)
                found = ToolResult(call.call_id, call.name, UNKNOWN, is_error=True)
                if not loses or (doubt is not None and doubt.takes_effect):
                    made = await make_call(call, TOOLS, box, step=step)
                    found = found if loses else made
            is_error = found.is_error and is_flagged
            log = log.append(
                Message(Role.TOOL, found.content, call_id=call.call_id, name=call.name, is_error=is_error)
            )
    raise AssertionError(f"{task.task_id} is not done after {step_limit} steps")


@pytest.fixture
def play() -> Play:
    return _play


@pytest.fixture
def lose_outcomes() -> type[Doubt]:
    return Doubt
