"""The protocol `Router`, and the facts from which a router chooses a tier."""

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.judgement import Verdict
from treadle.core.types import Completion, Request, Route


class TierCandidate(Struct, frozen=True, kw_only=True):
    """A tier that a router may choose. `None` means that something is not known."""

    tier: str
    model: str
    """The name of the tier's model."""
    quality: float
    """The quality of the answers, from 0 to 1."""
    cost_usd: float | None = None
    """What the next inference would cost, estimated from the prompt and an answer of usual length."""
    context_tokens: int | None = None
    sees_images: bool | None = None
    """Whether the model is known to see images; `None`: unknown, but its dialect can send them."""
    tool_strength: str | None = None
    latency_seconds: float | None = None
    """The time until an answer is complete: the one that was measured, or else the one that was configured."""
    is_measured: bool = False
    """True if `latency_seconds` was measured."""
    failure_rate: float = 0.0
    """The share of the newest inferences that failed for good, from 0 to 1."""
    rests_seconds: float = 0.0
    """How long the model should not be asked, because it failed in this or another run of the process."""
    refusal: str | None = None
    """Why the model cannot be sent a part of a message; `None` if it can be sent all of them."""


class RoutingFacts(Struct, frozen=True, kw_only=True):
    """The facts from which a router chooses a tier. Routers are pure functions of them."""

    text: str
    """The user's message."""
    candidates: tuple[TierCandidate, ...]
    """The tiers to choose from, the strongest first. A router gets only those that can do the work."""
    is_first_turn: bool = True
    is_session: bool = False
    """True if further turns may follow."""
    images: int = 0
    """How many images the request has."""
    prompt_tokens: int = 0
    """The estimated tokens of the whole request, with the tools."""
    output_tokens: int = 1000
    """The number of tokens that are kept free for the answer."""
    tools: int = 0
    """How many tools the model is offered."""
    is_boilerplate: bool = False
    """True if the message needs no thinking, such as thanks."""
    is_identity_sensitive: bool = False
    """True if the message is about the assistant itself."""
    difficulty: float = 0.0
    """How hard the message is to answer well, from 0 to 1; from 0.6 on it is hard."""
    allows_weaker: bool = False
    """True if a weaker tier may take the place of one that rests."""
    tried: dict[str, str] = {}
    """The tiers that are not asked again in this turn, with the reason."""


class Router(Protocol):
    """A rule that chooses a tier for a turn."""

    def route(self, facts: RoutingFacts) -> Route:
        """Return the choice among `facts.candidates`, with a score for each. There is at least one candidate."""


class Unroutable(ConfigError):  # noqa: N818
    """Raised by a router if the user's own choice excludes all candidates."""


class CheckedAnswer(Struct, frozen=True):
    """The result of the check of an answer."""

    fault: str | None
    """Why the answer is not used; `None` if it is used."""
    verdict: Verdict | None = None
    """What a second model said about the answer, and what that cost; `None` if no second model was asked."""


@runtime_checkable
class Checker(Protocol):
    """A router that checks answers before they are used, while there is a better tier that could be asked."""

    def check(self, request: Request, completion: Completion) -> Awaitable[CheckedAnswer]:
        """Return the fault of the answer to `request`, or the verdict that it can be used."""
