"""The base of all models that wrap another model."""

from typing import TYPE_CHECKING, Any, ClassVar

from treadle.core.spec import PartSpec
from treadle.models.protocol import Model, identity_of, part_of

_PASSED_ON = frozenset(
    (
        *("output_mode", "can_call_tools", "context_tokens", "max_output_tokens", "has_price"),
        *("count_tokens", "takes_schema", "estimate_cost_usd", "check_part"),
    )
)
"""The attributes that the functions of `models.protocol` ask for. A model need not have any of them."""


class Wrapper:
    """A model that wraps another model. It behaves like the inner model unless a subclass says otherwise."""

    CHANGES_ANSWERS: ClassVar[bool] = True
    """True if answers may differ from the inner model's. If not, the wrapper has the inner model's `part`."""

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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what the inner model says of itself, if it says it."""
            if name not in _PASSED_ON:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"
