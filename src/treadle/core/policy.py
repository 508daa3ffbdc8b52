"""What a run may spend, and what to do where the loop has a choice."""

from enum import StrEnum

from msgspec import Struct

from treadle.core.errors import ConfigError


class InDoubt(StrEnum):
    """What to do with a `once` call that was started and whose outcome was lost."""

    TELL = "tell"
    """Tell the model that the outcome is unknown."""
    ASK = "ask"
    """Ask the user what happened; the answer becomes the result."""


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
        if self.parallel_tool_calls < 1:
            raise ConfigError(f"Policy.parallel_tool_calls is {self.parallel_tool_calls!r}; give at least 1")
        try:
            self.last_step_message.format(limit="max_steps")
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"Policy.last_step_message may hold no placeholder but {{limit}} ({error!r}); "
                "write {{ for a brace"
            ) from None
