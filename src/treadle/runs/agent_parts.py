"""The parts of an agent that its runs use, and their conversion to an agent spec and back."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, ContextSpec, PartSpec
from treadle.core.types import Json
from treadle.journal.protocol import Clock, Journal
from treadle.knowledge.protocol import Surroundings
from treadle.loop.hooks import Hooks
from treadle.models.protocol import Model, part_of
from treadle.runs.answer_type import AnswerType
from treadle.runs.options import Files, Instructions
from treadle.runs.toolboxes import Toolboxes
from treadle.tools.protocol import Approver, Asker, ToolLike

if TYPE_CHECKING:
    from treadle.routing.judging import MessageJudge


class AgentParts(Protocol):
    """The attributes of an agent that its runs use."""

    model: Model
    instructions: Instructions | None
    policy: Policy
    has_policy: bool
    kit: Toolboxes
    files: Files | None
    approver: Approver | None
    asker: Asker | None
    deps: object
    answer: AnswerType[Any]
    clock: Clock
    known: Surroundings | None
    judge: "MessageJudge | None"
    hooks: Hooks

    @property
    def spec(self) -> AgentSpec:
        """The agent as a value."""
        ...

    @property
    def journal(self) -> Journal:
        """The journal that the runs are kept in."""
        ...


AGENT = "agent:"
"""The beginning of the names of the parts that describe agents as tools."""


def make_spec(
    model: Model,
    instructions: str | None,
    tools: Iterable[ToolLike],
    policy: Policy,
    schema: dict[str, Json] | None,
    files: Files | None,
    context: ContextSpec | None = None,
) -> AgentSpec:
    """Return the spec of an agent with these parts."""
    items = tuple(tools)
    return AgentSpec(
        model=part_of(model),
        instructions=instructions,
        tools=_parts_of(items) if items else (),
        policy=policy,
        schema=schema,
        files=path_of(files),
        context=context,
    )


def path_of(files: Files | None) -> str | None:
    """Return the path on disk of initial files; `None` if they are not from the disk."""
    place = getattr(files, "path", files)  # the path of a `Mount`
    return str(place) if isinstance(place, str | Path) else None


def read_mount(path: str | Path) -> Mapping[str, bytes]:
    """Return the files at `path` for a sandbox, and log what is left out. Raises: `ConfigError`."""
    from treadle.sandbox.mount import Mount

    mount = Mount(path)
    if mount.left_out or mount.refused:
        names = ", ".join([*mount.left_out, *mount.refused])
        logging.getLogger("treadle").info("left out of the files of %r: %s", str(path), names)
    return mount


def is_agent(item: object) -> TypeGuard[PartSpec]:
    """Return whether `item` describes an agent that is a tool."""
    return isinstance(item, PartSpec) and item.name.startswith(AGENT)


def read_agent(part: PartSpec) -> AgentSpec:
    """Return the spec of the agent that `part` describes. Raises: `ConfigError` if `part` has no spec."""
    try:
        return msgspec.convert((part.settings or {}).get("spec"), AgentSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the part {part.name!r} does not describe an agent: {error}") from error


def refuse_missing(spec: AgentSpec, *, has_model: bool, has_tools: bool) -> None:
    """Check that every part of a spec that the caller does not give can be built from its name.

    Raises: `ConfigError` that names each part which cannot, and why.
    """
    missing = []
    if not has_model and spec.model.missing is not None:
        missing.append(f"the model {spec.model.name!r} ({spec.model.missing})")
    if not has_tools:
        missing += [
            f"the tool {part.name!r} ({part.missing})" for part in spec.tools if part.missing is not None
        ]
    if missing:
        raise ConfigError(
            f"the agent of this run cannot be built from its journal alone: give {', '.join(missing)}"
        )


def _parts_of(items: tuple[ToolLike, ...]) -> tuple[PartSpec, ...]:
    from treadle.tools.resolve import parts_of

    return parts_of(items)
