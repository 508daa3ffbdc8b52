"""The tools of a run by name, with the limits that apply to them."""

import os
from collections.abc import Mapping
from typing import Any, get_origin, is_typeddict

from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.texts.masking import mask_of
from treadle.core.types import ToolSpec
from treadle.tools.context import NO_DEPS
from treadle.tools.protocol import Tool

DEFAULT_RESULT_CHARS: int = ToolSpec("", "", {}).max_result_chars


class Toolbox:
    """The tools that a model may call, and their definitions as the model reads them."""

    __slots__ = ("_limited", "by_name", "contextless", "deps_types", "drivers", "mask", "specs", "tools")

    def __init__(self, tools: Mapping[str, Tool], policy: Policy | None = None) -> None:
        self.tools = tools
        self.by_name: dict[str, ToolSpec] = {
            name: limit_spec(tool.spec, policy) for name, tool in tools.items()
        }
        """Each tool's definition, with the limits that apply to it. The description states these limits."""
        self.specs: tuple[ToolSpec, ...] = tuple(self.by_name.values())
        self.contextless = frozenset(
            name for name, tool in tools.items() if not getattr(tool, "takes_context", True)
        )
        """The names of the tools that can be called with `NO_CONTEXT`: see `Tool`."""
        self.drivers = frozenset(name for name, tool in tools.items() if getattr(tool, "drives_runs", False))
        """The names of the tools whose calls drive runs of their own: see `Tool`."""
        self.deps_types = {
            name: kind
            for name, tool in tools.items()
            if (kind := getattr(tool, "deps_type", None)) is not None
        }
        """The types of `ToolContext.deps` that tools need, by the name of the tool."""
        self.mask = mask_of(os.environ)
        """The secrets of this process, which no result of a tool may contain."""
        self._limited: tuple[Policy, Toolbox] | None = None

    def check_deps(self, deps: object) -> None:
        """Check that `deps` is what the tools need. Raises: `ConfigError` that names a tool."""
        for name, kind in self.deps_types.items() if self.deps_types else ():
            if deps is NO_DEPS:
                raise ConfigError(
                    f"the tool {name!r} needs deps ({_name_of(kind)}), which are never stored: give deps=... to "
                    "the agent, or to run, resume, fork or session; on the command line, name an agent with --agent"
                )
            plain = get_origin(kind) or kind
            is_checkable = isinstance(plain, type) and not is_typeddict(plain)
            if is_checkable and not getattr(plain, "_is_protocol", False) and not isinstance(deps, plain):
                raise ConfigError(
                    f"the tool {name!r} needs deps of the type {_name_of(kind)}; {deps!r:.200} was given"
                )

    def under(self, policy: Policy) -> "Toolbox":
        """Return this toolbox with the limits of `policy`."""
        if not policy.tool_limits and policy.max_result_chars is None:
            return self
        if self._limited is None or self._limited[0] != policy:
            self._limited = policy, Toolbox(self.tools, policy)
        return self._limited[1]


def limit_spec(spec: ToolSpec, policy: Policy | None) -> ToolSpec:
    """Return `spec` with the stricter of its own limits and those of `policy`, stated in the description."""
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


def _name_of(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)


def _strictest(*limits: int | None) -> int | None:
    return min((item for item in limits if item is not None), default=None)
