"""The reading of configurations of rollouts. All mistakes are reported together, each with its line or option."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from treadle.core.errors import ConfigError, MistakesError
from treadle.core.mistakes import Keys
from treadle.core.overrides import apply_changes, list_problems
from treadle.core.places import Document, Problem, parse_document
from treadle.core.types import Json
from treadle.rollout.config import Config
from treadle.rollout.plan import find_tasks
from treadle.rollout.seeded import find_model
from treadle.rollout.sinks.registry import make_sinks
from treadle.scoring.registry import make_scorers, read_rewards
from treadle.tools.parts import reference_of
from treadle.trajectory.tokens.masks import make_mask
from treadle.workers.registry import WORKERS


@cache
def schema() -> dict[str, Json]:
    """Return the JSON Schema of a configuration file."""
    made: dict[str, Any] = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "treadle rollout"}


_KEYS = Keys(
    schema,
    {
        ("model",): "'provider:name', a name of treadle.toml, or a mapping with 'model' and settings",
        ("rewards", "*"): "a weight, or a mapping with 'weight' and settings",
        ("advantages",): "'group', 'group_mean', 'leave_one_out', 'reward' or 'none'",
    },
    renamed={("engine",): "workers"},
)


def load_config(
    path: str | Path | None = None,
    changes: Mapping[str, Json] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """Return the configuration in a YAML or JSON file, or the default one, with `changes`.

    `changes` override the file, by key such as `retries.attempts`; `flags` are the options that error messages
    name in place of such keys. Raises: `ConfigError` that lists all mistakes, each with `file:line` or the option,
    the key and the nearest known key.
    """
    document = _read(path)
    changes, flags = changes or {}, flags or {}
    value, problems = _with_model(document.value, changes), list(document.duplicates())
    value = apply_changes(value, changes)
    try:
        config = Config.model_validate(value)
    except ValidationError as error:
        problems += _KEYS.explain(error.errors(include_url=False), value)
    else:
        problems += find_conflicts(config)
    if problems:
        raise list_problems(document, problems, changes, flags)
    return config


def make_config(given: Mapping[str, Any]) -> Config:
    """Return the configuration with these values. A reward may be a function, or have one as its `scorer`.

    Raises: `ConfigError` that lists all mistakes.
    """
    given = dict(given)
    if isinstance(rewards := given.get("rewards"), Mapping):
        given["rewards"] = {name: _name_function(name, value) for name, value in rewards.items()}
    try:
        config = Config.model_validate(given)
    except ValidationError as error:
        problems = _KEYS.explain(error.errors(include_url=False), given)
    else:
        problems = find_conflicts(config, is_model_given=True)
        if not problems:
            return config
    lines = [f"{'.'.join(map(str, item.path))}: {item.text}" for item in problems]
    raise ConfigError(lines[0]) if len(lines) == 1 else MistakesError("\n".join(lines))


def _name_function(name: str, value: Any) -> Any:
    """Return the value of a reward with the reference of its function in place of the function."""
    if isinstance(value, Mapping):
        scorer = value.get("scorer")
        return {**value, **_name_function(name, scorer)} if callable(scorer) else value
    if not callable(value):
        return value
    part = reference_of(value)
    # Rewards are computed in this process, which has its main module.
    is_in_main = part.name.startswith("__main__:") and "<" not in part.name
    if part.missing is not None and not is_in_main:
        raise ConfigError(
            f"rewards.{name}: {part.name!r} cannot be found again by its name; define it at the top level of a "
            "module"
        )
    return {"scorer": part.name}


def find_conflicts(config: Config, *, is_model_given: bool = False) -> list[Problem]:
    """Return what cannot work: values that exclude each other, and names that do not exist."""
    problems: list[Problem] = []
    tree, size = config.tree, config.group_size
    if tree is not None and tree.roots > size:
        problems.append(
            Problem(
                ("tree", "roots"),
                f"{tree.roots} is more than group_size, which is {size}; give a smaller number",
            )
        )
    if tree is not None and config.deliver == "rollout":
        problems.append(Problem(("deliver",), "a tree needs whole groups; write 'group', or delete 'tree'"))
    if config.no_variance == "drop" and (size == 1 or config.deliver == "rollout"):
        text = (
            "a single rollout has no variance, so that all would be dropped; write 'mark', or deliver groups"
        )
        problems.append(Problem(("no_variance",), text))
    if config.overlong == "keep" and config.max_row_tokens is not None:
        problems.append(
            Problem(("max_row_tokens",), "it has no effect with overlong: keep; write 'mask' or 'drop'")
        )
    checks: list[tuple[tuple[str, ...], Any]] = [
        (("tasks",), lambda: find_tasks(config.tasks)),
        (("sinks",), lambda: make_sinks(config.sinks, group_size=config.unit_size)),
        (("loss",), lambda: make_mask(config.loss)),
        (("rewards",), lambda: make_scorers(read_rewards(config.rewards))),
        (("workers",), lambda: WORKERS.load(config.workers.partition(":")[0])),
    ]
    if not is_model_given:
        checks.append((("model",), lambda: find_model(config.model)))
    for key, check in checks:
        try:
            check()
        except ConfigError as error:
            problems.append(Problem(key, str(error)))
    return problems


def _read(path: str | Path | None) -> Document:
    if path is None:
        return Document("the options", {}, None)
    file = Path(path).expanduser()
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {str(file)!r}: {error.strerror}") from error
    return parse_document(data, str(file))


def _with_model(value: dict[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """Return `value` with its model as a mapping, if `changes` have settings for it."""
    model = value.get("model")
    if isinstance(model, str) and any(key.startswith("model.") for key in changes):
        return value | {"model": {"model": model}}
    return value
