"""The server behind `tests.forks.process`: it imports modules once and forks for each order.

Started as `python server.py OWNER DOOR MODULE...`. An order is its length followed by JSON; the three standard
streams and a pipe for the answer come with the length. The server writes the id of the process to the pipe, and
when the process has ended its wait status and CPU seconds. Orders come from any process through the door, a socket
with the path DOOR that takes one order for each connection. The server ends after the process OWNER.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import types
from typing import Any

HEAD = struct.Struct("!I")
LARGE = 2 * 1024 * 1024
MADV_COLLAPSE = 25


def preload(names: list[str]) -> None:
    """Import modules; a name that ends in `.*` means a package with all its modules."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads when it is imported
    for name in names:
        package = name.removesuffix(".*")
        module = importlib.import_module(package)
        if package != name:
            for found in pkgutil.walk_packages(module.__path__, f"{package}."):
                if found.name.endswith((".__main__", ".training_callback")):  # which imports torch
                    continue
                try:
                    importlib.import_module(found.name)
                except ModuleNotFoundError as error:  # an adapter for a program that is not installed
                    if (error.name or "").partition(".")[0] not in ("omegaconf", "skyrl", "verl"):
                        raise
    # A thread does not survive a fork, and its locks stay locked in the child.
    assert threading.active_count() == 1
    assert not os.path.isdir("/proc/self/task") or len(os.listdir("/proc/self/task")) == 1


def join_pages() -> None:
    """Keep the memory of this process in large pages where Linux can do so.

    A fork then has few pages to copy, and its end few to free, which is a third of what a small program costs.
    """
    try:
        advise, maps = ctypes.CDLL(None).madvise, open("/proc/self/maps").read()  # noqa: SIM115
    except (AttributeError, OSError):
        return
    for line in maps.splitlines():
        span, rights, *_, inode = line.split()[:5]
        if rights == "rw-p" and inode == "0":
            start, end = (int(place, 16) & -LARGE for place in span.split("-"))
            size = max(end - start - LARGE, 0)
            advise(ctypes.c_void_p(start + LARGE), ctypes.c_size_t(size), MADV_COLLAPSE)


def serve(owner: int, door: socket.socket) -> dict[str, Any] | None:
    """Fork for each order. Return the order in the child, and `None` in the server when its owner has ended."""
    ending = [os.pidfd_open(owner)] if hasattr(os, "pidfd_open") else []
    answers: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([door, woken, *ending], [], [], None if ending else 1.0)
        if (ending and ending[0] in ready) or (not ending and os.getppid() != owner):
            return None
        if woken in ready:
            os.read(woken, 4096)
            reap(answers)
        if door not in ready:
            continue
        visitor, _ = door.accept()
        with visitor:
            head, fds, _, _ = socket.recv_fds(visitor, HEAD.size, 4)
            order = json.loads(receive(visitor, HEAD.unpack(head)[0]))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in range(3):
                os.dup2(fds[number], number)
            door.detach()
            os.closerange(3, max(*fds, wake, woken, *ending, *answers.values()) + 1)
            return order
        answers[pid] = fds[3]
        os.write(fds[3], b"%d\n" % pid)
        for fd in fds[:3]:
            os.close(fd)


def receive(visitor: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes."""
    data = b""
    while len(data) < size:
        data += visitor.recv(size - len(data))
    return data


def reap(answers: dict[int, int]) -> None:
    """Report the wait status and CPU seconds of each process that has ended."""
    while answers:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        answer = answers.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(answer, b"%d %f\n" % (status, usage.ru_utime + usage.ru_stime))
        os.close(answer)


def become(order: dict[str, Any]) -> None:
    """Take the folder, environment, streams and arguments from the order."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["start_new_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.stdin = sys.__stdin__ = stream(0, "r")
    sys.stdout = sys.__stdout__ = stream(1, "w")
    sys.stderr = sys.__stderr__ = stream(2, "w")
    sys.argv = order["arguments"]


def stream(fd: int, mode: str) -> io.TextIOWrapper:
    """Open a standard stream as Python does when it starts."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    is_buffered = mode == "r" or not os.environ.get("PYTHONUNBUFFERED")
    raw = open(fd, f"{mode}b", buffering=-1 if is_buffered else 0, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        raw,
        encoding,
        "backslashreplace" if fd == 2 else errors or "strict",
        newline="\n",
        line_buffering=fd == 2 or raw.isatty(),
        write_through=not is_buffered,
    )


def run_to_end(arguments: list[str]) -> None:
    """Run the main program, then end the process without the teardown of the imported modules.

    The teardown would copy the memory of all modules that the server has imported, which takes ten times as long as
    a small program. Exit handlers run before it, and Python has printed an exception by then.
    """
    code: int | None = None
    atexit.register(lambda: leave(code))
    try:
        run(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except Exception:
        code = 1
        raise


def leave(code: int | None) -> None:
    """End the process with `code`, unless more is left to do.

    If a flush fails, Python reports it. `code` is `None` if Python ends the process by a signal, or if the program
    runs the exit handlers itself.
    """
    if code is None:
        return
    gc.collect()
    for file in (sys.stdout, sys.stderr):
        try:
            if file is not None and not file.closed:
                file.flush()
        except (OSError, ValueError):
            return
    os._exit(code & 0xFF)


def run(arguments: list[str]) -> None:
    """Run `-m MODULE ...` or `-c CODE ...` as the main program; its exceptions end this process."""
    kind, what, *_ = sys.argv
    sys.argv = ["-c", *arguments[2:]] if kind == "-c" else arguments[1:]
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        assert kind == "-c", kind
        sys.path.insert(0, "")
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(what, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Import from the working folder and not from this file's; each forked process sets its own first entry.
    sys.path[0] = os.getcwd()
    gc.disable()
    preload(sys.argv[3:])
    del sys.path[0]
    gc.collect()
    gc.freeze()
    gc.enable()
    join_pages()
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{sys.argv[2]}.new")
    door.listen(64)
    os.rename(f"{sys.argv[2]}.new", sys.argv[2])  # whoever sees it can connect
    order = serve(int(sys.argv[1]), door)
    if order is None:
        shutil.rmtree(os.path.dirname(sys.argv[2]), ignore_errors=True)
    else:
        become(order)
        run_to_end(order["arguments"])
