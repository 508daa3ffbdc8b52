"""Tasks: merge JSON files in the order of precedence that another file gives."""

import json
from collections.abc import Mapping
from typing import Any

from treadle.core.types import Json
from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, read_file, read_files, write_file
from treadle.tasks.files.grading import Case, Number
from treadle.tasks.files.materials import CITIES, SERVICES, add_notes, to_json
from treadle.tasks.solver import Habit, Solver, Step

_LEAVES = ("timeout", "retries", "level", "host", "limit", "mode", "color", "owner")
_LAYERS = ("defaults", "site", "team", "local", "region", "override", "staging", "holiday")


def generate(draw: Draw) -> Case:
    """Draw three to six layers of settings. One of them may be missing from the order."""
    folder = draw.pick(("settings", "conf/layers", "profiles", "data/settings"))
    names = draw.sample(_LAYERS, draw.between(4, 7))
    listed, _ = names[:-1], names[-1]
    groups = draw.sample(SERVICES, 4)
    layers = {name: _draw_layer(draw, groups) for name in names}
    merged: dict[str, Any] = {}
    for name in listed:
        _merge(merged, layers[name])
    files = {f"{folder}/{name}.json": to_json(layer) for name, layer in layers.items()}
    order = f"{folder}/{draw.pick(('order', 'layers', 'precedence'))}.txt"
    files[order] = "".join([f"{name}.json\n" for name in listed])
    add_notes(files, draw, draw.between(0, 2))
    target = f"{draw.pick(('build', 'out', 'dist'))}/{draw.pick(('merged', 'effective', 'final'))}.json"
    values = {"order": order, "target": target, "folder": folder}
    return Case(values, files, Number(str(_add_up(merged))), {target: to_json(merged)})


def _draw_layer(draw: Draw, groups: list[str]) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    for group in draw.sample(groups, draw.between(1, 3)):
        layer[group] = {leaf: _draw_leaf(draw) for leaf in draw.sample(_LEAVES, draw.between(1, 4))}
    for leaf in draw.sample(_LEAVES, draw.between(0, 3)):
        layer[leaf] = _draw_leaf(draw)
    return layer


def _draw_leaf(draw: Draw) -> Json:
    options = (draw.between(1, 900), draw.pick(CITIES), draw.chance(0.5), [draw.between(1, 9)])
    return draw.pick(options)


def _merge(target: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = dict(value) if isinstance(value, dict) else value


def _add_up(value: Mapping[str, Any]) -> int:
    parts = [_add_up(item) if isinstance(item, dict) else item for item in value.values()]
    return sum([part for part in parts if type(part) is int])


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the order, then the files in it, and merge them."""
    (order,) = yield Step(
        [read_file(values["order"])], "The order decides which file wins, so I read it first."
    )
    paths = [f"{values['folder']}/{line.strip()}" for line in order.splitlines() if line.strip()]
    texts = yield from read_files(paths, habit)
    merged: dict[str, Any] = {}
    for path in paths:
        _merge(merged, json.loads(texts[path]))
    answer = final(habit, _add_up(merged), f"{values['target']} holds what {len(paths)} files come to.")
    content = to_json(merged)
    yield Step([write_file(values["target"], content)], "I have all the layers; now the merged file.", answer)
    return answer
