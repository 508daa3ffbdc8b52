"""`treadle chat`: a person's conversation with a session."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.agent.session import Session
from treadle.cli.chat.keyboard import ChatPrompt, Keyboard
from treadle.cli.chat.mentioned_files import as_file, find_files
from treadle.cli.chat.slash import COMMANDS, is_misspelt
from treadle.cli.exit import ExitCode, join_codes
from treadle.cli.jobs.driving import FollowUp, print_follow_up
from treadle.cli.jobs.execute import CommandLoop
from treadle.cli.jobs.resumed_agents import print_knowledge
from treadle.cli.terminal.format import exit_code
from treadle.cli.terminal.output import is_live, print_error, print_line, print_note, spinner, write_count
from treadle.cli.terminal.session_meter import SessionMeter, TurnView
from treadle.cli.terminal.terminal_asker import find_person
from treadle.cli.terminal.transcripts import EventPrinter
from treadle.cli.terminal.view import JsonView
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.events import TurnCompleted, TurnStarted
from treadle.core.registry import did_you_mean
from treadle.core.types import Delivery, Message, StopReason, ToolCall
from treadle.loop.listener import Emit
from treadle.routing.judging.judges import ASK_TOOL
from treadle.runs.run import Run

_MAX_TOOLS = 8
"""How many tools are named when a conversation begins."""


class Chat:
    """A person's conversation with one session."""

    def __init__(
        self,
        make: Callable[[str | None, str | None], Agent],
        follow_up: FollowUp,
        run_id: str | None,
        *,
        is_json: bool = False,
        has_named_judge: bool = False,
    ) -> None:
        """Make a conversation. With `is_json`, each line of input is a message, and the output is lines of JSON.
        `has_named_judge`: the person has chosen who judges the messages.

        `make` returns an agent with a model, by default that of the command line, for a session or a new one.
        """
        self._make = make
        self._is_json = is_json
        self._has_named_judge = has_named_judge
        self.is_over = False
        """True once the person has asked to leave."""
        self._follow_up = follow_up
        commands = {name: item.takes == "FILE" for name, item in COMMANDS.items()}
        self.prompt = ChatPrompt(
            commands, lambda: self.agent.tools, is_person=sys.stdin.isatty() and not is_json
        )
        self._person = None if is_json else find_person()
        self._later: list[str] = []
        """The commands that were typed during a turn, and are carried out after it."""
        self._use(make(None, run_id), run_id)
        self._meter = SessionMeter()
        self._codes: list[int] = []
        self._attached: list[Path] = []
        """The files for the next message."""

    def _use(self, agent: Agent, run_id: str | None) -> None:
        self.agent = agent
        person = self._person
        agent.approver, agent.asker = (None, None) if person is None else (person.approve, person.answer)
        self._follow_up = replace(self._follow_up, tools=agent.spec.tools)
        self.session: Session = agent.session(run_id)

    @property
    def stored_id(self) -> str | None:
        """The id of the session; `None` if it has no turn yet, so that the journal may not have it."""
        state = self.session.run.state
        return self.session.run_id if state.turn.number or state.queued else None

    def make_agent(self, model: str) -> Agent:
        """Return the agent of the session with another model. Raises: `ConfigError`."""
        return self._make(model, self.stored_id)

    def switch(self, agent: Agent, run_id: str | None) -> None:
        """Go on with a session of an agent, or with a new one for `None`. Raises: `TreadleError`."""
        before = self.agent, self.session.run_id if self.session.run.state.turn.number else None
        try:
            self.work.run(self.session.close())
            self._use(agent, run_id)
            self.work.run(self.session.open())
        except (TreadleError, KeyboardInterrupt):
            self._use(*before)
            self.work.run(self.session.open())
            raise
        finally:
            run = self.session.run
            self._meter = SessionMeter.of(run) if run.state.turn.number else SessionMeter()

    def copy_session(self, run_id: str, at: int | None = None) -> str:
        """Return the id of a copy of a session up to event `at`; `None`: the last. Nothing is driven in the copy: a
        turn that is open there goes on when the copy is continued."""
        run = self.session.run
        if at is None and run.state.turn.is_open and not (run.approvals or run.questions):
            at = _find_end(run)
        agent = copy(self.agent)
        agent.approver = agent.asker = None
        return self.work.run(agent.fork(run_id, at)).run_id

    def take_back(self, message: Message) -> None:
        """Take back a message that waits for its turn."""
        withdrawing = self.session.withdraw(message)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.work.run(withdrawing)
        else:
            self._withdrawing = loop.create_task(withdrawing)

    def run(self) -> int:
        """Run the conversation until the input ends, and return the exit code; on a terminal it is always 0."""
        with CommandLoop() as self.work:
            with spinner("starting the tools"):
                self.work.run(self.session.open())
            stored = None
            try:
                self._greet()
                try:
                    self._talk()
                finally:
                    stored = self.stored_id
            finally:
                self.work.run(self.session.close())
                if stored is not None:
                    print_note("continue with: " + self._follow_up.write("chat", session=stored))
        return ExitCode.DONE if self.prompt.is_person else join_codes(self._codes)

    def _greet(self) -> None:
        run = self.session.run
        names = list(self.agent.tools)
        more = [f"and {len(names) - _MAX_TOOLS} more"] if len(names) > _MAX_TOOLS + 1 else names[_MAX_TOOLS:]
        tools = ", ".join([*names[:_MAX_TOOLS], *more]) or "none"
        print_note(f"session {run.run_id} · {self.agent.model.name} · tools: {tools} · /help")
        if self._is_json:
            return
        if self._has_named_judge and self.agent.judge is not None and ASK_TOOL not in self.agent.tools:
            print_note(
                "messages are judged, and the model cannot ask about unclear ones: give it --tools ask, or turn "
                "judging off with --judge none"
            )
        if self.agent.known is not None:
            for line in self.agent.known.greeting:
                print_line(line)
            print_knowledge(self.agent)
        state = run.state
        if state.turn.number:
            self._meter = SessionMeter.of(run)
            newest = "" if state.turn.is_open else "; the newest one:"
            print_note(f"{write_count(state.turn.number, 'turn')} so far{newest}")
            if state.turn.opened is not None:
                EventPrinter(is_full=True).print_said(state.turn.opened.message, "asked again")
            last = state.transcript[-1]
            if not state.turn.is_open and (said := run.output or last.content * last.is_partial):
                print_line(said)

    def _talk(self) -> None:
        self._finish_turn()
        while not self.is_over and (text := self.prompt.read()) is not None:
            if self._is_json:
                self._say(text)
            elif not self._do(text):
                if (path := as_file(text)) is not None:
                    self.attach(path)
                else:
                    self._say(text)
            later, self._later = self._later, []
            for line in later:
                self._do(line)

    def _say(self, text: str) -> None:
        """Send a message, once the turn before it is finished."""
        if text and self._finish_turn():
            attach = self._take_files(text)
            self._take_turn(lambda emit: self.session.send(text, attach=attach, on_event=emit), typed=text)
        elif text:
            print_note("the message was not sent, because the previous turn is not finished")
            self.prompt.draft = text

    def _take_files(self, text: str) -> list[Path]:
        """Return the files that are sent with a message: those that were attached, and those that it names."""
        named, missing = find_files(text)
        if named:
            print_note(f"with {', '.join(map(str, named))}")
        for name in missing:
            print_note(f"there is no file {name!r}; the message is sent without it")
        files = {path.resolve(): path for path in (*self._attached, *named)}
        self._attached = []
        return list(files.values())

    def _do(self, text: str, *, is_turn: bool = False) -> bool:
        """Carry out the command that a line is, and return whether it is one, if only a misspelt one. During a
        turn, a command that changes something is put off until the turn has ended."""
        name, _, rest = text.partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            if is_misspelt(text):
                hint = did_you_mean(name, COMMANDS) or ";"
                self._refuse(f"there is no command {name!r}{hint} /help lists the commands")
                return True
            return False
        if rest.strip() and not command.takes:
            self._refuse(f"{name} takes no text; write it alone, or begin a message with another word")
            return True
        if is_turn and not (command.is_quick or (name == "/model" and not rest.strip())):
            self._later.append(text)
            print_note(f"{name} is done after the turn")
            return True
        try:
            command.perform(self, rest.strip())
        except TreadleError as error:
            self._refuse(str(error), ExitCode.MISUSE if isinstance(error, ConfigError) else ExitCode.FAILED)
        except KeyboardInterrupt:
            if not self.prompt.is_person:
                raise
            print_note(f"{name} was stopped")
        return True

    def _refuse(self, text: str, code: ExitCode = ExitCode.MISUSE) -> None:
        """Say why a command was not carried out."""
        print_error(text)
        self._codes.append(code)

    def _finish_turn(self) -> bool:
        """Continue a turn that was interrupted or waits for a decision, and return True if no turn is open."""
        session = self.session
        if session.queued and not session.is_turn_open:
            print_note("messages that you sent before are answered now")
            self._take_turn(lambda emit: session.finish_turn(on_event=emit))
        if session.is_turn_open:
            run = session.run
            if run.approvals or run.questions:
                print_note("the last turn waits for your decision")
            elif _find_end(run) is not None:
                print_note("the last turn ended with an error; it is tried again now")
            else:
                print_note("the last turn was interrupted; it continues now")
            calls = [item.call for item in run.state.turn.calls.values()]
            self._take_turn(lambda emit: session.finish_turn(on_event=emit), calls)
        return not session.is_turn_open

    def retry(self) -> None:
        """Try the last turn again, if it ended with an error."""
        state = self.session.run.state
        if state.ending.stop_reason is StopReason.CONTEXT_OVERFLOW and not state.has_failed_turn:
            raise ConfigError(
                "the turn is over, because it is too long for the model, and what was done in it stays; make "
                "room with /compact, or choose a model with a larger window with /model, and then say 'go on'"
            )
        self._take_turn(lambda emit: self.session.retry_turn(on_event=emit))

    def attach(self, name: str) -> None:
        """Remember a file for the next message."""
        path = Path(name).expanduser()
        if not path.is_file():
            self._refuse(f"there is no file {name!r}; write /attach FILE" if name else "write /attach FILE")
            return
        self._attached.append(path)
        print_note(f"{name} goes with the next message")

    def _take_turn(
        self,
        start: Callable[[Emit], Coroutine[Any, Any, Run]],
        calls: Iterable[ToolCall] = (),
        typed: str | None = None,
    ) -> None:
        """Run a turn and show it. `calls` are the calls that the model made before, in the same turn. `typed` is
        the message of the turn if the person has just typed it."""
        view = JsonView() if self._is_json else self._make_view(calls, typed)
        begin = time.monotonic()
        try:
            with closing(view):
                run = self.work.run(self._listen(start(view.on_event), view))
        except KeyboardInterrupt:
            print_note(f"stopped · {self._meter.take(self.session.run)}")
            self._codes.append(ExitCode.INTERRUPTED)
            if not self.prompt.is_person:
                raise
            return
        except ConfigError as error:
            print_error(str(error))
            self._codes.append(ExitCode.FAILED)
            return
        view.finish(run, time.monotonic() - begin)
        if (run.approvals or run.questions) and self.prompt.is_person:
            what = "for the decision" if run.approvals else "the question"
            print_note(f"your next message asks {what} again; Ctrl-C there ends the turn")
        elif run.state.has_failed_turn and self.prompt.is_person:
            print_note("/retry tries it again")
        else:
            print_follow_up(run, self._follow_up)
        self._codes.append(exit_code(run))

    def _make_view(self, calls: Iterable[ToolCall], typed: str | None) -> TurnView:
        is_person = self.prompt.is_person
        view = TurnView(is_live=is_live(), shows_input=not is_person, calls=calls)
        view.meter, view.session, view.typed = self._meter, self.session, typed if is_person else None
        if self._person is not None:
            self._person.view = view
        return view

    async def _listen(self, turn: Coroutine[Any, Any, Run], view: TurnView | JsonView) -> Run:
        """Run a turn, pass on the lines that the person types meanwhile, and answer those that wait after it."""
        keyboard = typing = None
        if isinstance(view, TurnView) and self.prompt.is_person and self._person is not None:
            keyboard = Keyboard(self.prompt, view, self._person.keyboard)
            typing = asyncio.ensure_future(keyboard.watch(self._pass_line))
        try:
            run = await turn
            while self.session.queued and not self.session.is_turn_open:
                run = await self.session.finish_turn(on_event=view.on_event)
            return run
        finally:
            if keyboard is not None and typing is not None:
                keyboard.stop()
                await typing

    def _pass_line(self, text: str) -> None:
        if self._do(text, is_turn=True):
            return
        if text.startswith("!") and text[1:].strip():
            self.session.post(text[1:].strip(), Delivery.STEER)
            print_note("the model sees this at its next step")
        elif text:
            self.session.post(text)
            print_note("this is answered after the turn")


def _find_end(run: Run) -> int | None:
    """Return the number of the event that ended the newest turn; `None` if that turn has not ended."""
    for event in reversed(run.events):
        if isinstance(event.body, TurnStarted | TurnCompleted):
            return event.seq if isinstance(event.body, TurnCompleted) else None
    return None
