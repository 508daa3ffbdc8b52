"""The models of plans, which are built in the same way as those of treadle.toml."""

from typing import Any

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.models.config.recipe import Config, JobUse
from treadle.models.config.tables import ModelTable
from treadle.models.protocol import Model


class ModelPlan(Struct, frozen=True):
    """The settings from which a model is built."""

    table: ModelTable
    name: str | None = None
    """Its name in treadle.toml; `None` if the plan's configuration has its settings."""


def plan_model(given: str | ModelTable | None, file: Config) -> ModelPlan:
    """Return the settings of a model: those given, those that `file` has under its name, or those of the default
    model. Raises: `ConfigError` if there is none."""
    given = given or file.default_model
    if given is None:
        raise ConfigError(
            "there is no model; name one such as 'openai:gpt-5-mini', or 'mock:teacher', which needs no key"
        )
    if isinstance(given, ModelTable):
        return ModelPlan(given)
    name = file.full_name(given)
    table = file.file.models.get(name)
    return ModelPlan(ModelTable(model=name)) if table is None else ModelPlan(table, name)


def make_model(plan: ModelPlan, file: Config, *, seed: int, needs_keys: bool = True, **options: Any) -> Model:
    """Return the model of `plan`, which samples with `seed` if it has no seed of its own and its server takes one.

    All models that ask one server share a limiter, so that all of them wait if the server asks for it. Without
    `needs_keys`, the model is only for its price. `options` override the settings of the plan.

    Raises: `ConfigError`.
    """
    return file.model(plan.name or plan.table, job=JobUse(seed=seed, needs_keys=needs_keys), **options)
