"""The server that a recorded model would ask, and the keys that it would send there, in words. No request is
sent."""

import os
import re

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.http.transport import address_of
from treadle.models.config.bare import home_of, providers
from treadle.models.config.presets import find_preset, is_oracle, is_tiered, split_name
from treadle.models.config.recipe import load_config
from treadle.models.config.tables import ModelTable

_VARIABLE = re.compile(r"\$\{(\w+)\}")


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
        return [_demand(part, None)] if ":" in part.name else []
    others = [PartSpec(name=name) for name in table.fallback]
    return [_demand(member, models[member.name]) for member in (part, *others)]


def _demand(part: PartSpec, table: ModelTable | None) -> str:
    settings = part.settings or {}
    provider, _ = split_name(part.name if table is None else table.model)
    preset = find_preset(provider)
    if preset is None:
        where = providers().get(provider, "which is not installed")
        return f"load the provider {provider!r} ({where}) and ask its model {part.name!r}"
    variable = preset.base_url_variable
    url = settings.get("base_url") or (table.base_url if table is not None else None)
    url = url or (os.environ.get(variable) if variable else None) or home_of(preset)
    key = settings.get(
        "api_key_env", (table.api_key_env if table is not None else None) or preset.key_variable
    )
    keys = [key, *[name for name in preset.header_variables.values() if os.environ.get(name)]]
    for value in (table.headers or {}).values() if table is not None else ():
        keys += _VARIABLE.findall(value)
    renderer = settings.get("renderer") or (table.renderer if table is not None else None)
    sent = ", ".join([str(name) for name in keys if name])
    return (
        f"send the conversation to {address_of(str(url))!r} for the model {part.name!r}"
        f"{f', with the keys in {sent}' if sent else ''}"
        f"{f', and load the renderer {renderer!r}' if renderer else ''}"
    )


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
