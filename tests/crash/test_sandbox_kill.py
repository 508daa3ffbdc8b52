"""A process that is killed with SIGKILL while it starts a command leaves no process behind."""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import IS_FULL
from tests.sandbox.here import needs_sandbox
from tests.sandbox.small_images import image_maker

from treadle.sandbox.commands.bubblewrap import (
    FOLDERS,
    LAYER,
    OUTER_ID,
    ImageRoot,
    Isolation,
    is_root,
    make_etc,
)
from treadle.sandbox.commands.execution import SandboxCommand
from treadle.sandbox.commands.home import PREFIX, _lock, _sweep, make_root
from treadle.sandbox.protocol import Limits

pytestmark = [
    needs_sandbox,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]
__all__ = ["image_maker"]
PATIENCE_SECONDS = 60


def processes_of(*marks: str) -> list[str]:
    """Return the command lines of the living processes whose command line or environment has one of `marks`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            line = (folder / "cmdline").read_bytes()
            is_alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            text = line + (folder / "environ").read_bytes()
        except OSError:
            continue
        if is_alive and any(mark.encode() in text for mark in marks):
            found.append(line.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def start_and_die(delay_seconds: float, mark: str, *, is_isolated: bool, has_layers: bool = False) -> str:
    """Start a command in a forked child, kill the child after a while, and return the folder of its sandboxes."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            root = make_root((*FOLDERS, *LAYER), OUTER_ID if is_root() and is_isolated else None)
            make_etc(root)
            os.write(write_end, f"{root.parent}/\n".encode())
            image = ImageRoot(image_id="", folder="/usr") if has_layers else None
            command = f": {mark}; sleep 600"
            isolation = Isolation(image=image) if is_isolated else None
            SandboxCommand(command, root, Limits(), isolation).run()
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        home = pipe.readline().strip()
    assert home, "the child could not make a folder"
    time.sleep(delay_seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return home


@pytest.mark.parametrize(
    ("is_isolated", "has_layers"),
    [(True, False), (False, False), (True, True)],
    ids=["sandbox", "bare", "image"],
)
def test_no_process_is_left(is_isolated: bool, has_layers: bool, request: pytest.FixtureRequest) -> None:
    """The kills hit every part of a start: it takes about 10 ms, more on a busy machine."""
    if has_layers:
        request.getfixturevalue("image_maker")
    mark = f"treadle-test-{os.getpid()}-{is_isolated}-{has_layers}"
    delays = [number * 0.0002 for number in range(0, 400 if IS_FULL else 60, 1 if IS_FULL else 3)]
    homes = [start_and_die(delay, mark, is_isolated=is_isolated, has_layers=has_layers) for delay in delays]
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while (left := processes_of(mark, *homes)) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    assert left == []


def test_a_new_folder_that_another_process_sweeps_away_is_made_again(tmp_path: Path) -> None:
    is_over = threading.Event()

    def sweep() -> None:
        while not is_over.is_set():
            _sweep(tmp_path)

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        for _ in range(50):
            home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=tmp_path))
            # A folder that is not locked may still be there, because the other thread is removing it.
            assert not _lock(home) or home.exists()
    finally:
        is_over.set()
        thread.join()
