"""The judgements of messages of the user, about what they leave open and need, and of answers."""

from enum import StrEnum

from msgspec import Struct

from treadle.core.types import Usage


class AmbiguityClass(StrEnum):
    """The kind of what a message leaves open. The order is the order of precedence."""

    SAFETY_CRITICAL_GAP = "safety_critical_gap"
    """The message asks for something irreversible, such as deleting or paying, without saying exactly what."""
    MISSING_PARAMETER = "missing_parameter"
    """Something that the work needs is missing, such as a recipient or a time."""
    VAGUE_SCOPE = "vague_scope"
    """The message says neither how much is to be done nor when it is good enough."""
    CONFLICTING_CONSTRAINTS = "conflicting_constraints"
    """Two conditions exclude each other."""


class Missing(StrEnum):
    """What a message leaves open."""

    TARGET = "target"
    """What the work is to be done on."""
    RECIPIENT = "recipient"
    TIME = "time"
    SUBJECT = "subject"
    """What a text or a reminder is about."""
    SCOPE = "scope"
    """How much the work includes."""
    CRITERIA = "criteria"
    """What makes the result good."""
    PRIORITY = "priority"
    """It is open which of two conditions is more important."""
    AMOUNT = "amount"
    """It is open how much money is meant."""


class Ambiguity(Struct, frozen=True, omit_defaults=True):
    """What a message leaves open that its author should be asked for."""

    kind: AmbiguityClass
    missing: Missing
    span: tuple[int, int]
    """The part of the message: the position of its first character, and the position after its last."""
    confidence: float = 1.0
    """How likely the judgement is right, from 0 to 1. A model that judges gives no confidence: 1."""


class TaskKind(StrEnum):
    """A kind of work that needs tools."""

    RESEARCH = "research"
    """Find out about a subject from several sources."""
    SEARCH = "search"
    """Look something up that changes, such as news, prices and weather."""
    FETCH = "fetch"
    """Read a web page."""
    READ = "read"
    """Read a file."""
    WRITE = "write"
    """Write a document or a file."""
    IMAGE = "image"
    """Make an image."""
    COMPUTE = "compute"
    """Evaluate data."""
    CODE = "code"
    """Change or run code, or edit files."""
    SEND = "send"
    """Send a message."""
    SCHEDULE = "schedule"
    """Make or change appointments, bookings and reminders."""


class TaskFound(Struct, frozen=True, omit_defaults=True):
    """Work in a message that is worth an agent's run."""

    kind: TaskKind
    tools: tuple[str, ...]
    """The names of the tools that suit the work."""
    span: tuple[int, int]
    """The part of the message that asks for the work: the positions of its first character and after its last."""
    confidence: float = 1.0
    """How likely the judgement is right, from 0 to 1. A model that judges gives no confidence: 1."""


class Judgement(Struct, frozen=True, omit_defaults=True):
    """The judgement about a message: what kind of message it is, and what it needs."""

    language: str = "en"
    """The language of the message: `en` or `no`."""
    ambiguity: Ambiguity | None = None
    """What the user should be asked for; `None`: nothing."""
    task: TaskFound | None = None
    """The work that needs tools; `None`: an answer suffices."""
    is_boilerplate: bool = False
    """True if the message needs no thinking."""
    is_identity_sensitive: bool = False
    """True if the message is about the assistant itself or about a topic of its persona."""
    difficulty: float = 0.0
    """How hard the message is to answer well, from 0 to 1."""
    judge: str = "patterns"
    """What judged: `patterns`, or the name of a model."""
    error: str | None = None
    """Why the patterns judged in place of another judge; `None` if they did not."""
    model: str | None = None
    """The name of the model that was asked to judge, also if it failed; `None` if no model was asked."""
    usage: Usage | None = None
    """The tokens that its judgement took; `None`: no model was asked."""
    cost_usd: float | None = 0.0
    """The cost of the judgement in US dollars; `None`: unknown."""


class Verdict(Struct, frozen=True, omit_defaults=True, gc=False):
    """The judgement of a second model about an answer, with the cost of asking it."""

    text: str
    """The text of the judgement, or why the second model could not be asked."""
    model: str | None = None
    """The name of the model that was asked."""
    usage: Usage = Usage()
    """The tokens that the judgement took; they count for the budgets."""
    cost_usd: float | None = 0.0
    """The cost of the judgement in US dollars; `None` if it is not known."""
