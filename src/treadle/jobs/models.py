"""The models of plans, which are built in the same way as those of treadle.toml."""

from typing import Any

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.models.config.build import split_name
from treadle.models.config.file import Config
from treadle.models.config.presets import DIALECTS, find_preset
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


def make_model(plan: ModelPlan, file: Config, *, seed: int, needs_keys: bool = True) -> Model:
    """Return the model of `plan`, which samples with `seed` if it has no seed of its own and its server takes one.

    All models that ask one server share a limiter, so that all of them wait if the server asks for it. Without
    `needs_keys`, the model is only for its price. Raises: `ConfigError`.
    """
    table = plan.table
    provider, _ = split_name(table.model)
    preset = find_preset(provider)
    options: dict[str, Any] = {}
    if table.seed is None and (
        preset is None or "seed" not in DIALECTS.load(preset.dialect).UNKNOWN_SETTINGS
    ):
        options["seed"] = seed
    if not needs_keys:
        options |= {"api_key": "none"} | ({"headers": {}} if table.headers else {})
        return file.model_of(table, name=plan.name, **options)
    limiter = None
    if preset is not None:
        server = f"{provider} {table.base_url or ''} {table.api_key_env or ''}"
        from treadle.models.wrappers.limiter import Limiter

        limiter = Limiter.shared(f"generate {server}", is_adaptive=False, learn_at_share=0.4)
    return file.model_of(table, name=plan.name, limiter=limiter, **options)
