"""The base of all models that wrap another model."""

from collections.abc import Callable
from typing import ClassVar

from treadle.core.spec import PartSpec
from treadle.core.types import Artifact, Json, OutputMode, Request, Usage
from treadle.models.protocol import (
    Model,
    can_call_tools,
    check_parts,
    context_tokens_of,
    estimate_cost_usd,
    has_price,
    identity_of,
    output_mode_of,
    output_tokens_of,
    part_of,
    takes_schema,
)


class Wrapper:
    """A model that wraps another model. It behaves like the inner model unless a subclass says otherwise."""

    CHANGES_ANSWERS: ClassVar[bool] = True
    """True if answers may differ from the inner model's. If not, the wrapper has the same `part` as the inner
    model."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        part = part_of(inner)
        if self.CHANGES_ANSWERS:
            part = PartSpec(name=part.name, missing=f"the program put a {type(self).__name__} around it")
        self.part = part
        """The description of this model for the agent spec."""

    @property
    def name(self) -> str:
        """The inner model's name."""
        return self.inner.name

    @property
    def identity(self) -> str:
        """The inner model's identity."""
        return identity_of(self.inner)

    @property
    def output_mode(self) -> OutputMode:
        """How the inner model is made to give answers that fit a schema."""
        return output_mode_of(self.inner)

    @property
    def can_call_tools(self) -> bool:
        """True if the inner model can call tools."""
        return can_call_tools(self.inner)

    @property
    def context_tokens(self) -> int | None:
        """The inner model's context window; `None` if it is not known."""
        return context_tokens_of(self.inner)

    @property
    def max_output_tokens(self) -> int | None:
        """The longest answer that the inner model asks for; `None` if it leaves that to the server."""
        return output_tokens_of(self.inner)

    @property
    def has_price(self) -> bool:
        """True if the inner model's answers have a cost."""
        return has_price(self.inner)

    @property
    def count_tokens(self) -> "Callable[[Request], int | None] | None":
        """The inner model's function that counts the tokens of a prompt; `None` if it has none."""
        count: Callable[[Request], int | None] | None = getattr(self.inner, "count_tokens", None)
        return count

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """Return whether the inner model's server decodes within `schema`."""
        return takes_schema(self.inner, schema, has_tools=has_tools)

    def estimate_cost_usd(self, usage: Usage) -> float | None:
        """Return what `usage` would cost with the inner model; `None` if that is not known."""
        return estimate_cost_usd(self.inner, usage)

    def check_part(self, part: Artifact) -> None:
        """Check that the inner model can be sent `part`. Raises: `UnsupportedPartError` if it cannot."""
        check_parts(self.inner, [part])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"
