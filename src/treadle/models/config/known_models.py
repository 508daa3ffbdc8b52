"""The models of treadle.toml and the providers: addresses, keys, prices, and what they would be sent."""

from collections.abc import Iterator

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.spec import PartSpec
from treadle.core.texts.masking import hide_in_url
from treadle.models.config.bare import providers
from treadle.models.config.model_parts import demand_of
from treadle.models.config.presets import find_preset, is_oracle, is_tiered, split_name
from treadle.models.config.recipe import Config, load_config
from treadle.models.config.stored_keys import where_is_key
from treadle.models.config.tables import ModelTable


class ListedModel(Struct, frozen=True, omit_defaults=True):
    """One model or provider."""

    name: str
    model: str
    """The model that a name stands for, or the dialect that a provider speaks."""
    where: str | None = None
    """The address of the server, if it is known."""
    key: str | None = None
    """The environment variable with the API key."""
    has_key: bool = True
    """True if the key is set in the environment or stored, or none is needed."""
    notes: tuple[str, ...] = ()
    is_default: bool = False


_BUILT_IN: dict[str, tuple[tuple[str, str], ...]] = {
    "hf": (("hf:FOLDER", "a model of transformers, in this process"),),
    "mock": (
        ("mock:echo", "repeats what it is told, for tests and first steps"),
        ("mock:teacher", "solves tasks with tools, for data and tests without a model"),
        ("mock:mediocre", "lies in a third of its answers, to test the filters of a generation"),
    ),
}
"""The models of Treadle's own entry points, each with what it does."""


def list_models(config: Config) -> Iterator[ListedModel]:
    """Yield the models of treadle.toml."""
    for name, table in config.file.models.items():
        provider, _ = split_name(table.model)
        preset = find_preset(provider)
        key = table.api_key_env or (preset.key_variable if preset is not None and preset.needs_key else None)
        is_own = table.base_url is not None and table.api_key_env is None
        yield ListedModel(
            name,
            table.model,
            where=None if table.base_url is None else hide_in_url(table.base_url),
            key=None if is_own else key,
            has_key=is_own or key is None or where_is_key(key) is not None,
            notes=tuple(_notes(table)),
            is_default=config.default_model == name,
        )


def _notes(table: ModelTable) -> Iterator[str]:
    if table.limit is not None:
        yield f"limit {table.limit}"
    if table.fallback:
        yield f"else {', '.join(table.fallback)}"
    if table.cache is not None:
        yield f"cache {table.cache}"
    yield _describe_price(table)


def _describe_price(table: ModelTable) -> str:
    if table.price is not None:
        return f"${table.price.input_usd_per_million:g} in, ${table.price.output_usd_per_million:g} out"
    provider, rest = split_name(table.model)
    preset = find_preset(provider)
    if preset is None or preset.price_provider is None or table.base_url is not None:
        return "price unknown"
    try:
        from genai_prices import Usage, calc_price

        # The price of a short request: some models cost more for a long prompt.
        prices = [
            1000 * calc_price(counted, model_ref=rest, provider_id=preset.price_provider).total_price
            for counted in (Usage(input_tokens=1000), Usage(output_tokens=1000))
        ]
    except (ImportError, LookupError):
        return "price unknown"
    return f"${float(prices[0]):g} in, ${float(prices[1]):g} out"


def list_providers() -> Iterator[ListedModel]:
    """Yield the providers for names such as provider:name."""
    for name, kind in providers().items():
        preset = find_preset(name)
        if preset is None:
            yield from [
                ListedModel(*item)
                for item in (_BUILT_IN.get(name, ()) if kind.startswith("treadle.") else ())
            ] or [ListedModel(name, kind, notes=("from another package",))]
            continue
        variable = preset.key_variable if preset.needs_key else None
        has_key = variable is None or where_is_key(variable) is not None
        yield ListedModel(name, preset.dialect, where=preset.base_url, key=variable, has_key=has_key)


def demands_of_model(part: PartSpec) -> list[str]:
    """Return texts that say what asking a model would load and send, and where to. Raises: `ConfigError`."""
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
    """Return texts that say what a judge would load and send, and where to, without doing it."""
    kind, _, model = part.name.partition(":")
    if part.missing is not None or kind == "patterns":
        return []
    if kind != "model":
        return [f"let the judge {part.name!r} see messages"]
    try:
        return demands_of_model(PartSpec(name=model))
    except ConfigError as error:
        return [f"ask the model {model!r} ({error})"]
