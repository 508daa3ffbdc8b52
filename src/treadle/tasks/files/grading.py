"""The results that tasks expect, and the grades of answers and files."""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

from msgspec import Struct

from treadle.core.texts.json_text import is_deep
from treadle.runs.task import Grade
from treadle.tasks.generated import GeneratedCase

MAX_NUMBERS = 8
"""How many different numbers an answer without an answer line may contain. More are a list of guesses."""

FILES_SHARE = 0.6
"""The share of the reward for the changes to files that a task asks for. The rest is for the answer."""

COLLATERAL_COST = 0.25
"""The part of the reward that is lost for each file that was wrongly changed, created or deleted."""

_NUMBER = re.compile(r"(?<![\w.])[-−]?[$€£]?\d[\d,']*(?:\.\d+)?(?![\w]|\.\d)")
_ROOT = re.compile(r"(?<![\w./-])\.?/(?=\w)")
_ANSWER_LINE = re.compile(r"^[\s>*_#`-]*answer[\s*_`]*[:=][\s*_`]*(.*)$", re.IGNORECASE | re.MULTILINE)


class Number(Struct, frozen=True):
    """An expected answer that is one number."""

    value: str
    """The number in plain decimal notation."""

    def find_fault(self, text: str, is_line: bool) -> str | None:
        """Return what is wrong with the answer, or `None` if it is right."""
        found = [_to_decimal(item) for item in _NUMBER.findall(text)]
        right = Decimal(self.value)
        if is_line and found[:1] != [right]:
            return f"the answer line should say {self.value}"
        if right not in found:
            return f"the answer does not say {self.value}"
        if len(set(found)) > MAX_NUMBERS:
            return "the answer contains too many numbers"
        return None


class Items(Struct, frozen=True):
    """An expected answer that names certain things, and no other things of the same kind."""

    wanted: tuple[str, ...]
    others: tuple[str, ...] = ()
    """Things of the same kind that must not be named. Things in `wanted` are ignored here."""

    def find_fault(self, text: str, is_line: bool) -> str | None:
        """Return what is wrong with the answer, or `None` if it is right."""
        text = _ROOT.sub("", text).casefold()
        found = set()
        for item in sorted({*self.wanted, *self.others}, key=len, reverse=True):
            # Longer names first, each removed once found, because a name may be a part of another.
            if (rest := _cut_out(text, item.casefold())) != text:
                found.add(item)
                text = rest
        for item in self.wanted:
            if item not in found:
                return f"the answer does not name {item!r}"
        wrong = sorted(found.difference(self.wanted))
        return f"the answer names {wrong[0]!r}" if wrong else None


Expected: TypeAlias = Number | Items


def grade(
    output: str,
    expected: Expected,
    before: Mapping[str, bytes],
    changes: Mapping[str, str | None],
    after: Mapping[str, bytes],
) -> Grade:
    """Grade an answer and the files `after` the run.

    `changes` are the contents that the task asks for, by path; `None` means that the file must be deleted.
    """
    fault = _find_answer_fault(output, expected)
    wanted = {path: None if content is None else content.encode() for path, content in changes.items()}
    done = [path for path, content in wanted.items() if _is_same(path, content, after.get(path))]
    collateral = _find_collateral(before, changes, after)
    share = FILES_SHARE if changes else 0.0
    reward = (0.0 if fault else 1.0 - share) + share * (len(done) / len(changes) if changes else 0.0)
    if not changes and not output.strip():
        reward = 0.0
    reward = max(0.0, reward - COLLATERAL_COST * len(collateral))
    notes = [fault] if fault else []
    notes += [f"{path} is not as asked" for path in changes if path not in done]
    notes += [f"{path} should have been left alone" for path in collateral]
    return Grade(round(reward, 4), "; ".join(notes[:6]) or "the answer and the files are right")


def _find_answer_fault(output: str, expected: Expected) -> str | None:
    if not output.strip():
        return "there is no answer"
    lines = [line for line in _ANSWER_LINE.findall(output) if line.strip()]
    if lines:
        return expected.find_fault(lines[-1], is_line=True)
    return expected.find_fault(output, is_line=False)


def _find_collateral(
    before: Mapping[str, bytes], changes: Mapping[str, str | None], after: Mapping[str, bytes]
) -> list[str]:
    paths = sorted((set(before) | set(after)) - set(changes))
    return [path for path in paths if not _is_same(path, before.get(path), after.get(path))]


def _is_same(path: str, one: bytes | None, other: bytes | None) -> bool:
    """Return whether two contents are equal: JSON by value, text without white space at the ends of lines."""
    if one is None or other is None or one == other:
        return one is other or one == other
    try:
        if path.endswith(".json"):
            is_read = not is_deep(one) and not is_deep(other)
            return is_read and _is_same_json(json.loads(one), json.loads(other))
        return _to_lines(one) == _to_lines(other)
    except ValueError:
        return False


def _is_same_json(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same_json, one, other))
    return one == other


def _to_lines(content: bytes) -> Sequence[str]:
    return [line.rstrip() for line in content.decode().rstrip().split("\n")]


def _to_decimal(text: str) -> Decimal | None:
    try:
        return Decimal(re.sub(r"[$€£,']", "", text.replace("−", "-")))
    except InvalidOperation:
        return None


def _cut_out(text: str, item: str) -> str:
    """Return `text` with every `item` removed that is a whole word or path."""
    parts = []
    begin = 0
    start = text.find(item)
    while start >= 0:
        end = start + len(item)
        if _can_start(text, start) and _can_end(text, end):
            parts.append(text[begin:start])
            begin = end
        start = text.find(item, max(begin, start + 1))
    return "\0".join([*parts, text[begin:]])


def _can_start(text: str, start: int) -> bool:
    """Return whether a name may start here: not after a letter, `-`, `/`, or a letter with a `.`."""
    before = text[start - 1 : start]
    if before == ".":
        return not _is_word(text[start - 2 : start - 1])
    return not _is_word(before) and before not in ("-", "/")


def _can_end(text: str, end: int) -> bool:
    """Return whether a name may end here: not before a letter, `-`, or a `.` or `/` with a letter."""
    after = text[end : end + 1]
    if after in (".", "/"):
        return not _is_word(text[end + 1 : end + 2])
    return not _is_word(after) and after != "-"


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


class FilesGoal(Struct, frozen=True):
    """The answer and the contents of files that a task asks for."""

    expected: Expected
    changes: dict[str, str | None] = {}
    """The required contents of the files that must change, by path. `None` means that the file must be deleted."""

    def grade(self, output: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Grade:
        return grade(output, self.expected, before, self.changes, after)


def make_case(
    values: dict[str, str],
    files: Mapping[str, str],
    expected: Expected,
    changes: dict[str, str | None] | None = None,
) -> GeneratedCase:
    """Return a case whose files are texts; see `GeneratedCase` and `FilesGoal`."""
    content = {path: text.encode() for path, text in sorted(files.items())}
    return GeneratedCase(values, content, FilesGoal(expected, changes or {}))
