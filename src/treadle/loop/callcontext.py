"""What a running call of a run can use: the tool context that leads to the workbench."""

import asyncio
from typing import TYPE_CHECKING, Any

from treadle.core.budget import Allowance
from treadle.core.questions import Answer, Question
from treadle.core.types import Child, Json, ToolCall, ToolResult
from treadle.journal.protocol import Journal
from treadle.loop.innercalls import InnerCalls
from treadle.loop.questions import Asking
from treadle.loop.results import find_result
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Approver, Decision, ToolOutput

if TYPE_CHECKING:
    from treadle.loop.workbench import Workbench


class CallContext(ToolContext[Any]):
    """The context of a call on a workbench."""

    __slots__ = ("_asking", "_bench", "_inner")

    def __init__(
        self, bench: "Workbench", call_id: str, step: int, inner: InnerCalls | None, asking: Asking
    ) -> None:
        """Make a context. An inner call has no `inner`: it cannot make further calls."""
        super().__init__(
            bench.run_id,
            call_id,
            step,
            bench.sandbox,
            scope=bench.scope,
            tools=bench.toolbox.specs,
            deps=bench.deps,
        )
        self._bench = bench
        self._inner = inner
        self._asking = asking

    @property
    def is_heard(self) -> bool:
        """See `ToolContext`."""
        return self._bench.report is not None

    def progress(self, text: str) -> None:
        """See `ToolContext`."""
        if (report := self._bench.report) is not None:
            report(self.call_id, text)

    async def find_result(self, call_id: str) -> ToolResult | None:
        """See `ToolContext`."""
        journal = self._bench.journal
        return (
            None if journal is None else await asyncio.to_thread(find_result, journal, self.run_id, call_id)
        )

    async def call_tool(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        """See `ToolContext`."""
        if self._inner is None:
            return await super().call_tool(name, arguments)
        return await self._inner.call(name, arguments)

    async def ask(self, question: Question | str) -> Answer:
        """See `ToolContext`."""
        asked = Question(question) if isinstance(question, str) else question
        return await self._asking.ask(self.call_id, asked)

    async def consult(self, call: ToolCall) -> Decision | None:
        """See `ToolContext`."""
        return await self._bench.consult(call)

    @property
    def journal(self) -> Journal | None:
        """See `ToolContext`."""
        return self._bench.journal

    @property
    def approver(self) -> Approver | None:
        """See `ToolContext`."""
        return self._bench.approver

    def allowance(self) -> Allowance:
        """See `ToolContext`."""
        return self._bench.rules.allow(self._bench.toolbox.drivers)

    def note_child(self, child: Child) -> None:
        """See `ToolContext`."""
        self._bench.children[self.call_id] = child
