"""The calls of the `files` toolset, as its solvers make them, and the ways of reading that they share."""

import json
from collections.abc import Callable, Generator, Sequence
from functools import partial

from treadle.tasks.draw import pick
from treadle.tasks.solver import Call, Habit, Step

_READING = (
    "I need to see what {what} says before I go on.",
    "Let me read {what}.",
    "Next I look at {what}.",
    "The answer depends on what is in {what}, so I read it.",
)
_LISTING = (
    "First I need to know which files there are.",
    "Let me see what is here.",
    "I start by listing the files.",
)


def list_files(folder: str | None = None) -> Call:
    """List all files, or those of a folder."""
    return Call("list_files", {} if folder is None else {"folder": folder})


def read_file(path: str) -> Call:
    """Read a whole file."""
    return Call("read_file", {"file_path": path}, path_argument="file_path")


def search_files(pattern: str, folder: str) -> Call:
    """Find the lines of the files in a folder that hold `pattern`, a plain text."""
    return Call("search_files", {"pattern": pattern, "folder": folder})


def write_file(path: str, content: str) -> Call:
    """Create or replace a file."""
    arguments = {"file_path": path, "content": content}
    return Call("write_file", arguments, look=read_file(path), is_done=partial(_is_text, content))


def edit_file(path: str, before: str, old: str, new: str, *, replace_all: bool = False) -> Call:
    """Replace `old`, which occurs once in `before` unless `replace_all`, in a file that reads `before`."""
    arguments: dict[str, str | bool] = {"file_path": path, "old_text": old, "new_text": new}
    if replace_all:
        arguments["replace_all"] = True
    done = partial(_is_text, before.replace(old, new))
    return Call("edit_file", arguments, "file_path", read_file(path), done)


def edit_line(path: str, before: str, index: int, line: str) -> Call:
    """Replace the line at `index` by `line`, with as many lines around it as make the old text unique."""
    lines = before.split("\n")
    start = end = index
    while before.count("\n".join(lines[start : end + 1])) > 1:
        if start > 0:
            start -= 1
        else:
            end += 1
    old, new = lines[start : end + 1], [*lines[start:index], line, *lines[index + 1 : end + 1]]
    return edit_file(path, before, "\n".join(old), "\n".join(new))


def delete_file(path: str) -> Call:
    """Remove a file."""
    done = partial(_is_absent, path)
    return Call("delete_file", {"file_path": path}, "file_path", list_files(), done)


def _is_text(expected: str, text: str) -> bool:
    return text.rstrip("\n") == expected.rstrip("\n")


def _is_absent(path: str, listing: str) -> bool:
    return path not in json.loads(listing)


Reading = Generator[Step, list[str], dict[str, str]]
"""A part of a solver; it returns texts by path."""

Making = Generator[Step, list[str], None]
"""A part of a solver that changes files."""


def find_paths(is_wanted: Callable[[str], bool] | None = None) -> Generator[Step, list[str], list[str]]:
    """The paths of the files there are, of those that are wanted."""
    (listing,) = yield Step([list_files()], pick(_LISTING, is_wanted is None))
    paths = [str(path) for path in json.loads(listing)]
    return paths if is_wanted is None else [path for path in paths if is_wanted(path)]


def read_files(paths: Sequence[str], habit: Habit) -> Reading:
    """The texts of the files, several of them read in one step."""
    texts: dict[str, str] = {}
    batch = max(habit.batch, -(-len(paths) // 6))
    for start in range(0, len(paths), batch):
        part = paths[start : start + batch]
        names = part[0] if len(part) == 1 else f"{part[0]} and {len(part) - 1} more"
        results = yield Step([read_file(path) for path in part], pick(_READING, names).format(what=names))
        texts.update(zip(part, results, strict=True))
    return texts


def make_all(calls: Sequence[Call], habit: Habit, reasoning: str, draft: str = "") -> Making:
    """Make the calls, several in one step."""
    size = max(habit.batch, -(-len(calls) // 4))
    for start in range(0, len(calls), size):
        yield Step(calls[start : start + size], reasoning, draft)


def in_folder(folder: str, *endings: str) -> Callable[[str], bool]:
    """Whether a path lies anywhere in `folder` and ends in one of `endings`."""
    prefix = folder.rstrip("/") + "/"
    return lambda path: path.startswith(prefix) and (not endings or path.endswith(endings))


def final(habit: Habit, answer: object, prose: str) -> str:
    """The final message: the answer line, after a sentence unless the habit is terse."""
    return f"Answer: {answer}" if habit.is_terse else f"{prose}\n\nAnswer: {answer}"
