"""Writes the Python examples of the pages as modules that type checkers read: `python typed_pages.py FOLDER`.

The examples of a page share their names, and may use `await`: they are the body of one function.
"""

import sys
from pathlib import Path

from tests.docs.page import FILE, blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_NO_PROGRAMS = ("it is code that a model writes",)


def write_modules(folder: Path) -> None:
    """Write a module for each page with examples, and the files that examples are."""
    for page in PAGES:
        body: list[str] = []
        for kind, code, line, reason in blocks(page):
            if kind != "python" or reason in _NO_PROGRAMS:
                continue
            if (named := FILE.match(code)) is not None:
                (folder / named[1]).write_text(code)
            else:
                body += ["", f"    # {page.name}, line {line}"]
                body += ["    " + text if text else "" for text in code.splitlines()]
        if body:
            module = folder / f"page_{page.stem.replace('-', '_')}.py"
            module.write_text("\n".join(["async def page() -> None:", "    ...", *body, ""]))


if __name__ == "__main__":
    write_modules(Path(sys.argv[1]))
