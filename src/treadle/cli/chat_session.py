"""What `treadle chat` does: lines from a person to turns of a session."""

import contextlib
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from treadle.agent.agent import Agent
from treadle.agent.run import Run
from treadle.agent.session import Session
from treadle.cli.terminal.ask import make_approver
from treadle.cli.terminal.execute import Work
from treadle.cli.terminal.format import exit_code, join_codes
from treadle.cli.terminal.output import (
    clean,
    is_live,
    print_error,
    print_note,
    stdout,
    write_command,
    write_count,
)
from treadle.cli.terminal.view import TextView
from treadle.core.state import fold
from treadle.loop.driver import Emit

HELP = """Type a message and Enter. A line that is one of these words does something else:
/help   this
/files  the files of the session
/quit   leave; so does Ctrl-D
Ctrl-C stops the turn that is going on."""


class Chat:
    """One person's conversation with one session."""

    def __init__(self, agent: Agent, path: Path | None, run_id: str | None) -> None:
        self._agent = agent
        self._path = path
        self._run_id = run_id
        self._is_person = sys.stdin.isatty()
        self._approver = agent.approver = make_approver(None, is_json=False)
        self._codes: list[int] = []

    def run(self) -> int:
        """Talk until the person leaves; the exit code, of which only programs' turns have a say."""
        with Work() as work:
            session = self._agent.session(self._run_id)
            work.run(session.open())
            try:
                self._greet(session)
                self._talk(work, session)
            finally:
                work.run(session.close())
        assert session.run_id is not None
        print_note("go on with: " + write_command("chat", "--session", session.run_id, journal=self._path))
        return 0 if self._is_person else join_codes(self._codes)

    def _greet(self, session: Session) -> None:
        run = self._read(session)
        tools = ", ".join(self._agent.tools) or "none"
        print_note(f"session {session.run_id} · {self._agent.model.name} · tools: {tools} · /help")
        if run.state.turn:
            print_note(f"{write_count(run.state.turn, 'turn')} so far; the last answer was:")
            stdout().print(clean(run.output), soft_wrap=True)

    def _talk(self, work: Work, session: Session) -> None:
        if session.is_turn_open:
            print_note("the last turn was interrupted; going on with it")
            self._take_turn(work, lambda emit: session.finish_turn(on_event=emit))
        while (line := self._read_line()) is not None:
            if line in ("/quit", "/exit"):
                return
            if line == "/help":
                print_note(HELP)
            elif line == "/files":
                self._print_files(session)
            elif line.startswith("/") and line[1:].isalpha():
                print_error(f"there is no command {line!r}; /help lists them")
            elif line:
                self._take_turn(work, partial(self._send, session, line))

    def _take_turn(self, work: Work, start: Callable[[Emit], Coroutine[Any, Any, Run]]) -> None:
        view = TextView(is_live=is_live(), shows_input=not self._is_person)
        if self._approver is not None:
            self._approver.view = view
        begin = time.monotonic()
        try:
            run = work.run(start(view.on_event))
        except KeyboardInterrupt:
            view.close()
            print_note("stopped")
            self._codes.append(130)
            if not self._is_person:
                raise
            return
        except BaseException:
            view.close()
            raise
        view.finish(run, time.monotonic() - begin)
        for call_id in run.approvals:
            command = write_command("approve", run.run_id, call_id, "yes", journal=self._path)
            print_note(f"a call waits for a yes; leave, and decide with: {command}")
        self._codes.append(exit_code(run))

    @staticmethod
    def _send(session: Session, text: str, emit: Emit) -> Coroutine[Any, Any, Run]:
        return session.send(text, on_event=emit)

    def _read_line(self) -> str | None:
        """What was typed; `None` at the end."""
        if not self._is_person:
            line = sys.stdin.readline()
            return line.strip() if line else None
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input)
        while True:
            try:
                return input("\n› ").strip()
            except EOFError:
                stdout().print()
                return None
            except KeyboardInterrupt:
                stdout().print()
                print_note("Ctrl-D leaves")

    def _print_files(self, session: Session) -> None:
        files = self._read(session).files
        for path, content in sorted(files.items()):
            stdout().print(f"{clean(path)}  {write_count(len(content), 'byte')}", soft_wrap=True)
        if not files:
            print_note("no files")

    def _read(self, session: Session) -> Run:
        assert session.run_id is not None
        journal = self._agent.journal
        return Run(session.run_id, fold([event.body for event in journal.read(session.run_id)]), journal)
