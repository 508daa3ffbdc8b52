"""What a model is to the loop."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from msgspec import Struct

from treadle.core.errors import ProviderError
from treadle.core.events import Delta
from treadle.core.types import Completion, Json, OutputMode, Request


class RateLimits(Struct, frozen=True, omit_defaults=True):
    """What a server said of its limits, with any answer. `None`: it did not say."""

    requests: int | None = None
    """Requests that a window allows."""
    requests_left: int | None = None
    requests_reset_seconds: float | None = None
    """Until all of the window's requests are there again."""
    tokens: int | None = None
    tokens_left: int | None = None
    tokens_reset_seconds: float | None = None


class Watch:
    """What a model reports while it works. The loop makes one for each run."""

    __slots__ = ("on_delta", "on_failure", "on_rate_limits")

    def __init__(
        self,
        on_delta: Callable[[Delta], None] | None = None,
        on_failure: Callable[[ProviderError, int, float], None] | None = None,
        on_rate_limits: Callable[[RateLimits], None] | None = None,
    ) -> None:
        self.on_delta = on_delta
        """Called with each piece as it arrives. `None`: nobody listens, a whole answer is enough."""
        self.on_failure = on_failure
        """Called by a wrapper that will try again: the error, the attempt's number (from 1), the delay
        before the next one in seconds. What the failed attempt streamed is void."""
        self.on_rate_limits = on_rate_limits
        """Called with what the headers of an answer, good or bad, say of the server's limits."""


class Model(Protocol):
    """Answers requests. Wrappers are models around a model."""

    @property
    def name(self) -> str:
        """The model as its user names it, for the journal."""
        ...

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """One inference.

        Raises: `ProviderError` for whatever the server did. Cancelling closes the connection.
        """
        ...


def identity_of(model: Model) -> str:
    """What an answer of `model` depends on beside the request: server, model and settings, and no key.

    A model says so in an attribute `identity`; one that has none is taken to be what its name says.
    """
    return str(getattr(model, "identity", model.name))


def output_mode_of(
    model: Model, schema: dict[str, Json] | None = None, *, has_tools: bool = False
) -> OutputMode:
    """How `model` is best brought to answer in `schema`, or in any, with tools to call or without.

    A model says so in an attribute `output_mode`; one that has none is trusted to decode within a schema.
    """
    mode = OutputMode(getattr(model, "output_mode", OutputMode.NATIVE))
    if (
        mode is OutputMode.NATIVE
        and schema is not None
        and not takes_schema(model, schema, has_tools=has_tools)
    ):
        return OutputMode.TOOL
    return mode


def takes_schema(model: Model, schema: dict[str, Json], *, has_tools: bool) -> bool:
    """Whether the server of `model` can decode within `schema`: what a method `takes_schema` says, or yes."""
    takes = getattr(model, "takes_schema", None)
    return True if takes is None else bool(takes(schema, has_tools=has_tools))


ModelLike: TypeAlias = "Model | str"
"""A model, or a name for `treadle.model`."""
