"""Contexts for tests of tools that need more than a context outside of a run offers."""

from collections.abc import Callable
from typing import Any

from treadle.sandbox.protocol import Sandbox
from treadle.tools.context import Scope, ToolContext


class HeardContext(ToolContext[Any]):
    """A context whose progress is passed to a function."""

    def __init__(
        self, tell: Callable[[str], object], sandbox: Sandbox | None = None, scope: Scope | None = None
    ) -> None:
        super().__init__("r", "c1", 1, sandbox, scope=scope)
        self._tell = tell

    @property
    def is_heard(self) -> bool:
        return True

    def progress(self, text: str) -> None:
        self._tell(text)
