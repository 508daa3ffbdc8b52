"""One call on the workbench, outside a run."""

from collections.abc import Mapping

from treadle.core.types import ToolCall, ToolResult
from treadle.loop.calls.results import Order
from treadle.loop.calls.workbench import Workbench
from treadle.loop.outbox import Collected
from treadle.sandbox.protocol import Sandbox
from treadle.tools.protocol import Tool
from treadle.tools.toolbox import Toolbox


async def make_call(
    call: ToolCall,
    tools: Mapping[str, Tool],
    sandbox: Sandbox | None = None,
    *,
    step: int = 1,
    is_cut_off: bool = False,
    bench: Workbench | None = None,
) -> ToolResult:
    """Make a call with the tools in `tools`, or on a workbench that is there already."""
    place = bench or Workbench(Toolbox(tools), run_id="run", sandbox=sandbox)
    return await place.make(Order(call, step, is_cut_off=is_cut_off), Collected())
