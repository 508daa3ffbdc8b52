"""The filters by name, and the reading of their settings from the configuration."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry, did_you_mean
from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig, Quality
from treadle.datagen.quality.duplicates import DuplicateSettings
from treadle.datagen.quality.protocol import Filter, FilterSettings

_ROOM = "treadle.datagen.quality.filters"

FILTERS: Registry[type[Filter[Any]]] = Registry(
    "filter",
    "treadle.filters",
    {
        "transcript": f"{_ROOM}.form:TranscriptFilter",
        "ended": f"{_ROOM}.form:EndedFilter",
        "reasoning": f"{_ROOM}.form:ReasoningFilter",
        "length": f"{_ROOM}.form:LengthFilter",
        "kind": f"{_ROOM}.form:KindFilter",
        "schema": f"{_ROOM}.form:SchemaFilter",
        "placeholders": f"{_ROOM}.wording:PlaceholderFilter",
        "useless_calls": f"{_ROOM}.form:UselessCallFilter",
        "refusals": f"{_ROOM}.wording:RefusalFilter",
        "leaks": f"{_ROOM}.wording:LeakFilter",
        "language": f"{_ROOM}.wording:LanguageFilter",
        "grounding": f"{_ROOM}.grounding:GroundingFilter",
        "contamination": f"{_ROOM}.contamination:ContaminationFilter",
        "check": f"{_ROOM}.graded:CheckFilter",
        "verified": f"{_ROOM}.graded:VerifiedFilter",
        "statements": f"{_ROOM}.grounding:StatementFilter",
        "judge": f"{_ROOM}.graded:JudgeFilter",
    },
)
"""The filters of single samples. Filters of the same cost run in this order."""

DUPLICATES = "duplicates"
"""The name of the filter that compares a row with all rows before it. The generation asks it last."""

_NOT_LOWERED = ("transcript", "ended", "contamination", "verified", DUPLICATES)
"""The filters that only reject: without them a row is broken, untrue, known from a test, or there twice."""


def read_settings(config: GenerationConfig) -> dict[str, FilterSettings]:
    """Return the settings of the filters that are used, by name. The name `duplicates` is among them.

    Raises: `ConfigError` that lists every fault.
    """
    if faults := [*find_faults(config.quality.filters), *find_lower_faults(config.quality)]:
        raise ConfigError("; ".join(f"{'.'.join(path)}: {text}" for path, text in faults))
    found: dict[str, FilterSettings] = {}
    for name in _names():
        given = config.quality.filters.get(name)
        is_on = (
            name == DUPLICATES or FILTERS.load(name).is_on(config) if given is None else given is not False
        )
        if is_on:
            found[name] = _settings_type(name).model_validate(given if isinstance(given, dict) else {})
    return found


def find_faults(filters: Mapping[str, bool | dict[str, Json]]) -> list[tuple[tuple[str, ...], str]]:
    """Return the faults of the section `quality.filters`, each with its path in the configuration."""
    faults: list[tuple[tuple[str, ...], str]] = []
    for name, given in filters.items():
        path = ("quality", "filters", name)
        if name not in _names():
            hint = did_you_mean(name, _names()) or ";"
            faults.append((path, f"there is no filter {name!r}{hint} the filters are {', '.join(_names())}"))
        elif isinstance(given, dict):
            faults += [(path + where, text) for where, text in _find_setting_faults(name, given)]
    return faults


def find_lower_faults(quality: Quality) -> list[tuple[tuple[str, ...], str]]:
    """Return the faults of the section `quality.lower`, each with its path in the configuration."""
    faults: list[tuple[tuple[str, ...], str]] = []
    can_lower = [name for name in _names() if name not in _NOT_LOWERED]
    for name in quality.lower:
        path = ("quality", "lower", name)
        if name in _NOT_LOWERED:
            text = f"the filter {name!r} can only reject; those that can lower are {', '.join(can_lower)}"
            faults.append((path, text))
        elif name not in can_lower:
            hint = did_you_mean(name, can_lower) or ";"
            faults.append((path, f"there is no filter {name!r}{hint} the filters are {', '.join(can_lower)}"))
        elif quality.filters.get(name) is False:
            faults.append((path, f"the filter {name!r} is switched off; switch it on, or delete its weight"))
    return faults


def _find_setting_faults(name: str, given: dict[str, Json]) -> list[tuple[tuple[str, ...], str]]:
    kind = _settings_type(name)
    try:
        kind.model_validate(given)
    except ValidationError as error:
        known = [*kind.model_fields]
        return [
            (
                tuple(map(str, item["loc"])),
                f"the filter {name!r} has no setting {item['loc'][-1]!r}"
                f"{did_you_mean(str(item['loc'][-1]), known) or ';'} the settings are {', '.join(known) or 'none'}"
                if item["type"] == "extra_forbidden"
                else f"{item['msg']}, but it is {item['input']!r:.100}",
            )
            for item in error.errors()
        ]
    return []


def _names() -> list[str]:
    return [*FILTERS.names(), DUPLICATES]


def _settings_type(name: str) -> type[FilterSettings]:
    return DuplicateSettings if name == DUPLICATES else FILTERS.load(name).settings_type
