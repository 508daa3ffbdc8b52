"""The events of a whole run: its start, its pauses and its end, and the grades that it gets."""

from msgspec import field

from treadle.core.events.body import Body, BodyWithContents
from treadle.core.lineage import Caller, Parent, TaskRef
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.types import Fault, Json, Message, OutputSpec, StopReason, ToolSpec, Window


class RunStarted(BodyWithContents, frozen=True, gc=False, tag="run_started"):
    """The start of a run, with the agent and everything else that was given at the start."""

    version: str
    """The `VERSION` of the Treadle that wrote the event."""
    agent: AgentSpec | None = None
    """The agent that started the run; `None` only in journals of version 1, see `spec`."""
    instructions: str | None = None
    """The system message as sent; `None` if it is the same as `agent.instructions`."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are offered to the model."""
    is_session: bool = False
    """True if the run is a session: after a turn it stays open for the next one."""
    has_user: bool = False
    """True if a simulated user may speak again after each answer. The run is open until nothing more is said."""
    task: TaskRef | None = None
    """The task of the run; `None` if the run was given only a text."""
    parent: Parent | None = None
    """The run that this one was forked from; the events up to `parent.seq` are copies. `None`: no fork."""
    output: OutputSpec | None = None
    """The form that final answers must have; `None`: any text."""
    metadata: dict[str, Json] | None = None
    """Data that the caller wants to keep with the run."""
    window: Window | None = None
    """The context window of the model; `None` if it is not known."""
    history: tuple[Message, ...] = ()
    """The messages that another program had exchanged with a model before; they come after the system message."""
    caller: Caller | None = None
    """The tool call that started this run as a sub-agent; `None`: no call did."""
    is_relayed: bool = False
    """True if another program decides what follows each answer, as behind the gateway: the model is asked once for
    what that program sends, and all calls are its own."""
    policy: Policy | None = None
    """Only in version 1: the policy, which is now in `agent`."""
    model: str | None = None
    """Only in version 1: the model's name."""

    @property
    def spec(self) -> AgentSpec:
        """The agent that started the run, also for journals of version 1."""
        return self.agent if self.agent is not None else read_version_1(self)

    @property
    def system_message(self) -> str | None:
        """The text of the system message; `None` if there is none."""
        if self.instructions is not None or self.agent is None:
            return self.instructions
        return self.agent.instructions


def read_version_1(started: RunStarted) -> AgentSpec:
    """Return the agent spec of a run whose journal is of version 1.

    For runs of the command line, `metadata["cli"]` holds the model and the tools; for other runs only their names
    are known.
    """
    kept = (started.metadata or {}).get("cli")
    given: dict[str, Json] = kept if isinstance(kept, dict) else {}
    names = ("base_url", "temperature", "max_output_tokens", "seed")
    settings = {name: given[name] for name in names if given.get(name) is not None}
    if given.get("tools"):
        tools = tuple([PartSpec(name=str(text)) for text in given["tools"]])
    elif started.task is not None:
        tools = ()
    else:
        why = "its journal is of an older version and holds only its definition"
        tools = tuple([PartSpec(name=tool.name, missing=why) for tool in started.tools])
    name = str(given.get("model") or started.model or "")
    if started.model == f"openai:{name}":
        name = started.model
    return AgentSpec(
        model=PartSpec(name=name, settings=settings or None),
        instructions=started.instructions,
        tools=tools,
        policy=started.policy or Policy(),
        schema=None if started.output is None else started.output.schema,
        task_set=None if started.task is None else started.task.task_set,
    )


SET_ASIDE = "set_aside"
"""The reason for the pause of a run whose drivers died again and again. It waits until somebody resumes it."""
LEFT = "interrupted"
"""What lists say of a run that nobody has cancelled: the process that drove it was stopped."""


class RunPaused(Body, frozen=True, gc=False, tag="run_paused"):
    """The pause of a run: no process drives it until it is resumed."""

    reason: str
    """The reason for the pause: `cancelled`, `question`, `approval`, `result`, `closed` or `set_aside`."""
    remark: str | None = None
    """What was said by somebody who cancelled the run, or why it was set aside; `None` if nothing was said."""
    call_ids: tuple[str, ...] = ()
    """The calls of external tools whose results the run waits for."""

    @property
    def cause(self) -> str:
        """The reason, as people are told it: `LEFT` if the run is cancelled, and no message has cancelled it."""
        return LEFT if self.reason == StopReason.CANCELLED and self.inbox is None else self.reason


class RunResumed(Body, frozen=True, gc=False, tag="run_resumed"):
    """The point at which a process drives the run again. Calls that were started and not completed are in doubt."""

    agent: AgentSpec | None = None
    """The agent from here on; `None` in journals of version 1, where the agent stays the same."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are offered to the model from here on; ignored if `agent` is `None`."""
    output: OutputSpec | None = None
    """How the model is asked for answers that fit a schema from now on; `None`: as before."""
    drops_output: bool = False
    """True if answers need not fit the schema any more that they had to fit before."""
    window: Window | None = None
    """The context window of the model from here on; `None` if it is not known."""
    instructions: str | None = None
    """The text of the system message from here on; `None`: as before."""
    trace_parent: str | None = None
    """The span of the part of the turn that begins here; see `turn_started`. `None`: no open turn, or no trace."""
    begins_fork: bool = False
    """True if the events before are copied from another run. An inference that was under way there is not lost."""


class RunFinished(Body, frozen=True, gc=False, tag="run_finished"):
    """The end of a run."""

    stop_reason: StopReason
    """The reason why the run ended."""
    error: str | None = None
    """What went wrong; `None` if nothing did."""
    fault: Fault | None = None
    """The party responsible for `error`; `None` if nobody is."""


class Noted(Body, frozen=True, gc=False, tag="noted"):
    """Labels and remarks that somebody added to a run, a message that was taken back, or the reason why a message
    to the run had no effect."""

    labels: dict[str, str | None] = field(default_factory=dict)
    """The labels that were set, by name; `None` removed a label."""
    remark: str | None = None
    """A text for people who read the run; `None` if there is none."""
    by: str | None = None
    """Who or what added the labels or the remark; `None` if unknown."""
    refused: str | None = None
    """The tag of the message that had no effect, such as `answer`; `remark` says why. `None`: none was refused."""
    withdrawn_seq: int | None = None
    """The number of the `message_injected` event whose message the user took back; `None`: none was."""


class Rewarded(Body, frozen=True, gc=False, tag="rewarded"):
    """A grade, from the task's check or from a later rescoring."""

    reward: float
    """The grade, usually from 0 to 1."""
    name: str = "check"
    """The name of the check that gave the grade. If a name has several grades, the newest one is valid."""
    detail: str | None = None
    """A sentence that explains the grade; `None` if there is none."""
    metrics: dict[str, float] | None = None
    """Further numbers of the scorer by name; `None` if it gave none."""
    scorer: PartSpec | None = None
    """The scorer with its settings; `None` if the grade is of the task's own check at the end of the run."""
    step_rewards: tuple[float, ...] | None = None
    """The rewards of the run's completed inferences, in their order; `None` if the task does not reward steps."""
