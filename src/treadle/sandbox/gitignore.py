"""The rules of a .gitignore file.

Like git, the caller asks for each file and folder separately, and does not enter an ignored folder. Therefore a
rule is matched against the path itself, and not against the folders above it.
"""

import re
from collections.abc import Iterable

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One line of the file."""

    pattern: "re.Pattern[str]"
    is_negated: bool
    """True if paths that match are not ignored."""
    is_for_folders: bool
    """True if only folders match."""
    is_anchored: bool
    """True if the whole path must match, and not just the name."""


class Rules:
    """The rules in the lines of a file. A line that is not valid has no effect."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules = [rule for line in lines if (rule := _parse(line)) is not None]
        self._rules.reverse()

    def ignores(self, path: str, *, is_folder: bool) -> bool | None:
        """Return whether `path`, relative to the file's folder, is ignored; `None` if no rule says so."""
        name = path.rpartition("/")[2]
        for rule in self._rules:
            if (is_folder or not rule.is_for_folders) and rule.pattern.fullmatch(
                path if rule.is_anchored else name
            ):
                return not rule.is_negated
        return None


def _parse(line: str) -> Rule | None:
    text = re.sub(r"(?<!\\)[ \t\r]+$", "", line)
    if not text or text.startswith("#"):
        return None
    is_negated = text.startswith("!")
    text = text.removeprefix("!")
    is_for_folders = text.endswith("/")
    text = text.removesuffix("/")
    is_anchored = "/" in text
    try:
        pattern = re.compile(_translate(text.removeprefix("/")), re.DOTALL)
    except re.error:
        return None
    return Rule(pattern, is_negated, is_for_folders, is_anchored)


_TOKEN = re.compile(
    r"(?P<begin>^\*\*/)|(?P<middle>/\*\*(?=/))|(?P<end>/\*\*$)|(?P<stars>\*+)|(?P<one>\?)"
    r"|\[(?P<not>[!^]?)(?P<set>\]?(?:\\.|[^\]\\])*)\]|\\(?P<escaped>.)|(?P<char>.)",
    re.DOTALL,
)


def _translate(text: str) -> str:
    """Return the regular expression for a pattern."""
    return "".join([_translate_token(found) for found in _TOKEN.finditer(text)])


def _translate_token(found: "re.Match[str]") -> str:
    kind = found.lastgroup
    if kind == "begin":
        return "(?:.*/)?"
    if kind == "middle":
        return "(?:/.*)?"
    if kind == "end":
        return "/.+"
    if kind == "stars":
        return "[^/]*"
    if kind == "one":
        return "[^/]"
    if kind == "set":
        chars = re.sub(r"\\(.)|([\[\]^&~|])", r"\\\1\2", found["set"])
        return f"(?!/)[{'^' if found['not'] else ''}{chars}]"
    if found[0] == "[":
        return "(?!)"  # a set without an end matches nothing
    return re.escape(found["escaped"] or found["char"])
