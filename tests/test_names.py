"""One meaning for a name: few modules and no public classes have a name that stands twice."""

import re
from collections import defaultdict
from pathlib import Path

import treadle

SOURCE = Path(treadle.__file__).parent
KINDS = ("models/dialects",)
"""The folder with a folder for each provider, whose files have the same names."""
MODULES = frozenset(("asking", "inference", "protocol", "registry", "run"))
"""The modules whose names may stand in several rooms."""
CLASSES = frozenset(("Answer",))
"""The public classes whose names may stand in several modules."""


def files() -> list[Path]:
    return [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(KINDS)
    ]


def test_a_module_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path in files():
        if path.name != "__init__.py":
            places[path.stem].append(path.relative_to(SOURCE).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not {name: found for name, found in twice.items() if name not in MODULES}
    assert twice.keys() == MODULES, "a name of the list stands once now; take it out"
    assert len(MODULES) <= 15


def test_a_public_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path in files():
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            places[name].append(path.relative_to(SOURCE).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not {name: found for name, found in twice.items() if name not in CLASSES}
    assert twice.keys() == CLASSES, "a name of the list stands once now; take it out"
    assert len(CLASSES) <= 5
