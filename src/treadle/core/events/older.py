"""The conversion of events that older versions of Treadle recorded in another way."""

from functools import lru_cache
from typing import TYPE_CHECKING

from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.types import Json

if TYPE_CHECKING:
    from treadle.core.events.run import RunStarted


def read_version_1(started: "RunStarted") -> AgentSpec:
    """Return the agent spec of a run whose journal is of version 1.

    For runs of the command line, `metadata["cli"]` holds the model and the tools; for other runs only their names
    are known.
    """
    kept = (started.metadata or {}).get("cli")
    given: dict[str, Json] = kept if isinstance(kept, dict) else {}
    names = ("base_url", "temperature", "max_output_tokens", "seed")
    settings = {name: given[name] for name in names if given.get(name) is not None}
    if given.get("tools"):
        tools = tuple([PartSpec(name=str(text)) for text in given["tools"]])
    elif started.task is not None:
        tools = ()
    else:
        why = "its journal is of an older version and holds only its definition"
        tools = tuple([PartSpec(name=tool.name, missing=why) for tool in started.tools])
    name = str(given.get("model") or started.model or "")
    if started.model == f"openai:{name}":
        name = started.model
    return AgentSpec(
        model=PartSpec(name=name, settings=settings or None),
        instructions=started.instructions,
        tools=tools,
        policy=started.policy or Policy(),
        schema=None if started.output is None else started.output.schema,
        task_set=None if started.task is None else started.task.task_set,
    )


@lru_cache(maxsize=64)
def is_since(version: str, major: int, minor: int) -> bool:
    """Return whether the event version of a run is `major.minor` or later."""
    parts = version.split(".")
    return all(part.isdigit() for part in parts) and [int(part) for part in parts] >= [major, minor]
