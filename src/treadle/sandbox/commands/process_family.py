"""The processes of a command: starting them, ending them together, and limits for each.

The first process is a shell that waits for the command instead of replacing itself with it: it collects orphans,
and no signal from inside ends it. It waits for a line of input before it runs the command. This gives the process
that started it the time to set up its termination, which must also work if that process itself is killed.
"""

import json
import os
import resource
import secrets
import shlex
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import SandboxError
from treadle.sandbox.commands.bubblewrap import ImageRoot, Isolation, wrap
from treadle.sandbox.commands.seccomp import make_filter
from treadle.sandbox.commands.socket_memory import measure_sockets
from treadle.sandbox.protocol import Limits

MAX_OPEN_FILES = 1024
MARK = "TREADLE_COMMAND"

_FIRST = """\
read -r go || exit 1
{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
LIMITS || exit 1
exec </dev/null 2>&1
/bin/sh -c "$0"
exit $?
"""


class ProcessFamily(ABC):
    """The processes of one command."""

    def __init__(self, text: str, root: Path, limits: Limits) -> None:
        self.pid = 0
        """The id of the first process, once it is started."""
        self.end_fd: int | None = None
        """A descriptor that becomes readable when all processes have ended. `None`: ask `has_ended`."""
        self._text = text
        self._root = root
        self._limits = limits
        self._go = -1
        self._process: subprocess.Popen[bytes]

    @abstractmethod
    def start(self, out_end: int) -> None:
        """Start the first process, which prints to `out_end`. Raises: `SandboxError`, with no process left."""

    def let_go(self) -> None:
        """Tell the first process to run the command."""
        with suppress(BrokenPipeError):
            os.write(self._go, b"go\n")
        os.close(self._go)

    def has_ended(self) -> bool:
        """Return whether the first process has ended."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @abstractmethod
    def kill(self) -> None:
        """End all processes now. May be called from any thread between `start` and `end`."""

    def end(self) -> tuple[int, str]:
        """End all processes and wait for them. Return the exit code, and what failed before the command began."""
        self.kill()
        _, trouble = self._process.communicate()
        if self.end_fd is not None:
            os.close(self.end_fd)
        return self._process.returncode, _decode(trouble)


class IsolatedFamily(ProcessFamily):
    """The processes of a command in a bubblewrap sandbox. When the first one ends, the kernel ends all others.

    Bubblewrap itself ends after the first one, which ends after all other processes.
    """

    def __init__(self, text: str, root: Path, limits: Limits, isolation: Isolation) -> None:
        super().__init__(text, root, limits)
        self._isolation = isolation

    def start(self, out_end: int) -> None:
        info, info_end = os.pipe()
        filter_end = _open_filter()
        passed = [info_end] if filter_end is None else [info_end, filter_end]
        try:
            argv = wrap(
                self._root,
                _first_command(
                    self._text, self._limits, self._root, is_alone=True, image=self._isolation.image
                ),
                self._isolation,
                info_fd=info_end,
                filter_fd=filter_end,
            )
            environment = _environment("/tmp", {})
            self._process, self._go = _popen(argv, environment, self._root, out_end, passed)
        except BaseException:
            os.close(info)
            raise
        finally:
            for end in passed:
                os.close(end)
        with open(info, "rb") as file:
            text = file.read()
        with suppress(ValueError, KeyError):
            self.pid = json.loads(text)["child-pid"]
            try:
                # While its parent lives, the process has not been reaped, so no other process can have its id.
                self.end_fd = os.pidfd_open(self.pid)
            except ProcessLookupError:
                # A shell that cannot be started ends at once. Bubblewrap, which ends after it, says why.
                self.end_fd = os.pidfd_open(self._process.pid)
        if self.end_fd is None:
            os.close(self._go)
            _, trouble = self._process.communicate()
            raise SandboxError(f"the sandbox could not be made: {_decode(trouble)}")

    def kill(self) -> None:
        assert self.end_fd is not None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.end_fd, signal.SIGKILL)


class BareFamily(ProcessFamily):
    """The processes of a command without isolation. A mark in their environment identifies detached ones."""

    def __init__(self, text: str, root: Path, limits: Limits) -> None:
        super().__init__(text, root, limits)
        self._mark = secrets.token_hex(16)

    def start(self, out_end: int) -> None:
        argv = _first_command(self._text, self._limits, self._root, is_alone=False)
        environment = _environment(str(self._root / "tmp"), {MARK: self._mark})
        self._process, self._go = _popen(argv, environment, self._root / "work", out_end, ())
        self.pid = self._process.pid
        if hasattr(os, "pidfd_open"):
            self.end_fd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        family = descendants(self.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        kill_all(family)

    def end(self) -> tuple[int, str]:
        self.kill()
        # A process that was found may have started others since the search began.
        while found := find_marked(f"{MARK}={self._mark}"):
            kill_all(found)
        return super().end()


def _first_command(
    text: str, limits: Limits, root: Path, *, is_alone: bool, image: ImageRoot | None = None
) -> list[str]:
    """Return the command line of the first process. `is_alone`: no other process belongs to its user. It ends with
    `root`, which identifies the process if this process is killed. In an image, a command may have removed the
    folder where commands begin."""
    # -f counts in units of 512 bytes. The letter for the number of processes is -p in dash and -u in bash.
    lines = [
        "ulimit -c 0",
        f"ulimit -d {_lower(resource.RLIMIT_DATA, limits.memory_bytes) // 1024}",
        f"ulimit -f {_lower(resource.RLIMIT_FSIZE, limits.file_bytes) // 512}",
        f"ulimit -n {_lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)}",
    ]
    if is_alone and _counts_by_namespace():
        count = _lower(resource.RLIMIT_NPROC, limits.processes + 1)
        lines.append(f"{{ ulimit -u {count} 2>/dev/null || ulimit -p {count}; }}")
    if image is not None:
        lines.append(
            f"{{ cd {shlex.quote(image.begin)} 2>/dev/null || "
            f"echo {shlex.quote(f'[there is no folder {image.begin}; this command begins in /]')}; }}"
        )
    return ["/bin/sh", "-c", _FIRST.replace("LIMITS", " && ".join(lines)), text, str(root)]


def _lower(kind: int, wanted: int) -> int:
    """Return `wanted`, or the limit of this process if that is lower."""
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _counts_by_namespace() -> bool:
    """Return whether the limit on processes is counted per sandbox. Source: Linux 5.14, kernel/ucount.c."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)


def _environment(home: str, more: dict[str, str]) -> dict[str, str]:
    """Return the whole environment of a command. It contains nothing of this process's environment."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        **more,
    }


def _popen(
    argv: Sequence[str], environment: dict[str, str], folder: Path, out_end: int, passed: Iterable[int]
) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a process, and return it with the write end of a pipe. The process waits for a byte from that pipe."""
    go_end, go = os.pipe()
    program = shutil.which(argv[0]) or argv[0]
    try:
        process = subprocess.Popen(
            argv,
            executable=program,
            env=environment,
            cwd=folder,
            stdin=go_end,
            stdout=out_end,
            stderr=subprocess.PIPE,
            pass_fds=tuple(passed),
            # A Ctrl-C at the terminal must reach this process only, which then ends the command.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(go)
        raise SandboxError(f"the command could not be started: {error}") from error
    finally:
        os.close(go_end)
    return process, go


def _open_filter() -> int | None:
    """Return a pipe with the filter of system calls, to be read once."""
    program = make_filter()
    if program is None:
        return None
    end, start = os.pipe()
    os.write(start, program)
    os.close(start)
    return end


def kill_all(pids: Iterable[int]) -> None:
    """Kill the processes that still run."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _decode(text: bytes) -> str:
    return text.decode(errors="replace").strip()


class TreeUsage(Struct, frozen=True):
    """The resources that a tree of processes uses."""

    threads: int
    memory_bytes: int


def measure_tree(pid: int, max_memory_bytes: int) -> TreeUsage:
    """Measure a process and its descendants. The result is zero on systems without `/proc`.

    Shared memory is counted once per process, unless that gives more than `max_memory_bytes`: then each process is
    charged its share of it.
    """
    threads = 0
    pids = []
    for each, count in _descend(pid):
        threads += count
        pids.append(each)
    memory = sum(map(_resident_bytes, pids))
    if memory > max_memory_bytes:
        # Of memory that n processes share, each is charged one n-th, or all of it where that cannot be read.
        memory = sum([_read_bytes(each, "smaps_rollup", "Pss") or _resident_bytes(each) for each in pids])
    return TreeUsage(threads, memory)


def measure_kernel_memory(pid: int, max_bytes: int) -> int:
    """Return the kernel's bytes for sockets and page tables of a process and its descendants; 0 without `/proc`."""
    pids = descendants(pid)
    tables = sum([_read_bytes(each, "status", "VmPTE") for each in pids])
    return tables + measure_sockets(pids, max_bytes - tables)


def descendants(pid: int) -> list[int]:
    """Return the process and its descendants."""
    return [each for each, _ in _descend(pid)]


def _descend(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the ids of the process and its descendants, each with its number of threads."""
    pending = [pid]
    while pending:
        each = pending.pop()
        with suppress(OSError):
            threads = os.listdir(f"/proc/{each}/task")
            yield each, len(threads)
            for thread in threads:
                with suppress(OSError):
                    pending += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text().split())


def _read_bytes(pid: int, file: str, key: str) -> int:
    """Return the size that a file of a process in `/proc` states under `key`, or 0."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/{file}").read_text()
        return int(text.partition(f"\n{key}:")[2].split(maxsplit=1)[0]) * 1024
    return 0


def _resident_bytes(pid: int) -> int:
    return _read_bytes(pid, "status", "VmRSS")


def find_marked(variable: str) -> list[int]:
    """Return the running processes that have `variable`, as `NAME=value`, in their initial environment."""
    wanted = variable.encode()
    found = []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError):
                # A process that has ended but was not collected yet has no environment.
                if name.isdigit() and wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found
