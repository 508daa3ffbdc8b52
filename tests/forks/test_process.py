"""A forked process and one that Python starts behave alike."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import FOLLOWED, ForkServer, Process, start_python

FORKS = ForkServer("json")
PROGRAMS = {
    "streams": "import sys; print(sys.stdin.read().upper()); print('é', file=sys.stderr)",
    "arguments": "import sys; print(sys.argv, sys.path[0], __name__)",
    "place": "import os; print(os.getcwd(), os.environ['OWN'], len(os.environ), os.listdir('.'))",
    "exit code": "import sys; sys.exit(7)",
    "exit message": "import sys; sys.exit('over')",
    "error": "1 / 0",
    "at exit": "import atexit; atexit.register(print, 'bye'); raise SystemExit(3)",
    "handlers run by hand": "import atexit, os; print(1, flush=True); atexit._run_exitfuncs(); os._exit(5)",
    "large exit code": "import sys; sys.exit(-2)",
    "lost task": """
        import asyncio
        async def fail(): 1 / 0
        async def main(): globals().update(task=asyncio.create_task(fail())); await asyncio.sleep(0.01)
        asyncio.run(main())
        del task
    """,
    "full output": "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('x')",
    "thread": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.1), print('last'))).start()
        print('first')
    """,
    "interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
    "own handlers": "import signal; print(*(signal.getsignal(n) for n in (2, 13, 15, 17)))",
    "killed": "import os; print('lost'); os.kill(os.getpid(), 9)",
    "open files": "import os; print([n for n in range(3, 64) if os.path.exists(f'/dev/fd/{n}')][1:])",
    "child": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(1)']).returncode)",
    "closed output": "import os, sys; os.close(1); print('x'); sys.stdout.flush()",
}
CHANGES: list[dict[str, str]] = [
    {},
    {"PYTHONUNBUFFERED": "1"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONWARNINGS": "error"},
]


def outcome(process: Any) -> tuple[int, str, str]:
    out, err = process.communicate("stdin\n", timeout=60)
    # Their first lines differ: one traceback contains the server's frames, and the streams have other names.
    last = err.splitlines()[-1:] if "Traceback" in err or "Exception ignored" in err else err
    return process.returncode, out, last


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "".join(changes) or "plain")
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_as_python_starts_it(name: str, changes: dict[str, str], tmp_path: Path) -> None:
    if name == "streams" and "PYTHONIOENCODING" in changes:
        pytest.skip("the test reads UTF-8")
    arguments = ["-c", textwrap.dedent(PROGRAMS[name]), "one", "--two"]
    pipe = subprocess.PIPE
    env = {key: value for key, value in os.environ.items() if key not in FOLLOWED}
    options: dict[str, Any] = {
        "cwd": tmp_path,
        "env": {**env, "OWN": "1", **changes},
        "stdin": pipe,
        "stdout": pipe,
        "stderr": pipe,
    }
    real = start_python(*arguments, **options)
    forked = FORKS.start(*arguments, **options)
    assert isinstance(forked, Process) is not ("PYTHONWARNINGS" in changes)
    assert outcome(forked) == outcome(real)


def test_a_module_is_run_as_the_main_program(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import sys; print(__name__, sys.argv[1:], sys.modules['__main__'].__file__)"
    )
    process = FORKS.start("-m", "own", "x", cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0] == f"__main__ ['x'] {tmp_path / 'own.py'}\n"


def test_it_is_waited_for_in_pieces(tmp_path: Path) -> None:
    process = FORKS.start(
        "-c",
        "import sys; print('here', flush=True); print(sys.stdin.read())",
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == "here\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.communicate("text", timeout=60) == ("text\n", "")
    assert (process.poll(), process.wait()) == (0, 0)


def test_it_is_killed_and_does_not_take_others_along(tmp_path: Path) -> None:
    ones = [FORKS.start("-c", "import time; time.sleep(600)", cwd=tmp_path) for _ in range(2)]
    assert len({item.pid for item in ones}) == 2
    ones[0].kill()
    assert ones[0].wait(60) == -signal.SIGKILL
    assert ones[1].poll() is None
    ones[1].send_signal(signal.SIGTERM)
    assert ones[1].wait(60) == -signal.SIGTERM
