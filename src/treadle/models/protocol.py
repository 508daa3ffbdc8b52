"""What a model is to the loop."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from treadle.core.errors import ProviderError
from treadle.core.events import Delta
from treadle.core.types import Completion, Request


class Watch:
    """What a model reports while it works. The loop makes one for each run."""

    __slots__ = ("on_delta", "on_failure")

    def __init__(
        self,
        on_delta: Callable[[Delta], None] | None = None,
        on_failure: Callable[[ProviderError, int, float], None] | None = None,
    ) -> None:
        self.on_delta = on_delta
        """Called with each piece as it arrives. `None`: nobody listens, a whole answer is enough."""
        self.on_failure = on_failure
        """Called by a wrapper that will try again: the error, the attempt's number (from 1), the delay
        before the next one in seconds. What the failed attempt streamed is void."""


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


ModelLike: TypeAlias = "Model | str"
"""A model, or a name for `treadle.model`."""
