"""What a person types while a turn runs.

On a screen, the first key pauses the output and opens a prompt, so that the answer and the typed line are not
mixed.
"""

import asyncio
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

from treadle.cli.terminal.meter import TurnView
from treadle.cli.terminal.prompt import Prompt

_LOOK_SECONDS = 0.05
"""How often a running turn looks for keys."""
_PASTES_AS_ONE, _PASTES_AS_TYPED = "\x1b[?2004h", "\x1b[?2004l"


class Keyboard:
    """The keyboard during one turn."""

    def __init__(self, prompt: Prompt, view: TurnView, lock: asyncio.Lock) -> None:
        """Make the keyboard of a turn. `lock` is held while somebody else reads from it."""
        self._prompt = prompt
        self._view = view
        self._lock = lock
        self._is_over = asyncio.Event()

    async def watch(self, on_line: Callable[[str], None]) -> None:
        """Call `on_line` for each line, until the input ends or `stop` is called."""
        # An event loop may make a file that it watches non-blocking, and with it the terminal's output.
        with _keys_at_once() if self._prompt.is_screen else nullcontext():
            while not await self._wait():
                if self._lock.locked() or not select.select([sys.stdin], [], [], 0)[0]:
                    continue
                if not await self._read(on_line):
                    return

    def stop(self) -> None:
        """End `watch`. What was typed of a line becomes the beginning of the next message."""
        self._is_over.set()
        self._prompt.put_off()

    async def _wait(self) -> bool:
        """Wait until it is time to look for keys, and return whether the turn is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._is_over.wait()
        return self._is_over.is_set()

    async def _read(self, on_line: Callable[[str], None]) -> bool:
        """Read a line and pass it on; return False at the end of the input."""
        if not self._prompt.is_screen:
            line = sys.stdin.readline()
            if line.strip():
                on_line(line.strip())
            return bool(line)
        async with self._lock:
            self._view.hold()
            try:
                if said := (await self._prompt.read_aside() or "").strip():
                    on_line(said)
            finally:
                self._view.release()
        return True


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let each key be read at once and show none. Ctrl-C stays a signal."""
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    mode = termios.tcgetattr(terminal)
    mode[0] &= ~termios.ICRNL  # Enter is read as Enter, and not as the end of a line
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    # These calls keep what was typed already.
    termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
    _write_sequence(_PASTES_AS_ONE)
    try:
        yield
    finally:
        _write_sequence(_PASTES_AS_TYPED)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _write_sequence(text: str) -> None:
    """Write to the terminal itself: a spinner replaces `sys.stdout`."""
    assert sys.__stdout__ is not None
    sys.__stdout__.write(text)
    sys.__stdout__.flush()
