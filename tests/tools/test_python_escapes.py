"""Attempts to escape from the Python sandbox or to exceed its limits. All must fail."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import Scope, ToolContext
from treadle.tools.protocol import ToolOutput
from treadle.tools.python import Python
from treadle.tools.python.interpreter import MAX_CODE_CHARS

SECRET = "s3cr3t-of-the-host-9f27"
LIMITED = Python(
    max_seconds=0.5, max_memory_bytes=32_000_000, max_output_bytes=100_000, max_files_bytes=1_000_000
)

READS = {
    "absolute": "open('{secret}').read()",
    "etc passwd": "open('/etc/passwd').read()",
    "dots": "open('../../../../../../../../..{secret}').read()",
    "dots inside": "open('a/../../../..{secret}').read()",
    "pathlib": "from pathlib import Path\nPath('{secret}').read_text()",
    "bytes": "from pathlib import Path\nPath('{secret}').read_bytes()",
    "resolve": "from pathlib import Path\nPath('/proc/self/cwd{secret}').resolve().read_text()",
    "home": "from pathlib import Path\nPath.home().joinpath('x').read_text()",
    "expanduser": "import os\nopen(os.path.expanduser('~/.profile')).read()",
    "proc environ": "open('/proc/self/environ').read()",
    "proc parent": "open('/proc/1/environ').read()",
    "proc fd": "open('/proc/self/fd/0').read()",
    "proc maps": "open('/proc/self/maps').read()",
    "device": "open('/dev/zero', 'rb').read(10)",
    "random device": "open('/dev/urandom', 'rb').read(8)",
    "memory": "open('/dev/mem', 'rb').read(10)",
    "listing": "import os\n[n for n in os.listdir('/') if n in ('etc', 'proc', 'usr')] or 1/0",
    "scan": "import os\nlist(os.walk('/etc'))[0]",
    "glob": "from pathlib import Path\nlist(Path('/').glob('etc/*')) or 1/0",
    "null byte": "open('{secret}\\0.txt').read()",
    "file url": "open('file://{secret}').read()",
    "descriptor": "open(0).read()",
    "os open": "import os\nos.open('{secret}', 0)",
    "symlink": "import os\nos.symlink('{secret}', 'l')\nopen('l').read()",
    "hard link": "import os\nos.link('{secret}', 'l')\nopen('l').read()",
    "chdir": "import os\nos.chdir('/etc')\nopen('passwd').read()",
    "environment": "import os\nos.environ['TREADLE_PLANTED']",
    "getenv": "import os\nos.getenv('TREADLE_PLANTED') or 1/0",
    "import from path": "import sys\nsys.path.insert(0, '/')\nimport planted",
    "importlib": "import importlib\nimportlib.import_module('posix')",
    "dunder import": "__import__('os').system('id')",
    "builtins": "__builtins__['open']('{secret}').read()",
    "subclasses": "().__class__.__base__.__subclasses__()",
    "mro": "''.__class__.__mro__[1].__subclasses__()",
    "globals": "(lambda: 0).__globals__['__builtins__']",
    "frame": "import sys\nsys._getframe().f_back.f_globals",
    "traceback": "try:\n    1/0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_builtins",
    "code object": "type((lambda: 0).__code__)",
    "modules": "import sys\nsys.modules['os'].popen('id').read()",
    "gc": "import gc\ngc.get_objects()",
    "inspect": "import inspect\ninspect.stack()",
    "ctypes": "import ctypes\nctypes.CDLL(None).system(b'id')",
    "pickle": "import pickle\npickle.loads(b\"cos\\nsystem\\n(S'id'\\ntR.\")",
    "marshal": "import marshal\nmarshal.loads(b'')",
    "system": "import os\nos.system('id')",
    "popen": "import os\nos.popen('id').read()",
    "subprocess": "import subprocess\nsubprocess.run(['id'])",
    "fork": "import os\nos.fork()",
    "exec": "import os\nos.execv('/bin/sh', ['sh'])",
    "spawn": "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    "pty": "import pty\npty.spawn('/bin/sh')",
    "kill parent": "import os\nos.kill(os.getppid(), 9)",
    "signal": "import signal\nsignal.alarm(1)",
    "threads": "import threading\nthreading.Thread(target=print).start()",
    "socket": "import socket\nsocket.create_connection(('127.0.0.1', 80))",
    "http": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1/')",
    "ssl": "import ssl\nssl.create_default_context()",
    "asyncio connection": "import asyncio\nawait asyncio.open_connection('127.0.0.1', 80)",
    "asyncio process": "import asyncio\nawait asyncio.create_subprocess_shell('id')",
    "mount": "import os\nos.mount('a', 'b')",
    "chmod": "import os\nos.chmod('{secret}', 0o777)",
    "remove": "import os\nos.remove('{secret}')",
    "rename": "import os\nos.rename('{secret}', 'mine')",
    "install": "import pip\npip.main(['install', 'x'])",
    "breakpoint": "breakpoint()",
    "input": "input()",
    "eval": "eval(\"open('{secret}').read()\")",
    "compile": "exec(compile(\"open('{secret}').read()\", 'x', 'exec'))",
    "format": "'{{0.__class__.__init__.__globals__}}'.format(Exception())",
    "descriptor class": "type('X', (), {{'__getattr__': lambda s, n: open('{secret}')}})().x.read()",
}

TAKES = {
    "endless loop": "while True:\n    pass",
    "endless generator": "sum(1 for _ in iter(int, 1))",
    "deep recursion": "def f(n):\n    return f(n + 1)\nf(0)",
    "mutual recursion": "a = lambda: b()\nb = lambda: a()\na()",
    "2 GB of bytes": "b'x' * 2**31",
    "2 GB of text": "'x' * 2**31",
    "2 GB of list": "[0] * 2**31",
    "doubling list": "x = [1]\nwhile True:\n    x += x",
    "doubling text": "x = 'ab'\nwhile True:\n    x += x",
    "doubling mapping": "d = {}\ni = 0\nwhile True:\n    d[i] = 'x' * 1000\n    i += 1",
    "big integer": "10 ** 10 ** 9",
    "big shift": "1 << 2**40",
    "big multiplication": "x = 10**5\nwhile True:\n    x *= x",
    "big integer as text": "str(7 ** 3_000_000)",
    "range": "list(range(10**12))",
    "comprehension": "[[0] * 1000 for _ in range(10**9)]",
    "billion laughs": "x = ['lol'] * 10\nfor _ in range(12):\n    x = [x] * 10\nrepr(x)",
    "format width": "'{:>2147483647}'.format('x')",
    "percent width": "'%2147483647d' % 1",
    "replace bomb": "('a' * 10**6).replace('a', 'b' * 10**6)",
    "join bomb": "('x' * 10**6).join(['y'] * 10**6)",
    "ljust bomb": "'x'.ljust(2**31)",
    "regular expression": "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
    "1 GB of output": "for _ in range(1000):\n    print('x' * 10**6)",
    "endless output": "while True:\n    print('x')",
    "sort": "sorted(range(10**9), key=lambda x: -x)",
    "deep nesting": "x = []\nfor _ in range(10**6):\n    x = [x]\nrepr(x)",
    "deep source": "(" * 10_000 + ")" * 10_000,
    "deep operators": "-" * 50_000 + "1",
    "long sleep": "import time\nwhile True:\n    time.sleep(0.01)\n    [0] * 10**6",
    "file bomb": "for i in range(10**6):\n    open(f'f{i}', 'w').write('x' * 1000)",
    "one large file": "open('f', 'w').write('x' * 5_000_000)",
    "growing file": "while True:\n    open('f', 'a').write('x' * 10_000)",
    "json bomb": "import json\njson.loads('[' * 10**6)",
    "class bomb": "while True:\n    class A:\n        x = [0] * 10**5",
    "exception chain": "def f(n):\n    try:\n        f(n + 1)\n    finally:\n        f(n + 1)\nf(0)",
    "many names": "\n".join(f"a{i} = 'x' * 1000" for i in range(20_000)) + "\nwhile True: pass",
    "itertools": "import itertools\nlist(itertools.product(range(10**4), repeat=3))",
    "set bomb": "set(range(10**10))",
    "big slice": "bytearray(2**33)",
}


@pytest.fixture
async def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ToolContext]:
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("TREADLE_PLANTED", SECRET)
    scope = Scope()
    yield ToolContext("r", "c", 1, MemorySandbox({"a.txt": "own"}), scope=scope)
    await scope.close()


def test_the_corpus_is_large_enough() -> None:
    assert len(READS) + len(TAKES) >= 100


async def still_works(context: ToolContext) -> None:
    output = await LIMITED.call({"code": "open('a.txt').read()"}, context)
    assert output == ToolOutput("'own'")


@pytest.mark.parametrize("name", READS)
async def test_nothing_of_the_host_is_reached(name: str, context: ToolContext, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    code = READS[name].replace("{secret}", str(secret)).replace("{{", "{").replace("}}", "}")
    output = await LIMITED.call({"code": code}, context)
    assert SECRET not in output.content
    assert "root:" not in output.content
    assert "uid=" not in output.content
    assert output.is_error or name in ("format",), output.content
    assert secret.read_text() == SECRET
    assert sorted(os.listdir(tmp_path)) == ["secret"]
    await still_works(context)


@pytest.mark.parametrize("name", TAKES)
async def test_no_more_is_taken_than_is_given(name: str, context: ToolContext) -> None:
    code = TAKES[name]
    begin = time.monotonic()
    output = (
        await LIMITED.call({"code": code}, context)
        if len(code) <= MAX_CODE_CHARS
        else ToolOutput("too long", is_error=True)
    )
    # The limit must stop the code. If it does not, the test hangs.
    assert time.monotonic() - begin < 60
    assert len(output.content) < 400_000
    assert sum(len(context.sandbox.read(path)) for path in context.sandbox.paths()) <= 1_000_003  # type: ignore[union-attr]
    await still_works(context)
