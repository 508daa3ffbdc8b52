"""Tasks: add the settings that environment files lack, with the values in an example file."""

from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, find_paths, make_all, read_file, read_files, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import CITIES, SERVICES, add_notes
from treadle.tasks.solver import Habit, Solver, Step

_NAMES = ("HOST", "PORT", "USER", "REGION", "TIMEOUT", "POOL", "PREFIX", "LEVEL", "CACHE", "QUEUE", "ZONE")


def generate(draw: Draw) -> Case:
    """Draw an example of five to nine settings, and the files of three to seven services."""
    top = draw.pick(("services", "apps", "deploy", "stacks"))
    head = draw.pick(("APP", "SVC", "NODE", "CORE"))
    keys = [f"{head}_{name}" for name in draw.sample(_NAMES, draw.between(5, 9))]
    defaults = {key: draw.pick((str(draw.between(1, 9000)), draw.pick(CITIES).lower(), "")) for key in keys}
    example = f"{top}/example.env"
    files = {example: _write(draw, "Copy this and fill it in.", list(defaults.items()))}
    changes: dict[str, str | None] = {}
    lacking: dict[str, int] = {}
    for index, service in enumerate(draw.sample(SERVICES, draw.between(3, 7))):
        missing = draw.sample(keys, draw.between(1, 3)) if index == 0 or draw.chance(0.5) else []
        own = [(key, str(draw.between(1, 9000))) for key in draw.shuffled(keys) if key not in missing]
        own.append((f"{service.upper()}_TOKEN_FILE", f"/run/{service}"))
        path = f"{top}/{service}/.env"
        files[path] = _write(draw, service, own)
        if missing:
            added = "".join([f"{key}={value}\n" for key, value in defaults.items() if key in missing])
            changes[path] = files[path] + added
            for key in missing:
                lacking[key] = lacking.get(key, 0) + 1
    add_notes(files, draw, draw.between(0, 2))
    expected = Items(tuple(sorted(lacking)), tuple(keys))
    return Case({"example": example, "top": top}, files, expected, changes)


def _write(draw: Draw, title: str, pairs: list[tuple[str, str]]) -> str:
    lines = [f"# {title}\n"]
    for key, value in pairs:
        lines += [f"# {key}=\n"] if draw.chance(0.1) else []
        lines.append(f"{key}={value}\n")
    return "".join(lines)


def _read(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key.strip(): value for key, _, value in pairs}


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the example and the services' files, and append what each lacks."""
    (text,) = yield Step([read_file(values["example"])], "The example says what every file should have.")
    defaults = _read(text)
    prefix = values["top"] + "/"
    paths = yield from find_paths(lambda path: path.startswith(prefix) and path.endswith("/.env"))
    texts = yield from read_files(paths, habit)
    calls = []
    lacking: dict[str, None] = {}
    for path, own in texts.items():
        present = _read(own)
        missing = [key for key in defaults if key not in present]
        lacking.update(dict.fromkeys(missing))
        if missing:
            end = "" if own.endswith("\n") else "\n"
            added = "".join([f"{key}={defaults[key]}\n" for key in missing])
            calls.append(write_file(path, own + end + added))
    answer = final(habit, ", ".join(sorted(lacking)), f"{len(calls)} of {len(paths)} files lacked something.")
    yield from make_all(calls, habit, f"{len(calls)} files lack settings; I append them.", answer)
    return answer
