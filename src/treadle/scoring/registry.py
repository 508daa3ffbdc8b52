"""The scorers by name, and the rewards that a user asks for as texts and settings."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry, did_you_mean
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.models.protocol import Model
from treadle.scoring.protocol import Score, Scorer, Subject

MakeScorer: TypeAlias = Callable[..., Scorer]
"""A function that takes the name of the reward and the scorer's settings as keyword arguments, and returns the
scorer."""

SCORERS: Registry[MakeScorer] = Registry(
    "scorer",
    "treadle.scorers",
    {
        "check": "treadle.scoring.scorers:CheckScorer",
        "tool_use": "treadle.scoring.scorers:ToolUseScorer",
        "length": "treadle.scoring.scorers:LengthScorer",
        "judge": "treadle.scoring.scorers:JudgeScorer",
        "final_answer": "treadle.scoring.outcome_scorers:FinalAnswerScorer",
        "final_state": "treadle.scoring.outcome_scorers:FinalStateScorer",
        "calls": "treadle.scoring.call_scorers:CallsScorer",
        "trajectory": "treadle.scoring.call_scorers:TrajectoryScorer",
        "arguments": "treadle.scoring.call_scorers:ArgumentsScorer",
        "parallel": "treadle.scoring.call_scorers:ParallelScorer",
        "abstain": "treadle.scoring.call_scorers:AbstainScorer",
        "asks_when_missing": "treadle.scoring.call_scorers:AskingScorer",
        "recovers": "treadle.scoring.call_scorers:RecoveryScorer",
        "policy": "treadle.scoring.call_scorers:PolicyScorer",
        "tool_selection_accuracy": "treadle.scoring.call_rates:ToolSelectionScorer",
        "parameter_accuracy": "treadle.scoring.call_rates:ParameterScorer",
        "execution_success_rate": "treadle.scoring.call_rates:ExecutionScorer",
        "response_quality": "treadle.scoring.call_rates:ResponseScorer",
        "efficiency": "treadle.scoring.outcome_scorers:EfficiencyScorer",
    },
    old_group="treadle.scoring",
)
"""The scorers. A function of a user is named as `package.module:function` or `file.py:function`."""

FUNCTION = "function"
"""The setting of a reward that a function computes: its reference."""


class RewardSpec(Struct, frozen=True):
    """One part of a reward, as its user asks for it."""

    name: str
    """The name under which the reward is recorded."""
    scorer: str
    """The name of a scorer, or the reference of a function."""
    weight: float = 1.0
    """The factor of this part in the sum; 0 records the reward and does not count it."""
    settings: dict[str, Json] = {}


def parse_reward(text: str) -> RewardSpec:
    """Return the reward that a text asks for: `NAME`, `NAME=WEIGHT` or `module:function=WEIGHT`.

    Raises: `ConfigError`.
    """
    scorer, equals, number = text.rpartition("=")
    if not equals:
        scorer, number = text, "1"
    try:
        weight = float(number)
    except ValueError:
        raise ConfigError(
            f"the weight of the reward {text!r} is {number!r}; write a number, as in 'tool_use=0.2'"
        ) from None
    return make_spec(scorer.strip(), {"weight": weight})


def read_rewards(raw: Mapping[str, Json] | Iterable[str]) -> tuple[RewardSpec, ...]:
    """Return rewards as a configuration has them: texts, or names with a weight or a mapping of settings.

    Raises: `ConfigError` for an unknown scorer or setting, or if two rewards have the same name.
    """
    if isinstance(raw, Mapping):
        found = [make_spec(name, value) for name, value in raw.items()]
    else:
        found = [parse_reward(text) for text in raw]
    names = [spec.name for spec in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the reward {twice!r} is given twice; give each reward once")
    return tuple(found)


def make_spec(name: str, value: Json) -> RewardSpec:
    """Return the reward called `name`, whose value is a weight or a mapping with `weight`, `scorer` and settings.

    Raises: `ConfigError`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Mapping):
        raise ConfigError(f"the reward {name!r} is {value!r}; give a weight, or a mapping of settings")
    given = {"weight": value} if isinstance(value, int | float) else dict(value)
    weight = given.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"the weight of the reward {name!r} is {weight!r}; give a finite number")
    scorer = str(given.pop("scorer", name))
    label = name.rpartition(":")[2] if ":" in name else name
    return RewardSpec(label, scorer, float(weight), given)


def total_reward(rewards: Mapping[str, float], specs: Sequence[RewardSpec]) -> float | None:
    """Return the weighted sum of the rewards; `None` if no reward with a weight is known.

    A scorer that had nothing to say about the run adds nothing.
    """
    counted = [spec for spec in specs if spec.weight and spec.name in rewards]
    return sum(spec.weight * rewards[spec.name] for spec in counted) if counted else None


def mean_reward(rewards: Mapping[str, float], specs: Sequence[RewardSpec]) -> float | None:
    """Return the weighted mean of the rewards; `None` as for `total_reward`.

    It is the sum divided by the weights above 0: 1 if these rewards are 1 and there is no penalty. Without a weight
    above 0 it is the sum.
    """
    total = total_reward(rewards, specs)
    most = sum([max(0.0, spec.weight) for spec in specs if spec.name in rewards])
    return total / most if total is not None and most else total


def make_scorers(specs: Iterable[RewardSpec]) -> tuple["ConfiguredScorer", ...]:
    """Return a scorer for each reward. Raises: `ConfigError` for an unknown scorer, function or setting."""
    return tuple([ConfiguredScorer(_make(spec), spec) for spec in specs])


class ConfiguredScorer:
    """A scorer with the settings that it was made from, which each of its grades names."""

    def __init__(self, inner: Scorer, spec: RewardSpec) -> None:
        self._inner = inner
        self.name = spec.name
        # A program may give objects, such as a model, of which the journal has the names.
        settings: dict[str, Json] = {
            key: value if _is_plain(value) else str(getattr(value, "name", type(value).__name__))
            for key, value in spec.settings.items()
        }
        self.part = PartSpec(name=spec.scorer, settings=settings or None)

    def measure(self, wrap: Callable[[Model], Model]) -> None:
        """Apply `wrap` to the model that the scorer asks, if it asks one."""
        if hasattr(self._inner, "model"):
            self._inner.model = wrap(self._inner.model)

    async def score(self, subject: Subject) -> Score | None:
        return await self._inner.score(subject)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | list | tuple | dict)


def _make(spec: RewardSpec) -> Scorer:
    settings: dict[str, Any] = dict(spec.settings)
    if spec.scorer in SCORERS:
        make = SCORERS.load(spec.scorer)
    elif ":" in spec.scorer and spec.scorer.rpartition(":")[2].isidentifier():
        from treadle.scoring.scorers import FunctionScorer

        make, settings = FunctionScorer, {**settings, FUNCTION: spec.scorer}
    else:
        hint = did_you_mean(spec.scorer, SCORERS.names())
        raise ConfigError(
            f"there is no scorer {spec.scorer!r}{hint or ';'} the scorers are {', '.join(SCORERS.names())}, or a "
            "function as module:function or file.py:function, each with its weight as in check=0.5"
        )
    parameters = {name: item for name, item in inspect.signature(make).parameters.items() if name != "name"}
    known = list(parameters)
    if unknown := [key for key in settings if key not in known]:
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(
            f"the reward {spec.name!r} has no setting {unknown[0]!r}{hint or ';'} its settings are "
            f"{', '.join(['weight', *(key for key in known if key != 'function')])}"
        )
    for name, item in parameters.items():
        if item.default is item.empty and item.kind is item.KEYWORD_ONLY and name not in settings:
            raise ConfigError(
                f"the reward {spec.name!r} needs the setting {name!r}; give it in a configuration, as "
                f"'{spec.name}: {{{name}: ...}}', or as --set rewards.{spec.name}.{name}=..."
            )
    for name, value in settings.items():
        _check_setting(spec, name, value, parameters[name].annotation)
    try:
        return make(name=spec.name, **settings)
    except TypeError as error:
        told = ", ".join([f"{key}={value!r}" for key, value in settings.items()])
        raise ConfigError(f"the reward {spec.name!r} cannot be made with {told}: {error}") from error


def _check_setting(spec: RewardSpec, name: str, value: Any, wanted: Any) -> None:
    """Check that a setting is of the type that its scorer declares. Raises: `ConfigError`."""
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        said = (
            str(error).replace("`", "'").partition(" - at")[0].replace("Expected 'array'", "Expected 'list'")
        )
        raise ConfigError(
            f"{name} of the reward {spec.name!r} is {value!r}: {said[0].lower()}{said[1:]}"
        ) from None
    except (TypeError, NotImplementedError, NameError):
        return  # a class of a program, or a name that only its module knows
