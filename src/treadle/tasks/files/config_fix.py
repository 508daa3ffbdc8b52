"""Tasks: change the value of a key in configuration files of several formats, if it has a certain old value."""

import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import edit_line, final, make_all, read_folder
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import DEPARTMENTS, SERVICES, add_notes
from treadle.tasks.solver import Habit, Solver

_KEYS = ("smtp_host", "db_host", "api_url", "cache_host", "proxy", "queue_host", "bucket", "log_host")
_ENDINGS = ("json", "ini", "yaml", "properties")


def generate(draw: Draw) -> Case:
    """Draw three to eight files. Those with exactly the old value must change; similar values must not."""
    folder = draw.pick(("config", "deploy/config", "etc", "services/settings"))
    key, *other_keys = draw.sample(_KEYS, 5)
    number, zone = draw.between(1, 40), draw.pick(("internal", "lan", "example"))
    old, new = f"{key[:3]}{number:02d}.{zone}", f"{key[:3]}{number + draw.between(1, 50):02d}.{zone}"
    files: dict[str, str] = {}
    changes: dict[str, str | None] = {}
    names = draw.sample(SERVICES, draw.between(3, 8))
    for index, name in enumerate(names):
        path = f"{folder}/{name}.{draw.pick(_ENDINGS)}"
        value = old if index == 0 else draw.pick((old, old, new, f"{old}.backup", f"x{old}"))
        pairs = [(other, f"{other[:3]}{draw.between(1, 99):02d}.{zone}") for other in other_keys]
        pairs += [(f"old_{key}", old)] if draw.chance(0.4) else []
        if index == 0 or draw.chance(0.85):
            pairs.append((key, value))
        pairs = draw.shuffled(
            [*pairs, ("team", draw.pick(DEPARTMENTS)), ("retries", str(draw.between(1, 9)))]
        )
        files[path] = _write(path, pairs)
        if (key, old) in pairs:
            changes[path] = _write(path, [(k, new if k == key else v) for k, v in pairs])
    expected = Items(tuple(sorted(changes)), tuple(files))
    add_notes(files, draw, draw.between(0, 3))
    return Case({"folder": folder, "key": key, "old": old, "new": new}, files, expected, changes)


def _write(path: str, pairs: list[tuple[str, str]]) -> str:
    if path.endswith(".json"):
        lines = [f'  "{key}": "{value}"' for key, value in pairs]
        return "{\n" + ",\n".join(lines) + "\n}\n"
    form = {"ini": "{} = {}", "yaml": "{}: {}", "properties": "{}={}"}[path.rpartition(".")[2]]
    head = "[service]\n" if path.endswith(".ini") else ""
    return head + "".join([form.format(*pair) + "\n" for pair in pairs])


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read all files, and change the lines that set exactly this key to exactly this value."""
    texts = yield from read_folder(values["folder"], habit)
    key, old = re.escape(values["key"]), re.escape(values["old"])
    pattern = re.compile(rf'(\s*"?{key}"?\s*[:=]\s*"?){old}("?,?\s*)')
    edits = {}
    for path, text in texts.items():
        for index, line in enumerate(text.split("\n")):
            found = pattern.fullmatch(line)
            if found:
                edits[path] = edit_line(path, text, index, found[1] + values["new"] + found[2])
    names = ", ".join(edits)
    answer = final(habit, names, f"{values['key']} is {values['new']} now in {len(edits)} files.")
    yield from make_all(list(edits.values()), habit, f"{len(edits)} files still say {values['old']}.")
    return answer
