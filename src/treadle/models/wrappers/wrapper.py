"""What all models around a model share."""

from treadle.core.types import Json, OutputMode
from treadle.models.protocol import Model, identity_of, output_mode_of, takes_schema


class Wrapper:
    """A model that is to its user what the model within is."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """The inner model's."""
        return self.inner.name

    @property
    def identity(self) -> str:
        """The inner model's: what is around it changes no answer."""
        return identity_of(self.inner)

    @property
    def output_mode(self) -> OutputMode:
        """The inner model's."""
        return output_mode_of(self.inner)

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """As the inner model's."""
        return takes_schema(self.inner, schema, has_tools=has_tools)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"
