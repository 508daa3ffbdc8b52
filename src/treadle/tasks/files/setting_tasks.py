"""Tasks about the files of services: settings in several formats, versions, and logs."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from treadle.core.types import Json
from treadle.tasks.draws import Draw
from treadle.tasks.files import file_calls as f
from treadle.tasks.files import materials as m
from treadle.tasks.files.grading import Items, Number, make_case
from treadle.tasks.generated import GeneratedCase
from treadle.tasks.solver import Habit, Solver, Step

# Change the value of a key in configuration files of several formats, if it has a certain old value.
_ENDINGS = ("json", "ini", "yaml", "properties")


def generate_config_fix(draw: Draw) -> GeneratedCase:
    """Draw three to eight files. Those with exactly the old value must change; similar values must not."""
    folder = draw.pick(("config", "deploy/config", "etc", "services/settings"))
    key, *other_keys = draw.sample(m.LISTS["host_keys"], 5)
    number, zone = draw.between(1, 40), draw.pick(("internal", "lan", "example"))
    old, new = f"{key[:3]}{number:02d}.{zone}", f"{key[:3]}{number + draw.between(1, 50):02d}.{zone}"
    files: dict[str, str] = {}
    changes: dict[str, str | None] = {}
    names = draw.sample(m.SERVICES, draw.between(3, 8))
    for index, name in enumerate(names):
        path = f"{folder}/{name}.{draw.pick(_ENDINGS)}"
        value = old if index == 0 else draw.pick((old, old, new, f"{old}.backup", f"x{old}"))
        pairs = [(other, f"{other[:3]}{draw.between(1, 99):02d}.{zone}") for other in other_keys]
        pairs += [(f"old_{key}", old)] if draw.chance(0.4) else []
        if index == 0 or draw.chance(0.85):
            pairs.append((key, value))
        pairs = draw.shuffled(
            [*pairs, ("team", draw.pick(m.DEPARTMENTS)), ("retries", str(draw.between(1, 9)))]
        )
        files[path] = _write_settings(path, pairs)
        if (key, old) in pairs:
            changes[path] = _write_settings(path, [(k, new if k == key else v) for k, v in pairs])
    expected = Items(tuple(sorted(changes)), tuple(files))
    m.add_notes(files, draw, draw.between(0, 3))
    return make_case({"folder": folder, "key": key, "old": old, "new": new}, files, expected, changes)


def _write_settings(path: str, pairs: list[tuple[str, str]]) -> str:
    if path.endswith(".json"):
        lines = [f'  "{key}": "{value}"' for key, value in pairs]
        return "{\n" + ",\n".join(lines) + "\n}\n"
    form = {"ini": "{} = {}", "yaml": "{}: {}", "properties": "{}={}"}[path.rpartition(".")[2]]
    head = "[service]\n" if path.endswith(".ini") else ""
    return head + "".join([form.format(*pair) + "\n" for pair in pairs])


def solve_config_fix(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read all files, and change the lines that set exactly this key to exactly this value."""
    texts = yield from f.read_folder(values["folder"], habit)
    key, old = re.escape(values["key"]), re.escape(values["old"])
    pattern = re.compile(rf'(\s*"?{key}"?\s*[:=]\s*"?){old}("?,?\s*)')
    edits = {}
    for path, text in texts.items():
        for index, line in enumerate(text.split("\n")):
            found = pattern.fullmatch(line)
            if found:
                edits[path] = f.edit_line(path, text, index, found[1] + values["new"] + found[2])
    names = ", ".join(edits)
    answer = f.final(habit, names, f"{values['key']} is {values['new']} now in {len(edits)} files.")
    yield from f.make_all(list(edits.values()), habit, f"{len(edits)} files still say {values['old']}.")
    return answer


# Add the settings that environment files lack, with the values in an example file.
def generate_env_sync(draw: Draw) -> GeneratedCase:
    """Draw an example of five to nine settings, and the files of three to seven services."""
    top = draw.pick(("services", "apps", "deploy", "stacks"))
    head = draw.pick(("APP", "SVC", "NODE", "CORE"))
    keys = [f"{head}_{name}" for name in draw.sample(m.LISTS["env_names"], draw.between(5, 9))]
    defaults = {key: draw.pick((str(draw.between(1, 9000)), draw.pick(m.CITIES).lower(), "")) for key in keys}
    example = f"{top}/example.env"
    files = {example: _write_env(draw, "Copy this and fill it in.", list(defaults.items()))}
    changes: dict[str, str | None] = {}
    lacking: dict[str, int] = {}
    for index, service in enumerate(draw.sample(m.SERVICES, draw.between(3, 7))):
        missing = draw.sample(keys, draw.between(1, 3)) if index == 0 or draw.chance(0.5) else []
        own = [(key, str(draw.between(1, 9000))) for key in draw.shuffled(keys) if key not in missing]
        own.append((f"{service.upper()}_TOKEN_FILE", f"/run/{service}"))
        path = f"{top}/{service}/.env"
        files[path] = _write_env(draw, service, own)
        if missing:
            added = "".join([f"{key}={value}\n" for key, value in defaults.items() if key in missing])
            changes[path] = files[path] + added
            for key in missing:
                lacking[key] = lacking.get(key, 0) + 1
    m.add_notes(files, draw, draw.between(0, 2))
    expected = Items(tuple(sorted(lacking)), tuple(keys))
    return make_case({"example": example, "top": top}, files, expected, changes)


def _write_env(draw: Draw, title: str, pairs: list[tuple[str, str]]) -> str:
    lines = [f"# {title}\n"]
    for key, value in pairs:
        lines += [f"# {key}=\n"] if draw.chance(0.1) else []
        lines.append(f"{key}={value}\n")
    return "".join(lines)


def _read_env(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key.strip(): value for key, _, value in pairs}


def solve_env_sync(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the example and the services' files, and append what each lacks."""
    (text,) = yield Step([f.read_file(values["example"])], "The example says what every file should have.")
    defaults = _read_env(text)
    prefix = values["top"] + "/"
    paths = yield from f.find_paths(lambda path: path.startswith(prefix) and path.endswith("/.env"))
    texts = yield from f.read_files(paths, habit)
    calls = []
    lacking: dict[str, None] = {}
    for path, own in texts.items():
        present = _read_env(own)
        missing = [key for key in defaults if key not in present]
        lacking.update(dict.fromkeys(missing))
        if missing:
            end = "" if own.endswith("\n") else "\n"
            added = "".join([f"{key}={defaults[key]}\n" for key in missing])
            calls.append(f.write_file(path, own + end + added))
    answer = f.final(
        habit, ", ".join(sorted(lacking)), f"{len(calls)} of {len(paths)} files lacked something."
    )
    yield from f.make_all(calls, habit, f"{len(calls)} files lack settings; I append them.", answer)
    return answer


# Merge JSON files in the order of precedence that another file gives.
def generate_json_merge(draw: Draw) -> GeneratedCase:
    """Draw three to six layers of settings. One of them may be missing from the order."""
    folder = draw.pick(("settings", "conf/layers", "profiles", "data/settings"))
    names = draw.sample(m.LISTS["layers"], draw.between(4, 7))
    listed, _ = names[:-1], names[-1]
    groups = draw.sample(m.SERVICES, 4)
    layers = {name: _draw_layer(draw, groups) for name in names}
    merged: dict[str, Any] = {}
    for name in listed:
        _merge(merged, layers[name])
    files = {f"{folder}/{name}.json": m.to_json(layer) for name, layer in layers.items()}
    order = f"{folder}/{draw.pick(('order', 'layers', 'precedence'))}.txt"
    files[order] = "".join([f"{name}.json\n" for name in listed])
    m.add_notes(files, draw, draw.between(0, 2))
    target = f"{draw.pick(('build', 'out', 'dist'))}/{draw.pick(('merged', 'effective', 'final'))}.json"
    values = {"order": order, "target": target, "folder": folder}
    return make_case(values, files, Number(str(_add_up(merged))), {target: m.to_json(merged)})


def _draw_layer(draw: Draw, groups: list[str]) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    for group in draw.sample(groups, draw.between(1, 3)):
        layer[group] = {leaf: _draw_leaf(draw) for leaf in draw.sample(m.LISTS["leaves"], draw.between(1, 4))}
    for leaf in draw.sample(m.LISTS["leaves"], draw.between(0, 3)):
        layer[leaf] = _draw_leaf(draw)
    return layer


def _draw_leaf(draw: Draw) -> Json:
    options = (draw.between(1, 900), draw.pick(m.CITIES), draw.chance(0.5), [draw.between(1, 9)])
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


def solve_json_merge(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the order, then the files in it, and merge them."""
    (order,) = yield Step(
        [f.read_file(values["order"])], "The order decides which file wins, so I read it first."
    )
    paths = [f"{values['folder']}/{line.strip()}" for line in order.splitlines() if line.strip()]
    texts = yield from f.read_files(paths, habit)
    merged: dict[str, Any] = {}
    for path in paths:
        _merge(merged, json.loads(texts[path]))
    answer = f.final(habit, _add_up(merged), f"{values['target']} holds what {len(paths)} files come to.")
    content = m.to_json(merged)
    yield Step(
        [f.write_file(values["target"], content)], "I have all the layers; now the merged file.", answer
    )
    return answer


# Increase a version in the files that a release list names.
_VERSION_PARTS = ("major", "minor", "patch")


def generate_version_bump(draw: Draw) -> GeneratedCase:
    """Draw a version in four to eight files, two of which must not change."""
    name = draw.pick(m.SERVICES)
    numbers = [draw.between(0, 9), draw.between(0, 30), draw.between(0, 60)]
    version = ".".join(map(str, numbers))
    part = draw.pick(_VERSION_PARTS)
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
    files["CHANGELOG.txt"] = f"{version} ({m.date(draw)})\n  Fixed the {draw.pick(m.SERVICES)}.\n"
    m.add_notes(files, draw, draw.between(0, 2))
    return make_case(
        {"part": part, "list": "release.txt", "name": name}, files, Items((new,), (version, near)), changes
    )


def _bump(version: str, part: str) -> str:
    numbers = [int(number) for number in version.split(".")]
    index = _VERSION_PARTS.index(part)
    return ".".join(map(str, [*numbers[:index], numbers[index] + 1, *[0] * (2 - index)]))


def solve_version_bump(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the release list, then the files in it, and edit the version in each."""
    texts = yield from f.read_files([values["list"], "VERSION"], Habit(8))
    version = texts["VERSION"].strip()
    new = _bump(version, values["part"])
    paths = re.findall(r"^- (\S+)$", texts[values["list"]], re.MULTILINE)
    rest = yield from f.read_files([path for path in paths if path not in texts], habit)
    texts = {path: texts[path] if path in texts else rest[path] for path in paths}
    pattern = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    calls = []
    for path, text in texts.items():
        for index, line in enumerate(text.split("\n")):
            if pattern.search(line):
                calls.append(f.edit_line(path, text, index, pattern.sub(new, line)))
    answer = f.final(habit, new, f"{version} became {new} in {len(calls)} files.")
    yield from f.make_all(calls, habit, f"The version is {version}, so the next one is {new}.", answer)
    return answer


# Find the nth line with a certain log level in several logs sorted by time, and count the levels.
_LOG_LEVELS = ("DEBUG", "INFO", "INFO", "WARN", "ERROR")
_ORDINALS = ("1st", "2nd", "3rd", "4th", "5th")
_LOG_LINE = re.compile(r"(\S+) (\S+) (\w+) +\[(\w+)\] (.*) id=(\w+)")


def generate_log_errors(draw: Draw) -> GeneratedCase:
    """Draw two to five logs of one day whose lines interleave."""
    folder = draw.pick(("logs", "var/log", "run/logs", "logs/app"))
    day = m.date(draw)
    services = draw.sample(m.SERVICES, draw.between(2, 5))
    level = draw.pick(("WARN", "ERROR"))
    seconds = draw.distinct(1000, 86_000, draw.between(24, 60))
    lines: dict[str, list[str]] = {service: [] for service in services}
    counts: Counter[str] = Counter()
    ids: list[str] = []
    everything: list[str] = []
    for index, second in enumerate(sorted(seconds)):
        service = draw.pick(services)
        kind = level if index < 3 else draw.pick(_LOG_LEVELS)
        mark = f"{draw.below(16**6):06x}"
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        lines[service].append(
            f"{day} {clock} {kind:<5} [{service}] {draw.pick(m.LISTS['log_texts'])} id={mark}\n"
        )
        counts[kind] += 1
        everything.append(mark)
        if kind == level:
            ids.append(mark)
    files = {f"{folder}/{service}.log": "".join(part) for service, part in lines.items()}
    files[f"{folder}/old/{services[0]}.log.1"] = f"{day} 00:00:01 {level:<5} [{services[0]}] gone id=000001\n"
    m.add_notes(files, draw, draw.between(0, 2))
    rank = draw.below(min(len(ids), 5))
    values = {"folder": folder, "level": level, "rank": _ORDINALS[rank]}
    expected = Items((ids[rank],), tuple(everything))
    if draw.chance(0.5):
        return make_case(values, files, expected)
    report = f"reports/levels-{day}.json"
    return make_case({**values, "report": report}, files, expected, {report: m.to_json(dict(counts))})


def solve_log_errors(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the logs, sort their lines by time, and count."""
    prefix = values["folder"] + "/"
    paths = yield from f.find_paths(
        lambda path: f.in_folder(prefix, ".log")(path) and "/" not in path[len(prefix) :]
    )
    texts = yield from f.read_files(paths, habit)
    found = [_LOG_LINE.match(line) for text in texts.values() for line in text.splitlines()]
    rows = sorted([hit.groups() for hit in found if hit is not None])
    hits = [row for row in rows if row[2] == values["level"]]
    rank = _ORDINALS.index(values["rank"])
    prose = f"There are {len(hits)} {values['level']} lines; the {values['rank']} came at {hits[rank][1]}."
    answer = f.final(habit, hits[rank][5], prose)
    if "report" in values:
        content = m.to_json(dict(Counter([row[2] for row in rows])))
        yield Step([f.write_file(values["report"], content)], "Now the counts of the levels.", answer)
    return answer


# Find the slowest request of a method in access logs.
_METHODS = ("GET", "POST", "PUT", "DELETE")
_HTTP_STATUS = (200, 200, 200, 201, 301, 404, 500, 503)
_ACCESS_LINE = re.compile(r"\S+ \S+ (\w+) (\S+) (\d+) (\d+(?:\.\d+)?)(ms|s) (\w+)")


def generate_log_slowest(draw: Draw) -> GeneratedCase:
    """Draw two to five access logs. Some are in seconds, some in milliseconds."""
    folder = draw.pick(("access", "logs/access", "nginx", "proxy/logs"))
    method = draw.pick(_METHODS)
    count = draw.between(2, 4)
    day = m.date(draw)
    files: dict[str, str] = {}
    durations = iter(draw.distinct(3, 9000, 80))
    times: dict[str, int] = {}
    everything = []
    for service in draw.sample(m.SERVICES, draw.between(3, 5)):
        is_seconds = draw.chance(0.3)
        lines = []
        for _ in range(draw.between(6, 14)):
            kind, milliseconds, mark = draw.pick(_METHODS), next(durations), f"r{draw.below(16**7):07x}"
            if len(times) < count:
                kind = method
            took = f"{milliseconds / 1000:.3f}s" if is_seconds else f"{milliseconds}ms"
            clock = f"{draw.below(24):02d}:{draw.below(60):02d}:{draw.below(60):02d}"
            path = f"/{service}/{draw.pick(m.PRODUCTS)}/{draw.between(1, 999)}"
            lines.append(f"{day} {clock} {kind} {path} {draw.pick(_HTTP_STATUS)} {took} {mark}\n")
            everything.append(mark)
            if kind == method:
                times[mark] = milliseconds
        files[f"{folder}/{service}.access.log"] = "".join(lines)
    m.add_notes(files, draw, draw.between(0, 3))
    ranked = sorted(times, key=lambda mark: -times[mark])
    values = {"folder": folder, "method": method}
    expected = Items((ranked[0],), tuple(everything))
    if draw.chance(0.4):
        return make_case(values, files, expected)
    report = f"reports/slow-{method.lower()}.txt"
    content = "".join([f"{mark} {times[mark]}\n" for mark in ranked[:count]])
    return make_case({**values, "report": report, "count": str(count)}, files, expected, {report: content})


def solve_log_slowest(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the logs and rank the requests of the method."""
    texts = yield from f.read_folder(values["folder"], habit, ".log")
    times: dict[str, int] = {}
    for text in texts.values():
        for method, _, _, took, unit, mark in _ACCESS_LINE.findall(text):
            if method == values["method"]:
                times[mark] = round(float(took) * (1000 if unit == "s" else 1))
    ranked = sorted(times, key=lambda mark: -times[mark])
    answer = f.final(habit, ranked[0], f"Of {len(times)} requests the slowest took {times[ranked[0]]} ms.")
    if "report" in values:
        content = "".join([f"{mark} {times[mark]}\n" for mark in ranked[: int(values["count"])]])
        yield Step([f.write_file(values["report"], content)], "Now I write the ranking.", answer)
    return answer
