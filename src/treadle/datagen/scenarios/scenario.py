"""The values that describe a sample before it is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Struct
from pydantic import Field

from treadle.core.types import Json


class Kind(StrEnum):
    """A kind of tool use. Coverage of kinds steers the generation."""

    SINGLE = "single"
    """One tool call is enough."""
    CHAINED = "chained"
    """A call needs the result of an earlier one."""
    PARALLEL = "parallel"
    """Independent calls that can be made in the same step."""
    RECOVERY = "recovery"
    """A call fails, and the agent recovers from the error."""
    NO_TOOL = "no_tool"
    """The answer needs no tool, although there are tools."""
    MISSING_PARAMETER = "missing_parameter"
    """The request lacks a fact that the agent must ask the user for."""
    REFUSAL = "refusal"
    """The request cannot be done with the tools, or should not be done, and the agent says so."""


class Difficulty(StrEnum):
    """The difficulty of a scenario."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


class UserPersona(Struct, frozen=True, kw_only=True):
    """A simulated user."""

    name: str
    role: str
    """The occupation, such as `warehouse manager`."""
    style: str
    """How the person writes, such as `brief and impatient`."""
    expertise: str
    """How much the person knows about the topic: `novice`, `practitioner` or `expert`."""


def sample_id_of(number: int) -> str:
    """Return the id of the sample with this number in the plan."""
    return f"s{number:06d}"


class SampleSpec(Struct, frozen=True, kw_only=True):
    """The plan of one sample. Everything but `kind` depends only on the seed and the number."""

    number: int
    """The number of the sample in the plan, from 1."""
    topic_id: str
    topic: tuple[str, ...]
    """The path of the topic from the root."""
    kind: Kind | None
    """The kind of tool use to aim at; `None` for conversations without tools."""
    difficulty: Difficulty
    persona: UserPersona
    turns: int
    """How many turns the conversation may have."""
    seed: int
    """The seed of the models' sampling, and of the choice of the environment."""

    @property
    def sample_id(self) -> str:
        """The id of the sample, the beginning of the ids of its runs."""
        return sample_id_of(self.number)


class Environment(Struct, frozen=True, kw_only=True):
    """The world in which a sample takes place."""

    files: Mapping[str, bytes] = {}
    """The initial files of the sandbox: path to content."""
    source: str = ""
    """The origin of the files, such as `tasks:files` or the path of a folder."""
    task: str | None = None
    """The task that the files belong to, as `SET:ID`; `None` if there is none. Its check grades the sample."""
    task_input: str = ""
    """The user's message of the task; empty if there is none."""


_Items: TypeAlias = Annotated[list[str], Field(max_length=20)]
"""A list with a bound: a weak model that decodes within the schema would repeat its items until its limit."""


@dataclass
class Scenario:
    """The text and the facts that a scenario writer wrote for one sample: the schema of its answer."""

    message: str
    """The user's first message."""
    goal: str = ""
    """What the user wants to reach; the simulated user pursues it."""
    withheld: str = ""
    """A fact that the user tells only if asked for it; empty if there is none."""
    success: _Items = field(default_factory=list)
    """What must be true in the end."""
    new_files: _Items = field(default_factory=list)
    """Files that the message names and that do not exist yet."""
    is_task: bool = True
    """False if the message asks for something else than the environment's task, whose check is not used."""

    def __post_init__(self) -> None:
        for name in ("message", "goal", "withheld"):
            setattr(self, name, getattr(self, name).strip())


_BEGIN, _END = "<facts>\n", "\n</facts>"


def write_facts(facts: Mapping[str, Json]) -> str:
    """Return `facts` as a JSON object between the lines `<facts>` and `</facts>`."""
    # JSON escapes line breaks, so no value can end the block.
    return f"{_BEGIN}{msgspec.json.format(msgspec.json.encode(facts), indent=1).decode()}{_END}"
