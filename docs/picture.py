"""Draw docs/demo.svg, the README's picture, from a real run of the demonstration: `python docs/picture.py`."""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

LINES = 27


def main() -> None:
    """Run the demonstration in a temporary folder, and draw the first lines of its output."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "treadle", "demo"],
            cwd=folder,
            env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "112"},
            capture_output=True,
            text=True,
            check=True,
        )
    lines = [line for line in done.stdout.splitlines() if "left out" not in line]
    console = Console(record=True, width=112, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(["$ make demo", *lines[:LINES]])))
    # Nothing is fetched to look at it: without these it takes the reader's own font.
    svg = re.sub(r"@font-face \{.*?\}\s*|<!-- .*? -->\s*", "", console.export_svg(title=""), flags=re.DOTALL)
    (Path(__file__).parent / "demo.svg").write_text(svg)


if __name__ == "__main__":
    main()
