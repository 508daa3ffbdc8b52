"""How many checks of a value a JSON Schema asks for, counted up to a limit and without making them.

Alternatives that refer to alternatives multiply, so that a short schema may ask for more checks than can be made.
The library that makes them cannot be stopped.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product
from typing import Any

import jsonschema_rs

from treadle.core.types import Json

_ANYTHING: Any = object()
"""Stands for a value that has all the parts that a schema mentions."""
_SAME = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
"""The keywords whose schemas are for the value itself."""
_ITEMS = ("items", "prefixItems", "contains", "additionalItems", "unevaluatedItems")
_VALUES = ("additionalProperties", "unevaluatedProperties", "patternProperties")
_NAMED = ("dependentSchemas", "dependencies", "patternProperties")
"""The keywords with schemas by name."""
_LEFT = ("unevaluatedProperties", "unevaluatedItems")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class CheckCounter:
    """The checks that one schema asks for."""

    def __init__(self, schema: Json, refuse: Callable[[str], Json]) -> None:
        """Make a counter. `refuse` is called with the address of any other document, and raises an error."""
        self._schema = schema
        self._targets: dict[tuple[str, str], tuple[Json, Any]] = {}
        """What references name, and how references in it are resolved, by their bases and texts."""
        self._left = 0
        self._open: set[tuple[int, int]] = set()
        keys: set[str] = set()
        waiting: list[Json] = [schema]
        for part in waiting:
            if isinstance(part, dict):
                keys.update(part)
            waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        self.asks_what_is_left = not keys.isdisjoint(_LEFT)
        """True if a part is for what no other is for. Then alternatives multiply when a validator is made."""
        self.compares_items = "uniqueItems" in keys
        self._resolver: Any = None
        if not keys.isdisjoint(_REFERENCES):
            with suppress(ValueError, jsonschema_rs.ReferencingError):  # the validator says what is wrong
                self._resolver = jsonschema_rs.Registry([("", schema)], retriever=refuse).resolver("")
        self.has_references = self._resolver is not None

    def exceeds(self, limit: int, value: Json = _ANYTHING) -> bool:
        """Return whether a schema asks for more than `limit` checks of a value; by default, of any value. Then what
        a schema says within itself about its own parts counts once."""
        self._left, self._open = limit, set()
        try:
            self._count(self._schema, value, self._resolver)
        except RecursionError:
            return True
        return self._left < 0

    def _count(self, schema: Json, value: Json, resolver: Any) -> None:
        self._left -= 1
        place = (id(schema), id(value))
        if self._left < 0 or not isinstance(schema, dict) or place in self._open:
            return
        self._open.add(place)
        if resolver is not None and isinstance(name := schema.get("$id"), str):
            _, resolver = self._find(name, resolver)
        for key, part in schema.items():
            if key in _REFERENCES:
                target, its_resolver = self._find(str(part), resolver)
                self._count(target, value, its_resolver)
            for applied, checked in _applied(key, part, value):
                self._count(applied, checked, resolver)
            if self._left < 0:
                return
        self._open.discard(place)

    def _find(self, reference: str, resolver: Any) -> tuple[Json, Any]:
        """Return what a reference names, `None` if it names nothing, and how references in it are resolved."""
        place = (resolver.base_uri, reference)
        if place not in self._targets:
            self._targets[place] = (None, resolver)
            with suppress(jsonschema_rs.ReferencingError):
                found = resolver.lookup(reference)
                self._targets[place] = (found.contents, found.resolver)
        return self._targets[place]


def _applied(key: str, part: Json, value: Json) -> Iterable[tuple[Json, Json]]:
    """Return the schemas that a keyword with the value `part` applies, each with what it is for."""
    is_any = value is _ANYTHING
    if key == "properties" and isinstance(part, dict):
        found = part if is_any else value if isinstance(value, dict) else {}
        return [(part[name], value if is_any else value[name]) for name in part if name in found]
    if key not in (*_SAME, *_ITEMS, *_VALUES, "propertyNames"):
        return ()
    checked: Iterable[Json] = ()
    if is_any or key in _SAME:
        checked = [value]
    elif isinstance(value, list) and key in _ITEMS:
        checked = value
    elif isinstance(value, dict) and key not in _ITEMS:
        checked = value if key == "propertyNames" else value.values()
    if isinstance(part, dict) and key in _NAMED:
        part = list(part.values())
    return product(part if isinstance(part, list) else [part], checked)
