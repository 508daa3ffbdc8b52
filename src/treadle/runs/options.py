"""The options of agents and runs, declared once, and the checks of what callers give."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict

import msgspec
from msgspec import Struct

from treadle.core.asking import Answerable
from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.registry import did_you_mean
from treadle.core.spec import ContextSpec, PartSpec
from treadle.core.texts.json_text import MAX_DEPTH, is_deep
from treadle.core.types import Artifact, Delivery, Json, Message, Role
from treadle.journal.protocol import Clock, Journal
from treadle.loop.driver import Driver
from treadle.loop.listener import Emit, Hook
from treadle.runs.retries import NO_RETRIES, RetryPolicy
from treadle.runs.run import TEXT, AnswerType
from treadle.runs.task import Task
from treadle.sandbox.in_memory import SharedFiles
from treadle.tools.context import NO_DEPS, DepsT
from treadle.tools.protocol import Approver, Asker, Attachment, Decision, ToolLike

if TYPE_CHECKING:
    from treadle.knowledge.surroundings import MemoryLike, PersonaLike
    from treadle.routing.judging import MessageJudge


Attachable: TypeAlias = str | Path | Attachment | Artifact
"""The path of a file, content in memory with its MIME type, or a part with its content inline."""
Files = Mapping[str, bytes] | Mapping[str, str] | str | Path
"""Initial files: a mapping of path to content, or the path of a folder or file on disk; see `Mount`."""


class RunContext(Struct, Generic[DepsT], frozen=True, kw_only=True):
    """The facts about a new run that a function for its instructions gets."""

    run_id: str
    deps: DepsT
    """The `deps` of the run or of the agent; `None` if none were given."""
    input: str | None
    """The user's message; `None` in a session, where it is not known yet."""
    metadata: Mapping[str, Json]


Instructions: TypeAlias = (
    str | Callable[[], str | Awaitable[str]] | Callable[[RunContext[Any]], str | Awaitable[str]]
)
"""The system message, or a function that returns it for each new run. The journal keeps what it returned."""


class AgentOptions(TypedDict, total=False):
    """Options of `Agent`."""

    instructions: Instructions | None
    """The system message, or a function that returns it. The function is called once for each new run."""
    tools: Iterable[ToolLike]
    policy: Policy | None
    journal: Journal | str | Path | None
    """A journal, or a path for `treadle.open_journal`."""
    files: Files | None
    """The initial files of every run's sandbox."""
    deps: object
    """What tools get as `ToolContext.deps`. It is never stored."""
    approver: Approver | None
    """The function that decides about calls for which the policy has the rule `ask`. Without one, or if it returns
    `None`, the run pauses until `resume(run_id, approvals=...)`."""
    asker: Asker | None
    """The function that puts questions to the user: those of tools, of the model, and about calls whose outcome was
    lost. Without one, or if it returns `None`, the run pauses until `resume(run_id, answers=...)`."""
    hooks: Iterable[Hook]
    """Functions that are called with every event of the agent's runs once it is durable, such as a
    `treadle.telemetry.JsonlTurnLog`. An exception of a hook is logged, and does not reach the run."""
    clock: Clock
    """The source of the times and durations of events."""
    persona: "PersonaLike | None"
    """Who the agent is: the path of a YAML file, a `Persona`, or a mapping with its keys. Its model, tools, memory
    and autonomy count where `model`, `tools`, `memory` and `policy` are not given."""
    memory: "MemoryLike"
    """True, the name of a persona, or a `MemorySpec`: the agent remembers from one session to the next."""
    skills: Iterable[str | Path]
    """The folders of skills, or with folders of skills, before those of the persona."""
    documents: Iterable[str | Path]
    """The paths of documents that the agent knows, before those of the persona."""
    judge: "MessageJudge | str | None"
    """The judge of the user's messages, which is asked before each turn: `patterns`, `model:` and the name of a
    model, a `MessageJudge`, or `none`. Default: that of the persona, if it has one."""
    user: str | None
    """The user whom the memories are about. Default: as the persona or the memory says."""
    trust: bool
    """True to use the file of a persona that would start programs or send keys, and to record that trust."""


class StreamOptions(TypedDict, total=False):
    """Options of `Agent.stream`."""

    run_id: str | None
    """The id of the new run. Default: a generated one."""
    files: Files | None
    """The initial files of the sandbox, in place of the agent's."""
    attach: Sequence[Attachable]
    """Images, audio or documents for the message: paths of files, or `Attachment`s with their content."""
    metadata: Mapping[str, Json] | None
    """Data that is stored with the run. Entries whose values are strings are its labels."""
    deps: object
    """What tools get as `ToolContext.deps`, in place of the agent's."""


class RunOptions(StreamOptions, total=False):
    """Options of `Agent.run` and `run_sync`."""

    on_event: Emit | None
    """A function or coroutine function that is called with every event once it is durable, and with the deltas in
    between. It is awaited before the next item. An exception stops the run and is raised."""


class BatchOptions(TypedDict, total=False):
    """Options of `Agent.run_many` and `run_many_sync`."""

    window: int
    """How many runs are driven at the same time. Default: 64."""
    batch_id: str | None
    """A name that makes the batch resumable: the run of the n-th task has the id `BATCH_ID-n`."""
    files: Files | None
    metadata: Mapping[str, Json] | None
    deps: object
    on_event: Emit | None


class ResumeOptions(TypedDict, total=False):
    """Options of `Agent.resume` and `resume_sync`."""

    answers: Mapping[str, Answerable] | None
    """The answers to questions, by question id: texts, numbers of options, forms, or `Answer`s."""
    approvals: Mapping[str, Decision | bool] | None
    """The decisions about calls, by call id."""
    deps: object
    on_event: Emit | None
    trust: bool
    """True to use a run that comes from elsewhere, and to record that it is trusted."""


class ForkOptions(TypedDict, total=False):
    """Options of `Agent.fork` and `fork_sync`."""

    text: str | None
    """The user's message of a new turn. It must be given if the copied events end with a finished turn, except for
    a session, and must not be given otherwise."""
    new_run_id: str | None
    metadata: Mapping[str, Json] | None
    """Data that is stored with the new run, besides or in place of that of the other run."""
    deps: object
    on_event: Emit | None
    trust: bool
    """True to use a run that comes from elsewhere, as in `ResumeOptions`."""


class SessionOptions(TypedDict, total=False):
    """Options of `Agent.session`."""

    files: Files | None
    """The initial files of the sandbox, in place of those of the agent or the task."""
    metadata: Mapping[str, Json] | None
    """As for `StreamOptions`. Used only if the session is new."""
    task: Task | None
    """The task that the session works on: it has the files, the tools of an agent without tools, and the check for
    `Session.grade`. The caller sends the messages."""
    expects_new: bool
    """True if the journal probably has no such session. It is then begun at once, without looking for it, which
    is faster, and continued if it exists."""
    begins_with_message: bool
    """True if the journal has the session only from its first message on, which is faster. If it has one with this
    id already, the message raises `RunExistsError`. A session without a given id always begins so."""
    pauses_when_cancelled: bool
    """True if a cancelled turn stays open, so that the session can be opened again and the turn be finished. By
    default, cancelling ends the turn."""
    keeps_events: bool
    """True if the session keeps the events that it appends in memory, for `Session.read_events`."""
    history: Sequence[Message]
    """The messages of the conversation so far, if another program has led it: they stand before the first turn of a
    new session. Each call in them needs its result, in the order of the calls."""
    renews_instructions: bool
    """True if the agent's instructions replace the system message of a session that exists, and its schema that of
    the answers. By default, a session keeps the message and the schema that it began with."""
    deps: object
    trust: bool
    """True to use a run that comes from elsewhere, as in `ResumeOptions`."""


DeliveryName: TypeAlias = Literal["queue", "steer", "interrupt"]


class SendOptions(TypedDict, total=False):
    """Options of `Session.send` and `send_sync`."""

    attach: Sequence[Attachable]
    blobs: Mapping[str, bytes]
    """The contents of parts in `attach` that only have the hash of theirs, by hash."""
    on_event: Emit | None
    delivery: Delivery | DeliveryName
    """What happens with the message if a turn is running: `queue` begins the next turn (the default), `steer` is
    seen by the model at its next step, and `interrupt` stops the turn and begins the next."""
    is_last: bool
    """True if the session is closed after this turn. The end of the turn is then durable only when `close` returns,
    which is faster."""
    is_own: bool
    """True if a program, and not the user, asks for the answer again. The message is shown as such, and its turn is
    not counted as one of the user's."""


class Given(Struct, frozen=True):
    """The values that a caller gives for driving a run and that are not stored."""

    answer: AnswerType[Any] = TEXT
    """The type of the run's answers."""
    deps: object = NO_DEPS
    emit: Emit | None = None
    trust: bool = False
    """True if the caller trusts a run that comes from elsewhere."""
    retries: RetryPolicy = NO_RETRIES
    """How often a turn that ends with a fault of the infrastructure is reopened."""
    keeps_events: bool = False
    """True if the driver keeps the events that it appends in memory."""
    renews_instructions: bool = False
    """True if the agent's instructions replace the system message of a run that it resumes, and its schema that of
    the answers."""
    is_relayed: bool = False
    """True if a new run is one whose answers another program decides about; see `RunStarted.is_relayed`."""
    on_driver: Callable[[Driver], object] | None = None
    """A function that is called with the run's driver before the driver begins to work."""


class Face(Struct, frozen=True):
    """The parts of an agent that its persona has."""

    model: str | None = None
    tools: tuple[PartSpec, ...] = ()
    policy: Policy = Policy()


def read_context(options: Mapping[str, Any]) -> tuple[ContextSpec | None, Face]:
    """Return the context that the options describe, and the parts of the agent that come from its persona.

    Raises: `ConfigError`, `UntrustedError`.
    """
    judge, trust, user = _read_judge(options.get("judge")), options.get("trust", False), options.get("user")
    check_flag("trust", trust)
    need(user is None or isinstance(user, str), "user", user, "the name of a user")
    if not any([options.get(name) for name in ("persona", "memory", "skills", "documents")]):
        return (None if judge is None else ContextSpec(judge=judge)), Face()
    from treadle.knowledge.surroundings import make_context_spec, read_persona

    persona = read_persona(options.get("persona"), trust=trust)
    if options.get("judge") is None and persona is not None:
        judge = _read_judge(persona.judge)
    context = make_context_spec(
        persona,
        options.get("memory"),
        options.get("skills") or (),
        options.get("documents") or (),
        user,
        judge,
    )
    if persona is None:
        return context, Face()
    policy = Policy() if persona.autonomy is None else Policy(autonomy=persona.autonomy)
    return context, Face(persona.model, persona.parts, policy)


def _read_judge(given: object) -> PartSpec | None:
    """Return the description of what judges messages; `None` if nothing does. Raises: `ConfigError`."""
    if given is None or given == "none":
        return None
    is_judge = isinstance(given, str) or callable(getattr(given, "judge", None))
    advice = "'patterns', 'model:NAME', 'none', or an object with a method `judge`"
    need(is_judge and not isinstance(given, type), "judge", given, advice)
    from treadle.routing.judging import part_of_judge

    return part_of_judge(given)  # type: ignore[arg-type]


def need(is_fine: bool, name: str, value: object, advice: str) -> None:
    """Check that the value of an option is fine. Raises: `ConfigError` that says what to give instead."""
    if not is_fine:
        raise ConfigError(f"{name} is {value!r:.200}; give {advice}")


def check_agent(model: object, options: Mapping[str, Any]) -> None:
    """Check the types of an agent's parts. Raises: `ConfigError` that says what to give instead."""
    is_model = not isinstance(model, type) and callable(getattr(model, "infer", None))
    advice = "a name such as 'openai:gpt-5-mini', or an object with a method `infer`"
    need(isinstance(model, str) or is_model, "model", model, advice)
    told, policy = options.get("instructions"), options.get("policy")
    is_text = told is None or isinstance(told, str) or callable(told)
    need(is_text, "instructions", told, "a str, or a function that returns one")
    advice = "Policy(**policy)" if isinstance(policy, dict) else "a Policy, such as Policy(max_steps=20)"
    need(policy is None or isinstance(policy, Policy), "policy", policy, advice)
    check_tools(options.get("tools", ()))
    check_files(options.get("files"))
    check_callable("approver", options.get("approver"))
    check_callable("asker", options.get("asker"))
    hooks, clock, journal = options.get("hooks", ()), options.get("clock"), options.get("journal")
    is_list = isinstance(hooks, Iterable) and not isinstance(hooks, str | Mapping)
    need(is_list, "hooks", hooks, "a list of functions: hooks=[...]")
    is_clock = clock is None or (hasattr(clock, "time") and hasattr(clock, "monotonic"))
    need(is_clock, "clock", clock, "an object with methods `time` and `monotonic`")
    is_journal = journal is None or isinstance(journal, str | Path) or hasattr(journal, "create")
    need(is_journal, "journal", journal, "a path, or what `open_journal` returns")


def check_tools(tools: object) -> None:
    """Check that `tools` is a collection of tools, and not a single one. Raises: `ConfigError`."""
    if isinstance(tools, str):
        raise ConfigError(f"tools is the str {tools!r}; give a list: tools=[{tools!r}]")
    advice = "its values in a list" if isinstance(tools, Mapping) else "a list: tools=[...]"
    need(isinstance(tools, Iterable) and not isinstance(tools, Mapping), "tools", tools, advice)


def check_files(files: object) -> None:
    """Check that `files` is a folder or a mapping. Raises: `ConfigError`."""
    # Shared files were checked when they were made.
    if files is None or isinstance(files, str | Path | SharedFiles):
        return
    advice = "the path of a folder, or a dict of path to content, such as {'notes.txt': 'text'}"
    need(isinstance(files, Mapping), "files", files, advice)
    assert isinstance(files, Mapping)
    for path, content in files.items():
        if not isinstance(path, str) or not isinstance(content, str | bytes):
            raise ConfigError(
                f"files has {path!r:.100}: {content!r:.100}; give a str path and a str or bytes"
            )


def check_callable(name: str, given: object) -> None:
    """Check that an optional function is a function or `None`. Raises: `ConfigError`."""
    need(given is None or callable(given), name, given, "a function")


def check_run(task: object, options: Mapping[str, Any]) -> None:
    """Check what is given for a new run. Raises: `ConfigError` that says what to give instead."""
    is_task = isinstance(task, str) or (hasattr(task, "input") and hasattr(task, "task_set"))
    need(is_task, "the task", task, "the user's message as a str, or a Task from `load_task`")
    if getattr(task, "environment", None) is not None:
        raise ConfigError(
            f"the task {getattr(task, 'task_set', '')}:{getattr(task, 'task_id', '')} is played by its own "
            "environment; use treadle rollout or treadle eval, or give their classes workers=ProgramWorkers(), of "
            "treadle.server.gateway.programs"
        )
    if not isinstance(task, str):
        for name, kinds in (("input", str), ("instructions", str | None), ("seed", int | None)):
            part = getattr(task, name, None)
            need(isinstance(part, kinds), f"the task's {name}", part, "an int" if name == "seed" else "a str")
        check_tools(getattr(task, "tools", ()))
    check_given(options)


def check_given(options: Mapping[str, Any]) -> None:
    """Check the types of the options that calls of agents and sessions share. Raises: `ConfigError`."""
    for name, value in options.items():
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            check(name, value)


def check_run_id(run_id: object) -> None:
    """Check the id of a run. Raises: `ConfigError`."""
    advice = "its run_id" if hasattr(run_id, "run_id") else "a str that is not empty"
    need(isinstance(run_id, str) and bool(run_id), "the run's id", run_id, advice)


def check_new_run_id(run_id: object, name: str = "the run's id") -> None:
    """Check the id of a new run, which `name` gives. Raises: `ConfigError`."""
    is_fine = isinstance(run_id, str) and run_id not in ("", "last") and not run_id.startswith("-")
    advice = "a str without blanks that does not begin with a dash and is not 'last'"
    need(is_fine and str(run_id).isprintable() and " " not in str(run_id), name, run_id, advice)


def check_history(history: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages before the first turn. Raises: `ConfigError` unless each call has one result."""
    waiting: list[str] = []
    for number, message in enumerate(history, 1):
        need(isinstance(message, Message), f"message {number} of the history", message, "a Message")
        if message.role is Role.TOOL:
            if message.call_id not in waiting:
                raise ConfigError(
                    f"message {number} of the history answers no call: {message.call_id!r:.100}"
                )
            waiting.remove(message.call_id)
        elif waiting:
            raise ConfigError(
                f"no tool output found for the call {waiting[0]!r:.100} before message {number}"
            )
        waiting += [call.call_id for call in message.tool_calls]
    if waiting:
        raise ConfigError(f"no tool output found for the call {waiting[0]!r:.100}")
    return tuple(history)


def check_text(text: object) -> str:
    """Return the text of a message. Raises: `ConfigError` if it is not a text."""
    need(isinstance(text, str), "the message", text, "a str")
    return str(text)


def check_flag(name: str, value: object) -> None:
    """Check that an option is a bool: the text "no" would mean yes. Raises: `ConfigError`."""
    need(isinstance(value, bool), name, value, "True or False")


def _check_mapping(name: str, value: object) -> None:
    need(isinstance(value, Mapping), name, value, "a dict")


def _check_metadata(name: str, value: Any) -> None:
    _check_mapping(name, value)
    try:
        is_flat = not is_deep(msgspec.json.encode(dict(value)))
    except RecursionError:
        is_flat = False
    except (TypeError, ValueError) as error:
        need(False, name, value, f"a dict of JSON values ({error})")
    if not is_flat:
        raise ConfigError(f"{name} is nested more than {MAX_DEPTH} levels deep; give a flatter dict")


def _check_attach(name: str, value: Any) -> None:
    if isinstance(value, str | Path):
        raise ConfigError(f"attach is {value!r}; give a list: attach=[{str(value)!r}]")
    for item in value if isinstance(value, Iterable) else [value]:
        if not isinstance(item, str | Path | Attachment | Artifact):
            raise ConfigError(
                f"attach has {item!r:.60}; give paths of files, or content as an Attachment, such as "
                "Attachment('image', content, 'image/png')"
            )


def _check_delivery(name: str, value: object) -> None:
    if value not in Delivery.__members__.values():
        hint = did_you_mean(str(value), [item.value for item in Delivery]) or ";"
        raise ConfigError(
            f"delivery is {value!r}{hint} use one of {', '.join(map(repr, map(str, Delivery)))}"
        )


_FLAGS = (
    "trust",
    "expects_new",
    "pauses_when_cancelled",
    "keeps_events",
    "renews_instructions",
    "begins_with_message",
    "is_last",
)
_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "run_id": lambda name, value: check_new_run_id(value),
    "new_run_id": lambda name, value: check_new_run_id(value),
    "batch_id": lambda name, value: check_new_run_id(value, name),
    "files": lambda name, value: check_files(value),
    "attach": _check_attach,
    "metadata": _check_metadata,
    "on_event": check_callable,
    "delivery": _check_delivery,
    "approvals": _check_mapping,
    "answers": _check_mapping,
    **dict.fromkeys(_FLAGS, check_flag),
}
"""The checks of options that calls share."""
