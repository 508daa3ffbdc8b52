"""How many checks of a value a JSON Schema asks for, counted up to a limit and without making them.

Alternatives that refer to alternatives multiply, so that a short schema may ask for more checks than can be made.
The library that makes them cannot be stopped.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from treadle.core.types import Json

_ANYTHING: Any = object()
"""Stands for a value that has all the parts that a schema mentions."""
_SAME = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")
"""The keywords whose schemas are for the value itself."""
_NAMED_SAME = ("dependentSchemas", "dependencies")
_ITEMS = ("items", "prefixItems", "contains", "additionalItems", "unevaluatedItems")
_VALUES = ("additionalProperties", "unevaluatedProperties")
_LEFT = ("unevaluatedProperties", "unevaluatedItems")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class CheckCounter:
    """The checks that one schema asks for."""

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._bases: dict[int, str] = {}
        """The base of the references of each part, by its `id`."""
        self._named: dict[str, Json] = {"": schema}
        """The parts that references can name."""
        self._targets: dict[tuple[str, str], Json] = {}
        self.has_references = False
        self.asks_what_is_left = False
        """True if a part is for what no other is for. Then alternatives multiply when a validator is made."""
        self._left = 0
        self._open: set[tuple[int, int]] = set()
        waiting: list[tuple[Json, str]] = [(schema, "")]
        for part, base in waiting:
            if isinstance(part, dict):
                base = self._note(part, base)
                waiting += [(item, base) for item in part.values()]
            elif isinstance(part, list):
                waiting += [(item, base) for item in part]

    def _note(self, part: dict[str, Json], base: str) -> str:
        if isinstance(name := part.get("$id"), str):
            base = _join(base, name)
            self._named.setdefault(urldefrag(base)[0], part)
        self._bases[id(part)] = base
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := part.get(key), str):
                self._named.setdefault(f"{urldefrag(base)[0]}#{anchor}", part)
        self.has_references = self.has_references or any([key in part for key in _REFERENCES])
        self.asks_what_is_left = self.asks_what_is_left or any([key in part for key in _LEFT])
        return base

    def exceeds(self, limit: int, value: Json = _ANYTHING) -> bool:
        """Return whether a schema asks for more than `limit` checks of a value; by default, of any value. Then what
        a schema says within itself about its own parts counts once."""
        self._left, self._open = limit, set()
        try:
            self._count(self._schema, value)
        except RecursionError:
            return True
        return self._left < 0

    def _count(self, schema: Json, value: Json) -> None:
        self._left -= 1
        place = (id(schema), id(value))
        if self._left < 0 or not isinstance(schema, dict) or place in self._open:
            return
        self._open.add(place)
        for part, checked in self._checks(schema, value):
            self._count(part, checked)
            if self._left < 0:
                return
        self._open.discard(place)

    def _checks(self, schema: dict[str, Json], value: Json) -> Iterator[tuple[Json, Json]]:
        """Yield the schemas that a schema applies, each with what it is for."""
        is_any = value is _ANYTHING
        for key, part in schema.items():
            parts = part if isinstance(part, list) else [part]
            if key in _REFERENCES:
                place = (self._bases.get(id(schema), ""), str(part))
                if place not in self._targets:
                    self._targets[place] = self._target(*place)
                yield self._targets[place], value
            elif key in _SAME:
                yield from [(item, value) for item in parts]
            elif key in _NAMED_SAME and isinstance(part, dict):
                yield from [(item, value) for item in part.values()]
            elif key in _ITEMS and (is_any or isinstance(value, list)):
                yield from [(item, one) for item in parts for one in ([value] if is_any else value)]
            elif key == "properties" and isinstance(part, dict) and (is_any or isinstance(value, dict)):
                yield from [
                    (item, value if is_any else value[name])
                    for name, item in part.items()
                    if is_any or name in value
                ]
            elif key in _VALUES or key == "patternProperties":
                parts = (
                    list(part.values()) if key == "patternProperties" and isinstance(part, dict) else parts
                )
                below = [value] if is_any else value.values() if isinstance(value, dict) else ()
                yield from [(item, one) for item in parts for one in below]
            elif key == "propertyNames" and (is_any or isinstance(value, dict)):
                yield from [(part, name) for name in ([value] if is_any else value)]

    def _target(self, base: str, reference: str) -> Json:
        """Return what a reference names; `None` if it names nothing, which the library has refused."""
        address, fragment = urldefrag(_join(base, reference))
        if not fragment.startswith("/"):
            return self._named.get(f"{address}#{fragment}" if fragment else address)
        found = self._named.get(address)
        for step in fragment.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found


def _join(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference) if base else reference
    except ValueError:
        return reference
