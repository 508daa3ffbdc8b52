"""The policy: the limits of a run, and the choices that the loop leaves to the user."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from treadle.core.errors import ConfigError
from treadle.core.registry import NamedFields
from treadle.core.types import Effect


class InDoubt(StrEnum):
    """The treatment of a call with the effect `once` that was started and whose outcome was lost."""

    TELL = "tell"
    """Tell the model that the outcome is unknown."""
    ASK = "ask"
    """Ask the user what happened; the answer becomes the call's result."""


class Autonomy(StrEnum):
    """The autonomy of an agent: how many questions it may ask the user in one turn before it must decide."""

    CAUTIOUS = "cautious"
    """The agent may ask five questions in one turn."""
    BALANCED = "balanced"
    """The agent may ask three questions in one turn."""
    DECISIVE = "decisive"
    """The agent may ask one question in one turn."""

    @property
    def max_questions(self) -> int:
        """How many questions the agent may ask in one turn."""
        return {Autonomy.CAUTIOUS: 5, Autonomy.BALANCED: 3, Autonomy.DECISIVE: 1}[self]


class Approval(StrEnum):
    """The rule that says whether a tool call is run."""

    ALWAYS = "always"
    """The call is run, and nobody is asked."""
    ASK = "ask"
    """Somebody is asked first."""
    NEVER = "never"
    """The call is refused, and the model is told."""


if TYPE_CHECKING:
    ApprovalWord: TypeAlias = Approval | Literal["ask", "never", "always"]
    """An approval, or its word, which becomes one."""
else:
    ApprovalWord = Approval  # which is what is decoded


class ToolLimits(Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=NamedFields):
    """Limits of one tool, in addition to those of its `ToolSpec`. The stricter limit counts; `None` is no limit."""

    max_calls: int | None = None
    """How often the tool may be called in one turn."""
    max_concurrent: int | None = None
    """How many calls of the tool may run at the same time."""
    max_result_chars: int | None = None
    """The longest result in characters; a longer one is cut in the middle."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_number("ToolLimits", name, getattr(self, name), 0 if name == "max_calls" else 1, "no limit")


LAST_STEP_MESSAGE = (
    "You have reached the limit of this run ({limit}). No more tools can be called. "
    "Give your best final answer now from what you have."
)


class Policy(Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """The limits of one turn, and choices about how it is run. A limit that is `None` does not exist.

    If several limits are reached at once, the stop reason is the first of these: `deadline`, `max_cost`,
    `max_tokens`, `max_tool_calls`, `max_steps`. A journal holds every field, so that a new default in a later
    version does not change runs made before it.

    The wrap-up is one last inference after a limit was reached: the model gives its best answer without calling
    tools.
    """

    max_steps: int | None = 50
    """How many inferences may offer tools; the wrap-up comes after them."""
    max_tokens: int | None = None
    """How many input and output tokens may be used. The tokens of an inference are estimated before it is sent."""
    max_tool_calls: int | None = None
    """How many tool calls may be run; further calls are not run, and the model is told. Calls that the program
    which uses the run makes do not count."""
    max_cost_usd: float | None = None
    """What the inferences may cost. If the cost of one is unknown, the turn ends with an error."""
    charges_lost: bool = True
    """True if an answer that was lost on the way counts for `max_tokens` and `max_cost_usd` as reserved. If false,
    as in rollouts, what the model may do does not depend on the network: only the number of lost answers is
    limited, and a turn may cost more than `max_cost_usd`."""
    deadline_seconds: float | None = None
    """How long the turn may be worked on, pauses excluded. Running work is then cancelled, without a wrap-up."""
    parallel_tool_calls: int = 8
    """How many calls of one step may run at the same time; with 1 they run one after another."""
    max_result_chars: int | None = None
    """The longest tool result in characters; a longer one is cut in the middle, and kept whole as an artifact."""
    tool_limits: Mapping[str, ToolLimits] = {}
    """Limits by the name of a tool or a pattern such as `web_*`; every entry that matches a tool counts."""
    approve: Mapping[str, ApprovalWord] = {}
    """Rules by the name of a tool, a pattern such as `web_*`, or an effect such as `once`. The name counts first,
    then the longest pattern, then the effect. Calls that no rule matches are run."""
    max_output_attempts: int = 3
    """How many answers in one turn may fail to fit the required schema before the turn ends with an error."""
    in_doubt: InDoubt = InDoubt.TELL
    """The treatment of calls with the effect `once` whose outcome was lost."""
    last_step_message: str = LAST_STEP_MESSAGE
    """The message that asks the model for its wrap-up; `{limit}` stands for the limit's name."""
    context_tokens: int | None = None
    """The context window of the model in tokens. Default: what is known about the model."""
    compact_at: float | None = 0.8
    """The share of the room for the prompt at which the context is compacted; `None`: it is never compacted."""
    compact_threshold: int | None = None
    """The size of the prompt in tokens above which the context is compacted, if that comes before `compact_at` or
    the window is not known. The room for a compacted context is then this size."""
    compact_to: float = 0.4
    """The share of the room for the prompt that a compacted context may fill."""
    keep_turns: int = 2
    """How many of the newest turns a compaction keeps unchanged, if there is room for them."""
    summary_model: str | None = None
    """The model that summarises old turns, such as `small` or `openai:gpt-5-mini`. Default: the agent's model."""
    autonomy: Autonomy = Autonomy.BALANCED
    """How many questions the agent may ask in one turn: `cautious` 5, `balanced` 3, `decisive` 1."""
    text_markers: bool = False
    """True if an answer that begins with `[ASK_USER]` is a question to the user, and what follows `[FINAL]` is the
    final answer, for models that cannot call tools."""

    def __post_init__(self) -> None:
        for name, (least, *none) in _NUMBERS.items():
            check_number("Policy", name, getattr(self, name), least, *none)
        for name, (kinds, words) in _KINDS.items():
            if not isinstance(getattr(self, name), kinds):
                raise ConfigError(f"Policy.{name} is {getattr(self, name)!r:.200}; give {words}")
        for name, kind in (("in_doubt", InDoubt), ("autonomy", Autonomy)):
            value = getattr(self, name)
            if value not in kind.__members__.values():
                raise ConfigError(f"Policy.{name} is {value!r}; use {_join(kind)}")
            force_setattr(self, name, kind(value))
        for name, example in _EXAMPLES.items():
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"Policy.{name} is {getattr(self, name)!r}; give a dict, such as {example}")
        for key, value in self.approve.items():
            if value not in Approval.__members__.values():
                raise ConfigError(f"Policy.approve[{key!r}] is {value!r}; use {_join(Approval)}")
        for key, item in self.tool_limits.items():
            if not isinstance(item, ToolLimits):
                raise ConfigError(
                    f"Policy.tool_limits[{key!r}] is {item!r}; give a ToolLimits, such as ToolLimits(max_calls=3)"
                )
        shares = (self.compact_to, 1.0 if self.compact_at is None else self.compact_at)
        if not all([is_number(share, 0) for share in shares]) or not 0 < shares[0] < shares[1] <= 1:
            raise ConfigError(
                f"Policy.compact_to is {self.compact_to!r} and compact_at is {self.compact_at!r}; give shares "
                "above 0 and up to 1, the first below the second"
            )
        try:
            self.last_step_message.format(limit="max_steps")
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"Policy.last_step_message may contain only the placeholder {{limit}} ({error!r}); "
                "write {{ for a brace"
            ) from None

    def find_unused(self, tools: Collection[str]) -> list[str]:
        """Return the names and patterns in `approve` and `tool_limits` that fit none of `tools`."""
        names = dict.fromkeys([*self.approve, *self.tool_limits])
        return [
            key
            for key in names
            if key not in _EFFECTS and not any([key == tool or fnmatchcase(tool, key) for tool in tools])
        ]

    def approval_of(self, name: str, effect: Effect | None) -> Approval:
        """Return the rule for calls of the tool `name`; `effect` is `None` if the tool is unknown, which then
        counts as `once`."""
        if not self.approve:
            return Approval.ALWAYS
        found = self.approve.get(name) if name not in _EFFECTS else None
        if found is None:
            patterns = [key for key in self.approve if key not in _EFFECTS and fnmatchcase(name, key)]
            found = self.approve.get(max(patterns, key=len) if patterns else effect or Effect.ONCE)
        return Approval.ALWAYS if found is None else Approval(found)

    def limits_of(self, name: str) -> tuple[ToolLimits, ...]:
        """Return all entries of `tool_limits` that match the tool `name`."""
        return tuple(
            [item for key, item in self.tool_limits.items() if key == name or fnmatchcase(name, key)]
        )


def is_number(value: object, least: float) -> bool:
    """Return whether `value` is a number of at least `least`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= least


def check_number(kind: str, name: str, value: object, least: float, none: str = "") -> None:
    """Check that the field `name` of a `kind` of value is a number of at least `least`.

    `none` says what `None` means, if it is allowed. Raises: `ConfigError`.
    """
    is_fit = is_number(value, least) and (isinstance(value, int) or name in _FRACTIONS)
    if not is_fit and (value is not None or not none):
        otherwise = f", or None for {none}" if none else ""
        what = "a number" if name in _FRACTIONS else "a whole number"
        raise ConfigError(f"{kind}.{name} is {value!r}; give {what} of at least {least}{otherwise}")


def _join(kind: type[StrEnum]) -> str:
    *names, last = [repr(str(item)) for item in kind]
    return f"{', '.join(names)} or {last}"


_NUMBERS: Mapping[str, tuple[Any, ...]] = {
    "max_steps": (0, "no limit"),
    "max_tokens": (0, "no limit"),
    "max_tool_calls": (0, "no limit"),
    "max_cost_usd": (0, "no limit"),
    "deadline_seconds": (0, "no limit"),
    "max_result_chars": (1, "no limit"),
    "context_tokens": (1, "what is known about the model"),
    "compact_threshold": (1, "compact_at decides alone"),
    "parallel_tool_calls": (1,),
    "max_output_attempts": (1,),
    "keep_turns": (0,),
}
"""The numbers of a policy: the least value, and what `None` means, if it is allowed."""
_FRACTIONS = ("max_cost_usd", "deadline_seconds")
"""The limits that need not be whole numbers."""
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "charges_lost": ((bool,), "True or False"),
    "text_markers": ((bool,), "True or False"),
    "last_step_message": ((str,), "a str"),
    "summary_model": ((str, type(None)), "the name of a model, or None"),
}
"""The types of other fields, and the words for them."""
_EXAMPLES = {"tool_limits": "{'search': ToolLimits(max_calls=3)}", "approve": "{'delete_file': 'ask'}"}
_EFFECTS = frozenset(Effect)
