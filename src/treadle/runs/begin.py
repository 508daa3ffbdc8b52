"""The beginning of runs and sessions, and the files that are attached to the user's messages."""

import asyncio
import inspect
import mimetypes
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ConfigError, SandboxError, UnsupportedPartError
from treadle.core.events.narrowing import Event
from treadle.core.lineage import Caller, TaskRef
from treadle.core.parts import make_part
from treadle.core.state import State
from treadle.core.types import Artifact, Json, Message, Role
from treadle.http.locks import in_child
from treadle.journal.named_files import suggest_path
from treadle.journal.run_info import DEFAULT_QUEUE, QUEUE
from treadle.loop.driver import Driver
from treadle.models.protocol import check_parts
from treadle.runs.agent_parts import AgentParts, read_mount, refuse_missing
from treadle.runs.drive import Terms, drive, make_driver, open_turn, spec_for, system_message, warm_up
from treadle.runs.options import Attachable, Files, Given, RunContext, StreamOptions, check_run
from treadle.runs.run import Run
from treadle.runs.task import Task, find_reply
from treadle.sandbox.in_memory import MemorySandbox, SharedFiles
from treadle.sandbox.protocol import Sandbox
from treadle.tools.context import NO_DEPS
from treadle.tools.protocol import Attachment
from treadle.tools.user_code import blaming

MAX_ATTACHMENT_BYTES = 50 * 1024 * 1024
"""The largest file that can be attached."""
Attached: TypeAlias = tuple[tuple[Artifact, ...], dict[str, bytes]]
"""The parts of a message, and a mapping of hash to content for the store."""


async def run_task(agent: AgentParts, task: str | Task, given: Given, options: StreamOptions) -> Run[Any]:
    """Make a run of `task` and drive it."""
    driver = await begin(agent, task, given, await _read_beginning(task, options))
    return await drive(agent, driver, None if isinstance(task, str) else task, given)


async def enqueue(
    agent: AgentParts, task: str | Task, given: Given, options: StreamOptions, queue: str = DEFAULT_QUEUE
) -> str:
    """Begin a run of `task` and leave it in `queue`, where a worker takes it. Return its id.

    Raises: `RunExistsError`; `ConfigError` if a worker could not build the agent from its spec, or would need
    `deps`.
    """
    refuse_missing(agent.spec, has_model=False, has_tools=False)
    if given.deps is not NO_DEPS:
        raise ConfigError(
            "deps are objects of this program, which a worker does not have; drive the run here"
        )
    beginning = await _read_beginning(task, options)
    beginning = replace(beginning, metadata={**(beginning.metadata or {}), QUEUE: queue})
    driver = await begin(agent, task, given, beginning)
    await driver.leave()
    return driver.run_id


async def _read_beginning(task: str | Task, options: StreamOptions) -> "Beginning":
    if options or type(task) is not str:
        check_run(task, options)
    attach = options.get("attach", ())
    return Beginning(
        options.get("run_id") or make_run_id(),
        options.get("files"),
        options.get("metadata"),
        await asyncio.to_thread(read_attachments, attach) if attach else ((), {}),
    )


class Beginning(Struct, frozen=True):
    """The settings with which a run begins."""

    run_id: str
    files: Files | None = None
    """The initial files; `None`: those of the task or of the agent."""
    metadata: Mapping[str, Json] | None = None
    attached: Attached = ((), {})
    """The parts that are sent with the user's message, and their contents for the store."""
    is_session: bool = False
    is_lazy: bool = False
    """True if the first events are appended together with those that follow."""
    history: tuple[Message, ...] = ()
    """The messages that stand before the first turn."""
    caller: Caller | None = None
    """The call of another run that starts this one."""


async def begin(agent: AgentParts, work: str | Task | None, given: Given, beginning: Beginning) -> Driver:
    """Create a run, append its first events, and return its driver.

    `work` is the user's message or a task. The first turn of a session begins later, so a session may have no work.
    """
    run_id, is_session = beginning.run_id, beginning.is_session
    task = None if work is None or isinstance(work, str) else work
    text: str | None = None
    if not is_session:
        text = work if isinstance(work, str) else None if task is None else task.input
    files = beginning.files
    if files is None:
        files = agent.files if task is None else share_files(task)
    await agent.kit.renew()
    output = agent.kit.output(given.answer.schema, task)
    said: str | None = None
    if callable(agent.instructions):
        deps = None if given.deps is NO_DEPS else given.deps
        context = RunContext(run_id=run_id, deps=deps, input=text, metadata=beginning.metadata or {})
        said = await _call_instructions(agent.instructions, context)
    sandbox = _make_sandbox(files)
    if task is not None and not is_session:
        with blaming(f"the user of the task '{task.task_set}:{task.task_id}' failed before the first turn"):
            await find_reply(task, (), sandbox)
    agent.kit.toolbox(task).check_deps(given.deps)
    if task is not None:
        agent.kit.check_policy(agent.policy, task)
    window = await agent.kit.window(agent.policy)
    await warm_up(agent)
    writer = agent.journal.create(run_id)
    spec = spec_for(agent, task, given.answer.schema, files)
    if said is not None:
        spec = replace(spec, instructions=said)
    terms = Terms(task, output, spec.policy, window)
    driver = make_driver(agent, State(), writer, sandbox, given, terms)
    told = spec.instructions
    if agent.known is not None:
        tools = driver.bench.toolbox.tools
        told = await asyncio.to_thread(agent.known.make_instructions, told, tools)
    started = e.RunStarted(
        version=e.VERSION,
        agent=spec,
        instructions=system_message(spec, told, output),
        tools=driver.bench.toolbox.specs,
        is_session=is_session,
        has_user=hasattr(task, "reply") and not is_session,
        task=None if task is None else TaskRef(task.task_set, task.task_id, task.seed),
        output=output,
        window=window,
        metadata=dict(beginning.metadata) if beginning.metadata else None,
        history=beginning.history,
        caller=beginning.caller,
        is_relayed=given.is_relayed,
    )
    snapshot, blobs = driver.bench.take_snapshot()
    bodies: tuple[e.DurableBody, ...] = (started, *snapshot)
    if text is not None:
        parts, contents = beginning.attached
        bodies = (*bodies, await open_turn(agent, driver, Message(Role.USER, text, parts=parts)))
        blobs = {**(blobs or {}), **contents}
    # Appended together, because a run without its turn could never go on.
    append = driver.recorder.hold if beginning.is_lazy else driver.put
    append(*bodies, blobs=blobs or None)
    return driver


async def run_first_turn(
    agent: AgentParts, message: Message, given: Given, beginning: Beginning, blobs: Mapping[str, bytes]
) -> Run[Any]:
    """Begin a session with its first message, drive that turn, and return the run, which anybody may go on with.

    It is as durable as a turn of a `Session`, whose work for messages that come meanwhile it saves. If it is
    cancelled, the turn stays open. Raises: `ConfigError` if the model cannot be sent a part of the message.
    """
    check_message(agent, message)
    driver = await begin(agent, None, given, beginning)
    driver.put(await open_turn(agent, driver, message), blobs=blobs or None)
    run = await drive(agent, driver, None, given)
    if (kept := driver.recorder.kept_events) is not None:
        run.events = cast("list[Event]", kept)
    return run


def check_message(agent: AgentParts, message: Message) -> None:
    """Check that the model can be sent the parts of a message, which all later requests would have.

    Raises: `ConfigError`.
    """
    try:
        if message.parts:
            check_parts(agent.model, message.parts)
    except UnsupportedPartError as error:
        raise ConfigError(f"the message was not sent: {error}") from error


async def _call_instructions(function: Callable[..., Any], context: RunContext[Any]) -> str:
    """Return the instructions that a function makes for a new run. Raises: `ConfigError` if the function does not
    return a text, and what the function raises."""
    said = function(context) if inspect.signature(function).parameters else function()
    if inspect.isawaitable(said):
        said = await said
    if not isinstance(said, str):
        raise ConfigError(f"the instructions function {function!r} returned {said!r:.200}; return a str")
    return said


def _make_sandbox(files: Files | None) -> Sandbox:
    if isinstance(files, SharedFiles):
        return files.open()
    return MemorySandbox(read_mount(files) if isinstance(files, str | Path) else files)


def share_files(task: Task) -> SharedFiles:
    """Return the initial files of a task. Raises: `ConfigError` that names the task if they have a mistake."""
    what = f"the files of the task '{task.task_set}:{task.task_id}' cannot be used"
    try:
        with blaming(what):  # a task of a user may make its files when they are asked for
            return SharedFiles(task.files)
    except SandboxError as error:
        raise ConfigError(f"{what}: {error}") from error


_random = random.Random()
"""A generator of its own, so that a program that seeds the global one still gets different run ids."""
in_child(_random.seed)


def make_run_id() -> str:
    """Return a new run id. Ids sort by the time at which they were made."""
    return f"{int(time.time() * 1000):011x}{_random.getrandbits(32):08x}"


def read_attachments(items: Iterable[Attachable]) -> tuple[tuple[Artifact, ...], dict[str, bytes]]:
    """Return the parts for a message, and a mapping of hash to content for the store.

    The ending of a file's name determines its type; a file without a known ending counts as text if it is UTF-8.

    Raises: `ConfigError` for a file that cannot be read, is too large, or has no known type, and for an
    `Attachment` without content or a type.
    """
    parts: list[Artifact] = []
    blobs: dict[str, bytes] = {}
    for item in items:
        if isinstance(item, Artifact):
            parts.append(item)
            continue
        part, contents = _keep(item) if isinstance(item, Attachment) else _read(Path(item))
        parts.append(part)
        blobs |= contents
    return tuple(parts), blobs


def _keep(item: Attachment) -> tuple[Artifact, dict[str, bytes]]:
    mime_type = item.mime_type or (mimetypes.guess_type(item.name)[0] if item.name else None)
    if not item.content or mime_type is None or item.kind not in ("text", "image", "audio", "document"):
        raise ConfigError(
            f"cannot attach an Attachment of the kind {item.kind!r}: it needs content, a mime_type, and the kind "
            "text, image, audio or document"
        )
    _check_size(item.name or item.kind, len(item.content))
    return make_part(item.content, mime_type, name=item.name, kind=item.kind)


def _check_size(name: str, size_bytes: int) -> None:
    if size_bytes > MAX_ATTACHMENT_BYTES:
        raise ConfigError(
            f"cannot attach {name!r}: it has {size_bytes:,} bytes, over {MAX_ATTACHMENT_BYTES:,}"
        )


def _read(path: Path) -> tuple[Artifact, dict[str, bytes]]:
    mime_type, _ = mimetypes.guess_type(path.name)
    try:
        _check_size(str(path), path.stat().st_size)
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot attach {str(path)!r}: {error.strerror}{suggest_path(path)}") from error
    if not content and (mime_type or "").partition("/")[0] != "text":
        raise ConfigError(f"cannot attach {str(path)!r}: the file is empty")
    if mime_type is None:
        try:
            content.decode()
        except UnicodeDecodeError:
            raise ConfigError(
                f"cannot attach {str(path)!r}: the file name does not tell its type; give it an ending such as .png"
            ) from None
        mime_type = "text/plain"
    return make_part(content, mime_type, name=path.name)
