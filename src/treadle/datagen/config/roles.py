"""The models of a configuration, which are built in the same way as the models of treadle.toml."""

from typing import get_args

from treadle.core.errors import ConfigError, MistakesError
from treadle.core.texts.places import Problem
from treadle.datagen.config.generation_config import GenerationConfig, Role
from treadle.models.config.recipe import JobUse
from treadle.models.config.recipe import load_config as load_models
from treadle.models.config.tables import ModelTable
from treadle.models.protocol import Model

ROLES: tuple[Role, ...] = get_args(Role)


def used_roles(config: GenerationConfig) -> tuple[Role, ...]:
    """Return the roles that a configuration has work for."""
    unused = {"topics"} if config.topics.load is not None else set()
    if config.quality.judge is None and not asks_about_statements(config):
        unused.add("judge")
    return tuple(role for role in ROLES if role not in unused)


def asks_about_statements(config: GenerationConfig) -> bool:
    """Return whether the judge is asked about statements that no rule can decide: if the filter `statements` is
    switched on, or by default if `models` names a model that is not built in."""
    given = config.quality.filters.get("statements")
    if given is not None:
        return given is not False
    model = given_model(config, "judge")
    name = model if isinstance(model, str) else "" if model is None else model.model
    return (
        bool(name) and not name.startswith("mock:") and config.quality.filters.get("grounding") is not False
    )


def make_models(config: GenerationConfig) -> dict[Role, Model]:
    """Return the model of each role that is used. Roles with the same settings share one.

    Requests to one server share a limiter, so that all of them wait if the server asks for it.
    Raises: `ConfigError` that lists the roles whose models cannot be made, each with the reason.
    """
    models, problems = try_models(config)
    if problems:
        raise MistakesError("\n".join(map(str, problems)))
    return models


def try_models(
    config: GenerationConfig, *, needs_keys: bool = True
) -> tuple[dict[Role, Model], list[Problem]]:
    """Return the models that can be made, and why the others cannot. Without `needs_keys`, the models are only for
    their prices: they have no keys."""
    try:
        file = load_models()
    except ConfigError as error:
        return {}, [Problem(("models",), str(error))]
    made: list[tuple[ModelTable, Model]] = []
    job = JobUse(seed=config.seed, needs_keys=needs_keys)
    models: dict[Role, Model] = {}
    problems: dict[tuple[str, str], Problem] = {}
    for role in used_roles(config):
        try:
            settings = file.table_of(given_model(config, role))
            known = [model for table, model in made if table == settings]
            models[role] = known[0] if known else file.model(given_model(config, role), job=job)
            made.append((settings, models[role]))
        except ConfigError as error:
            path = ("models", "default" if getattr(config.models, role) is None else role)
            problems[(".".join(path), str(error))] = Problem(path, str(error))
    return models, list(problems.values())


def given_model(config: GenerationConfig, role: Role) -> str | ModelTable | None:
    """Return the model of `role`: its own, or the default model; `None` if that of treadle.toml is meant."""
    return getattr(config.models, role) or config.models.default
