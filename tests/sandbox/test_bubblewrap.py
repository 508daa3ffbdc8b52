"""The parts of a command sandbox: the command line, the system call filter, and the messages where sandboxing
is impossible."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sandbox.here import needs_sandbox

from treadle.core.errors import ConfigError, SandboxError
from treadle.sandbox.commands.bubblewrap import FOLDERS, INNER_ID, OUTER_ID, Isolation, make_etc, wrap
from treadle.sandbox.commands.execution import CollectedOutput, SandboxCommand
from treadle.sandbox.commands.home import make_root
from treadle.sandbox.commands.host import HostCommands
from treadle.sandbox.commands.process_family import measure_tree
from treadle.sandbox.commands.seccomp import make_filter
from treadle.sandbox.commands.untrusted import remove_tree
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Limits

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
X86, ARM = 0xC000003E, 0xC00000B7


def judge(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """Return what the filter answers to a system call. Source: linux/filter.h, the instructions that are used."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *(list(arguments) + [0] * 6)[:6])
    lines = list(struct.iter_unpack("=HBBI", program))
    accumulator = position = 0
    while True:
        code, is_true, is_false, value = lines[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[
                code
            ]
            position += is_true if holds else is_false


class TestFilter:
    @pytest.mark.parametrize(
        ("machine", "architecture", "read", "mount", "clone", "clone3", "socket", "ioctl"),
        [("x86_64", X86, 0, 165, 56, 435, 41, 16), ("aarch64", ARM, 63, 40, 220, 435, 198, 29)],
    )
    def test_what_it_answers(
        self,
        machine: str,
        architecture: int,
        read: int,
        mount: int,
        clone: int,
        clone3: int,
        socket: int,
        ioctl: int,
    ) -> None:
        program = make_filter(machine)
        assert program is not None
        assert judge(program, read, architecture) == ALLOW
        assert judge(program, read, X86 + ARM - architecture) == KILL
        assert judge(program, mount, architecture) == FAIL | 1
        assert judge(program, clone3, architecture) == FAIL | 38
        assert judge(program, clone, architecture, 0x1200011) == ALLOW
        for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            assert judge(program, clone, architecture, flag | 17) == FAIL | 1
        for family, answer in (
            (1, ALLOW),
            (2, ALLOW),
            (10, ALLOW),
            (16, ALLOW),
            (17, FAIL | 97),
            (40, FAIL | 97),
        ):
            assert judge(program, socket, architecture, family, 1) == answer
        assert judge(program, ioctl, architecture, 0, 0x5401) == ALLOW
        assert judge(program, ioctl, architecture, 0, 0x5412) == FAIL | 1
        # The kernel uses only the lower half of the number, so the filter must do the same.
        assert judge(program, ioctl, architecture, 0, 0x5412 | 1 << 32) == FAIL | 1

    def test_calls_of_the_other_abi_of_x86_are_not_a_way_around_it(self) -> None:
        program = make_filter("x86_64")
        assert program is not None
        assert judge(program, 165 | 0x40000000, X86) == KILL

    def test_of_an_unknown_machine_there_is_none(self) -> None:
        assert make_filter("s390x") is None


class TestOutput:
    @pytest.mark.parametrize("size", [1, 7, 100_000])
    def test_both_ends_are_kept(self, size: int) -> None:
        data = bytes(ord("a") + index % 26 for index in range(300_000))
        output = CollectedOutput(3000)
        for start in range(0, len(data), size):
            output.add(data[start : start + size])
        head, tail = data[:2000].decode(), data[-1000:].decode()
        assert output.text == f"{head}\n[… 297,000 of 300,000 bytes left out …]\n{tail}"
        assert output.last_line == data[-200:].decode()

    def test_what_fits_is_whole(self) -> None:
        output = CollectedOutput(9)
        for part in (b"abc", b"de", b"fghi"):
            output.add(part)
        assert output.text == "abcdefghi"
        output.add(b"j")
        assert output.text == "abcdef\n[… 1 of 10 bytes left out …]\nhij"


@needs_sandbox
class TestCommand:
    def run(self, text: str, limits: Limits | None = None) -> tuple[int, str]:
        root = make_root(FOLDERS, OUTER_ID if os.geteuid() == 0 else None)
        try:
            make_etc(root)
            outcome = SandboxCommand(text, root, limits or Limits()).run()
        finally:
            remove_tree(root)
        return outcome.exit_code, outcome.text

    def test_who_it_is(self) -> None:
        assert self.run("id -u; id -g; id -un; hostname; pwd; echo ~; tty") == (
            1,
            f"{INNER_ID}\n{INNER_ID}\nagent\nsandbox\n/work\n/tmp\nnot a tty\n",
        )

    def test_all_that_can_be_written(self) -> None:
        _, text = self.run("find / -xdev -writable -not -type l 2>/dev/null; find /dev -writable -type d")
        assert sorted(text.split()) == ["/dev/pts", "/dev/shm", "/tmp", "/work"]
        assert self.run("touch /dev/pts/x")[0] == 1
        _, text = self.run("for d in /work /tmp /dev/shm; do touch $d/x && echo $d; done")
        assert text.split() == ["/work", "/tmp", "/dev/shm"]

    def test_root_runs_it_as_another_user(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("not root")
        root = make_root(FOLDERS, OUTER_ID)
        try:
            make_etc(root)
            assert SandboxCommand("touch x", root, Limits()).run().exit_code == 0
            status = (root / "work/x").stat()
        finally:
            remove_tree(root)
        assert (status.st_uid, status.st_gid) == (OUTER_ID, OUTER_ID)

    def test_no_file_of_ours_is_open_in_it(self) -> None:
        inherited = os.open("/dev/null", os.O_RDONLY)
        os.set_inheritable(inherited, True)
        try:
            _, text = self.run("ls /proc/1/fd /proc/$$/fd")
        finally:
            os.close(inherited)
        assert text == "/proc/1/fd:\n0\n1\n2\n\n/proc/2/fd:\n0\n1\n2\n"

    def test_a_sandbox_that_cannot_be_made_says_why(self, tmp_path: Path) -> None:
        root = make_root(FOLDERS, OUTER_ID if os.geteuid() == 0 else None)
        try:
            with pytest.raises(SandboxError, match=r"bwrap: .*passwd"):
                SandboxCommand("true", root, Limits()).run()
        finally:
            remove_tree(root)

    def test_files_stay_closed_however_it_ends(self) -> None:
        self.run("true")
        before = set(os.listdir("/dev/fd"))
        self.run("true")
        self.run("sleep 9", Limits(seconds=0.1))
        with pytest.raises(SandboxError):
            SandboxCommand("x" * 200_000, Path("/nowhere"), Limits()).run()
        # What earlier tests left open may be closed meanwhile.
        assert set(os.listdir("/dev/fd")) <= before


def test_without_bubblewrap_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.executable = '/nowhere/python'\n"
        "from treadle.tools.resolve import resolve_tools\n"
        "resolve_tools('shell')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    if sys.platform == "linux":
        assert "apt install bubblewrap" in done.stderr
    assert "ConfigError: the toolset 'shell' cannot be used here" in done.stderr
    assert "shell-unprotected" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_that_processes_share_counts_once() -> None:
    script = (
        "import os, time\n"
        "x = bytearray(os.urandom(1 << 20) * 50)\n"
        "pids = [os.fork() for _ in range(2)]\n"
        "os.write(1, b'ready\\n')\n"
        "time.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            # The first child forks too.
            assert [process.stdout.readline() for _ in range(4)] == [b"ready\n"] * 4
            assert measure_tree(process.pid, 10**12).memory_bytes > 150 * 2**20
            tree = measure_tree(process.pid, 10**6)
            assert 50 * 2**20 < tree.memory_bytes < 130 * 2**20
            assert tree.threads == 4
        finally:
            os.killpg(process.pid, 9)


def test_the_command_line_has_no_network_unless_asked(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs bubblewrap")
    alone = wrap(tmp_path, ["true"], Isolation(), info_fd=9, filter_fd=None)
    shared = wrap(tmp_path, ["true"], Isolation(has_network=True), info_fd=9, filter_fd=8)
    assert "--unshare-net" in alone
    assert "--unshare-net" not in shared
    assert "--seccomp" not in alone
    assert shared[shared.index("--seccomp") + 1] == "8"


@needs_sandbox
@pytest.mark.parametrize(
    ("home", "found"), [("/root", "/root"), (None, "/tmp"), ("/a:/b", "/tmp"), ("/a\nx:", "/tmp")]
)
async def test_programs_that_do_not_read_its_variable_find_the_home_folder(
    home: str | None, found: str
) -> None:
    commands = HostCommands(aliases={"/root": "kept"}, variables={} if home is None else {"HOME": home})
    async with commands.open() as folder:
        outcome = await folder.run("echo ~agent; grep -c . /etc/passwd", MemorySandbox(), Limits())
    assert outcome.text == f"{found}\n2\n"


@needs_sandbox
async def test_a_mount_in_the_files_of_a_run_follows_no_link_out(tmp_path: Path) -> None:
    """Bubblewrap makes what is missing where it mounts, and follows links to there."""
    for parent in [folder for folder in (tmp_path, *tmp_path.parents) if not folder.stat().st_mode & 1]:
        parent.chmod(0o711)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    out = f"/oldroot{tmp_path}/open"
    binds = {"/usr/share": "/work/in/share", "/usr/bin/env": "/work/deep/file"}
    moves = (
        "true",
        f"for n in in deep own; do mv $n $n-2; ln -s {out} $n; done",
        f"mv in in-3; mkdir in; ln -s {out}/y in/share; mv deep deep-3; mkdir deep; ln -s {out}/x deep/file",
    )
    commands = HostCommands(binds=binds, aliases={"/app": "own", "/app/more": "other"})
    async with commands.open() as folder:
        box = MemorySandbox()
        for move in moves:
            assert (await folder.run(move, box, Limits())).text == ""
            look = "ls in/share > /dev/null && cat deep/file > /dev/null && ls /app /app/more"
            assert (await folder.run(look, box, Limits())).text == "/app:\nmore\n\n/app/more:\n"
    assert not [*(tmp_path / "open").iterdir()]


@needs_sandbox
async def test_a_run_may_keep_its_files_in_tmp_beside_what_is_mounted_below(tmp_path: Path) -> None:
    for parent in [folder for folder in (tmp_path, *tmp_path.parents) if not folder.stat().st_mode & 1]:
        parent.chmod(0o711)
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "a.txt").write_text("a")
    commands = HostCommands(binds={str(tmp_path / "shown"): "/tmp/below"}, aliases={"/tmp": "kept"})
    async with commands.open() as folder:
        box = MemorySandbox()
        assert (await folder.run("cat /tmp/below/a.txt; echo b > /tmp/b.txt", box, Limits())).text == "a"
        assert box.read("kept/b.txt") == b"b\n"
        assert (await folder.run("cat /tmp/b.txt", box, Limits())).text == "b\n"
    with pytest.raises(ConfigError, match="cannot be mounted for commands at '/tmp'"):
        HostCommands(binds={str(tmp_path): "/tmp"})
