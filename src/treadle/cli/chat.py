"""`treadle chat`: a conversation, in which each line of input is a turn of a session."""

import asyncio
import re
import select
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.agent.run import Run
from treadle.agent.session import Session
from treadle.cli.exit import ExitCode, join_codes
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.cli.options.complete import complete_run
from treadle.cli.options.knowledge import KnowledgeOptions
from treadle.cli.terminal.ask import make_approver
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.format import exit_code
from treadle.cli.terminal.meter import Meter, TurnView
from treadle.cli.terminal.output import clean, is_live, print_error, print_note, stdout, write_count
from treadle.cli.terminal.prompt import Prompt
from treadle.cli.terminal.questions import make_asker
from treadle.cli.work.agents import RunAgents, make_agent, print_knowledge
from treadle.cli.work.disk import read_mount
from treadle.cli.work.drive import FollowUp, print_follow_up
from treadle.cli.work.execute import Work
from treadle.cli.work.journals import find_run, open_existing, open_or_make
from treadle.core.errors import ConfigError, RunNotFoundError
from treadle.core.registry import did_you_mean
from treadle.core.types import Delivery, ToolCall
from treadle.journal.protocol import Journal, RunFilter
from treadle.loop.listener import Emit

EXAMPLES = (
    "treadle chat --model openai:gpt-5-mini --mount ./notes",
    "treadle chat --continue",
)
HELP = """Type a message and press Enter. Alt-Enter, Ctrl-J, or Enter after a backslash begins a new line; pasted
text keeps its lines. The arrow keys bring earlier messages back, and Tab completes. These words are commands:
/help         show this text
/files        list the files of the session
/attach FILE  send an image, audio, text or document with the next message
/quit         leave; Ctrl-D leaves too
@FILE in a message sends the file too, and so does a message that is only the path of a file.
While a turn runs, a line that you type is answered after it, and the model sees a line that begins with ! at its
next step. Ctrl-C stops the current turn."""
_COMMANDS = {"/help": False, "/files": False, "/attach": True, "/quit": False}
"""The commands, and whether they take the name of a file."""


def chat(
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            "-s",
            metavar="RUN",
            help="Continue a session: its id, or 'last'.",
            autocompletion=complete_run,
        ),
    ] = None,
    is_continued: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the newest session of the journal.")
    ] = False,
    *,
    agent: AgentOptions,
    knowledge: KnowledgeOptions,
    is_trusted: o.IsTrusted = False,
    mount: o.MountOptions,
    instructions: o.Instructions = None,
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
    limits: PolicyOptions,
) -> int:
    """Chat with a model that has tools.

    Ctrl-C stops a turn, Ctrl-D leaves. The limits count for each turn.
    """
    if is_continued and session is not None:
        raise ConfigError("give --session or --continue, not both")
    follow_up = FollowUp(journal, agent.api_key is not None)
    is_new = session is None and not is_continued
    with closing(open_or_make(journal, level) if is_new else open_existing(journal, level)) as opened:
        if is_new:
            runner = make_agent(
                agent,
                opened,
                limits=limits,
                instructions=instructions,
                files=read_mount(mount),
                knowledge=knowledge,
                is_trusted=is_trusted,
            )
            return Chat(runner, follow_up, None).run()
        if mount.path is not None or instructions is not None:
            raise ConfigError(
                "a session keeps its files and instructions; --mount and --instructions are for a new one"
            )
        if knowledge.is_given:
            raise ConfigError(
                "a session keeps its persona, memory, skills and documents; --persona, --memory, --user, --skills "
                "and --document are for a new one"
            )
        run_id = _find_newest(opened) if session is None else find_run(opened, session)
        agents = RunAgents(opened, agent, limits, is_trusted=is_trusted)
        return Chat(agents.agent_for_run(run_id), follow_up, run_id).run()


def _find_newest(journal: Journal) -> str:
    """Return the id of the newest session. Raises: `RunNotFoundError` if there is none."""
    found = journal.runs(RunFilter(is_session=True), limit=1, newest_first=True)
    if not found:
        raise RunNotFoundError(
            "there is no session in this journal; begin one with: treadle chat --model NAME"
        )
    return found[0].run_id


def _as_file(text: str) -> str | None:
    """Return the path that a message consists of, as terminals paste it when a file is dropped; else `None`."""
    name = text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        name = text[1:-1]
    elif text.startswith("file://"):
        name = unquote(text.removeprefix("file://"))
    elif "\\ " in text:
        name = text.replace("\\ ", " ")
    is_path = "/" in name and "\n" not in name and len(name) < _MAX_PATH_CHARS
    return name if is_path and Path(name).expanduser().is_file() else None


def find_files(text: str) -> list[Path]:
    """Return the files that a message names as `@path`."""
    found: list[Path] = []
    for name in re.findall(r"(?<!\S)@([^\s@]+)", text):
        # A sentence may end with the name.
        paths = [Path(item).expanduser() for item in (name, name.rstrip(".,;:!?)")) if item]
        found += [path for path in paths if len(name) < _MAX_PATH_CHARS and path.is_file()][:1]
    return list(dict.fromkeys(found))


def _is_misspelt(text: str) -> bool:
    """Return whether a message begins with a command that does not exist, and not with the path of a file."""
    command, _, rest = text.partition(" ")
    is_near = bool(did_you_mean(command, _COMMANDS)) and not Path(command).exists()
    return command.startswith("/") and command[1:].isalpha() and (not rest or is_near)


_MAX_PATH_CHARS = 4096
_LOOK_SECONDS = 0.05
"""How often a running turn looks for lines that the person has typed."""


class Chat:
    """A person's conversation with one session."""

    def __init__(self, agent: Agent, follow_up: FollowUp, run_id: str | None) -> None:
        self._agent = agent
        self._follow_up = replace(follow_up, tools=agent.spec.tools)
        self._run_id = run_id
        self._prompt = Prompt(_COMMANDS, lambda: agent.tools)
        self._approver = agent.approver = make_approver()
        self._asker = agent.asker = make_asker()
        self._meter = Meter()
        self._codes: list[int] = []
        self._attached: list[Path] = []
        """The files for the next message."""

    def run(self) -> int:
        """Run the conversation until the input ends, and return the exit code; on a terminal it is always 0."""
        with Work() as work:
            session = self._agent.session(self._run_id)
            with spinner("starting the tools"):
                work.run(session.open())
            try:
                self._greet(session)
                self._talk(work, session)
            finally:
                work.run(session.close())
        if session.run_id is not None and self._is_kept(session.run_id):
            print_note("continue with: " + self._follow_up.write("chat", session=session.run_id))
        return ExitCode.DONE if self._prompt.is_person else join_codes(self._codes)

    def _is_kept(self, run_id: str) -> bool:
        """Return whether the journal has the session: one without a message is not kept."""
        return bool(self._agent.journal.runs(RunFilter(id_prefix=run_id), limit=1))

    def _greet(self, session: Session) -> None:
        run = session.run
        tools = ", ".join(self._agent.tools) or "none"
        print_note(f"session {session.run_id} · {self._agent.model.name} · tools: {tools} · /help")
        if self._agent.known is not None:
            for line in self._agent.known.greeting:
                stdout().print(clean(line), soft_wrap=True)
            print_knowledge(self._agent)
        if run.state.turn:
            self._meter = Meter.of(run)
            print_note(f"{write_count(run.state.turn, 'turn')} so far; the last answer was:")
            stdout().print(clean(run.output), soft_wrap=True)

    def _talk(self, work: Work, session: Session) -> None:
        self._finish_turn(work, session)
        while (text := self._prompt.read()) is not None:
            if text in ("/quit", "/exit"):
                return
            if text == "/help":
                print_note(HELP)
            elif text == "/files":
                self._print_files(session)
            elif text.partition(" ")[0] == "/attach":
                self._attach(text.partition(" ")[2].strip())
            elif _is_misspelt(text):
                command = text.partition(" ")[0]
                hint = did_you_mean(command, _COMMANDS) or ";"
                print_error(f"there is no command {command!r}{hint} /help lists the commands")
            elif (path := _as_file(text)) is not None:
                self._attach(path)
            elif text and self._finish_turn(work, session):
                attached, self._attached = [*self._attached, *find_files(text)], []
                self._take_turn(work, session, partial(self._send, session, text, attached))
            elif text:
                print_note("the message was not sent, because the previous turn is not finished")

    def _finish_turn(self, work: Work, session: Session) -> bool:
        """Continue a turn that was interrupted or waits for a decision, and return True if no turn is open."""
        if session.queued and not session.is_turn_open:
            print_note("messages that you sent before are answered now")
            self._take_turn(work, session, lambda emit: session.finish_turn(on_event=emit))
        if session.is_turn_open:
            run = session.run
            if run.approvals or run.questions:
                print_note("the last turn waits for your decision")
            else:
                print_note("the last turn was interrupted; it continues now")
            calls = [item.call for item in run.state.calls.values()]
            self._take_turn(work, session, lambda emit: session.finish_turn(on_event=emit), calls)
        return not session.is_turn_open

    def _attach(self, name: str) -> None:
        """Remember a file for the next message."""
        path = Path(name).expanduser()
        if not path.is_file():
            print_error(f"there is no file {name!r}; write /attach FILE" if name else "write /attach FILE")
            return
        self._attached.append(path)
        print_note(f"{name} goes with the next message")

    def _take_turn(
        self,
        work: Work,
        session: Session,
        start: Callable[[Emit], Coroutine[Any, Any, Run]],
        calls: Iterable[ToolCall] = (),
    ) -> None:
        """Run a turn and show it. `calls` are the calls that the model made before, in the same turn."""
        view = TurnView(is_live=is_live(), shows_input=not self._prompt.is_person, calls=calls)
        view.meter = self._meter
        for asking in (self._approver, self._asker):
            if asking is not None:
                asking.view = view
        begin = time.monotonic()
        try:
            run = work.run(self._listen(session, start(view.on_event), view.on_event))
        except KeyboardInterrupt:
            view.close()
            print_note("stopped")
            self._codes.append(ExitCode.INTERRUPTED)
            if not self._prompt.is_person:
                raise
            return
        except ConfigError as error:
            view.close()
            print_error(str(error))
            self._codes.append(ExitCode.FAILED)
            return
        except BaseException:
            view.close()
            raise
        view.finish(run, time.monotonic() - begin)
        if (run.approvals or run.questions) and self._prompt.is_person:
            what = "for the decision" if run.approvals else "the question"
            print_note(f"your next message asks {what} again")
        else:
            print_follow_up(run, self._follow_up)
        self._codes.append(exit_code(run))

    async def _listen(self, session: Session, turn: Coroutine[Any, Any, Run], emit: Emit) -> Run:
        """Run a turn, pass on the lines that the person types meanwhile, and answer those that wait after it."""
        typing = None
        if self._prompt.is_person:
            typing = asyncio.ensure_future(self._pass_on(session))
        try:
            run = await turn
            while session.queued and not session.is_turn_open:
                run = await session.finish_turn(on_event=emit)
            return run
        finally:
            if typing is not None:
                typing.cancel()

    async def _pass_on(self, session: Session) -> None:
        """Send the lines that the person types during a turn, except answers to the approver's questions."""
        # An event loop may make a file that it watches non-blocking, and with it the terminal's output.
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            is_asking = self._approver is not None and self._approver.is_asking
            if not is_asking and select.select([sys.stdin], [], [], 0)[0]:
                line = sys.stdin.readline()
                if not line:
                    return
                self._pass_line(session, line.strip())

    def _pass_line(self, session: Session, text: str) -> None:
        if text.partition(" ")[0] in _COMMANDS:
            print_note(f"{text.partition(' ')[0]} works between turns")
        elif text.startswith("!") and text[1:].strip():
            session.post(text[1:].strip(), Delivery.STEER)
            print_note("the model sees this at its next step")
        elif text:
            session.post(text)
            print_note("this is answered after the turn")

    @staticmethod
    def _send(session: Session, text: str, attached: list[Path], emit: Emit) -> Coroutine[Any, Any, Run]:
        return session.send(text, attach=attached, on_event=emit)

    def _print_files(self, session: Session) -> None:
        files = session.files
        for path, content in sorted(files.items()):
            stdout().print(f"{clean(path)}  {write_count(len(content), 'byte')}", soft_wrap=True)
        if not files:
            print_note("no files")
