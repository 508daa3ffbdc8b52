"""What a tool is to the loop, and what a running tool is given."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from treadle.core.types import Json, ToolSpec

if TYPE_CHECKING:
    from treadle.sandbox.protocol import Sandbox


class ToolContext:
    """What a running call knows of its run. Annotate a parameter with it to receive it."""

    __slots__ = ("_report", "call_id", "run_id", "sandbox", "step")

    def __init__(
        self,
        run_id: str,
        call_id: str,
        step: int,
        sandbox: "Sandbox | None" = None,
        report: Callable[[str, str], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.step = step
        """Counted from 1 over the run."""
        self.sandbox = sandbox
        """The run's files; `None` if it has none."""
        self._report = report

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this call, in every process. Pass it on to what you call."""
        return f"{self.run_id}/{self.call_id}"

    def progress(self, text: str) -> None:
        """Tell whoever watches the run. Not journalled, and safe to call from a thread."""
        if self._report is not None:
            self._report(self.call_id, text)


class Tool(Protocol):
    """One thing that a model may call."""

    @property
    def spec(self) -> ToolSpec:
        """What the model and the loop know of it."""
        ...

    def find_fault(self, arguments: Json) -> str | None:
        """What in `arguments` breaks the schema, told so that the model can mend it; or `None`."""
        ...

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        """Run it; `arguments` have passed `find_fault`.

        Raises: anything; the message goes to the model. `ToolError` is for errors that are meant.
        """
        ...


class Toolset(Protocol):
    """Several tools that belong together."""

    def tools(self) -> Sequence[Tool]:
        """The tools, in the order in which the model sees them."""
        ...


class Toolbox:
    """What a model may call: the tools by name, and what it is told of them."""

    __slots__ = ("specs", "tools")

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools
        self.specs: tuple[ToolSpec, ...] = tuple([tool.spec for tool in tools.values()])


ToolLike: TypeAlias = "Tool | Toolset | Callable[..., object] | str"
"""A tool, a toolset, a function, or the name of a registered toolset."""
