"""The server that a recorded model would ask, and the keys that it would send there, in words. No request is
sent."""

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.models.config.presets import is_oracle, is_tiered
from treadle.models.config.recipe import load_config
from treadle.models.config.table_demands import demand_of


def demands_of_model(part: PartSpec) -> list[str]:
    """Return texts that say what would be loaded and sent, and where to, if the model of `part` were asked.
    Raises: `ConfigError`."""
    if part.missing is not None:
        return [f"send the conversation to the model {part.name!r} of the program"]
    if is_oracle(part.name, part.settings or {}):
        return []
    file = load_config().file
    if is_tiered(part.name):
        names = dict.fromkeys([name for tier in file.tiers.values() for name in (tier.model, *tier.fallback)])
        judge = file.router.options.get("judge")
        if isinstance(judge, str) and not is_tiered(judge):
            names[judge] = None
        return [item for name in names for item in demands_of_model(PartSpec(name=name))]
    models = file.models
    table = models.get(part.name)
    if table is None:
        return [demand_of(part, None)] if ":" in part.name else []
    others = [PartSpec(name=name) for name in table.fallback]
    return [demand_of(member, models[member.name]) for member in (part, *others)]


def demands_of_judge(part: PartSpec) -> list[str]:
    """Return texts that say what a judge would load and send, and where to. This function itself loads and
    sends nothing."""
    kind, _, model = part.name.partition(":")
    if part.missing is not None or kind == "patterns":
        return []
    if kind != "model":
        return [f"let the judge {part.name!r} see messages"]
    try:
        return demands_of_model(PartSpec(name=model))
    except ConfigError as error:
        return [f"ask the model {model!r} ({error})"]
