"""Errands: small requests about files, which `errands.toml` describes.

`Shelf` draws a request, `find_errand` recognises one in a message, and `Errand.work` carries it out with the tools
of the request. A new errand is an entry in the data file, and one more function in `MEASURES` if it needs a value
that no measure computes.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

from msgspec import Struct

from treadle.tasks.draws import Draw, Wording
from treadle.tasks.solver import FailedResult, Step
from treadle.testbed.roles.file_kit import FileTools, paths_in
from treadle.testbed.roles.words import load, wordings, words

MAX_QUOTED_CHARS = 200
_COUNTS = ("count_lines", "rows", "total", "count_files")
"""The measures whose answers have one number."""
_WORD = re.compile(r"(?<![\w-])[A-Za-z]{4,}(?![\w-])")
_SETTING = re.compile(r'^\s{0,4}"([\w -]+)":\s*("[^"\n]*"|[\d.]+|true|false),?$', re.MULTILINE)

Work: TypeAlias = Generator[Step, list[str], str]
"""A generator of steps that returns the final answer."""
_Deed: TypeAlias = Generator[Step, list[str], str | None]
"""The steps of one deed. They return the final answer if the work ends with it, else `None`."""


class Shelf(Struct, frozen=True):
    """The part of an environment's files that a scenario writer sees."""

    heads: Mapping[str, str]
    """The beginnings of the text files: path to text."""
    others: frozenset[str] = frozenset()
    """The paths of all other files."""
    short: frozenset[str] = frozenset()
    """The paths of the text files whose lines can be counted by looking at them."""
    things: str = ""
    """What the topic is about, in the plural, for the names and the texts of new files."""

    def is_free(self, path: str) -> bool:
        """Return whether there is no file at `path`."""
        return path not in self.heads and path not in self.others

    def draw(self, rule: str, values: Mapping[str, str], draw: Draw) -> str | None:
        """Return a value for a field by the rule of `errands.toml`; `None` if the files offer no value."""
        kind, *rest = rule.split()
        if kind in ("file", "short"):
            return _pick(self._paths(kind, rest, values), draw)
        if kind == "new":
            ending = rest[0] if rest[0] != "like" else _ending_of(values[rest[1]])
            return self._draw_free(ending, draw)
        if kind in ("word", "line", "setting"):
            return _pick(self._offers(kind, values[rest[1]]), draw)
        if kind == "ending":
            return _pick(sorted({_ending_of(path)[1:] for path in self.heads if _has_ending(path)}), draw)
        things = self.things or "papers"
        return draw.pick(words("files", f"{kind}s")).format(things=things)

    def _paths(self, kind: str, rest: Sequence[str], values: Mapping[str, str]) -> list[str]:
        endings = tuple([item for item in rest if item.startswith(".")])
        wanted = rest[1].removesuffix("s") if rest[:1] == ["with"] else ""
        return [
            path
            for path in self.heads
            # The end of a rotated log such as `a.log.1` can be read as the end of a sentence.
            if (not endings or path.endswith(endings))
            and not path[-1].isdigit()
            and (kind == "file" or path in self.short)
            and path not in values.values()
            and (not wanted or self._offers(wanted, path))
        ]

    def _offers(self, kind: str, path: str) -> list[str]:
        """Return the words, the numbers of lines or the settings of a file that can be asked for."""
        head = self.heads[path]
        if kind == "line":
            lines = head.split("\n")
            return [str(number) for number in range(2, len(lines) - 1) if lines[number - 1].strip()]
        if kind == "word":
            # The last word may be cut off.
            return list(dict.fromkeys(_WORD.findall(head)[:-1]))
        # Only the keys before the first nested value are certainly at the top level.
        flat = re.split(r"[\[{]", head.lstrip()[1:])[0] if head.lstrip().startswith("{") else ""
        return [key for key, _ in _SETTING.findall(flat)]

    def _draw_free(self, ending: str, draw: Draw) -> str:
        for _ in range(100):
            folder, stem, suffix = [
                draw.pick(words("files", name)) for name in ("folders", "stems", "suffixes")
            ]
            if self.things and draw.chance(0.6):
                stem = f"{'-'.join(_WORD.findall(self.things.lower()))}-{stem}"
            if self.is_free(path := f"{folder}{stem}{suffix}{ending}"):
                return path
        return f"new-{draw.between(1000, 9999)}{ending}"


class Errand(Struct, frozen=True, kw_only=True):
    """One sort of small request."""

    name: str
    kinds: tuple[str, ...]
    """The kinds of tool use that it can show."""
    needs: tuple[str, ...]
    """The operations of `FileTools` that it needs."""
    prompts: tuple[Wording, ...]
    """The wordings. All have the same fields."""
    gapped: tuple[Wording, ...]
    """Wordings without the field `path`, for users who forget to name the file."""
    rules: Mapping[str, str]
    """The rule by which each field is drawn."""
    steps: tuple[Mapping[str, str], ...]
    answer: str
    otherwise: str
    """The answer if a measure finds nothing."""
    makes: tuple[str, ...] = ()
    """The fields that are paths of files which do not exist before."""
    has_count: bool = False
    """True if the answer is a count."""
    is_misspelt: bool = True
    """True if a call fails only because the user misspells the path; False if a call fails in any case."""

    def draw(self, shelf: Shelf, draw: Draw) -> dict[str, str] | None:
        """Return values for the fields; `None` if the files offer no values."""
        values: dict[str, str] = {"things": shelf.things or "papers"}
        for name, rule in self.rules.items():
            value = shelf.draw(rule, values, draw)
            if value is None:
                return None
            values[name] = value
        return values

    def work(self, values: Mapping[str, str], tools: FileTools) -> Work:
        """Make the steps, given the values in the wording, and return the answer."""
        scene = _Scene(self, dict(values), tools)
        for step in self.steps:
            deed = next(iter(step))
            answer = yield from _DEEDS[deed](scene, step)
            if answer is not None:
                return answer
        return scene.note + self.answer.format_map(scene.values)


class FoundErrand(Struct, frozen=True):
    """An errand in a message."""

    errand: Errand
    values: Mapping[str, str]
    is_gapped: bool = False
    """True if the path is missing."""

    def fill(self, path: str) -> "FoundErrand":
        """Return the errand with the path that was missing."""
        return FoundErrand(self.errand, {**self.values, "path": path})


class _Scene:
    """What is known while an errand is carried out."""

    def __init__(self, errand: Errand, values: dict[str, str], tools: FileTools) -> None:
        self.errand = errand
        self.values = values
        """The values of the request, with `text`, and what the measures computed."""
        self.tools = tools
        self.texts: dict[str, str] = {}
        """The texts of the files that were read at once, by path."""
        self.paths: list[str] = []
        """The paths of the listing."""
        self.note = ""
        """What the answer begins with if another file was meant."""

    def say(self, text: str) -> str:
        """Return a text of the data with its fields filled."""
        return text.format_map(self.values)


def _find(scene: _Scene, step: Mapping[str, str]) -> _Deed:
    """Read a file, or the one with a similar path."""
    wanted = scene.values[step["find"]]
    path, text = yield from scene.tools.find_text(wanted)
    if path is None:
        return text
    scene.note = "" if path == wanted else f"There is no {wanted}, so I took {path}. "
    scene.values |= {step["find"]: path, "text": text}
    return None


def _read(scene: _Scene, step: Mapping[str, str]) -> _Deed:
    """Read one file. With `say`, the work ends if the file exists, and goes on if it does not."""
    path = scene.values[step["read"]]
    (text,) = yield Step([scene.tools.read(path)], scene.say(step["why"]), may_fail=True)
    if isinstance(text, FailedResult):
        return None if "say" in step else f"It is {path}, but I could not read it: {one_line(text.strip())}"
    scene.values |= {"path": path, "text": text}
    if "say" not in step:
        return None
    yield from _measure(scene, step)
    return scene.say(step["say"])


def _read_all(scene: _Scene, step: Mapping[str, str]) -> _Deed:
    """Read several files at once."""
    paths = [scene.values[name] for name in step["read_all"].split()]
    reasoning = "The files do not depend on each other, so I read them at the same time."
    texts = yield Step([scene.tools.read(path) for path in paths], reasoning, may_fail=True)
    missing = [path for path, text in zip(paths, texts, strict=True) if isinstance(text, FailedResult)]
    if missing:
        return f"I could not read {' and '.join(missing)}. Are the paths right?"
    scene.texts = dict(zip(paths, texts, strict=True))
    return None


def _list(scene: _Scene, step: Mapping[str, str]) -> _Deed:
    (listing,) = yield Step([scene.tools.list()], step["list"])
    scene.paths = paths_in(listing)
    return None


def _write(scene: _Scene, step: Mapping[str, str]) -> _Deed:
    paths = [scene.values[name] for name in step["write"].split()]
    calls = [scene.tools.write(path, scene.say(step["content"])) for path in paths]
    yield Step(calls, scene.say(step["why"]))
    return None


def _delete(scene: _Scene, step: Mapping[str, str]) -> _Deed:
    yield Step([scene.tools.delete(scene.values[step["delete"]])], scene.say(step["why"]))
    return None


def _measure(scene: _Scene, step: Mapping[str, str]) -> _Deed:
    """Compute a value from what was read. The work ends if there is no such value."""
    found = MEASURES[step["measure"]](scene)
    values = found if isinstance(found, dict) else {"found": found}
    scene.values |= {name: value for name, value in values.items() if value is not None}
    if values["found"] is None:
        return scene.note + scene.say(step.get("otherwise", scene.errand.otherwise))
    return None
    yield  # a deed without a call is a generator too


_DEEDS: Mapping[str, Callable[[_Scene, Mapping[str, str]], _Deed]] = {
    "find": _find,
    "read": _read,
    "read_all": _read_all,
    "list": _list,
    "write": _write,
    "delete": _delete,
    "measure": _measure,
}


def _over_lines(choose: Callable[[list[str]], str]) -> Callable[[_Scene], str | None]:
    def measure(scene: _Scene) -> str | None:
        lines = scene.values["text"].splitlines()
        return one_line(choose(lines)) if any(map(str.strip, lines)) else None

    return measure


def _count_lines(scene: _Scene) -> dict[str, str | None]:
    count = len(scene.values["text"].splitlines())
    return {"found": count_of(count, "line"), "number": str(count)}


def _nth_line(scene: _Scene) -> str | None:
    lines, number = scene.values["text"].splitlines(), int(scene.values["number"])
    return one_line(lines[number - 1]) if number <= len(lines) else None


def _columns(scene: _Scene) -> dict[str, str | None]:
    first = scene.values["text"].partition("\n")[0]
    names = [name.strip().strip('"') for name in first.split(";" if ";" in first else ",")]
    return {"found": ", ".join(names), "count": count_of(len(names), "column")}


def _keys(scene: _Scene) -> str | None:
    value = json.loads(scene.values["text"])
    return ", ".join(value) if isinstance(value, dict) else None


def _setting(scene: _Scene) -> str | None:
    value = json.loads(scene.values["text"]).get(scene.values["key"])
    return None if value is None else one_line(value if isinstance(value, str) else json.dumps(value))


def _with_line(scene: _Scene) -> str:
    text = scene.values["text"]
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{scene.values['line']}\n"


def _replaced(scene: _Scene) -> dict[str, str | None]:
    text, old = scene.values["text"], scene.values["old"]
    changed = text.replace(old, scene.values["new"]) if old in text else None
    return {"found": changed, "count": count_of(text.count(old), "time")}


def _compare(scene: _Scene) -> dict[str, str | None]:
    counts = {path: len(text.splitlines()) for path, text in scene.texts.items()}
    most = [path for path, count in counts.items() if count == max(counts.values())]
    shown = " and ".join([f"{path} has {count_of(count, 'line')}" for path, count in counts.items()])
    return {"counts": shown, "found": most[0] if len(most) == 1 else None}


def _total(scene: _Scene) -> dict[str, str | None]:
    counts = {path: len(text.splitlines()) for path, text in scene.texts.items()}
    shown = ", ".join([f"{path} has {count}" for path, count in counts.items()])
    return {"counts": shown, "found": count_of(sum(counts.values()), "line")}


def _which_has(scene: _Scene) -> str | None:
    having = [path for path, text in scene.texts.items() if scene.values["word"] in text]
    if len(having) == len(scene.texts):
        return f"both {' and '.join(having)}"
    return f"{having[0]}, and not in the other one" if having else None


def _first_lines(scene: _Scene) -> str:
    firsts = {path: (text.splitlines() or [""])[0] for path, text in scene.texts.items()}
    return "\n".join([f"{path}: {one_line(line) or '(empty)'}" for path, line in firsts.items()])


def _common_ending(scene: _Scene) -> dict[str, str | None]:
    endings = Counter([_ending_of(path)[1:] for path in scene.paths if _has_ending(path)])
    ending, count = min(endings.items(), key=lambda item: (-item[1], item[0]), default=(None, 0))
    return {"found": ending, "count": count_of(count, "file"), "number": str(len(scene.paths))}


MEASURES: Mapping[str, Callable[[_Scene], str | dict[str, str | None] | None]] = {
    "first_line": _over_lines(lambda lines: lines[0]),
    "last_line": _over_lines(lambda lines: [line for line in lines if line.strip()][-1]),
    "longest_line": _over_lines(lambda lines: max(lines, key=len)),
    "quote_first": lambda scene: one_line((scene.values["text"].splitlines() or [""])[0]),
    "nth_line": _nth_line,
    "count_lines": _count_lines,
    "lines_with_word": lambda scene: count_of(
        sum([scene.values["word"] in line for line in scene.values["text"].splitlines()]), "line"
    ),
    "columns": _columns,
    "rows": lambda scene: count_of(
        len([line for line in scene.values["text"].splitlines()[1:] if line.strip()]), "row"
    ),
    "keys": _keys,
    "setting": _setting,
    "stripped": lambda scene: scene.values["text"].strip(),
    "with_line": _with_line,
    "replaced": _replaced,
    "sorted_lines": lambda scene: "".join(
        [f"{line}\n" for line in sorted(scene.values["text"].splitlines()) if line.strip()]
    ),
    "compare": _compare,
    "total": _total,
    "which_has": _which_has,
    "first_lines": _first_lines,
    "count_files": lambda scene: count_of(len(scene.paths), "file"),
    "all_files": lambda scene: ", ".join(scene.paths) or None,
    "files_by_ending": lambda scene: (
        ", ".join([path for path in scene.paths if path.endswith(f".{scene.values['ending']}")]) or None
    ),
    "common_ending": _common_ending,
    "first_path": lambda scene: min(scene.paths, default=None),
    "last_path": lambda scene: max(scene.paths, default=None),
    "longest_path": lambda scene: max(scene.paths, key=lambda path: (len(path), path), default=None),
}
"""The values that answers and new files are made of, by name. `None`, also as `found`: there is no value."""


@cache
def errands() -> tuple[Errand, ...]:
    return tuple([_to_errand(name, entry) for name, entry in load("errands").items()])


def _to_errand(name: str, entry: Mapping[str, Any]) -> Errand:
    gapped = [f"{text} {hint}" for text in entry.get("gapped", ()) for hint in words("framing", "hints")]
    last = [{"measure": entry["measure"]}] if "measure" in entry else []
    return Errand(
        name=name,
        kinds=tuple(entry["kinds"]),
        needs=tuple(entry["needs"]),
        prompts=wordings(entry["wordings"]),
        gapped=wordings(gapped),
        rules=entry.get("draw", {}),
        steps=(*entry["steps"], *last),
        answer=entry["answer"],
        otherwise=entry.get("otherwise", ""),
        makes=tuple(entry.get("makes", ())),
        has_count=entry.get("measure") in _COUNTS,
        is_misspelt=entry.get("is_misspelt", True),
    )


@lru_cache(maxsize=4096)
def find_errand(paragraph: str) -> FoundErrand | None:
    """Return the errand that a paragraph asks for; `None` if it is not an errand."""
    # A wording with a gap comes first: a wording with a path would take "that file" for one.
    for is_gapped in (True, False):
        for errand in errands():
            for wording in errand.gapped if is_gapped else errand.prompts:
                if (values := wording.match(paragraph)) is not None:
                    return FoundErrand(errand, values, is_gapped)
    return None


def _pick(values: Sequence[str], draw: Draw) -> str | None:
    return draw.pick(values) if values else None


def _has_ending(path: str) -> bool:
    return "." in path.rpartition("/")[2]


def _ending_of(path: str) -> str:
    """Return the ending of a path with its dot; `.txt` if it has none."""
    return f".{path.rpartition('.')[2]}" if _has_ending(path) else ".txt"


def one_line(text: str) -> str:
    """Return a line of a file for an answer; long lines are cut."""
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 line` or `3 lines`."""
    return f"{number} {noun}{'s' * (number != 1)}"
