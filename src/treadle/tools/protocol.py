"""The protocols of tools, toolsets and approvers, and the types of their results."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.asking import Answerable, Question
from treadle.core.errors import ConfigError
from treadle.core.registry import NamedFields
from treadle.core.spec import PartSpec
from treadle.core.texts.masking import Mask
from treadle.core.types import Json, ToolCall, ToolSpec

if TYPE_CHECKING:
    from treadle.tools.context import ToolContext


class Attachment(Struct, frozen=True):
    """Content of a result or a message that cannot be part of its text. The journal keeps it as an `Artifact`."""

    kind: str
    """`image`, `audio`, `document`, `resource` or `link`."""
    content: bytes | None = None
    """The content; `None` for a link."""
    mime_type: str | None = None
    uri: str | None = None
    name: str | None = None

    def without(self, mask: Mask) -> "Attachment":
        """Return this attachment without the secrets of `mask` in its content, its address and its name."""
        content = None if self.content is None else mask.hide_bytes(self.content)
        uri, name = [None if text is None else mask.hide(text) for text in (self.uri, self.name)]
        return replace(self, content=content, uri=uri, name=name)


class ToolOutput(Struct, frozen=True, metaclass=NamedFields):
    """The result of a tool that returns more than a text."""

    content: str
    """The text that the model reads. It should mention the attachments."""
    is_error: bool = False
    is_simulated: bool = False
    """True if the result was invented, so that nothing outside was read or changed."""
    structured: Json = None
    """The result as JSON that fits `ToolSpec.output_schema`."""
    attachments: tuple[Attachment, ...] = ()

    def without(self, mask: Mask) -> "ToolOutput":
        """Return this output without the secrets of `mask` in its text, structured content and attachments."""
        structured = None if self.structured is None else mask.hide_value(self.structured)
        attachments = tuple([item.without(mask) for item in self.attachments])
        return replace(self, content=mask.hide(self.content), structured=structured, attachments=attachments)


class Tool(Protocol):
    """One thing that a model may call.

    A tool whose `call` does not use its context may have an attribute `takes_context` that is false; it is
    then called with `treadle.tools.context.NO_CONTEXT`, which saves the cost of a context for each call.
    A tool of a toolset whose tools change has an attribute `toolset`. The toolset has an attribute `is_outdated`,
    true once they changed, and a coroutine method `renew`, after which `tools` returns them, for new runs. If its
    attribute `can_change` is false, they never change.
    A tool whose calls drive runs of their own has an attribute `drives_runs` that is true, so that the calls of one
    step get equal shares of the budgets.
    """

    @property
    def spec(self) -> ToolSpec:
        """The tool's definition: its name, description, parameters, effect and limits."""

    def find_fault(self, arguments: Json) -> str | None:
        """Return why `arguments` do not fit the schema, in words that help the model; `None` if they fit."""

    async def call(self, arguments: dict[str, Json], context: "ToolContext") -> str | ToolOutput:
        """Run the tool with `arguments` in which `find_fault` found no fault.

        Raises: any exception; its message goes to the model. `ToolError` is for expected errors.
        """


class Toolset(Protocol):
    """Several tools that belong together.

    A toolset with a method `close` or `aclose` is closed together with its agent. If it can be made again from a
    name and settings, it has an attribute `part`, a `PartSpec`.
    """

    def tools(self) -> Sequence[Tool]:
        """Return the tools in the order in which the model sees them."""


class Decision(Struct, frozen=True):
    """The answer to an approval request."""

    is_approved: bool
    reason: str | None = None
    """The reason that the model is told if the call was refused."""
    arguments: str | Mapping[str, Json] | None = None
    """Arguments that replace the model's, as a mapping or as JSON. The model is told about this change."""

    def __post_init__(self) -> None:
        if not isinstance(self.is_approved, bool):
            raise ConfigError(f"Decision.is_approved is {self.is_approved!r:.100}; give True or False")
        if not isinstance(self.arguments, str | Mapping | None):
            raise ConfigError(f"Decision.arguments is {self.arguments!r:.100}; give a dict, or JSON as a str")

    @property
    def new_arguments(self) -> str | None:
        """The arguments that replace the model's, as JSON. Raises: `ConfigError` if they have no form in JSON."""
        if self.arguments is None or isinstance(self.arguments, str):
            return self.arguments
        try:
            return msgspec.json.encode(self.arguments).decode()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Decision.arguments cannot be written as JSON: {error}") from None


class ApprovalRequest(Struct, frozen=True):
    """A call that needs approval before it runs."""

    run_id: str
    call: ToolCall
    spec: ToolSpec


Approver: TypeAlias = Callable[
    [ApprovalRequest], "Awaitable[Decision | bool | None] | Decision | bool | None"
]
"""A function that decides whether a call may run. `None` postpones it: the run pauses until somebody decides."""


Asker: TypeAlias = Callable[[Question], "Awaitable[Answerable | None] | Answerable | None"]
"""A function that puts a question to the user and returns the answer. `None` postpones the answer: the run pauses
until somebody answers. An answer that does not fit is asked for again, with `Question.fault`."""


ToolLike: TypeAlias = "Tool | Toolset | Callable[..., object] | PartSpec | str"
"""A tool, a toolset, a function, the name of a registered toolset, or such a name with settings."""
