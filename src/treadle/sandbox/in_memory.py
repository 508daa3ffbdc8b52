"""A sandbox that holds its files in memory, as a mapping from path to content.

Contents are immutable and shared: copying a sandbox is free until one of the two copies is written to, and each
content is hashed once for all sandboxes that hold it. Methods may be called from several threads.
"""

import hashlib
from collections.abc import Iterator, Mapping

from treadle.core.errors import SandboxError
from treadle.core.texts.patches import ReadStored, Version, load, store_next
from treadle.core.types import FileDelta
from treadle.http.locks import new_lock
from treadle.sandbox.paths import folders_of, normalize_file


class _Content:
    """Bytes with their hash, which is computed when it is first needed."""

    __slots__ = ("_digest", "data")

    def __init__(self, data: bytes, digest: str | None = None) -> None:
        self.data = data
        self._digest = digest

    @property
    def digest(self) -> str:
        if self._digest is None:
            self._digest = hashlib.sha256(self.data).hexdigest()
        return self._digest


class FilesId:
    """The id of a set of files: the sum of one hash per path and content, modulo 2**256.

    Equal files have equal ids, and a change of one file takes the same time for any number of files.
    """

    __slots__ = ("_sum",)

    def __init__(self, total: int = 0) -> None:
        self._sum = total

    def change(self, path: str, before: str | None, after: str | None) -> None:
        """Replace the content of `path`. `before` and `after` are hashes; `None`: there is no such file."""
        for digest, sign in ((before, -1), (after, 1)):
            if digest is not None:
                line = hashlib.sha256(f"{path}\0{digest}".encode()).digest()
                self._sum = (self._sum + sign * int.from_bytes(line)) % (1 << 256)

    def copy(self) -> "FilesId":
        """Return another object with the same id."""
        return FilesId(self._sum)

    def __str__(self) -> str:
        return f"{self._sum:064x}"


class MemorySandbox:
    """Files in memory. A text in `files` is stored as UTF-8."""

    def __init__(self, files: Mapping[str, bytes | str] | None = None) -> None:
        self._files: dict[str, _Content] = {}
        self._folders: dict[str, int] = {}
        """The number of files in each folder, at any depth."""
        self._is_shared = False
        """True if another sandbox uses the same two mappings, so that they must be copied before a change."""
        self.has_changes = True
        """See `Sandbox.has_changes`. It is a plain attribute because it is read after every tool call."""
        self.unprepared_bytes = 0
        """See `Sandbox.unprepared_bytes`."""
        self._prepared: dict[tuple[str, str], tuple[_Content | None, _Content, Version, bytes]] = {}
        """What is to be stored for the change from one content to another, by `file` or `state` and name."""
        self._is_reported = False
        """True if the first delta has been taken."""
        self._first: tuple[FileDelta, Mapping[str, bytes]] | None = None
        """The first delta of files that are shared and unchanged; `None` if it has to be made."""
        self._before: dict[str, _Content | None] = {}
        """The earlier contents of the files that changed since the last delta. `None`: the file did not exist."""
        self._id: FilesId | None = None
        """The id of the files without the changes in `_unidentified`; `None` until it is first needed."""
        self._unidentified: dict[str, _Content | None] = {}
        """The contents, as of `_id`, of the files that changed since."""
        self._states: dict[str, _Content] = {}
        self._states_before: dict[str, _Content | None] = {}
        """The same for the states of tools."""
        self._versions: dict[tuple[str, str], Version] = {}
        """The reported versions, which the next ones can be patches of, by `file` or `state` and name."""
        self._lock = new_lock()
        for path, content in (files or {}).items():
            name = normalize_file(path)
            if name in self._files:
                raise SandboxError(f"{name!r} is given twice, once as {path!r}")
            self._check_place(name)
            self._put(name, _Content(_to_bytes(name, content)))

    @classmethod
    def restore(
        cls,
        files: Mapping[str, str],
        read_stored: ReadStored,
        states: Mapping[str, str] | None = None,
    ) -> "MemorySandbox":
        """Return the sandbox of a snapshot, from the hashes of its files and states. Deltas continue from there.

        Raises: `JournalError` if a content is missing or damaged.
        """
        sandbox = cls()
        contents: dict[str, tuple[Version, _Content]] = {}

        def read(kind: str, name: str, digest: str) -> _Content:
            if digest not in contents:
                version, data = load(read_stored, digest)
                contents[digest] = version, _Content(data, digest)
            sandbox._versions[kind, name], content = contents[digest]
            return content

        for path, digest in files.items():
            name = normalize_file(path)
            sandbox._check_place(name)
            sandbox._put(name, read("file", name, digest))
        for name, digest in (states or {}).items():
            sandbox._states[name] = read("state", name, digest)
        sandbox._is_reported = True
        sandbox.has_changes = False
        return sandbox

    def copy(self, *, is_reported: bool = False) -> "MemorySandbox":
        """Return another sandbox with the same files, in constant time.

        Its first delta reports every file; with `is_reported`, deltas report only what is changed from now on.
        """
        other = MemorySandbox()
        other._is_reported, other.has_changes = is_reported, not is_reported
        with self._lock:
            self._is_shared = other._is_shared = True
            other._files, other._folders = self._files, self._folders
            other._states = dict(self._states)
            other._states_before = {} if is_reported else dict.fromkeys(self._states)
            other._id = None if self._id is None else self._id.copy()
            other._unidentified = dict(self._unidentified)
        return other

    def read(self, path: str) -> bytes:
        content = self._files.get(path) or self._files.get(normalize_file(path))
        if content is None:
            raise self._no_file(path)
        return content.data

    def write(self, path: str, content: bytes) -> None:
        """See `Sandbox.write`. Raises: `SandboxError` if the path is a folder, or a parent of it is a file."""
        name = normalize_file(path)
        new = _Content(_to_bytes(name, content))
        with self._lock:
            old = self._files.get(name)
            if old is not None and old.data == new.data:
                return
            if old is None:
                self._check_place(name)
            self._begin_change(name, old)
            self._put(name, new)
            self.unprepared_bytes += len(new.data)

    def delete(self, path: str) -> None:
        name = normalize_file(path)
        with self._lock:
            old = self._files.get(name)
            if old is None:
                raise self._no_file(path)
            self._begin_change(name, old)
            del self._files[name]
            for folder in folders_of(name):
                self._folders[folder] -= 1
                if not self._folders[folder]:
                    del self._folders[folder]

    def paths(self) -> list[str]:
        return sorted(self._files)

    def read_state(self, name: str) -> bytes | None:
        content = self._states.get(name)
        return None if content is None else content.data

    def write_state(self, name: str, content: bytes) -> None:
        with self._lock:
            old = self._states.get(name)
            if old is None or old.data != content:
                self._states_before.setdefault(name, old)
                self._states[name] = _Content(content)
                self.has_changes = True

    @property
    def snapshot_id(self) -> str:
        """See `Sandbox.snapshot_id`. It takes time proportional to the files that changed since the last call."""
        with self._lock:
            files = self._files
            if self._id is None:
                self._id, self._unidentified = FilesId(), dict.fromkeys(files)
            for path, old in self._unidentified.items():
                new = files.get(path)
                self._id.change(
                    path, None if old is None else old.digest, None if new is None else new.digest
                )
            self._unidentified = {}
            return str(self._id)

    def prepare_delta(self) -> None:
        self.unprepared_bytes = 0
        if not self._is_reported:
            changed: dict[str, _Content | None] = dict.fromkeys(list(self._files))
        else:
            changed = self._before.copy()
        for path, old in changed.items():
            new = self._files.get(path)
            if new is not None and (old is None or old.data != new.data):
                self._prepared["file", path] = old, new, *self._next_version("file", path, old, new)

    def take_delta(self) -> tuple[FileDelta, Mapping[str, bytes]] | None:
        """See `Sandbox.take_delta`. A file that was changed back to its earlier content is not reported."""
        if not self.has_changes:
            return None
        with self._lock:
            self.has_changes = False
            self.unprepared_bytes = 0
            if self._first is not None and not self._is_reported and not self._states_before:
                self._is_reported = True
                return self._first
            before, self._before = self._before, {}
            states_before, self._states_before = self._states_before, {}
            if not self._is_reported:
                self._is_reported = True
                before = dict.fromkeys(self._files)
            changed: dict[str, str] = {}
            deleted: list[str] = []
            states: dict[str, str] = {}
            blobs: dict[str, bytes] = {}
            for path in sorted(before):
                old, new = before[path], self._files.get(path)
                if new is None:
                    self._versions.pop(("file", path), None)
                    if old is not None:
                        deleted.append(path)
                elif old is None or old.data != new.data:
                    changed[path] = new.digest
                    self._store("file", path, old, new, blobs)
            for name, old in states_before.items():
                new = self._states[name]
                if old is None or old.data != new.data:
                    states[name] = new.digest
                    self._store("state", name, old, new, blobs)
            self._prepared = {}
            if not (changed or deleted or states):
                return None
            return FileDelta(changed, tuple(deleted), states), blobs

    def undo_changes(self) -> None:
        # What is new goes first: it may be a file where a folder was, or the other way round.
        for path, old in sorted(self._before.items(), key=lambda item: item[1] is not None):
            if old is not None:
                self.write(path, old.data)
            elif path in self._files:
                self.delete(path)
        with self._lock:
            for name, old in self._states_before.items():
                if old is None:
                    self._states.pop(name, None)
                else:
                    self._states[name] = old
            if self._is_reported:
                self._before, self._states_before, self._prepared = {}, {}, {}
                self.has_changes, self.unprepared_bytes = False, 0

    def __repr__(self) -> str:
        return f"<MemorySandbox of {len(self._files)} files>"

    def _store(
        self, kind: str, name: str, old: _Content | None, new: _Content, blobs: dict[str, bytes]
    ) -> None:
        """Add the data to store for a changed content to `blobs`. Its earlier content is stored already."""
        prepared = self._prepared.get((kind, name))
        if prepared is not None and prepared[0] is old and prepared[1] is new:
            version, stored = prepared[2:]
        else:
            version, stored = self._next_version(kind, name, old, new)
        self._versions[kind, name] = version
        blobs.setdefault(new.digest, stored)

    def _next_version(
        self, kind: str, name: str, old: _Content | None, new: _Content
    ) -> tuple[Version, bytes]:
        if old is None:
            return Version(new.digest), new.data
        known = self._versions.get((kind, name)) or Version(old.digest)
        return store_next(known, old.data, new.digest, new.data)

    def _begin_change(self, name: str, old: _Content | None) -> None:
        self._first = None
        if self._is_shared:
            self._files, self._folders = self._files.copy(), self._folders.copy()
            self._is_shared = False
        if self._is_reported:
            self._before.setdefault(name, old)
        if self._id is not None:
            self._unidentified.setdefault(name, old)
        self.has_changes = True

    def _put(self, name: str, content: _Content) -> None:
        if name not in self._files:
            for folder in folders_of(name):
                self._folders[folder] = self._folders.get(folder, 0) + 1
        self._files[name] = content

    def _check_place(self, name: str) -> None:
        if name in self._folders:
            raise SandboxError(f"{name!r} is a folder, so no file can have its name")
        for folder in folders_of(name):
            if folder in self._files:
                raise SandboxError(f"{folder!r} is a file, so {name!r} cannot lie in it")

    def _no_file(self, path: str) -> SandboxError:
        if normalize_file(path) in self._folders:
            return SandboxError(f"{path!r} is a folder, not a file")
        return SandboxError(f"there is no file {path!r}")


def _to_bytes(name: str, content: bytes | str) -> bytes:
    if isinstance(content, bytes):
        return content
    if not isinstance(content, str):
        return bytes(memoryview(content))
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise SandboxError(f"the text of {name!r} is not valid Unicode: {error}") from None


class SharedFiles(Mapping[str, bytes]):
    """The initial files of many sandboxes, checked and hashed once, and shared until they are written to."""

    def __init__(self, files: Mapping[str, bytes | str]) -> None:
        """Keep `files`. Raises: `SandboxError` as `MemorySandbox` does."""
        self._sandbox = MemorySandbox(files)
        self._paths = self._sandbox.paths()
        self._id = FilesId(int(self._sandbox.snapshot_id, 16))
        self._first = self._sandbox.copy().take_delta()

    def open(self, *, is_reported: bool = False) -> MemorySandbox:
        """Return a new sandbox with the files, in constant time. Deltas report them unless `is_reported`."""
        opened = self._sandbox.copy(is_reported=is_reported)
        opened._first = None if is_reported else self._first
        return opened

    def identify(self) -> FilesId:
        """Return the id of the files, for changes."""
        return self._id.copy()

    def is_delta(self, delta: FileDelta) -> bool:
        """Return whether `delta`, which a run began with, has exactly these files."""
        return self._first is not None and delta == self._first[0]

    def __getitem__(self, path: str) -> bytes:
        try:
            return self._sandbox.read(path)
        except SandboxError:
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
