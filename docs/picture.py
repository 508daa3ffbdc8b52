"""Draw the README's pictures from real runs: `python docs/picture.py demo chat rollout viewer`.

`docs/demo.svg` is the output of the demonstration, and `docs/rollout.svg` that of the rollouts', with tokens of a
run. `docs/chat.svg` is a conversation at a real terminal, with a
model on a local server whose answers are written below. `docs/viewer.png` is the page of a run.
"""

import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

DOCS = Path(__file__).parent
WIDTH = 112
DEMO_LINES = 27
TOKEN_LINES = 20
CHAT_LINES = 30
VIEWED_TASK = "files:config_fix-0000"
VIEWED_WORD = "proxy"
VIEWED_CALL = 7

THEME = TerminalTheme(
    (41, 41, 41),
    (197, 200, 198),
    [
        (24, 26, 28),
        (204, 85, 90),
        (126, 200, 136),
        (240, 192, 84),
        (96, 138, 177),
        (152, 114, 159),
        (104, 160, 179),
        (197, 200, 198),
    ],
    [
        (154, 155, 153),
        (255, 90, 86),
        (190, 226, 150),
        (250, 220, 130),
        (108, 160, 220),
        (226, 121, 255),
        (118, 190, 210),
        (240, 240, 240),
    ],
)
"""Colours in which dark text is readable on green and yellow."""

PERSONA = """name: Ada
role: an assistant who keeps house for Anna
constraints: [Never cook what a guest cannot eat.]
greeting: What are we cooking?
tools: [files, ask]
memory: true
"""
QUESTION = {
    "question": "Which evening suits you better?",
    "options": [
        {"label": "Friday", "description": "the market is open, so the vegetables are fresh"},
        {"label": "Saturday", "description": "more time to cook"},
    ],
}
FILE = {"file_path": "menu.md", "content": "# Saturday\n- Mushroom risotto\n- Baked pears\n"}
ANSWER = (
    "Saturday it is: mushroom risotto, then baked pears, and no nuts in either. The menu is in `menu.md`."
)


def draw_demo() -> Text:
    """Return the first lines of the demonstration, run in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for line in _run(folder, "demo") if "left out" not in line]
    return Text.from_ansi("\n".join(["$ make demo", *lines[:DEMO_LINES]]))


def draw_rollout() -> Text:
    """Return the output of the demonstration of rollouts, and the last tokens of one of its runs."""
    with tempfile.TemporaryDirectory() as folder:
        lines = _run(folder, "rollout", "--demo")
        tokens = _run(folder, "show", "demo-5-2", "--tokens", "--journal", "rollout-demo/rollouts/runs.db")
    shown = [line for line in lines if "killed process" not in line and " in flight" not in line]
    command = "$ treadle show demo-5-2 --tokens   # sampled tokens, from probable (green) to surprising (red)"
    return Text.from_ansi(
        "\n".join(["$ treadle rollout --demo", *shown, "", command, *tokens[-TOKEN_LINES:]])
    )


def _run(folder: str, *arguments: str) -> list[str]:
    """Return the lines that a command prints, with colours."""
    done = subprocess.run(
        [sys.executable, "-m", "treadle", *arguments],
        cwd=folder,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def draw_chat() -> Text:
    """Return the screen of a terminal after a conversation."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.cli.scripted import Scripted

    steps = iter([_call("ask_user", QUESTION), _call("write_file", FILE), {"content": ANSWER}])
    server = Scripted(lambda _: next(steps))
    given = ["--persona", "ada.yaml", "--user", "anna", "-m", "m", "--base-url", server.url]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ada.yaml").write_text(PERSONA)
        fact = ["memory", "add", "Anna is allergic to nuts.", "--persona", "Ada", "--user", "anna"]
        subprocess.run([sys.executable, "-m", "treadle", *fact], cwd=folder, check=True, capture_output=True)
        screen = _type(["chat", *given], folder, ["Plan a dinner for Anna and me.\r", "2\r", "/memory\r"])
    server.stop()
    lines = [line for line in _lines(screen) if line.plain.strip() or line.spans]
    shown = [line for line in lines if not line.plain.startswith("continue with")][:CHAT_LINES]
    return Text("\n").join([Text("$ treadle chat --persona ada.yaml --user anna"), *shown])


def take_viewer() -> bytes:
    """Return the page of a run as a PNG: its transcript, with a word that was searched for, and a prompt."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.browser.chromium import Chromium

    with tempfile.TemporaryDirectory() as folder:
        _run(folder, "run", "--task", VIEWED_TASK, "--model", "oracle")
        run = json.loads(_run(folder, "runs", "--json")[0])["run_id"]
        command = [sys.executable, "-m", "treadle", "view", "--no-open", "--json"]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        browser = Chromium()
        browser.open(f"{url}&/run/{run}?find={VIEWED_WORD}", 1360, 820)
        for selector, place in ((".leaf.call", VIEWED_CALL - 1), (".inspector [role=tab]", 1)):
            time.sleep(2.0)
            browser.evaluate(f"document.querySelectorAll('{selector}')[{place}].click()")
        time.sleep(2.0)
        picture = browser.picture(is_whole=False)
        browser.close()
        server.terminate()
        server.wait()
    return picture


def _call(name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": f"c_{name}", "type": "function", "function": function}]}


def _type(arguments: list[str], folder: str, keys: list[str]) -> pyte.Screen:
    """Return the screen after a command has read `keys`, each once its output has come to rest."""
    main, other = pty.openpty()
    screen = pyte.Screen(WIDTH, 80)
    stream = pyte.ByteStream(screen)
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "80"}
    env |= {"PROMPT_TOOLKIT_NO_CPR": "1", "OPENAI_API_KEY": "k"}
    started = [sys.executable, "-m", "treadle", *arguments]
    process = subprocess.Popen(
        started, cwd=folder, env=env, stdin=other, stdout=other, stderr=other, start_new_session=True
    )
    os.close(other)
    changed = [time.monotonic()]

    def read() -> None:
        try:
            while data := os.read(main, 4096):
                stream.feed(data)
                changed[0] = time.monotonic()
        except OSError:
            return

    threading.Thread(target=read, daemon=True).start()
    for text in [*keys, ""]:
        while time.monotonic() - changed[0] < 2.0:
            time.sleep(0.05)
        if text:
            os.write(main, text.encode())
            changed[0] = time.monotonic()
    process.kill()
    process.wait()
    return screen


def _lines(screen: pyte.Screen) -> Iterator[Text]:
    """Yield the lines of a screen with their colours."""
    for row in range(screen.lines):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        for (color, is_bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            name = None if color == "default" else color if color.isalpha() else f"#{color}"
            style = Style(color=_NAMES.get(name or "", name), bold=is_bold)
            line.append("".join([cell.data for cell in run]), style)
        line.rstrip()
        yield line


_NAMES = {"brown": "yellow"}
"""The names of colours that pyte and rich call differently."""


def main() -> None:
    """Draw the pictures that are named, or all."""
    pictures = {"demo": draw_demo, "chat": draw_chat, "rollout": draw_rollout}
    for name in sys.argv[1:] or [*pictures, "viewer"]:
        if name == "viewer":
            (DOCS / "viewer.png").write_bytes(take_viewer())
            continue
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        console.print(pictures[name]())
        # Nothing is fetched to look at it: without these it takes the reader's own font.
        text = console.export_svg(title="", theme=THEME)
        svg = re.sub(r"@font-face \{.*?\}\s*|<!-- .*? -->\s*", "", text, flags=re.DOTALL)
        (DOCS / f"{name}.svg").write_text(svg)


if __name__ == "__main__":
    main()
