"""The JSON Schema of the configuration, for editors, and the keys that each section has."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Any

from treadle.core.registry import Registry
from treadle.core.types import Json
from treadle.datagen.config.document import KeyPath
from treadle.datagen.config.model import Config
from treadle.datagen.quality.duplicates import DuplicateSettings
from treadle.datagen.quality.registry import DUPLICATES, FILTERS
from treadle.datagen.scenarios import types
from treadle.export.exporter import FORMATS
from treadle.tools.resolve import TOOLSETS

_ENUMS = ("Kind", "Difficulty")


def schema() -> dict[str, Json]:
    """Return the JSON Schema of a configuration file, with the descriptions and names that an editor offers."""
    made: dict[str, Any] = Config.model_json_schema()
    found = made["$defs"]
    for name in _ENUMS:
        enum: type[StrEnum] = getattr(types, name)
        texts = _texts_of(name)
        found[name] = {
            "description": found[name].get("description", ""),
            "oneOf": [{"const": item.value, "description": texts[item.name]} for item in enum],
        }
    weights = found["Generation"]["properties"]
    for key, name in (("kinds", "Kind"), ("difficulties", "Difficulty")):
        weights[key] |= _as_properties(weights[key], found[name])
    found["Quality"]["properties"]["filters"] |= _filters(found)
    found["Output"]["properties"]["formats"]["items"] = _names_of(FORMATS, "^[\\w.-]+$")
    toolsets = found["Tools"]["properties"]["use"]["items"]["anyOf"]
    toolsets[:] = [_names_of(TOOLSETS, "."), *[item for item in toolsets if "$ref" in item]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "treadle generate"}


def known_keys(path: KeyPath) -> tuple[str, ...]:
    """Return the keys that the section at `path` can have; empty if it can have any key."""
    return tuple(dict.fromkeys(key for node in _nodes_at(path) for key in node.get("properties", ())))


def sections_with(key: str) -> list[str]:
    """Return the sections that have `key`, with dots between their keys."""
    return [".".join(map(str, path)) for path in _sections() if path and key in known_keys(path)]


def is_section(path: KeyPath) -> bool:
    """Return whether the value at `path` is a section."""
    return bool(known_keys(path))


@cache
def _schema() -> dict[str, Any]:
    return schema()


@cache
def _sections() -> tuple[KeyPath, ...]:
    found: list[KeyPath] = [()]
    for path in found:
        found += [(*path, key) for key in known_keys(path) if known_keys((*path, key))]
    return tuple(found)


def _nodes_at(path: KeyPath) -> list[dict[str, Any]]:
    """Return the schemas of objects that the value at `path` may have."""
    nodes = list(_objects(_schema()))
    for part in path:
        below: list[dict[str, Any]] = []
        for node in nodes:
            own = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
            more = node.get("additionalProperties") if isinstance(part, str) else None
            below += _objects(own if own is not None else more)
        nodes = below
    return nodes


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the schemas that `node` stands for, after following references and alternatives."""
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        yield from _objects(_schema()["$defs"][node["$ref"].rpartition("/")[2]])
    for item in node.get("anyOf", ()):
        yield from _objects(item)
    if "$ref" not in node and "anyOf" not in node:
        yield node


def _as_properties(node: dict[str, Any], enum: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object whose keys are names of `enum`.

    The names are properties, because editors do not complete `propertyNames`.
    """
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
    return {"properties": properties, "additionalProperties": False}


def _names_of(registry: Registry[Any], pattern: str) -> dict[str, Any]:
    """Return the schema of a name in `registry`, or of another name that fits `pattern`, because packages can add
    names."""
    return {"anyOf": [{"enum": registry.names()}, {"type": "string", "pattern": pattern}]}


@cache
def _texts_of(name: str) -> dict[str, str]:
    """Return the docstring below each member of an enumeration."""
    tree = ast.parse(inspect.getsource(types))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    texts = dict.fromkeys(getattr(types, name).__members__, "")
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            told = after.value if isinstance(after, ast.Expr) else None
            texts[node.targets[0].id] = str(told.value) if isinstance(told, ast.Constant) else ""
    return texts
