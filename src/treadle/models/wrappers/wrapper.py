"""The base of all models that wrap another model."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from treadle.core.spec import PartSpec
from treadle.models.protocol import (
    Model,
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

_TOLD: dict[str, Callable[[Model], Any]] = {
    "identity": identity_of,
    "output_mode": output_mode_of,
    "context_tokens": context_tokens_of,
    "max_output_tokens": output_tokens_of,
    "has_price": has_price,
    "count_tokens": lambda inner: getattr(inner, "count_tokens", None),
    "takes_schema": lambda inner: partial(takes_schema, inner),
    "estimate_cost_usd": lambda inner: partial(estimate_cost_usd, inner),
    "check_part": lambda inner: lambda part: check_parts(inner, [part]),
}
"""What the functions of `protocol.py` ask a model, and how a wrapper answers it with its inner model."""


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

    def __getattr__(self, name: str) -> Any:
        """Return the inner model's answer to what `_TOLD` names."""
        if (ask := _TOLD.get(name)) is not None:
            return ask(self.inner)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"
