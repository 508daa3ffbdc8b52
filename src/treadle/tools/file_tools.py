"""The toolset `files`: reading, changing and searching the files of a run.

Changes are `idempotent`: before a call runs again, the files are restored from the last snapshot.
"""

import difflib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field
from pydantic_core import SchemaError, SchemaValidator, core_schema

from treadle.core.errors import SandboxError, ToolError
from treadle.core.spec import PartSpec
from treadle.sandbox.protocol import Sandbox, normalize_file, normalize_folder
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import tool
from treadle.tools.protocol import Attachment, Tool, ToolOutput
from treadle.tools.toolset_parts import settings_of

MAX_EDITED_CHARS = 16 * 1024 * 1024
"""The size limit of an edited text. Without it, a few edits that double a text would fill the memory."""
MAX_IMAGE_BYTES = 3_750_000
"""The size limit of an image. As base64 it is 5 MB, which every provider accepts."""
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""The first bytes of image files, and their MIME types."""
MAX_MATCHES = 100
MAX_LINE_CHARS = 200
MAX_COMPARED = 2000
"""How many paths or lines are searched for one that is similar to a given one."""


@tool(effect="pure")
async def read_file(
    context: ToolContext,
    file_path: str,
    start_line: Annotated[int | None, Field(ge=1)] = None,
    line_count: Annotated[int | None, Field(ge=1)] = None,
) -> str:
    """Read a text file.

    Args:
        file_path: Path of the file, such as "notes/today.md".
        start_line: The first line to read, counted from 1. Default: the first line.
        line_count: How many lines to read. Default: all lines to the end.
    """
    text = _read_text(context.files, file_path)
    if start_line is None and line_count is None:
        return text
    lines = text.split("\n")
    total = len(lines) if lines[-1] else len(lines) - 1
    first = (start_line or 1) - 1
    if first >= total:
        raise ToolError(f"{file_path!r} has {total} lines, so it has no line {first + 1}")
    last = len(lines) if line_count is None else first + line_count
    return "\n".join(lines[first:last]) + ("\n" if last < len(lines) else "")


@tool(effect="idempotent", concurrent=False)
async def write_file(context: ToolContext, file_path: str, content: str) -> str:
    """Create a text file, or replace its whole content.

    Args:
        file_path: Path of the file, such as "notes/today.md". Its folders need not exist.
        content: The whole content.
    """
    sandbox, name = context.files, normalize_file(file_path)
    return f"wrote {_write_text(sandbox, name, content)} bytes to {name}"


@tool(effect="pure")
async def list_files(context: ToolContext, folder: str = "") -> list[str]:
    """List the paths of all files, as a JSON array.

    Args:
        folder: List only the files in this folder and its subfolders. Default: all files.
    """
    sandbox = context.files
    paths = _paths_in(sandbox, folder)
    if not paths and normalize_folder(folder):
        folders = sorted({path.rpartition("/")[0] for path in sandbox.paths()} - {""})
        raise ToolError(f"there is no folder {folder!r}{_near(folder, folders)}")
    return paths


@tool(effect="idempotent", concurrent=False)
async def delete_file(context: ToolContext, file_path: str) -> str:
    """Delete a file.

    Args:
        file_path: Path of the file.
    """
    sandbox, name = context.files, normalize_file(file_path)
    try:
        sandbox.delete(name)
    except SandboxError as error:
        raise _with_near_paths(error, sandbox, name) from error
    return f"deleted {name}"


@tool(effect="idempotent", concurrent=False)
async def edit_file(
    context: ToolContext, file_path: str, old_text: str, new_text: str, replace_all: bool = False
) -> str:
    """Replace a passage of a text file.

    Args:
        file_path: Path of the file.
        old_text: The passage to replace, exactly as it is in the file. It must occur exactly once.
        new_text: The text to put in its place.
        replace_all: Replace every occurrence. The passage may then occur more than once.
    """
    sandbox, name = context.files, normalize_file(file_path)
    text = _read_text(sandbox, name)
    if not old_text:
        raise ToolError("old_text is empty; give the passage to replace, or use write_file")
    count = text.count(old_text)
    if not count:
        raise ToolError(
            f"old_text does not occur in {name!r}, so nothing was changed{_near_line(text, old_text)}"
        )
    if count > 1 and not replace_all:
        raise ToolError(
            f"old_text occurs {count} times in {name!r} ({_places(text, old_text)}), so nothing was changed; "
            "give more of the text around it, or set replace_all"
        )
    if len(text) + count * (len(new_text) - len(old_text)) > MAX_EDITED_CHARS:
        raise ToolError(
            f"{name!r} would have more than {MAX_EDITED_CHARS:,} characters, so nothing was changed"
        )
    _write_text(sandbox, name, text.replace(old_text, new_text))
    return f"replaced {count} {'occurrence' if count == 1 else 'occurrences'} in {name}"


@tool(effect="pure")
def search_files(
    context: ToolContext,
    pattern: str,
    folder: str = "",
    glob: str = "*",
    is_regex: bool = False,
    ignore_case: bool = False,
) -> str:
    """Find the lines of text files that contain a pattern. Returns lines of the form "path:line: text".

    Args:
        pattern: What to look for within one line: plain text, unless is_regex is set.
        folder: Search only this folder and its subfolders. Default: all folders.
        glob: Search only files whose name or path matches, such as "*.py" or "src/**/*.py".
        is_regex: Whether the pattern is a regular expression (RE2 syntax: no look-around, no back-references).
        ignore_case: Whether to ignore the difference between upper and lower case.
    """
    sandbox = context.files
    matcher = _Matcher(pattern, is_regex, ignore_case)
    found: list[str] = []
    for path in _paths_in(sandbox, folder):
        if not _fits(path, glob):
            continue
        for number, line in matcher.lines_of(sandbox, path):
            if len(found) == MAX_MATCHES:
                found.append(f"[stopped after {MAX_MATCHES} matches; use a narrower pattern or folder]")
                return "\n".join(found)
            shown = line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} […]"
            found.append(f"{path}:{number}: {shown}")
    return "\n".join(found) or "no matches"


@tool(effect="pure")
async def view_image(context: ToolContext, file_path: str) -> ToolOutput:
    """Look at an image file (PNG, JPEG, GIF or WebP).

    Args:
        file_path: Path of the file, such as "plots/day.png".
    """
    sandbox, name = context.files, normalize_file(file_path)
    content = _read(sandbox, name)
    mime_type = _image_type(content)
    if mime_type is None:
        raise ToolError(f"{name!r} is not a PNG, JPEG, GIF or WebP image")
    if len(content) > MAX_IMAGE_BYTES:
        raise ToolError(f"{name!r} has {len(content):,} bytes; images may have up to {MAX_IMAGE_BYTES:,}")
    image = Attachment("image", content, mime_type, name=name)
    return ToolOutput(f"[image {name}, {mime_type}, {len(content):,} bytes]", attachments=(image,))


class FilesToolset:
    """The tools for a run's files.

    With `read_only`, only the tools that change nothing. With `images`, also `view_image`, for models that can
    see: others fail on a message with an image.
    """

    def __init__(self, *, read_only: bool = False, images: bool = False) -> None:
        self.is_read_only = read_only
        self.has_images = images
        self.part = PartSpec(name="files", settings=settings_of(FilesToolset, locals()))

    def tools(self) -> Sequence[Tool]:
        reading: list[Tool] = [read_file, list_files, search_files]
        whole: list[Tool] = [read_file, write_file, list_files, delete_file, edit_file, search_files]
        return [*(reading if self.is_read_only else whole), *([view_image] if self.has_images else [])]


files = FilesToolset()


class _Matcher:
    """A pattern that is searched for in lines, in time proportional to their length. Regular expressions come from
    a model or from what it has read. They run on the Rust engine of pydantic, which does not backtrack; an
    expression could be made to block `re` for ever."""

    def __init__(self, pattern: str, is_regex: bool, ignore_case: bool) -> None:
        if not pattern or "\n" in pattern:
            raise ToolError(
                "the pattern must be one line of text and not empty: files are searched line by line"
            )
        self._ignore_case = ignore_case
        self._text = pattern.casefold() if ignore_case else pattern
        self._regex = _compile(f"(?i){pattern}" if ignore_case else pattern) if is_regex else None

    def lines_of(self, sandbox: Sandbox, path: str) -> Iterator[tuple[int, str]]:
        """Yield the number and text of each matching line. A file that is not text or does not exist has none."""
        try:
            text = sandbox.read(path).decode()
        except (UnicodeDecodeError, SandboxError):
            return
        if self._regex is None and not self._ignore_case and self._text not in text:
            return
        for number, line in enumerate(text.split("\n"), 1):
            if self._fits(line):
                yield number, line.removesuffix("\r")

    def _fits(self, line: str) -> bool:
        if self._regex is not None:
            return self._regex.isinstance_python(line)
        return self._text in (line.casefold() if self._ignore_case else line)


def _compile(pattern: str) -> SchemaValidator:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        text = str(error)
        reason = text[text.lower().rfind("error: ") + len("error: ") :].strip()
        raise ToolError(f"the pattern {pattern!r} is not a valid RE2 regular expression: {reason}") from error


def _read(sandbox: Sandbox, name: str) -> bytes:
    try:
        return sandbox.read(name)
    except SandboxError as error:
        raise _with_near_paths(error, sandbox, name) from error


def _image_type(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES.items() if content.startswith(start)), None)


def _read_text(sandbox: Sandbox, path: str) -> str:
    name = normalize_file(path)
    content = _read(sandbox, name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(
            f"{name!r} is not a text file: its {len(content)} bytes are not UTF-8 ({error.reason})"
        ) from error


def _write_text(sandbox: Sandbox, name: str, text: str) -> int:
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"the text for {name!r} is not valid Unicode: {error}") from None
    sandbox.write(name, content)
    return len(content)


def _paths_in(sandbox: Sandbox, folder: str) -> list[str]:
    prefix = normalize_folder(folder)
    return [path for path in sandbox.paths() if not prefix or path.startswith(f"{prefix}/")]


def _fits(path: str, glob: str) -> bool:
    # `*` also matches `/` here, so it is enough to let `**/` match nothing.
    globs = {glob, glob.replace("**/", "")}
    return any(fnmatchcase(text, one) for one in globs for text in (path, path.rpartition("/")[2]))


def _with_near_paths(error: SandboxError, sandbox: Sandbox, name: str) -> ToolError:
    paths = sandbox.paths()
    if not paths:
        return ToolError(f"{error}; there are no files yet")
    return ToolError(f"{error}{_near(name, paths)}")


def _near(name: str, candidates: list[str]) -> str:
    last = name.rpartition("/")[2].casefold()
    near = [path for path in candidates if path.rpartition("/")[2].casefold() == last][:3]
    near = near or difflib.get_close_matches(name, candidates[:MAX_COMPARED], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(path) for path in near)}?" if near else ""


def _near_line(text: str, old_text: str) -> str:
    wanted = next((line.strip() for line in old_text.split("\n") if line.strip()), "")[:MAX_LINE_CHARS]
    lines = [line.strip()[:MAX_LINE_CHARS] for line in text.split("\n")[:MAX_COMPARED]]
    near = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.5) if wanted else []
    if not near:
        return ""
    number = lines.index(near[0]) + 1
    return f"; the nearest is line {number}: {text.split(chr(10))[number - 1][:MAX_LINE_CHARS]!r}"


def _places(text: str, old_text: str) -> str:
    numbers: list[str] = []
    start = text.find(old_text)
    while start != -1 and len(numbers) < 5:
        numbers.append(str(text.count("\n", 0, start) + 1))
        start = text.find(old_text, start + len(old_text))
    return f"lines {', '.join(numbers)}{', …' if start != -1 else ''}"
