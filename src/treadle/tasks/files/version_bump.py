"""Tasks: increase a version in the files that a release list names."""

import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import edit_line, final, make_all, read_files
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import SERVICES, add_notes, date
from treadle.tasks.solver import Habit, Solver

_PARTS = ("major", "minor", "patch")


def generate(draw: Draw) -> Case:
    """Draw a version in four to eight files, two of which must not change."""
    name = draw.pick(SERVICES)
    numbers = [draw.between(0, 9), draw.between(0, 30), draw.between(0, 60)]
    version = ".".join(map(str, numbers))
    part = draw.pick(_PARTS)
    new = _bump(version, part)
    near = f"{numbers[0]}.{numbers[1]}.{numbers[2]}{draw.below(10)}"
    forms = {
        "VERSION": "@\n",
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "@"\ndependencies = ["base>={near}"]\n',
        "package.json": f'{{\n  "name": "{name}",\n  "version": "@",\n  "engine": "{near}"\n}}\n',
        f"src/{name}/__init__.py": f'"""The {name}."""\n\n__version__ = "@"\n',
        "docs/conf.py": f'project = "{name}"\nrelease = "@"\nsince = "{near}"\n',
        "chart/Chart.yaml": f"name: {name}\nappVersion: @\nkubeVersion: {near}\n",
        "README.txt": f"{name}\n\nInstall version @ with the usual command.\n",
        "deploy/image.env": f"IMAGE={name}:@\nBASE=python:{near}\n",
    }
    listed = ["VERSION", *draw.sample([path for path in forms if path != "VERSION"], draw.between(2, 5))]
    files = {path: form.replace("@", version) for path, form in forms.items()}
    changes: dict[str, str | None] = {path: forms[path].replace("@", new) for path in listed}
    files["release.txt"] = "Files with the version:\n" + "".join(
        [f"- {path}\n" for path in draw.shuffled(listed)]
    )
    files["CHANGELOG.txt"] = f"{version} ({date(draw)})\n  Fixed the {draw.pick(SERVICES)}.\n"
    add_notes(files, draw, draw.between(0, 2))
    return Case(
        {"part": part, "list": "release.txt", "name": name}, files, Items((new,), (version, near)), changes
    )


def _bump(version: str, part: str) -> str:
    numbers = [int(number) for number in version.split(".")]
    index = _PARTS.index(part)
    return ".".join(map(str, [*numbers[:index], numbers[index] + 1, *[0] * (2 - index)]))


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the release list, then the files in it, and edit the version in each."""
    texts = yield from read_files([values["list"], "VERSION"], Habit(8))
    version = texts["VERSION"].strip()
    new = _bump(version, values["part"])
    paths = re.findall(r"^- (\S+)$", texts[values["list"]], re.MULTILINE)
    rest = yield from read_files([path for path in paths if path not in texts], habit)
    texts = {path: texts[path] if path in texts else rest[path] for path in paths}
    pattern = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    calls = []
    for path, text in texts.items():
        for index, line in enumerate(text.split("\n")):
            if pattern.search(line):
                calls.append(edit_line(path, text, index, pattern.sub(new, line)))
    answer = final(habit, new, f"{version} became {new} in {len(calls)} files.")
    yield from make_all(calls, habit, f"The version is {version}, so the next one is {new}.", answer)
    return answer
