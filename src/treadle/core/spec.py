"""The agent spec: the description of an agent from which any process can build it again.

A spec is a plain value without secrets. If a part cannot be built from its name, the spec says why.
"""

from msgspec import Struct

from treadle.core.policy import Policy
from treadle.core.types import Json


class PartSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A model, a toolset or a tool, by name and settings."""

    name: str
    """The name that a user would write, such as `files`, `mcp:npx some-server` or `package.module:attribute`."""
    settings: dict[str, Json] | None = None
    """Keyword arguments for the function or class behind the name; `None` if there are none."""
    missing: str | None = None
    """Why the part cannot be built from its name, such as "it is an object of the program"; `None` if it can be."""


class MemorySpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The memory of an agent: where it is, and how it is used."""

    persona: str = "default"
    """The name of the persona that remembers; with `user`, the namespace of the memories."""
    user: str = "default"
    """The name of the user whom the memories are about."""
    embeddings: str | None = None
    """The `/v1/embeddings` model that finds memories by meaning, as `provider:name`; `None`: by words alone."""
    writes_back: bool = False
    """True if each completed turn becomes an episode."""


class ContextSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Everything that an agent knows besides its instructions and the conversation."""

    persona: dict[str, Json] | None = None
    """The content of the persona's file, without toolsets (see `AgentSpec.tools`); `None`: no persona."""
    memory: MemorySpec | None = None
    """The memory; `None`: the agent remembers nothing between sessions."""
    skills: tuple[str, ...] = ()
    """The folders in which skills are searched, in order."""
    documents: tuple[str, ...] = ()
    """The paths of documents that the agent knows."""
    judge: PartSpec | None = None
    """What judges the user's messages before their turns, such as `patterns`; `None`: nothing."""


class AgentSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Everything that is needed to build an agent again, except API keys."""

    model: PartSpec
    instructions: str | None = None
    """The system message as the agent's author wrote it; `None` if there is none."""
    tools: tuple[PartSpec, ...] = ()
    """The toolsets and tools. Without any, the agent uses those that a task needs."""
    policy: Policy = Policy()
    schema: dict[str, Json] | None = None
    """The JSON Schema that every final answer must fit; `None`: answers are free text."""
    task_set: str | None = None
    """The name of the task set that the run's task comes from; `None` if the run has no task."""
    context: ContextSpec | None = None
    """The persona, memory, skills, documents and judge; `None` if there are none."""
    files: str | None = None
    """The folder whose files were copied to the sandbox; `None` if there were none or the program gave them."""
    stops_at_mistakes: bool = False
    """True if a mistake in the code of a tool ends the run with an error, and the job that it belongs to."""
    is_foreign: bool = False
    """True if the spec was read from a run that comes from elsewhere and is not trusted. Never recorded."""
