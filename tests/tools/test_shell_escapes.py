"""Commands that try to escape from the sandbox or to disable the machine.

After each: no secret was printed, nothing outside was touched, changed or contacted, and no process still
runs.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from secrets import token_hex
from threading import Thread

import pytest
from tests.sandbox.here import needs_sandbox

from treadle.sandbox.commands.process_family import find_marked
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Limits
from treadle.tools.context import Scope, ToolContext
from treadle.tools.protocol import ToolOutput
from treadle.tools.shell import Shell

pytestmark = needs_sandbox

MARK = "TREADLE_TEST_MARK"
LIMITS = Limits(
    seconds=120,
    memory_bytes=192 * 2**20,
    processes=32,
    disk_bytes=32 * 2**20,
    file_bytes=8 * 2**20,
    files=2000,
    output_bytes=100_000,
)
FILES = {"notes.txt": "keep me\n", "data/numbers.csv": "1,2\n"}


class World:
    """Targets outside of the sandbox: secrets, listeners and a process."""

    def __init__(self, stack: ExitStack) -> None:
        self.secret = f"secret-{token_hex(8)}"
        self.mark = token_hex(8)
        self.heard: list[bytes] = []
        # The file is world-readable, so that only the sandbox can prevent reading it.
        self.folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-outside-", dir="/tmp"))
        )
        self.folder.chmod(0o755)
        self.files = [self.folder / "plain", self.folder / "journal.db", self._in_home(stack)]
        for path in self.files:
            path.write_text(self.secret)
            path.chmod(0o666)
        os.environ["TREADLE_TEST_KEY"] = self.secret
        stack.callback(os.environ.pop, "TREADLE_TEST_KEY")
        self.tcp = self._listen(stack, socket.AF_INET, ("127.0.0.1", 0))[1]
        self.abstract = f"treadle-{token_hex(6)}"
        self._listen(stack, socket.AF_UNIX, f"\0{self.abstract}")
        self.unix = str(self.folder / "socket")
        self._listen(stack, socket.AF_UNIX, self.unix)
        Path(self.unix).chmod(0o777)
        self.udp = self._receive(stack)
        self.victim = subprocess.Popen(
            ["sleep", "1000"], env={"KEY": self.secret, "PATH": os.environ["PATH"]}
        )
        stack.callback(self._end_victim)

    def _in_home(self, stack: ExitStack) -> Path:
        path = Path.home() / f".treadle-outside-{token_hex(6)}"
        stack.callback(path.unlink, missing_ok=True)
        return path

    def _listen(self, stack: ExitStack, family: int, address: object) -> tuple[str, int]:
        server = socket.socket(family, socket.SOCK_STREAM)
        stack.callback(server.close)
        server.bind(address)  # type: ignore[arg-type]
        server.listen()

        def accept() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    self.heard.append(repr(address).encode())
                    peer.sendall(self.secret.encode())
                    peer.close()

        Thread(target=accept, daemon=True).start()
        stack.callback(server.shutdown, socket.SHUT_RDWR)
        name = server.getsockname()
        return name if isinstance(name, tuple) else ("", 0)

    def _receive(self, stack: ExitStack) -> int:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stack.callback(server.close)
        server.bind(("127.0.0.1", 0))

        def receive() -> None:
            with suppress(OSError):
                while True:
                    _, peer = server.recvfrom(100)
                    self.heard.append(b"udp")
                    server.sendto(self.secret.encode(), peer)

        Thread(target=receive, daemon=True).start()
        return int(server.getsockname()[1])

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()

    def write(self, command: str) -> str:
        """Return `command` with the names of the targets."""
        names = {
            "@PLAIN": str(self.files[0]),
            "@JOURNAL": str(self.files[1]),
            "@HOME": str(self.files[2]),
            "@FOLDER": str(self.folder),
            "@TCP": str(self.tcp),
            "@UDP": str(self.udp),
            "@ABSTRACT": self.abstract,
            "@UNIX": self.unix,
            "@VICTIM": str(self.victim.pid),
            "@PYTHON": PYTHON,
            "@US": str(os.getpid()),
            "@HIT": 'echo ESC""APED',
        }
        for name, value in names.items():
            command = command.replace(name, value)
        return f"export {MARK}={self.mark}\n{command}"

    def check(self, output: ToolOutput) -> None:
        """Check that no target was reached."""
        assert self.secret not in output.content
        assert "ESCAPED" not in output.content
        assert self.heard == []
        assert [path.read_text() for path in self.files] == [self.secret] * len(self.files)
        assert {path.name for path in self.folder.iterdir()} == {"plain", "journal.db", "socket"}
        assert self.victim.poll() is None
        assert find_marked(f"{MARK}={self.mark}") == []


PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin") or os.path.realpath(sys.executable)
BINDS = {} if PYTHON.startswith("/usr/") else {sys.base_prefix: sys.base_prefix}


def python(code: str) -> str:
    """Return a command that runs Python; `code` must not contain double quotes."""
    return f'@PYTHON -I -c "\n{code}\n"'


FILL = """\
import socket, threading, time
kept = []
def fill(kind):
    for _ in range(450):
        ends = socket.socketpair(socket.AF_UNIX, kind)
        kept.append(ends)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            end.setblocking(False)
            try:
                while end.send(b'x' * 16000): pass
            except BlockingIOError: pass
{start}
time.sleep(100)"""


WAIT = """\
import socket, time
kept = []
for _ in range(4):
    server = socket.socket()
    server.bind(('127.0.0.1', 0))
    server.listen(300)
    kept.append(server)
    for _ in range(300):
        client = socket.create_connection(server.getsockname())
        client.setblocking(False)
        try:
            while client.send(b'x' * 262144): pass
        except BlockingIOError: pass
        client.close()
time.sleep(100)"""
"""Connections that nobody accepts, whose clients are closed: no process has a descriptor of either end."""


def call_system(number: str, *arguments: str) -> str:
    """Return a command that makes one system call by its number, without programs or libraries in between."""
    table = {"x86_64": 0, "aarch64": 1}
    numbers = {
        "mount": (165, 40),
        "unshare": (272, 97),
        "clone": (56, 220),
        "setns": (308, 268),
        "chroot": (161, 51),
        "pivot_root": (155, 41),
        "keyctl": (250, 219),
        "add_key": (248, 217),
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "io_uring_setup": (425, 425),
        "memfd_create": (319, 279),
        "shmget": (29, 194),
        "init_module": (175, 105),
        "reboot": (169, 142),
        "swapon": (167, 224),
        "sethostname": (170, 161),
        "open_tree": (428, 428),
        "fsopen": (430, 430),
        "open_by_handle_at": (304, 265),
        "clock_settime": (227, 112),
        "syslog": (103, 116),
        "quotactl": (179, 60),
    }
    column = table[os.uname().machine]
    return python(
        "import ctypes\n"
        "call = ctypes.CDLL(None, use_errno=True).syscall\n"
        f"if call({', '.join([str(numbers[number][column]), *arguments])}) >= 0: print('ESC' + 'APED')"
    )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


@pytest.fixture
async def scope() -> "Iterator[Scope]":
    scope = Scope()
    yield scope
    await scope.close()


READING = {
    "a file in tmp": "cat @PLAIN",
    "the journal": "cat @JOURNAL",
    "a file in the home folder": "cat @HOME",
    "up and out": "cat ../../../../../..@PLAIN",
    "a link out": "ln -s @PLAIN out && cat out",
    "a folder link out": "ln -s / root && cat root@PLAIN",
    "through a process's root": "cat /proc/1/root@PLAIN /proc/self/root@PLAIN /proc/$PPID/root@PLAIN",
    "through a process's cwd": "cat /proc/1/cwd/..@PLAIN; cat /proc/self/cwd/../../../../../../../../../..@PLAIN",
    "the environment of others": "cat /proc/*/environ /proc/@VICTIM/environ /proc/@US/environ",
    "our own environment": "env; cat /proc/self/environ; set",
    "everything there is": (
        # One search for each folder: a search ends when what it is in goes, as processes in /proc do.
        "grep -rsl treadle-outside / --include=plain; "
        "for d in $(ls -A /); do find /$d -name plain -path '*outside*' -exec cat {} +; done"
    ),
    "tcp to the loopback": python(
        "import socket\ns = socket.create_connection(('127.0.0.1', @TCP), 2); print(s.recv(100))"
    ),
    "udp to the loopback": python(
        "import socket\ns = socket.socket(2, 2); s.settimeout(1)\n"
        "s.sendto(b'x', ('127.0.0.1', @UDP)); print(s.recv(100))"
    ),
    "an abstract socket": python(
        "import socket\ns = socket.socket(1); s.connect('\\\\0@ABSTRACT'); print(s.recv(100))"
    ),
    "a unix socket": python("import socket\ns = socket.socket(1); s.connect('@UNIX'); print(s.recv(100))"),
}
"""Attempts that succeed without a sandbox. They show that the tests can see a success."""

HARMLESS = {
    "a process's file descriptors": "cat /proc/@US/fd/* /proc/1/fd/[3-9]* 2>&1",
    "a hard link out": "ln @PLAIN hard && cat hard",
    "password hashes": "cat /etc/shadow && @HIT",
    "the users of the host": f"grep -q '^{os.environ.get('USER') or 'root'}:' /etc/passwd && @HIT",
    "ssh keys": "ls /root/.ssh /home/*/.ssh && @HIT",
    "the host's etc": "cat /etc/machine-id /etc/hostname /etc/fstab && @HIT",
    "run and var": "ls /run/* /var/* /home /root /sys/* /boot /mnt && @HIT",
    "a disk": (
        "for d in /dev/sda /dev/vda /dev/nvme0n1 /dev/mem /dev/kmsg /dev/kvm; do head -c1 $d && @HIT; done"
    ),
    "making a device": "mknod disk b 254 0 && @HIT; mknod mem c 1 1 && @HIT",
    "making a device in dev": "mknod /dev/disk b 254 0 && @HIT; mknod /dev/shm/disk b 254 0 && @HIT",
    "mounting": (
        "mount -t tmpfs none /tmp && @HIT; mount --bind / /work && @HIT; mount -o remount,rw /usr && @HIT"
    ),
    "unmounting": "umount /usr && @HIT; umount -l /proc && @HIT",
    "a user namespace": "unshare -Ur true && @HIT; unshare -Urm true && @HIT",
    "chroot": "chroot / /bin/true && @HIT",
    "entering namespaces": "nsenter -t 1 -m true && @HIT; nsenter -t @US -a true && @HIT",
    "becoming root": "su -c true && @HIT; sudo -n true && @HIT; setpriv --reuid 0 true && @HIT",
    "a setuid program": "cp /bin/sh s && chmod 4755 s && ./s -pc 'test $(id -u) = 0' && @HIT",
    "setuid in python": python("import os\nos.setuid(0); print('ESC' + 'APED')"),
    "capabilities": "grep -E 'Cap(Prm|Eff|Bnd|Amb):.*[1-9a-f]' /proc/self/status && @HIT",
    "privileges to gain": "grep NoNewPrivs:.*0 /proc/self/status && @HIT",
    "writing to usr": "touch /usr/x && @HIT; touch /bin/x && @HIT; cp /bin/true /usr/bin/ls && @HIT",
    "writing to etc": (
        "echo x > /etc/ld.so.preload && @HIT; echo x >> /etc/passwd && @HIT; rm /etc/hosts && @HIT"
    ),
    "writing to the root": "touch /x && @HIT; mkdir /y && @HIT; rm -rf /bin && @HIT",
    "writing to dev": "touch /dev/x && @HIT; rm /dev/null && @HIT",
    "kernel settings": (
        "echo 1 > /proc/sys/kernel/panic && @HIT; echo x > /proc/sys/kernel/core_pattern && @HIT"
    ),
    "sysrq": "echo s > /proc/sysrq-trigger && @HIT",
    "raw memory": "head -c1 /proc/kcore && @HIT; head -c1 /proc/kmem && @HIT; head -c1 /dev/port && @HIT",
    "the kernel's log": "dmesg && @HIT",
    "signals to the host": "kill -9 @VICTIM && @HIT; kill -9 @US && @HIT",
    "signals to all": "kill -9 -1",
    "signals to process 1": "kill -9 1; kill -TERM 1; kill -INT 1; kill -STOP 1; true",
    "signals to the parent": "kill -9 $PPID; kill -9 0",
    "processes of others": "test $(ls -d /proc/[0-9]* | wc -l) -gt 8 && @HIT; ls /proc/@US/status && @HIT",
    "tracing": python(
        "import ctypes\nif ctypes.CDLL(None).ptrace(16, @VICTIM, 0, 0) == 0: print('ESC' + 'APED')"
    ),
    "typing into a terminal": python(
        "import fcntl, os, termios\n"
        "end, other = os.openpty()\n"
        "for fd in (other, 0, 1, 2):\n"
        "    try: fcntl.ioctl(fd, termios.TIOCSTI, b'x'); print('ESC' + 'APED')\n"
        "    except OSError: pass"
    ),
    "a terminal": "echo x > /dev/tty && @HIT; test -t 0 && @HIT; test -t 2 && @HIT",
    "names": "getent hosts example.com && @HIT; getent hosts localhost.localdomain.example && @HIT",
    "ping": "ping -c1 -W1 8.8.8.8 && @HIT; ping -c1 -W1 10.0.0.1 && @HIT",
    "other networks": "ls /sys/class/net && @HIT; grep -vE '^ *(lo|Inter-| face)' /proc/net/dev && @HIT",
    "raw sockets": python("import socket\nsocket.socket(2, 3, 1); print('ESC' + 'APED')"),
    "packet sockets": python("import socket\nsocket.socket(17, 3); print('ESC' + 'APED')"),
    "the hypervisor": python("import socket\nsocket.socket(40, 1); print('ESC' + 'APED')"),
    "a preloaded library": "cp /bin/true x.so; LD_PRELOAD=./x.so su -c true && @HIT",
    "inherited files": (
        "test $(ls /proc/$$/fd | wc -l) -gt 4 && @HIT; "
        "ls -l /proc/self/fd | grep -v pipe: | grep -E 'socket|memfd|outside' && @HIT"
    ),
    "cgroups": "mkdir /sys/fs/cgroup/x && @HIT; echo -17 > /proc/self/oom_score_adj && @HIT",
    "another name for the host": "hostname evil && @HIT; test $(hostname) = sandbox || @HIT",
    "shared memory of others": "ls /dev/shm/* && @HIT; ls /dev/mqueue && @HIT",
    "raising limits": (
        "ulimit -c 1 && @HIT; ulimit -n 4096 && @HIT; ulimit -d unlimited && @HIT; "
        "ulimit -f unlimited && @HIT"
    ),
    "a new root by call": call_system("pivot_root", "b'/work'", "b'/work'"),
    "mount by call": call_system("mount", "b'none'", "b'/tmp'", "b'tmpfs'", "0", "0"),
    "unshare by call": call_system("unshare", "0x10000000"),
    "clone by call": call_system("clone", "0x10000000 | 17", "0", "0", "0", "0"),
    "chroot by call": call_system("chroot", "b'/work'"),
    "keys by call": call_system("keyctl", "0", "-3", "1"),
    "adding a key": call_system("add_key", "b'user'", "b'x'", "b'y'", "1", "-3"),
    "bpf": call_system("bpf", "0", "0", "0"),
    "performance counters": call_system("perf_event_open", "b'\\\\0' * 120", "0", "-1", "-1", "0"),
    "page faults": call_system("userfaultfd", "1"),
    "io_uring": call_system("io_uring_setup", "1", "ctypes.create_string_buffer(200)"),
    "memory of nobody": call_system("memfd_create", "b'x'", "0"),
    "memory of system v": call_system("shmget", "0", "4096", "0o1600"),
    "a kernel module": call_system("init_module", "b'x'", "1", "b''"),
    "a mount as a file": call_system("open_tree", "-100", "b'/'", "1"),
    "a file system as a file": call_system("fsopen", "b'tmpfs'", "0"),
    "files by handle": call_system("open_by_handle_at", "-100", "ctypes.create_string_buffer(32)", "0"),
    "the clock": call_system("clock_settime", "0", "ctypes.create_string_buffer(16)"),
    "host name by call": call_system("sethostname", "b'x'", "1"),
    "swap": call_system("swapon", "b'/work/notes.txt'", "0"),
    "a pipe that is never written": "mkfifo pipe",
    "sockets left behind": python("import socket\nsocket.socket(1).bind('left')"),
    "odd names": (
        "touch -- -rf '*' ' ' \"$(printf 'a\\nb')\" \"$(printf 'x\\377y')\" 'c:\\d' '$(touch x)'; mkdir ..."
    ),
    "links in a circle": "ln -s a b; ln -s b a; ln -s . here; ln -s .. up; ln -s /proc/self/fd/0 fd",
    "a folder made a link": "rm -r data && ln -s @FOLDER data",
    "a file made a link": "rm notes.txt && ln -s @PLAIN notes.txt",
    "links swapped till the end": (
        "(while :; do ln -sfn @FOLDER data2; rm -f data2; mkdir -p data2; rm -rf data2; done) & sleep 0.3"
    ),
    "all rights taken away": (
        "mkdir -p shut/in; echo x > shut/in/x; chmod 000 shut/in/x shut/in shut notes.txt; chmod 000 ."
    ),
    "a daemon": "setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & (sleep 1000 &) ; true",
    "a daemon that forks twice": python(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(1000)\n"
        "    os._exit(0)"
    ),
    "a child that holds the output": "sleep 1000 & exec 2>&-; echo done",
    "children that ignore signals": "trap '' HUP INT TERM QUIT; (trap '' TERM HUP; sleep 1000) & true",
    "a very long path": (
        "n=$(printf '%0250d' 1); i=0; while [ $i -lt 30 ]; do mkdir $n && cd $n && touch x; i=$((i+1)); done"
    ),
    "sparse files": "truncate -s 7M a b c; rm a b c; truncate -s 1T huge && @HIT",
    "a file of 2 GB": "head -c 2G /dev/zero > big && @HIT",
    "much output": "head -c 1G /dev/zero",
    "2 GB of memory": python("x = b'x' * (2 << 30); print('ESC' + 'APED')"),
    "memory in one mapping": python(
        "import mmap\nmmap.mmap(-1, 2 << 30, 0x22).write(b'x' * (2 << 28)); print('ESC' + 'APED')"
    ),
}

EXHAUSTING = {
    # The outer shell forks once only: it would end if it could not.
    "a fork bomb": ("f() { f | f & }; f & while :; do :; done", "stopped"),
    "a fork bomb of python": (
        python("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
        "stopped",
    ),
    "a fork bomb in new sessions": (
        python(
            "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass"
        ),
        "stopped",
    ),
    "threads": (
        python(
            "import threading, time\n"
            "while True:\n"
            "    try: threading.Thread(target=time.sleep, args=(100,)).start()\n"
            "    except RuntimeError: pass"
        ),
        "stopped",
    ),
    "an endless loop": ("while :; do :; done", "stopped"),
    "a stopped shell": ("kill -STOP $$", "stopped"),
    "endless output": ("yes", "left out"),
    "memory of several": (
        "for i in 1 2 3 4 5 6 7 8; do "
        + python("import time\nx = b'x' * (100 << 20); time.sleep(100)")
        + " & done; wait",
        "bytes of memory",
    ),
    "memory that is shared": (
        python("import mmap, time\nm = mmap.mmap(-1, 1 << 30)\nwhile True: m.write(b'x' * (1 << 20))"),
        "bytes of memory",
    ),
    "buffers of sockets": (python(FILL.format(start="fill(socket.SOCK_STREAM)")), "bytes of memory"),
    "buffers of the sockets of a thread": (
        python(FILL.format(start="threading.Thread(target=fill, args=(socket.SOCK_SEQPACKET,)).start()")),
        "bytes of memory",
    ),
    "connections that nobody accepted": (python(WAIT), "bytes of memory"),
    "a million files": ("i=0; while :; do i=$((i+1)); : > f$i; done", "were undone"),
    "a million folders": ("i=0; while :; do i=$((i+1)); mkdir d$i; done", "were undone"),
    "many large files": ("i=0; while :; do i=$((i+1)); head -c 4M /dev/zero > f$i; done", "were undone"),
    "many large files in tmp": (
        "i=0; while :; do i=$((i+1)); head -c 4M /dev/zero > /tmp/f$i; done",
        "were undone",
    ),
    "many large files in shm": (
        "i=0; while :; do i=$((i+1)); head -c 4M /dev/zero > /dev/shm/f$i; done",
        "were undone",
    ),
    "many sparse files": ("i=0; while [ $i -lt 20 ]; do i=$((i+1)); truncate -s 7M s$i; done", "were undone"),
    "files in a shut folder": (
        "mkdir d && cd d && chmod 300 . && i=0; while :; do i=$((i+1)); head -c 4M /dev/zero > f$i; done",
        "were undone",
    ),
    "folders 10,000 deep": (
        python("import os\nfor i in range(10000):\n    os.mkdir('d'); os.chdir('d')"),
        "were undone",
    ),
}
"""Attempts to exhaust a resource, and what the model is told."""


async def attempt(command: str, world: World, scope: Scope, seconds: float, shell: Shell) -> ToolOutput:
    """Run a command in a new sandbox with the files `FILES`, and return its output."""
    (tool,) = shell.tools()
    sandbox = MemorySandbox(FILES)
    arguments = {"command": world.write(command), "timeout_seconds": seconds}
    return await tool.call(arguments, ToolContext("run", "call", 1, sandbox, scope=scope))


async def test_the_sandbox_has_what_the_attempts_need(world: World, scope: Scope) -> None:
    output = await attempt(
        python("print('here')"), world, scope, 10, Shell(limits=LIMITS, read_only_binds=BINDS)
    )
    assert output.content == "here\n"


@pytest.mark.parametrize("name", [*READING, *HARMLESS])
async def test_nothing_gets_out(name: str, world: World, scope: Scope) -> None:
    shell = Shell(limits=LIMITS, read_only_binds=BINDS)
    output = await attempt((READING | HARMLESS)[name], world, scope, 10, shell)
    world.check(output)
    after = await attempt("ls", world, scope, 10, shell)
    assert after.content.split() == ["data", "notes.txt"]


@pytest.mark.parametrize("name", EXHAUSTING)
async def test_nothing_is_used_up(name: str, world: World, scope: Scope) -> None:
    command, told = EXHAUSTING[name]
    shell = Shell(limits=LIMITS, read_only_binds=BINDS)
    output = await attempt(command, world, scope, 1.0 if told in ("stopped", "left out") else 90, shell)
    assert output.is_error
    assert told in output.content
    world.check(output)
    after = await attempt("ls; cat notes.txt", world, scope, 10, shell)
    assert after.content.split() == ["data", "notes.txt", "keep", "me"]


IN_THE_OPEN = sorted(
    set(READING) - {"a file in the home folder", "our own environment", "everything there is"}
)


# Outside, a search of everything reads the whole disk.
@pytest.mark.parametrize("name", [*IN_THE_OPEN, pytest.param("everything there is", marks=pytest.mark.full)])
async def test_without_a_sandbox_the_same_does(name: str, world: World, scope: Scope) -> None:
    output = await attempt(READING[name], world, scope, 120, Shell(limits=LIMITS, unprotected=True))
    world.heard.clear()
    assert world.secret in output.content
