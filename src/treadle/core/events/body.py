"""The base of all bodies of events, and the version of their types.

A new version adds optional fields to bodies, so that older journals can still be read.
"""

from msgspec import Struct

VERSION = "2.4"
"""The version of the event types, `major.minor`. A reader refuses a newer major version.

Before 2.1, inferences that were lost did not count for budgets. Before 2.2, contexts were not compacted, and a turn
ended with an answer that had no content. Before 2.3, token ids and log probabilities were lists of numbers. Before
2.4, inferences whose answer was lost counted as steps.
"""


class Body(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False, tag_field="type"):
    """The base of all bodies."""

    at: float = 0.0
    """The time in seconds since the epoch, by the clock of the process that appended the event. A new body has no
    time; the driver sets it when it appends the event."""
    worked_seconds: float | None = None
    """How long the turn had been worked on, by a monotonic clock and without pauses and waits for a decision.
    `None` if the policy has no deadline."""
    inbox: int | None = None
    """The number of the inbox message that this event results from, see `core.inbox`. The run has then taken in
    all messages up to this number. `None`: the event results from no such message."""


class BodyWithContents(Body, frozen=True, kw_only=True, gc=False):
    """The base of the bodies that refer to contents in the store."""

    contents: dict[str, str] | None = None
    """The contents that the body refers to, by hash, in base64. Only in an exported journal; `None` elsewhere."""
