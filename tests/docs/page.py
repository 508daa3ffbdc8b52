"""Runs the examples of one page, in their order: `python page.py PAGE`.

The Python examples of a page share their names, and may use `await` at the top level. Shell examples run in the
same folder. A Python example that begins with the comment `# NAME.py` is a file in it. An example that
is preceded by the comment `<!-- not run: REASON -->` is left out.
"""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<kind>python|sh)\n(?P<code>.*?)```", re.DOTALL
)
FILE = re.compile(r"# (\w+\.py)\n")


def blocks(page: Path) -> list[tuple[str, str, int, str | None]]:
    """Return the kind, the code, the line and the reason for leaving it out of each example."""
    text = page.read_text()
    return [
        (found["kind"], found["code"], text.count("\n", 0, found.start("code")) + 1, found["reason"])
        for found in _BLOCK.finditer(text)
    ]


def run(page: Path) -> bool:
    """Run the examples, print the first that fails, and return whether all worked."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    with asyncio.Runner() as runner:
        for kind, code, line, reason in blocks(page):
            if reason is not None:
                continue
            try:
                if kind == "sh":
                    subprocess.run(
                        ["bash", "-euo", "pipefail", "-c", code], check=True, stdin=subprocess.DEVNULL
                    )
                elif named := FILE.match(code):
                    Path(named[1]).write_text(code)
                else:
                    _run_python(runner, code, f"{page.name} line {line}", line, module)
            except BaseException:
                traceback.print_exc()
                print(f"\n{page.name}, the example at line {line}:\n{code}", file=sys.stderr)
                return False
    return True


def _run_python(runner: asyncio.Runner, code: str, name: str, line: int, module: ModuleType) -> None:
    compiled = compile(
        "\n" * (line - 1) + code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    if not compiled.co_flags & inspect.CO_COROUTINE:
        exec(compiled, module.__dict__)
        return

    async def wait() -> None:
        await eval(compiled, module.__dict__)

    runner.run(wait())


if __name__ == "__main__":
    sys.exit(not run(Path(sys.argv[1])))
