"""The calls of the `files` toolset, and steps that several solvers share."""

import json
from collections.abc import Callable, Generator, Sequence
from functools import partial

from treadle.tasks.draws import pick
from treadle.tasks.files.materials import LISTS
from treadle.tasks.solver import Habit, Step, WantedCall


def list_files(folder: str | None = None) -> WantedCall:
    """Return a call that lists all files, or those in a folder."""
    return WantedCall("list_files", {} if folder is None else {"folder": folder})


def read_file(path: str) -> WantedCall:
    return WantedCall("read_file", {"file_path": path}, path_argument="file_path")


def search_files(pattern: str, folder: str) -> WantedCall:
    """Return a call that finds the lines that contain `pattern`, a plain text, in the files of a folder."""
    return WantedCall("search_files", {"pattern": pattern, "folder": folder})


def write_file(path: str, content: str) -> WantedCall:
    """Return a call that creates or replaces a file."""
    arguments = {"file_path": path, "content": content}
    return WantedCall("write_file", arguments, look=read_file(path), is_done=partial(is_text, content))


def edit_file(path: str, before: str, old: str, new: str, *, replace_all: bool = False) -> WantedCall:
    """Return a call that replaces `old` in a file whose text is `before`.

    `old` must occur once in `before`, unless `replace_all` is true.
    """
    arguments: dict[str, str | bool] = {"file_path": path, "old_text": old, "new_text": new}
    if replace_all:
        arguments["replace_all"] = True
    done = partial(is_text, before.replace(old, new))
    return WantedCall("edit_file", arguments, "file_path", read_file(path), done)


def edit_line(path: str, before: str, index: int, line: str) -> WantedCall:
    """Return a call that replaces the line at `index` with `line`.

    The replaced text includes as many lines around it as are needed to make it unique.
    """
    lines = before.split("\n")
    start = end = index
    while before.count("\n".join(lines[start : end + 1])) > 1:
        if start > 0:
            start -= 1
        else:
            end += 1
    old, new = lines[start : end + 1], [*lines[start:index], line, *lines[index + 1 : end + 1]]
    return edit_file(path, before, "\n".join(old), "\n".join(new))


def delete_file(path: str) -> WantedCall:
    return WantedCall(
        "delete_file",
        {"file_path": path},
        path_argument="file_path",
        look=list_files(),
        is_done=lambda listing: path not in json.loads(listing),
    )


def is_text(expected: str, text: str) -> bool:
    """Return whether a file has the expected text, apart from empty lines at the end."""
    return text.rstrip("\n") == expected.rstrip("\n")


Reading = Generator[Step, list[str], dict[str, str]]
"""A generator of the steps in which a solver reads files. It returns their texts by path."""

Making = Generator[Step, list[str], None]
"""A generator of the steps in which a solver changes files."""


def find_paths(is_wanted: Callable[[str], bool] | None = None) -> Generator[Step, list[str], list[str]]:
    """List the files, and return the paths for which `is_wanted` is true."""
    (listing,) = yield Step([list_files()], pick(LISTS["listing"], is_wanted is None))
    paths = [str(path) for path in json.loads(listing)]
    return paths if is_wanted is None else [path for path in paths if is_wanted(path)]


def read_files(paths: Sequence[str], habit: Habit) -> Reading:
    """Read the files, several in one step, and return their texts by path."""
    texts: dict[str, str] = {}
    batch = max(habit.batch, -(-len(paths) // 6))
    for start in range(0, len(paths), batch):
        part = paths[start : start + batch]
        names = part[0] if len(part) == 1 else f"{part[0]} and {len(part) - 1} more"
        results = yield Step(
            [read_file(path) for path in part], pick(LISTS["reading"], names).format(what=names)
        )
        texts.update(zip(part, results, strict=True))
    return texts


def read_folder(folder: str, habit: Habit, *endings: str) -> Reading:
    """List the files, read those in `folder` that end with one of `endings`, and return their texts by path."""
    paths = yield from find_paths(in_folder(folder, *endings))
    return (yield from read_files(paths, habit))


def make_all(calls: Sequence[WantedCall], habit: Habit, reasoning: str, draft: str = "") -> Making:
    """Make the calls, several in one step."""
    size = max(habit.batch, -(-len(calls) // 4))
    for start in range(0, len(calls), size):
        yield Step(calls[start : start + size], reasoning, draft)


def in_folder(folder: str, *endings: str) -> Callable[[str], bool]:
    """Return a function that says whether a path is within `folder` and ends with one of `endings`."""
    prefix = folder.rstrip("/") + "/"
    return lambda path: path.startswith(prefix) and (not endings or path.endswith(endings))


def final(habit: Habit, answer: object, prose: str) -> str:
    """Return the final message: the answer line, with `prose` before it unless the habit is terse."""
    return f"Answer: {answer}" if habit.is_terse else f"{prose}\n\nAnswer: {answer}"
