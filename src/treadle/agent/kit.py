"""The tools of an agent's runs: the agent's own, those that a task names, and the tool that takes answers."""

from collections.abc import Callable, Iterable

import msgspec

from treadle.agent.spec import make_toolbox
from treadle.agent.task import Task
from treadle.core.types import Json, OutputMode, OutputSpec
from treadle.models.protocol import Model, output_mode_of
from treadle.tools.protocol import ToolLike
from treadle.tools.toolbox import Toolbox


class Kit:
    """The toolboxes for the runs of one agent, each made once and kept."""

    def __init__(self, tools: Iterable[ToolLike], model: Model) -> None:
        """Make the toolbox of `tools`. Raises: `ConfigError` if one cannot be loaded, or two have the same name."""
        self.given = tuple(tools)
        self._model = model
        self.own = make_toolbox(self.given)
        self._boxes: dict[tuple[object, ...], Toolbox] = {}

    def names_for(self, task: Task | None) -> tuple[str, ...]:
        """Return the names of the toolsets that a task adds: none if the agent has tools of its own."""
        return () if task is None or self.own.tools else tuple(task.tools)

    def toolbox(self, task: Task | None, output: OutputSpec | None = None) -> Toolbox:
        """Return the tools for a run of `task`, with the answer tool if `output` has one."""
        names = self.names_for(task)
        if output is None or output.tool is None:
            return self._keep(names, lambda: make_toolbox(names)) if names else self.own
        key = (*names, msgspec.json.encode(output, order="sorted"))
        return self._keep(key, lambda: self._with_answer(task, output))

    def output(self, schema: dict[str, Json] | None, task: Task | None) -> OutputSpec | None:
        """Return how the agent's model is made to give answers that fit `schema`; `None` if there is no schema."""
        if schema is None:
            return None
        from treadle.tools.schema.output import choose_output

        tools = self.toolbox(task).tools
        mode: OutputMode = output_mode_of(self._model, schema, has_tools=bool(tools))
        return choose_output(schema, mode, tools)

    def _with_answer(self, task: Task | None, output: OutputSpec) -> Toolbox:
        from treadle.tools.schema.output import AnswerTool

        assert output.tool is not None
        return Toolbox({**self.toolbox(task).tools, output.tool: AnswerTool(output)})

    def _keep(self, key: tuple[object, ...], make: Callable[[], Toolbox]) -> Toolbox:
        found = self._boxes.get(key)
        if found is None:
            if len(self._boxes) >= _MAX_BOXES:
                del self._boxes[next(iter(self._boxes))]
            found = self._boxes[key] = make()
        return found


_MAX_BOXES = 64
"""How many toolboxes an agent keeps besides its own. The oldest is dropped, and made again if it is needed."""
