"""What a run may spend, and what to do where the loop has a choice."""

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Effect


class InDoubt(StrEnum):
    """What to do with a `once` call that was started and whose outcome was lost."""

    TELL = "tell"
    """Tell the model that the outcome is unknown."""
    ASK = "ask"
    """Ask the user what happened; the answer becomes the result."""


class Approval(StrEnum):
    """Whether a call is run."""

    ALWAYS = "always"
    """It is run, and nobody is asked."""
    ASK = "ask"
    """Somebody is asked first."""
    NEVER = "never"
    """It is refused, and the model is told."""


class ToolLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one tool in a run, over those that the tool has of itself; the stricter counts."""

    max_calls: int | None = None
    """In one turn."""
    max_concurrent: int | None = None
    max_result_chars: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < (name != "max_calls"):
                raise ConfigError(f"ToolLimits.{name} is {value!r}, which is too few; None is no limit")


LAST_STEP_MESSAGE = (
    "You have reached the limit of this run ({limit}). No more tools can be called. "
    "Give your best final answer now from what you have."
)


class Policy(Struct, frozen=True, kw_only=True):
    """Limits of one turn and the choices of the loop. `None` is no limit.

    Where several limits are reached at once, the first of this list is the stop reason: `deadline`,
    `max_cost`, `max_tokens`, `max_tool_calls`, `max_steps`. A journal holds every field, so that a default
    that changes later changes no run that was made before.
    """

    max_steps: int | None = 50
    """Inferences with tools; then one more without, to wrap up."""
    max_tokens: int | None = None
    """Input and output tokens. The next call's are reserved before it is sent."""
    max_tool_calls: int | None = None
    """Calls past it are not run, and the model is told."""
    max_cost_usd: float | None = None
    """Needs a model whose cost is known; a run whose cost is unknown ends with an error that says so."""
    deadline_seconds: float | None = None
    """Time at work, without pauses. What is running when it passes is cancelled; there is no wrap-up."""
    parallel_tool_calls: int = 8
    """How many calls of one step run at a time; 1 is one after another."""
    max_result_chars: int | None = None
    """Of any tool's result; what is longer is cut in the middle, and the whole kept as an artifact."""
    tool_limits: Mapping[str, ToolLimits] = {}
    """By the tool's name, or a pattern as `web_*`; every entry that fits counts."""
    approve: Mapping[str, Approval] = {}
    """By the tool's name, a pattern as `web_*`, or an effect as `once`: the name counts first, then the longest
    pattern, then the effect. Calls of which nothing is said are run."""
    max_output_attempts: int = 3
    """How often a turn's answer may break the schema that it must fit; a failing server counts elsewhere."""
    in_doubt: InDoubt = InDoubt.TELL
    last_step_message: str = LAST_STEP_MESSAGE
    """Said to the model before its wrap-up; `{limit}` is the limit's name."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens", "max_tool_calls", "max_cost_usd", "deadline_seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(
                    f"Policy.{name} is {value!r}; give a number of at least 0, or None for no limit"
                )
        if self.max_result_chars is not None and self.max_result_chars < 1:
            raise ConfigError(
                f"Policy.max_result_chars is {self.max_result_chars!r}; give at least 1, or None"
            )
        for key, value in self.approve.items():
            if value not in Approval.__members__.values():
                raise ConfigError(f"Policy.approve[{key!r}] is {value!r}; use 'always', 'ask' or 'never'")
        if self.parallel_tool_calls < 1:
            raise ConfigError(f"Policy.parallel_tool_calls is {self.parallel_tool_calls!r}; give at least 1")
        if self.max_output_attempts < 1:
            raise ConfigError(f"Policy.max_output_attempts is {self.max_output_attempts!r}; give at least 1")
        try:
            self.last_step_message.format(limit="max_steps")
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"Policy.last_step_message may hold no placeholder but {{limit}} ({error!r}); "
                "write {{ for a brace"
            ) from None

    def approval_of(self, name: str, effect: Effect | None) -> Approval:
        """Whether a call of the tool `name` is run; `effect` is `None` if the tool is not known."""
        if not self.approve:
            return Approval.ALWAYS
        found = self.approve.get(name) if name not in _EFFECTS else None
        if found is None:
            patterns = [key for key in self.approve if key not in _EFFECTS and fnmatchcase(name, key)]
            key = max(patterns, key=len) if patterns else effect
            found = self.approve.get(key) if key is not None else None
        return Approval.ALWAYS if found is None else Approval(found)

    def limits_of(self, name: str) -> tuple[ToolLimits, ...]:
        """The limits that count for the tool `name`."""
        return tuple(
            [item for key, item in self.tool_limits.items() if key == name or fnmatchcase(name, key)]
        )


_EFFECTS = frozenset(Effect)
