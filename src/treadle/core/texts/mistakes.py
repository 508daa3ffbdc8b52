"""Texts for the mistakes that pydantic finds in a document that a person wrote."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from treadle.core.registry import did_you_mean, find_near, name_known
from treadle.core.texts.places import KeyPath, Problem
from treadle.core.types import Json

_SECRETS = ("api_key", "key", "token", "secret", "password")
_NAME = re.compile(r"'([^']*)'")
_MAX_FAULTS = 200
_SIMILAR = 0.7
"""How similar to a key, from 0 to 1, the keys are that are suggested for it."""


class Keys:
    """The keys that a kind of document can have, by the JSON Schema of the kind, and texts for wrong ones."""

    def __init__(
        self,
        schema: Callable[[], dict[str, Any]],
        forms: Mapping[KeyPath, str],
        renamed: Mapping[KeyPath, str] | None = None,
        removed: Mapping[KeyPath, str] | None = None,
    ) -> None:
        """Make the keys of a kind. `schema` is called when it is first needed.

        `forms` says, for each value that can have several forms, which these are; `*` stands for any part of a
        path. `renamed` has the new name of each key that was called otherwise before, and `removed` the text for
        each key that is not needed any more.
        """
        self._make_schema = schema
        self._forms = forms
        self._renamed = renamed or {}
        self._removed = removed or {}

    def known(self, path: KeyPath) -> tuple[str, ...]:
        """Return the keys that the section at `path` can have; empty if it can have any key."""
        return tuple(
            dict.fromkeys(key for node in self._nodes_at(path) for key in node.get("properties", ()))
        )

    def sections_with(self, key: str) -> list[str]:
        """Return the sections that have `key`, with dots between their keys."""
        return [".".join(map(str, path)) for path in self._sections if path and key in self.known(path)]

    def find_paths(self, key: str) -> list[str]:
        """Return the keys of any section that `key` probably means, with dots between their parts."""
        sections = [path for path in self._sections if "*" not in path]
        paths = {".".join(map(str, (*path, name))): name for path in sections for name in self.known(path)}
        near = [key] if key in paths.values() else find_near(key, paths.values(), cutoff=_SIMILAR)
        return [path for path, name in paths.items() if name in near]

    def explain(self, faults: Sequence[Any], value: Json) -> list[Problem]:
        """Return a problem for each mistake in `value`. `faults` is what pydantic's `ValidationError.errors`
        returns. If it is without inputs, no text quotes a value, which may be a secret."""
        # A text about each of many wrong keys would take long, and nobody reads them.
        faults = faults[:_MAX_FAULTS]
        problems: dict[KeyPath, Problem] = {}
        forms: dict[KeyPath, list[Any]] = {}
        placed = [(*self._path_in(value, fault["loc"]), fault) for fault in faults]
        for path, has_forms, fault in sorted(placed, key=lambda item: len(item[0]) if item[1] else 0):
            if has_forms:
                root = self._with_forms(path)
                root = next((other for other in forms if root[: len(other)] == other), root)
                forms.setdefault(root, []).append((path, fault))
            else:
                problems.setdefault(path, Problem(path, self._explain(path, fault)))
        for root, found in forms.items():
            # If the value is a mapping, only the mistakes within it are reported, and not those of the other forms.
            inner = [(path, fault) for path, fault in found if len(path) > len(root)]
            for path, fault in inner:
                problems.setdefault(path, Problem(path, self._explain(path, fault)))
            if not inner:
                wanted = " or ".join(dict.fromkeys(_wanted_by(fault) for _, fault in found))
                whole = found[0][1] | ({"input": _value_at(value, root)} if "input" in found[0][1] else {})
                problems[root] = Problem(root, self._explain_wrong(root, whole, wanted))
        return list(problems.values())

    def explain_unknown(self, path: KeyPath) -> str:
        """Return the text for a key that does not exist."""
        section, key = path[:-1], str(path[-1])
        if (text := _find_text(self._removed, path)) is not None:
            return text
        if path in self._renamed:
            return f"this key is called {self._renamed[path]!r} now; rename it"
        if key.lower() in _SECRETS:
            has_name = bool(self.sections_with("api_key_env"))
            advice = (
                "; name the environment variable that holds the key with 'api_key_env'" if has_name else ""
            )
            return f"keys do not belong in a file{advice}"
        known = self.known(section)
        elsewhere = [name for name in self.sections_with(key) if name != ".".join(map(str, section))]
        paths = [] if elsewhere else self.find_paths(key)
        near = find_near(key, [*known, *[path.rpartition(".")[2] for path in paths]], cutoff=_SIMILAR)
        hint = did_you_mean(key, [name for name in near if name in known])
        if not hint and elsewhere:
            hint = f"; there is such a key in {' and in '.join(map(repr, elsewhere))}"
        if not hint and paths:
            hint = f"; did you mean {' or '.join(map(repr, paths[:3]))}?"
        return f"there is no such key{hint or '; known are ' + ', '.join(known)}"

    def _path_in(self, value: Any, location: Sequence[str | int]) -> tuple[KeyPath, bool]:
        """Return the path of the fault in the file, and whether the value at this path can have several forms. If
        it can, `location` also contains the name of a form."""
        path: list[str | int] = []
        has_forms = False
        for position, part in enumerate(location):
            is_last = position == len(location) - 1
            is_key = isinstance(value, dict) and part in value
            if is_key or (isinstance(value, list) and isinstance(part, int)):
                value = value[part]
            elif part == "[key]":
                continue
            elif not isinstance(value, dict) or not is_last or part not in self.known(tuple(path)):
                has_forms = True
                continue
            path.append(part)
        return tuple(path), has_forms

    def _with_forms(self, path: KeyPath) -> KeyPath:
        """Return the part of `path` whose value has several forms."""
        starts = (path[: len(pattern)] for pattern in self._forms)
        return next((start for start in starts if _find_text(self._forms, start) is not None), path)

    def _explain(self, path: KeyPath, fault: Any) -> str:
        kind, key = fault["type"], str(path[-1]) if path else ""
        if kind == "extra_forbidden":
            return self.explain_unknown(path)
        if kind == "missing":
            return "it is missing, and it is required"
        if kind == "value_error":
            return str(fault["msg"]).removeprefix("Value error, ")  # a validator of ours says it all
        given = key if fault["loc"][-1:] == ("[key]",) else fault.get("input")
        if kind in ("enum", "literal_error") and given is not None:
            names = _NAME.findall(fault["ctx"]["expected"])
            return f"{_show(given)} is unknown{name_known(str(given), names, 'known are')}"
        return self._explain_wrong(path, fault, _wanted_by(fault))

    def _explain_wrong(self, path: KeyPath, fault: Any, wanted: str) -> str:
        known = _find_text(self._forms, path)
        advice = f"it should {wanted}" if known is None else f"give {known}"
        return f"{_show(fault['input'])} is not possible; {advice}" if "input" in fault else advice

    @cached_property
    def _schema(self) -> dict[str, Any]:
        return self._make_schema()

    @cached_property
    def _sections(self) -> tuple[KeyPath, ...]:
        found: list[KeyPath] = [()]
        for path in found:
            places = [place for key in self.known(path) for place in ((*path, key), (*path, key, "*"))]
            found += [place for place in places if self.known(place)]
        return tuple(found)

    def _nodes_at(self, path: KeyPath) -> list[dict[str, Any]]:
        """Return the schemas of objects that the value at `path` may have."""
        nodes = list(self._objects(self._schema))
        for part in path:
            below: list[dict[str, Any]] = []
            for node in nodes:
                own = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
                more = node.get("additionalProperties") if isinstance(part, str) else None
                below += self._objects(own if own is not None else more)
            nodes = below
        return nodes

    def _objects(self, node: Any) -> Iterator[dict[str, Any]]:
        """Yield the schemas that `node` stands for, after following references and alternatives."""
        if not isinstance(node, dict):
            return
        if "$ref" in node:
            yield from self._objects(self._schema["$defs"][node["$ref"].rpartition("/")[2]])
        for item in node.get("anyOf", ()):
            yield from self._objects(item)
        if "$ref" not in node and "anyOf" not in node:
            yield node


def _wanted_by(fault: Any) -> str:
    """Return what a value should be, as in `be a list`."""
    _, says_should, wanted = fault["msg"].partition(" should ")
    wanted = wanted if says_should else f"be {fault['msg'].removeprefix('Value error, ')}"
    return str(wanted).replace("a valid dictionary", "a mapping").replace("a valid list", "a list")


def _find_text(texts: Mapping[KeyPath, str], path: KeyPath) -> str | None:
    """Return the text for `path`; `None` if there is none. A `*` in the keys of `texts` stands for any part."""
    for pattern, text in texts.items():
        if len(pattern) == len(path) and all(
            name in ("*", part) for name, part in zip(pattern, path, strict=True)
        ):
            return text
    return None


def _show(value: object) -> str:
    """Return a value as it is written in Python, with dots if it is cut."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _value_at(value: Any, path: KeyPath) -> Any:
    for part in path:
        value = value[part]
    return value
