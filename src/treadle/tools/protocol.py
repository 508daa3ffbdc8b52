"""What a tool is to the loop, and what a running tool is given."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ToolError
from treadle.core.policy import Policy
from treadle.core.types import Json, ToolCall, ToolSpec

if TYPE_CHECKING:
    from treadle.sandbox.protocol import Sandbox

T = TypeVar("T")


class Attachment(Struct, frozen=True):
    """Something that a result comes with and that its text cannot hold. The loop keeps it as an `Artifact`."""

    kind: str
    """`image`, `audio`, `resource` or `link`."""
    content: bytes | None = None
    """`None` for a link."""
    mime_type: str | None = None
    uri: str | None = None
    name: str | None = None


class ToolOutput(Struct, frozen=True):
    """What a tool returns that has more to say than a text."""

    content: str
    """What the model reads. Say in it what the attachments are."""
    is_error: bool = False
    is_simulated: bool = False
    """Made up: nothing in the world was looked at or changed."""
    structured: Json = None
    """The same as JSON, in `ToolSpec.output_schema`."""
    attachments: tuple[Attachment, ...] = ()


class Scope:
    """What belongs to one run while a process drives it: working folders, connections, sessions.

    Everything in it is closed, last opened first, when nobody drives the run any more.
    """

    __slots__ = ("_closers", "_items", "_lock", "is_run_over")

    def __init__(self) -> None:
        self.is_run_over = False
        """Set before it is closed for good: the run is finished, and will not be driven again."""
        self._items: dict[Hashable, Any] = {}
        self._closers: list[AbstractAsyncContextManager[Any]] = []
        self._lock: asyncio.Lock | None = None

    async def get(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """The run's own item under `key`, made and entered with the first call.

        It may be left in another task than it was entered in. Raises: what entering raises.
        """
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if key not in self._items:
                manager = make()
                self._items[key] = await manager.__aenter__()
                self._closers.append(manager)
            item: T = self._items[key]
        return item

    async def close(self) -> None:
        """Leave everything; the scope is empty then and can be used again."""
        while self._closers:
            manager = self._closers.pop()
            try:
                await manager.__aexit__(None, None, None)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a tool failed to give back what it held for a run", "exception": error}
                )
        self._items.clear()


CallTool: TypeAlias = Callable[[str, dict[str, Json]], Awaitable[ToolOutput]]


class ToolContext:
    """What a running call knows of its run. Annotate a parameter with it to receive it."""

    __slots__ = (
        "_caller",
        "_make_caller",
        "_report",
        "call_id",
        "run_id",
        "sandbox",
        "scope",
        "step",
        "tools",
    )

    def __init__(
        self,
        run_id: str,
        call_id: str,
        step: int,
        sandbox: "Sandbox | None" = None,
        report: Callable[[str, str], None] | None = None,
        *,
        scope: Scope | None = None,
        tools: Sequence[ToolSpec] = (),
        make_caller: Callable[[str], CallTool] | None = None,
    ) -> None:
        """`make_caller` gives, for a call's id, what makes calls within it; it is asked at the first one."""
        self.run_id = run_id
        self.call_id = call_id
        self.step = step
        """Counted from 1 over the run."""
        self.sandbox = sandbox
        """The run's files; `None` if it has none."""
        self.scope = scope if scope is not None else Scope()
        """What tools hold for the run, as long as it is driven."""
        self.tools = tools
        """All tools of the run, this one too."""
        self._report = report
        self._make_caller = make_caller
        self._caller: CallTool | None = None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this call, in every process. Pass it on to what you call."""
        return f"{self.run_id}/{self.call_id}"

    @property
    def is_heard(self) -> bool:
        """Somebody watches the run; otherwise `progress` tells nobody."""
        return self._report is not None

    def progress(self, text: str) -> None:
        """Tell whoever watches the run. Not journalled, and safe to call from a thread."""
        if self._report is not None:
            self._report(self.call_id, text)

    async def call_tool(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        """Call another tool of the run; the call is journalled as one of its own, within this one.

        One that fails comes back with `is_error`. Raises: `ToolError` where there is no run to call it in.
        """
        if self._caller is None:
            if self._make_caller is None:
                raise ToolError(f"{name!r} cannot be called from here")
            self._caller = self._make_caller(self.call_id)
        return await self._caller(name, arguments)


class Tool(Protocol):
    """One thing that a model may call."""

    @property
    def spec(self) -> ToolSpec:
        """What the model and the loop know of it."""
        ...

    def find_fault(self, arguments: Json) -> str | None:
        """What in `arguments` breaks the schema, told so that the model can mend it; or `None`."""
        ...

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str | ToolOutput:
        """Run it; `arguments` have passed `find_fault`.

        Raises: anything; the message goes to the model. `ToolError` is for errors that are meant.
        """
        ...


class Toolset(Protocol):
    """Several tools that belong together. With a method `close` or `aclose`, it is closed with its agent."""

    def tools(self) -> Sequence[Tool]:
        """The tools, in the order in which the model sees them."""
        ...


class Decision(Struct, frozen=True):
    """What somebody says of a call that waits for a yes."""

    is_approved: bool
    reason: str | None = None
    """What the model is told of a no."""
    arguments: str | None = None
    """Arguments, as JSON, to run the call with in place of the model's, who is told of them."""


class ApprovalRequest(Struct, frozen=True):
    """A call that waits for a yes."""

    run_id: str
    call: ToolCall
    spec: ToolSpec


Approver: TypeAlias = Callable[
    [ApprovalRequest], "Awaitable[Decision | bool | None] | Decision | bool | None"
]
"""Says whether to run a call; `None` leaves it for later: the run is paused, and can be resumed with a decision."""


class Toolbox:
    """What a model may call: the tools by name, and what it is told of them."""

    __slots__ = ("_limited", "by_name", "specs", "tools")

    def __init__(self, tools: Mapping[str, Tool], policy: Policy | None = None) -> None:
        self.tools = tools
        self.by_name: dict[str, ToolSpec] = {
            name: limit_spec(tool.spec, policy) for name, tool in tools.items()
        }
        """Each tool's definition, with the limits that count for it and are told to the model."""
        self.specs: tuple[ToolSpec, ...] = tuple(self.by_name.values())
        self._limited: tuple[Policy, Toolbox] | None = None

    def under(self, policy: Policy) -> "Toolbox":
        """This toolbox with the limits of `policy`."""
        if not policy.tool_limits and policy.max_result_chars is None:
            return self
        if self._limited is None or self._limited[0] != policy:
            self._limited = policy, Toolbox(self.tools, policy)
        return self._limited[1]


def limit_spec(spec: ToolSpec, policy: Policy | None) -> ToolSpec:
    """`spec` with the strictest of its own limits and those of `policy`, told in the description."""
    limits = () if policy is None else policy.limits_of(spec.name)
    calls = _strictest(spec.max_calls, *[item.max_calls for item in limits])
    concurrent = _strictest(spec.max_concurrent, *[item.max_concurrent for item in limits])
    general = None if policy is None else policy.max_result_chars
    chars = _strictest(spec.max_result_chars, general, *[item.max_result_chars for item in limits])
    assert chars is not None
    notes = []
    if calls is not None:
        notes.append(f"At most {calls} {'call' if calls == 1 else 'calls'} in one turn.")
    if chars < DEFAULT_RESULT_CHARS:
        notes.append(f"Results of more than {chars:,} characters are cut in the middle.")
    note = " ".join(notes)
    if not note or spec.description.endswith(note):
        return replace(spec, max_calls=calls, max_concurrent=concurrent, max_result_chars=chars)
    description = f"{spec.description}\n\n{note}" if spec.description else note
    return replace(
        spec, description=description, max_calls=calls, max_concurrent=concurrent, max_result_chars=chars
    )


def _strictest(*limits: int | None) -> int | None:
    return min((item for item in limits if item is not None), default=None)


DEFAULT_RESULT_CHARS: int = ToolSpec("", "", {}).max_result_chars


ToolLike: TypeAlias = "Tool | Toolset | Callable[..., object] | str"
"""A tool, a toolset, a function, or the name of a registered toolset."""
