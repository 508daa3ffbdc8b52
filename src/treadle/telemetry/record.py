"""The record of one turn, for logs."""

from msgspec import Struct

from treadle.core.judgement import Judgement
from treadle.core.types import Caller, Child, Parent, RecalledItem, Route, Usage


class Fallback(Struct, frozen=True):
    """A model that was asked and failed, so that another one was asked."""

    model: str
    error_type: str
    """The name of the error's class."""


class Compaction(Struct, frozen=True):
    """A compaction of the context."""

    reason: str
    tokens_before: int
    tokens_after: int
    error: str | None
    """Why there is no new summary; `None` if there is one, or none was needed."""


class TurnRecord(Struct, kw_only=True, gc=False):
    """What happened in one turn, without contents. Sums are over all inferences of the turn, lost ones included.

    A turn that was cancelled or ended with an error, and then went on, has a record for each of these parts. A
    record does not change once its turn, or part, has ended.
    """

    key: str = ""
    """`RUN_ID/TURN`, followed by `.PART` from the second part on. No two records have the same key."""
    run_id: str
    turn: int = 0
    """The number of the turn, from 1."""
    part: int = 1
    """The number of the part, from 1."""
    is_session: bool = False
    labels: dict[str, str] = {}
    """The entries of the run's metadata whose values are texts."""
    persona: str | None = None
    """The name of the agent's persona; `None` if it has none."""
    parent: Parent | None = None
    """The event of another run from which this run was forked. The records of this run leave out copied events."""
    caller: Caller | None = None
    """The tool call of another run that started this one."""
    started_at: float
    """The time of the start, in seconds since the epoch."""
    ended_at: float = 0.0
    """The time of the end, in seconds since the epoch."""
    duration_seconds: float = 0.0
    """The time from the start to the end, pauses included."""
    paused_seconds: float = 0.0
    """The part of `duration_seconds` in which nobody drove the run."""
    inference_seconds: float = 0.0
    tool_seconds: float = 0.0
    """The sum of the durations of all calls, also of calls that ran at the same time."""
    first_token_seconds: float | None = None
    """The time until the first piece of the first answer; `None` if nothing was streamed."""
    stop_reason: str = ""
    error: str | None = None
    error_type: str | None = None
    """The name of the class of the error that ended the turn; `None` if no inference failed."""
    fault: str | None = None
    model: str | None = None
    """The model that was asked last, as the user writes it."""
    models: list[str] = []
    """The models that answered, as their servers name them, in the order of their first answers."""
    route: Route | None = None
    """The choice of the model, with its reasons, and the scores of the tiers that were not chosen."""
    fallbacks: list[Fallback] = []
    """The models that failed before another one was asked."""
    steps: int = 0
    """The inferences that were completed."""
    failed_attempts: int = 0
    """The attempts at inferences that failed, or whose outcome was lost."""
    input_tokens: int = 0
    """Includes `cached_input_tokens`."""
    output_tokens: int = 0
    """Includes `reasoning_tokens`."""
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    uncounted_inferences: int = 0
    """The number of inferences whose tokens are not known. The sums of tokens do not include them."""
    cached_share: float | None = None
    """The share of `input_tokens` that the servers had in their caches; `None` if there are no input tokens."""
    cost_usd: float | None = None
    """`None` if a part of the cost is not known."""
    known_cost_usd: float = 0.0
    """The part of the cost that is known."""
    cost_basis: str = "known"
    """`known`, or `unknown` if a part of the cost is not known."""
    tools: dict[str, int] = {}
    """How often each tool was called, by name. Calls that tools made are included."""
    tool_calls: int = 0
    tool_errors: int = 0
    """The calls that failed or were not run."""
    server_tools: dict[str, int] = {}
    """How often the models' servers called each of their own tools, by name."""
    skills: list[str] = []
    """The skills that were loaded."""
    recalled: tuple[RecalledItem, ...] = ()
    """The memories and pieces of documents that the model was told."""
    recalled_left_out: int = 0
    judgement: Judgement | None = None
    """The judgement of the user's message; `None` if the agent has no judge."""
    is_hinted: bool = False
    """True if the model was told to ask about what the message leaves open."""
    compactions: list[Compaction] = []
    is_compacted: bool = False
    questions: int = 0
    answered_questions: int = 0
    approvals: int = 0
    """The calls that somebody decided about."""
    refused_approvals: int = 0
    refusals: list[str] = []
    """The model's refusals: the name of each tool that it wrongly said it cannot use, and `content` if the model or
    its provider's filter refused to answer."""
    injected_messages: int = 0
    """Messages that reached the model during the turn: those of the user, and Treadle's own."""
    reasoning_sha256: str | None = None
    """The hash of the model's thinking; `None` if the servers show none."""
    children: list[Child] = []
    """The runs that tool calls drove. Their tokens and costs are not in the sums, because these runs have records
    of their own."""

    def charge(self, usage: Usage | None, cost_usd: float | None) -> None:
        """Add what was used. `None` is not known."""
        if usage is None:
            self.uncounted_inferences += 1
        else:
            self.input_tokens += usage.input_tokens
            self.output_tokens += usage.output_tokens
            self.cached_input_tokens += usage.cached_input_tokens
            self.reasoning_tokens += usage.reasoning_tokens
            self.cache_write_tokens += usage.cache_write_tokens
        if cost_usd is None:
            self.cost_basis = "unknown"
        else:
            self.known_cost_usd += cost_usd
