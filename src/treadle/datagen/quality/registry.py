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
from treadle.tools.resolve import is_code
from treadle.tools.toolset_parts import load_reference

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


def load_filter(name: str) -> type[Filter[Any]]:
    """Return the filter called `name`, or the class at `package.module:Class` or `file.py:Class`.

    Raises: `ConfigError`.
    """
    if not is_code(name):
        return FILTERS.load(name)
    if ":" not in name:
        raise ConfigError(f"{name!r} names no class; write '{name}:CLASS'")
    found = load_reference(name)
    if not (isinstance(found, type) and issubclass(found, Filter)):
        raise ConfigError(
            f"{name!r} is {found!r:.100}; name a class that derives from treadle.datagen.quality.protocol.Filter"
        )
    return found


def read_settings(config: GenerationConfig) -> dict[str, FilterSettings]:
    """Return the settings of the filters that are used, by name. The name `duplicates` is among them.

    Raises: `ConfigError` that lists every fault.
    """
    filters = config.quality.filters
    if faults := [*find_faults(filters, imports=True), *find_lower_faults(config.quality)]:
        raise ConfigError("; ".join(f"{'.'.join(path)}: {text}" for path, text in faults))
    found: dict[str, FilterSettings] = {}
    for name in (*_names(), *filter(is_code, filters)):
        given = filters.get(name)
        is_on = (
            name == DUPLICATES or FILTERS.load(name).is_on(config) if given is None else given is not False
        )
        if is_on:
            found[name] = _settings_type(name).model_validate(given if isinstance(given, dict) else {})
    return found


def find_faults(
    filters: Mapping[str, bool | dict[str, Json]], *, imports: bool
) -> list[tuple[tuple[str, ...], str]]:
    """Return the faults of the section `quality.filters`, each with its path in the configuration.

    Without `imports`, the files and modules of the user's filters are not imported, and their settings not checked.
    """
    faults: list[tuple[tuple[str, ...], str]] = []
    for name, given in filters.items():
        path = ("quality", "filters", name)
        if is_code(name) and (not imports or given is False):
            continue
        if is_code(name):
            try:
                load_filter(name)
            except ConfigError as error:
                faults.append((path, str(error)))
                continue
        elif name not in _names():
            hint = did_you_mean(name, _names()) or ";"
            faults.append((path, f"there is no filter {name!r}{hint} the filters are {', '.join(_names())}"))
            continue
        if isinstance(given, dict):
            faults += [(path + where, text) for where, text in _find_setting_faults(name, given)]
    return faults


def find_lower_faults(quality: Quality) -> list[tuple[tuple[str, ...], str]]:
    """Return the faults of the section `quality.lower`, each with its path in the configuration."""
    faults: list[tuple[tuple[str, ...], str]] = []
    can_lower = [name for name in (*_names(), *filter(is_code, quality.filters)) if name not in _NOT_LOWERED]
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
    return DuplicateSettings if name == DUPLICATES else load_filter(name).settings_type
