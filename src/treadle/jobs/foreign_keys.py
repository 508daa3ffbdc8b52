"""The reading of a configuration of DeepFabric: which of its keys are which of Treadle's, with a note for each."""

from collections.abc import Mapping
from typing import Any

from treadle.core.registry import did_you_mean
from treadle.core.texts.places import Document, KeyPath, Mapped, Problem
from treadle.core.types import Json

NEAR = 0.75
"""The similarity from which on an unknown key is a misspelling of a known key."""


class KeyMapper:
    """The state of one mapping. A job's own class adds the keys that need code."""

    def __init__(self, document: Document, keys: Mapping[str, Any]) -> None:
        """Make the mapping of a document.

        `keys` are the tables of a data file, by keys of DeepFabric with dots between sections: `renamed`,
        `defaults`, `remarks`, `one_more`, `values`, `left_out` and `misplaced`, and `lists` with the keys that are
        `special` (mapped by code) and `harmless` (without influence on the results).
        """
        self._keys = keys
        self._names = known_keys(keys)
        self._document = document
        self.target: dict[str, Any] = {}
        """The configuration so far."""
        self._origins: dict[KeyPath, KeyPath] = {}
        self._notes: list[tuple[bool, KeyPath, str]] = []
        self.problems: list[Problem] = []
        self.moved: dict[str, str] = {}
        """The keys that are read from another place of the file, with that place."""

    def result(self) -> Mapped:
        """Return the mapped configuration, with the notes of each class in the order of the file."""
        place_of = self._document.place_of
        told = sorted(self._notes, key=lambda note: (not note[0], place_of(note[1]) or (0, 0)))
        notes = [
            f"{'changes results' if is_change else 'renamed'}: {self._document.where(path)}: "
            f"{'.'.join(map(str, path))}: {text}"
            for is_change, path, text in told
        ]
        return Mapped(self.target, self._origins, tuple(notes), tuple(self.problems))

    def map_names(self) -> None:
        """Map the keys that the data file lists: misplaced, renamed and left out."""
        for key, right in self._keys["misplaced"].items():
            if self.find(key) is not None and self.find(right) is None:
                self.moved[right] = key
                self.note(key, f"DeepFabric ignores it there; it was read as {right}", is_change=True)
        for key, target in self._keys["renamed"].items():
            section, _, name = key.rpartition(".")
            if (value := self.find(key)) is not None:
                more = key in self._keys["one_more"] and isinstance(value, int)
                self.put(target, value + 1 if more else value, key)
                remark = self._keys["remarks"].get(key)
                told = remark or self._keys["one_more"].get(key)
                if told is not None or key != target:
                    text = f"it is {target} here{f'; {told}' if told else ''}"
                    self.note(key, text, is_change=remark is not None)
            elif (default := self._keys["defaults"].get(key)) is not None:
                self.put(target, default, section)
                self.note(section, f"it has no {name}; {default!r} is DeepFabric's default")
        for key, text in self._keys["left_out"].items():
            if self.find(key) is not None:
                self.note(
                    key, f"left out; {text}", is_change=key not in self._keys["lists"]["harmless"].split()
                )

    def map_rest(self) -> None:
        """Report the keys that DeepFabric does not have.

        A key that is similar to one of its keys is a mistake, others are notes.
        """
        for path in self._leaves((), self._document.value):
            section, _, key = ".".join(map(str, path)).rpartition(".")
            below = {
                known[len(section) + bool(section) :].partition(".")[0]
                for known in self._names
                if not section or known.startswith(f"{section}.")
            }
            if hint := did_you_mean(key, below, cutoff=NEAR):
                self.problems.append(Problem(path, f"DeepFabric has no such key{hint}"))
            else:
                self.note(".".join(map(str, path)), "left out; DeepFabric has no such key and ignores it")

    def _leaves(self, path: KeyPath, value: Json) -> list[KeyPath]:
        """Return the paths of the unknown keys below `path`, which is unknown or a section."""
        name = ".".join(map(str, path))
        if name in self._names or name in self.moved.values():
            return []
        is_section = not name or any(known.startswith(f"{name}.") for known in self._names)
        if not (is_section and isinstance(value, dict)):
            return [path] if path else []
        return [leaf for key, item in value.items() for leaf in self._leaves((*path, key), item)]

    def find(self, key: str) -> Json:
        """Return the value of a key, which has dots between its sections; `None` if the file does not have
        the key."""
        value: Json = self._document.value
        for part in split_key(self.moved.get(key, key)):
            value = value.get(str(part)) if isinstance(value, dict) else None
        return value

    def find_value(self, key: str) -> Json:
        """Return the value of a key in Treadle's word for it."""
        value = self.find(key)
        word = self._keys["values"][key].get(value) if isinstance(value, str) else None
        if word is not None:
            self.note(key, f"{value!r} is {word!r} here")
        return word or value

    def put(self, target: str, value: Json, source: str) -> None:
        """Set a key of the configuration to what follows from the key `source` of the file."""
        *sections, last = target.split(".")
        table = self.target
        for name in sections:
            table = table.setdefault(name, {})
        table[last] = value
        self._origins[split_key(target)] = split_key(self.moved.get(source, source))

    def note(self, key: str, text: str, *, is_change: bool = False) -> None:
        """Add a note about a key. `is_change` says that the results differ from those of DeepFabric."""
        self._notes.append((is_change, split_key(self.moved.get(key, key)), text))

    def fail(self, key: str, text: str) -> None:
        self.problems.append(Problem(split_key(key), text))


def known_keys(keys: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of DeepFabric that a data file has."""
    return frozenset((*keys["renamed"], *keys["left_out"], *keys["lists"]["special"].split()))


def split_key(key: str) -> KeyPath:
    """Return the path of a key, which has dots between its sections."""
    return tuple(key.split("."))
