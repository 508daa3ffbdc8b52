"""The JSON Schema of the configuration, for editors, and its keys."""

import inspect
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from treadle.core.registry import Registry
from treadle.core.types import Json
from treadle.datagen.config.fingerprint import hide_secrets
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.quality.duplicates import DuplicateSettings
from treadle.datagen.quality.registry import DUPLICATES, FILTERS
from treadle.datagen.scenarios import scenario as types
from treadle.datagen.scenarios.scenario_writer import PROMPTS
from treadle.export.exporter import FORMATS
from treadle.tools.resolve import TOOLSETS

_ENUMS = ("Kind", "Difficulty")


def schema() -> dict[str, Json]:
    """Return the JSON Schema of a configuration file, with the descriptions and names that an editor offers."""
    made: dict[str, Any] = GenerationConfig.model_json_schema()
    found = made["$defs"]
    for name in _ENUMS:
        enum: type[StrEnum] = getattr(types, name)
        texts = PROMPTS["kinds"]
        found[name] = {
            "description": found[name].get("description", ""),
            "oneOf": [{"const": item.value, "description": texts.get(item.value, "")} for item in enum],
        }
    weights = found["Generation"]["properties"]
    for key, name in (("kinds", "Kind"), ("difficulties", "Difficulty")):
        weights[key] |= _as_properties(weights[key], found[name])
    found["Quality"]["properties"]["filters"] |= _filters(found)
    found["OutputSection"]["properties"]["formats"]["items"] = _names_of(FORMATS, "^[\\w.-]+$")
    toolsets = found["Tools"]["properties"]["use"]["items"]["anyOf"]
    toolsets[:] = [_names_of(TOOLSETS, "."), *[item for item in toolsets if "$ref" in item]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "treadle generate"}


def _as_properties(node: dict[str, Any], enum: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with names of `enum` as keys: properties, which editors complete."""
    del node["propertyNames"]
    value = node["additionalProperties"]
    return {
        "properties": {item["const"]: value | {"description": item["description"]} for item in enum["oneOf"]},
        "additionalProperties": False,
    }


def _filters(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of `quality.filters`: a description and the settings of each filter."""
    properties = {}
    for name in (*FILTERS.names(), DUPLICATES):
        kind = DuplicateSettings if name == DUPLICATES else FILTERS.load(name).settings_type
        about = kind if name == DUPLICATES else FILTERS.load(name)
        settings = kind.model_json_schema()
        definitions |= settings.pop("$defs", {})
        text = inspect.cleandoc(about.__doc__ or "")
        properties[name] = {"description": text, "anyOf": [{"type": "boolean"}, settings]}
    own = {":": {"anyOf": [{"type": "boolean"}, {"type": "object"}]}}
    return {"properties": properties, "patternProperties": own, "additionalProperties": False}


def _names_of(registry: Registry[Any], pattern: str) -> dict[str, Any]:
    """Return the schema of a name in `registry`, or of one that a package may add and that fits `pattern`."""
    return {"anyOf": [{"enum": registry.names()}, {"type": "string", "pattern": pattern}]}


def starter() -> str:
    """Return a commented configuration that works without a key."""
    return (Path(__file__).parent / "starter.yaml").read_text("utf-8")


def dump(config: GenerationConfig) -> str:
    """Return the YAML file of a configuration, with all paths resolved, and without secrets."""
    value = hide_secrets(config.model_dump(mode="json", exclude_defaults=True))
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text
