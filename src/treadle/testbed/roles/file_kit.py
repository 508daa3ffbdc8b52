"""The tools of a request (those of `files`, DeepFabric and MCP servers), by the operations on files."""

import difflib
from collections.abc import Generator, Mapping, Sequence
from functools import partial

import msgspec

from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json, ToolSpec
from treadle.tasks.files.file_calls import is_text
from treadle.tasks.solver import FailedResult, Step, WantedCall

_NAMES = {
    "read": ("read_file", "read_text_file"),
    "write": ("write_file",),
    "list": ("list_files", "list_directory"),
    "delete": ("delete_file",),
}
"""The names that a tool of each operation may have."""
_PATHS = ("file_path", "path", "filename", "file")
_CONTENTS = ("content", "contents", "text")

Finding = Generator[Step, list[str], tuple[str | None, str]]
"""The steps that find and read a file. They return its path and text, or `None` and why none was read."""


class FileTools:
    """The operations on files that the tools of a request can do, as calls."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.tools = tools
        self._found = {name: _find(tools, names) for name, names in _NAMES.items()}

    def can(self, *operations: str) -> bool:
        """Return whether there are tools for all of these operations: `read`, `write`, `list`, `delete`."""
        return all([self._found[name] is not None for name in operations])

    def read(self, path: str) -> WantedCall:
        name, argument, _ = self._take("read")
        return WantedCall(name, {argument: path}, path_argument=argument)

    def write(self, path: str, content: str) -> WantedCall:
        """Return a call that creates or replaces a file."""
        name, argument, properties = self._take("write")
        inner = next((key for key in _CONTENTS if key in properties), "content")
        look = self.read(path) if self.can("read") else None
        return WantedCall(
            name, {argument: path, inner: content}, look=look, is_done=partial(is_text, content)
        )

    def delete(self, path: str) -> WantedCall:
        name, argument, _ = self._take("delete")
        look = self.list() if self.can("list") else None
        return WantedCall(
            name, {argument: path}, argument, look, lambda listing: path not in paths_in(listing)
        )

    def list(self) -> WantedCall:
        name, argument, properties = self._take("list")
        needs_path = argument in properties and "default" not in properties.get(argument, {})
        is_folder = name == "list_directory" and needs_path
        return WantedCall(name, {argument: "."} if is_folder else {})

    def _take(self, operation: str) -> tuple[str, str, Mapping[str, Json]]:
        found = self._found[operation]
        if found is None:
            raise LookupError(f"no tool can {operation} files")
        return found

    def find_text(self, path: str) -> Finding:
        """Read the file at `path`. If it is missing, look for one with a similar path, and read that.

        Returns the path that was read and its text, or `None` and the reason.
        """
        (text,) = yield Step([self.read(path)], f"I read {path}.", may_fail=True)
        if not isinstance(text, FailedResult):
            return path, text
        if not self.can("list"):
            said = text.strip().partition("\n")[0]
            return None, f"I could not read {path}: {said[:160]}"
        (listing,) = yield Step(
            [self.list()], f"There is no {path}, so I look at which files there are before I go on."
        )
        paths = paths_in(listing)
        near = find_near(path, paths)
        if near is None:
            known = f" There are: {', '.join(paths[:8])}." if paths else " There are no files at all."
            return None, f"There is no file {path}.{known} Which one do you mean?"
        (text,) = yield Step([self.read(near)], f"{path} is not there, but {near} is; that must be meant.")
        return near, text


def _find(tools: Sequence[ToolSpec], names: Sequence[str]) -> tuple[str, str, Mapping[str, Json]] | None:
    """Return the name of a tool, the name of its path argument and its properties."""
    for tool in tools:
        if tool.name in names:
            properties = tool.parameters.get("properties")
            known = properties if isinstance(properties, dict) else {}
            argument = next((key for key in _PATHS if key in known), "file_path")
            return tool.name, argument, known
    return None


def paths_in(listing: str) -> list[str]:
    """Return the paths in the result of a listing: a JSON array of texts or objects, or one path in each line."""
    try:
        items = msgspec.json.decode(listing)
    except UNREADABLE:
        lines = [line.strip() for line in listing.splitlines()]
        return [
            line.removeprefix("[FILE] ").removeprefix("- ")
            for line in lines
            if line and not line.startswith("[DIR]") and not line.endswith(":")
        ]
    if isinstance(items, dict):
        items = next((value for value in items.values() if isinstance(value, list)), list(items))
    if not isinstance(items, list):
        return []
    names = [_name_of(item) for item in items]
    return [name for name in names if name]


def _name_of(item: Json) -> str:
    if isinstance(item, dict):
        item = next((item[key] for key in (*_PATHS, "name") if key in item), "")
    return item if isinstance(item, str) else ""


def find_near(path: str, paths: Sequence[str]) -> str | None:
    """Return the path among `paths` that is most similar to `path`; `None` if no path is similar."""
    name = path.rpartition("/")[2].casefold()
    same = [item for item in paths if item.rpartition("/")[2].casefold() == name]
    found = same or difflib.get_close_matches(path, paths, n=1, cutoff=0.6)
    return found[0] if found else None
