"""The agent spec: what a journal says of an agent, so that any process can build it again.

A spec is a value without objects and without secrets. A part that cannot be built from its name says why.
"""

from msgspec import Struct

from treadle.core.policy import Policy
from treadle.core.types import Json


class PartSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A model, a toolset or a tool, by name and settings."""

    name: str
    """The name that a user would write, such as `openai:gpt-5-mini`, `files`, `mcp:npx some-server` or
    `package.module:attribute`."""
    settings: dict[str, Json] | None = None
    """Keyword arguments for what the name leads to."""
    missing: str | None = None
    """Why the part cannot be built from its name, as a clause: "it is an object of the program". `None`: it can."""


class AgentSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All that is needed to build an agent again, except API keys."""

    model: PartSpec
    instructions: str | None = None
    """The system message as the agent's author wrote it."""
    tools: tuple[PartSpec, ...] = ()
    policy: Policy = Policy()
    schema: dict[str, Json] | None = None
    """The JSON Schema that every final answer must fit. `None`: answers are text."""
    task_set: str | None = None
    """The task set that the run's task comes from; it brings tools where `tools` is empty."""
    files: str | None = None
    """The folder that the sandbox was filled from. `None`: it began empty, or with files given in the program."""
