"""The files of a folder on disk that are copied into a sandbox. The folder is only read.

Files that an agent does not need or must not see are left out: those that git ignores, keys, virtual environments,
caches and datasets. Journals are always left out.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError, SandboxError
from treadle.journal.named_files import suggest_path
from treadle.journal.protocol import APPLICATION_ID
from treadle.sandbox.paths import normalize_file

MAX_BYTES = 256 * 1024 * 1024
"""The limit on the bytes of all files together."""
MAX_FILE_BYTES = 32 * 1024 * 1024
"""The size above which a file is left out by default."""

_DEFAULT_RULES = Path(__file__).with_name("left_out.gitignore")
"""The files that are left out by default."""
_MARKS = ("pyvenv.cfg", "CACHEDIR.TAG", "ledger.lock")
"""Files that mark their folder as a virtual environment, a cache or a dataset that is generated."""


class Mount(Mapping[str, bytes]):
    """The content of a folder, or of a single file, by path. It is read once, when the mount is made."""

    def __init__(
        self, path: str | os.PathLike[str], *, is_whole: bool = False, max_bytes: int = MAX_BYTES
    ) -> None:
        """Read the file or folder at `path`; with `is_whole`, including what is left out by default.

        A symlink is followed if its target lies in the folder and is not a parent of the link. Empty folders are
        left out.

        Raises: `ConfigError` if there is nothing at `path`, a single file cannot be read, or the files together
        have more than `max_bytes`.
        """
        self.path = Path(path)
        self.is_whole = is_whole
        self.left_out: list[str] = []
        """The files and folders that `is_whole` would include. The name of a folder ends with a slash."""
        self.refused: dict[str, str] = {}
        """The files and folders that cannot be mounted, each with the reason."""
        try:
            root = self.path.resolve(strict=True)
            found = dict(sorted(self._walk(root))) if root.is_dir() else {root.name: root}
            fault = None if root.is_dir() else _find_fault(root.name, root)
            total_bytes = sum(file.stat().st_size for file in found.values())
        except FileNotFoundError:
            fault = f"there is no such file or folder{suggest_path(path)}"
        except (OSError, RuntimeError) as error:  # RuntimeError: a circle of symlinks
            fault = getattr(error, "strerror", None) or str(error)
        if fault is not None:
            raise ConfigError(f"cannot mount {os.fspath(path)!r}: {fault}")
        if total_bytes > max_bytes:
            raise ConfigError(
                f"cannot mount {os.fspath(path)!r}: it holds {total_bytes:,} bytes in {len(found):,} files, over "
                f"the limit of {max_bytes:,}; mount a smaller folder"
            )
        self._files: dict[str, bytes] = {}
        for name, file in found.items():
            try:
                self._files[name] = file.read_bytes()
            except OSError as error:
                self.refused[name] = error.strerror or str(error)

    def __getitem__(self, name: str) -> bytes:
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<Mount of {str(self.path)!r}: {len(self)} files>"

    def _walk(self, root: Path) -> Iterator[tuple[str, Path]]:
        """Yield the name and the place of every file to mount below `root`, which has no symlinks in it."""
        selection = None if self.is_whole else _Selection(root)
        pending = [("", root, frozenset({root}))]
        while pending:
            prefix, folder, above = pending.pop()
            try:
                entries = sorted(folder.iterdir())
            except OSError as error:
                self.refused[prefix] = error.strerror or str(error)
                continue
            for path in entries:
                name = prefix + path.name
                try:
                    target = Path(os.path.realpath(path)) if path.is_symlink() else path
                    is_folder = target.is_dir()
                    name += "/" if is_folder else ""
                    is_left_out = selection is not None and selection.leaves_out(path, target)
                    fault = _find_fault(name, target) if target.is_relative_to(root) else _OUTSIDE
                except OSError as error:
                    is_left_out, fault = False, error.strerror or str(error)
                if is_left_out:
                    self.left_out.append(name)
                elif target in above or fault is not None:
                    self.refused[name] = fault or "its target is a folder above it"
                elif is_folder:
                    pending.append((name, target, above | {target}))
                else:
                    yield name, target


_OUTSIDE = "its target is outside the folder"


def _find_fault(name: str, file: Path) -> str | None:
    """Return why a file or folder cannot be mounted; `None` if it can."""
    try:
        normalize_file(name.removesuffix("/"))
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            return None
        if not stat.S_ISREG(mode):
            return "it is not a regular file"
        # A database that is in use must not even be opened: closing it would end SQLite's locks in this process.
        base = file.name.removesuffix("-wal").removesuffix("-shm").removesuffix("-journal")
        beside = [file.with_name(base + end) for end in ("-wal", "-shm", "-journal")]
        if any(other.exists() for other in beside) and file.with_name(base).exists():
            return "it belongs to a database that is in use"
        with file.open("rb") as opened:
            head = opened.read(72)
    except SandboxError:
        return "a sandbox cannot hold such a name"
    except OSError as error:
        return error.strerror or str(error)
    is_journal = head.startswith(b"SQLite format 3\0") and head[68:72] == APPLICATION_ID.to_bytes(4, "big")
    return "it is a journal" if is_journal else None


class _Selection:
    """The choice of what is left out by default."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._default = IgnoreRules(_read_lines(_DEFAULT_RULES))
        self._read: dict[Path, IgnoreRules] = {}
        """The rules of git in each file with rules."""
        self._base = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        """The folder to which the rules of git apply: that of the repository, or the mounted one."""
        config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        self._general = [self._base / ".git" / "info" / "exclude", Path(config, "git", "ignore")]
        if any(self._git_ignores(folder, is_folder=True) for folder in self._up_to_base(root)[:-1]):
            # The folder was asked for by name, so only its own rules apply.
            self._base, self._general = root, []

    def leaves_out(self, path: Path, target: Path) -> bool:
        """Return whether a file or folder is left out. `target` is a symlink's target, otherwise the same path."""
        is_folder = target.is_dir()
        if self._default.ignores(path.relative_to(self._root).as_posix(), is_folder=is_folder):
            return True
        if is_folder and any((target / mark).exists() for mark in _MARKS):
            return True
        # To git a link to a folder is a file.
        if self._git_ignores(path, is_folder=is_folder and target == path):
            return True
        if target != path and target.is_relative_to(self._root):
            parts = [item for item in (target, *target.parents) if item.is_relative_to(self._root)][:-1]
            return any(self.leaves_out(part, part) for part in parts)
        return not is_folder and target.exists() and target.stat().st_size > MAX_FILE_BYTES

    def _git_ignores(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether git ignores `path`, whose folder it does not ignore. The nearest rules decide."""
        files = [(folder, folder / ".gitignore") for folder in self._up_to_base(path.parent)]
        for folder, file in [*files, *[(self._base, file) for file in self._general]]:
            if file not in self._read:
                self._read[file] = IgnoreRules(_read_lines(file))
            found = self._read[file].ignores(path.relative_to(folder).as_posix(), is_folder=is_folder)
            if found is not None:
                return found
        return False

    def _up_to_base(self, folder: Path) -> list[Path]:
        return [item for item in (folder, *folder.parents) if item.is_relative_to(self._base)]


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "replace").split("\n")
    except OSError:
        return []


class IgnoreRule(Struct, frozen=True):
    """One line of the file."""

    pattern: "re.Pattern[str]"
    is_negated: bool
    """True if paths that match are not ignored."""
    is_for_folders: bool
    """True if only folders match."""
    is_anchored: bool
    """True if the whole path must match, and not just the name."""


class IgnoreRules:
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


def _parse(line: str) -> IgnoreRule | None:
    text = re.sub(r"(?<!\\)[ \t\r]+$", "", line)
    if not text or text.startswith("#"):
        return None
    is_negated = text.startswith("!")
    text = text.removeprefix("!")
    is_for_folders = text.endswith("/")
    text = text.removesuffix("/")
    is_anchored = "/" in text
    try:
        tokens = _TOKEN.finditer(text.removeprefix("/"))
        pattern = re.compile("".join(map(_translate_token, tokens)), re.DOTALL)
    except re.error:
        return None
    return IgnoreRule(pattern, is_negated, is_for_folders, is_anchored)


_TOKEN = re.compile(
    r"(?P<begin>^\*\*/)|(?P<middle>/\*\*(?=/))|(?P<end>/\*\*$)|(?P<stars>\*+)|(?P<one>\?)"
    r"|\[(?P<not>[!^]?)(?P<set>\]?(?:\\.|[^\]\\])*)\]|\\(?P<escaped>.)|(?P<char>.)",
    re.DOTALL,
)


def _translate_token(found: "re.Match[str]") -> str:
    """Return the regular expression for a part of a pattern."""
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
