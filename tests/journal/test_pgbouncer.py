"""A journal behind a real PgBouncer, in each of its modes. Skipped where it is not installed."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.postgres.server import Server

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.errors import JournalError

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed"),
]
Pool = Callable[..., str]


@pytest.fixture
def pool(postgres_server: Server, postgres_url: str) -> Iterator[Pool]:
    """A function that starts PgBouncer with settings, and returns its URL."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-pgbouncer-"))
    folder.chmod(0o777)
    started: list[subprocess.Popen[bytes]] = []
    database = postgres_url.partition("@/")[2].partition("?")[0]

    def start(**settings: str | int) -> str:
        told = {
            "listen_port": 6543,
            "unix_socket_dir": folder,
            "auth_type": "any",
            "query_wait_timeout": 1,
            "ignore_startup_parameters": "extra_float_digits",
            **settings,
        }
        lines = [f"{name} = {value}" for name, value in told.items()]
        where = f"{database} = host={postgres_server.folder} dbname={database} user=treadle"
        (folder / "pool.ini").write_text("\n".join(["[databases]", where, "[pgbouncer]", *lines, ""]))
        # It refuses to run as root.
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}
        assert PROGRAM is not None
        with (folder / "log").open("wb") as log:
            started.append(
                subprocess.Popen(  # type: ignore[call-overload]
                    [PROGRAM, "-q", folder / "pool.ini"], stdout=log, stderr=log, **as_user
                )
            )
        while not (folder / ".s.PGSQL.6543").exists():
            assert started[-1].poll() is None, (folder / "log").read_text()
            time.sleep(0.01)
        return f"postgres://treadle@/{database}?host={quote(str(folder))}&port=6543"

    yield start
    for process in started:
        process.terminate()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("size", [1, 2, 20])
def test_a_pool_that_changes_connections_is_refused(mode: str, size: int, pool: Pool) -> None:
    url = pool(pool_mode=mode, default_pool_size=size)
    with pytest.raises(JournalError, match=f"is a pooler in {mode} mode .*; give the address of the server"):
        open_journal(url)


async def test_a_pool_of_sessions_drives_follows_and_hands_out_runs(pool: Pool, postgres_url: str) -> None:
    url = pool(pool_mode="session", default_pool_size=8)
    with open_journal(url) as journal, open_journal(postgres_url) as other:
        run = await Agent(ScriptedModel(["a"]), journal=journal).run("x", run_id="r")
        assert run.output == "a"
        seen = [event.type async for event in other.follow("r")]
        assert seen == [event.type async for event in journal.follow("r")]
        assert seen[-1] == "run_finished"
        assert await journal.claim("q") is None


def test_a_pool_that_is_too_small_is_named(pool: Pool) -> None:
    """Rules out a message that sends its reader to look for a server that is away."""
    url = pool(pool_mode="session", default_pool_size=1)
    with pytest.raises(
        JournalError, match=r"no free connection .*\(query_wait_timeout\); .*default_pool_size"
    ):
        open_journal(url)
