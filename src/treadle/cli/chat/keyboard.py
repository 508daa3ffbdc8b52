"""The input that a person types between and during the turns of a conversation.

On a screen, the first key during a turn pauses the output and opens a prompt, so that the answer and the typed
line are not mixed.
"""

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from treadle.cli.terminal.output import is_live, print_note, stdout, write_count
from treadle.cli.terminal.session_meter import TurnView
from treadle.journal.identity import state_folder

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

_PROMPT = "› "
_MAX_PASTED_LINES = 10
"""A pasted text of more lines, or of more characters, is shown as one line."""
_MAX_PASTED_CHARS = 2000
_ESCAPE_SECONDS = 0.1
"""How long to wait after Esc for the rest of a key that begins with it, such as an arrow."""


class ChatPrompt:
    """The reader of messages: from a person at the terminal, or from a pipe or file."""

    def __init__(
        self, commands: Mapping[str, bool], words: Callable[[], Iterable[str]], *, is_person: bool
    ) -> None:
        """Make a prompt that completes `commands`, which begin with `/`, and `words`, which a message may have.

        A command that maps to True takes the name of a file, which is completed too. `is_person` says that a
        person types the messages.
        """
        self.is_person = is_person
        self._commands = commands
        self._words = words
        self._session: PromptSession[str] | None = None
        self.draft = ""
        """The beginning of the next message, which the person typed before."""
        self._is_put_off = False
        self._is_aside = False
        """True while a line is read during a turn."""
        self._pastes = Pastes()

    @property
    def is_screen(self) -> bool:
        """True if the person has a terminal that can move its cursor."""
        return self.is_person and is_live()

    def read(self) -> str | None:
        """Return the next message; `None` at the end of the input."""
        if not self.is_person:
            line = sys.stdin.readline()
            return line.strip() if line else None
        while True:
            try:
                return self._pastes.unfold(self._ask()).strip()
            except EOFError:
                stdout().print()
                return None
            except KeyboardInterrupt:
                stdout().print()
                dropped = "" if self._session is None else self._session.default_buffer.text
                if dropped.strip() and self._session is not None:
                    self._session.history.append_string(self._pastes.unfold(dropped))
                print_note(f"Ctrl-D leaves{'; the arrow up brings the line back' if dropped.strip() else ''}")

    def _ask(self) -> str:
        if not self.is_screen:
            return input("\n" + _PROMPT)
        stdout().print()
        draft, self.draft = self.draft, ""
        return self._get_session().prompt(_PROMPT, default=draft)

    async def read_aside(self) -> str | None:
        """Return a line that the person types while a turn runs; `None` if nothing is to be sent, or if `put_off`
        was called meanwhile. The terminal must be a screen."""
        session = self._get_session()
        self._is_put_off, self._is_aside = False, True

        def leave_at_once() -> None:
            if self._is_put_off:
                self.put_off()

        try:
            said = await session.prompt_async(_PROMPT, pre_run=leave_at_once, handle_sigint=False)
            return self._pastes.unfold(said)
        except EOFError:
            return None
        except KeyboardInterrupt:
            self.draft = session.default_buffer.text or self.draft
            signal.raise_signal(signal.SIGINT)  # whoever waits for the signal stops the turn
            return None
        finally:
            session.app.erase_when_done = self._is_aside = False

    def put_off(self) -> None:
        """End `read_aside`, and keep the typed text for the next message."""
        self._is_put_off = True
        session = self._session
        if session is not None and session.app.is_running:
            self.draft = session.default_buffer.text
            session.app.erase_when_done = True
            session.app.exit(result="")

    def _get_session(self) -> "PromptSession[str]":
        if self._session is None:
            self._session = self._make_session()
        return self._session

    def _make_session(self) -> "PromptSession[str]":
        from prompt_toolkit import PromptSession

        session: PromptSession[str] = PromptSession(
            history=_open_history(self._pastes),
            completer=_make_completer(self._commands, self._words),
            complete_while_typing=False,
            enable_history_search=True,
            multiline=True,
            prompt_continuation=" " * len(_PROMPT),
            key_bindings=_make_bindings(self._pastes, self._stops_turn),
            enable_open_in_editor=True,
        )
        session.app.ttimeoutlen = _ESCAPE_SECONDS
        return session

    def _stops_turn(self) -> bool:
        """Return whether Esc stops the turn, and does not begin another key."""
        return self._is_aside and self._session is not None and not self._session.default_buffer.text


class Pastes:
    """The long texts that were pasted. The prompt shows one line for each, and the message has the whole text."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return a pasted text as the prompt shows it."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if lines <= _MAX_PASTED_LINES and len(text) <= _MAX_PASTED_CHARS:
            return text
        line = f"[paste {len(self._texts) + 1}: {write_count(lines, 'line')}, {len(text):,} characters]"
        self._texts[line] = text
        return line

    def unfold(self, text: str) -> str:
        """Return a typed text with the whole texts that were pasted into it."""
        for line, whole in self._texts.items():
            text = text.replace(line, whole)
        return text

    def line_before(self, text: str) -> str:
        """Return the line at the end of `text` that stands for a paste; empty if there is none."""
        return next((line for line in self._texts if text.endswith(line)), "")


def _make_bindings(pastes: Pastes, stops_turn: Callable[[], bool]) -> "KeyBindings":
    """Return the keys: Enter sends, and Alt-Enter, Ctrl-J or Enter after a backslash begin a new line. Esc stops
    the turn if `stops_turn` says so. Backspace deletes a folded paste at once."""
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def break_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste)
    def paste(event: Any) -> None:
        event.current_buffer.insert_text(pastes.fold(event.data))

    @keys.add("backspace")
    def delete(event: Any) -> None:
        buffer = event.current_buffer
        buffer.delete_before_cursor(len(pastes.line_before(buffer.document.text_before_cursor)) or 1)

    @keys.add("escape", filter=Condition(stops_turn), eager=True)
    def stop(event: Any) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    return keys


def _open_history(pastes: Pastes) -> "History":
    """Return earlier messages: a file that only its owner can read, or memory if none can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class WholeHistory(FileHistory):
        """A file with whole messages, in which pastes are not folded."""

        def append_string(self, string: str) -> None:
            """Keep a message."""
            super().append_string(pastes.unfold(string))

    try:
        path = state_folder() / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return WholeHistory(str(path))


def _make_completer(commands: Mapping[str, bool], words: Callable[[], Iterable[str]]) -> "Completer":
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class ChatCompleter(Completer):
        """A completer of commands, of files after the commands that take one, and of words."""

        def get_completions(self, document: Document, complete_event: Any) -> Iterator[Completion]:
            """Yield the completions of the text before the cursor."""
            text = document.text_before_cursor
            command, space, rest = text.partition(" ")
            if commands.get(command) and space:
                yield from paths.get_completions(Document(rest), complete_event)
                return
            start = document.get_word_before_cursor(WORD=True)
            if start.startswith("@"):
                yield from paths.get_completions(Document(start[1:]), complete_event)
                return
            known = commands if text.startswith("/") and not space else words() if start else ()
            for word in sorted(known):
                if word.startswith(start):
                    yield Completion(word, start_position=-len(start))

    return ChatCompleter()


_LOOK_SECONDS = 0.05
"""How often a running turn looks for keys."""
_PASTES_AS_ONE, _PASTES_AS_TYPED = "\x1b[?2004h", "\x1b[?2004l"


class Keyboard:
    """The keyboard during one turn."""

    def __init__(self, prompt: ChatPrompt, view: TurnView, lock: asyncio.Lock) -> None:
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
        """End `watch`. A line that is only partly typed becomes the beginning of the next message."""
        self._is_over.set()
        self._prompt.put_off()

    async def _wait(self) -> bool:
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
