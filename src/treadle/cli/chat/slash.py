"""The commands of a conversation, such as `/files`: lines that are not sent to the model."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.cli.terminal.format import format_compaction, write_run_cost
from treadle.cli.terminal.output import (
    print_line,
    print_note,
    shorten,
    spinner,
    stderr,
    write_count,
    write_usage,
)
from treadle.core.errors import ConfigError
from treadle.core.events import TurnStarted
from treadle.core.prompts.prompting import count_prompt, find_room
from treadle.core.registry import did_you_mean
from treadle.core.state import State

if TYPE_CHECKING:
    from treadle.cli.chat.conversation import Chat
    from treadle.knowledge.memory import Memory

_MAX_SHOWN = 20
_TITLE_CHARS = 100
"""How much of a message that waits is shown."""


class SlashCommand(Struct, frozen=True):
    about: str
    """What the command does, for `/help`."""
    perform: Callable[["Chat", str], None]
    """The function that carries out the command. It is called with the text after the command."""
    takes: str = ""
    """The name of the text after the command; empty if the command takes no text."""
    is_quick: bool = False
    """True if the command can be carried out during a turn, because it only looks."""


def is_misspelt(text: str) -> bool:
    """Return whether a message begins with a command that does not exist, and not with the path of a file."""
    command, _, rest = text.partition(" ")
    is_near = bool(did_you_mean(command, COMMANDS)) and not Path(command).exists()
    return command.startswith("/") and command[1:].isalpha() and (not rest or is_near)


def _help(chat: "Chat", _: str) -> None:
    names = {name: f"{name} {item.takes}".rstrip() for name, item in COMMANDS.items()}
    indent = max(map(len, names.values())) + 2
    for line in _wrap(_KEYS):
        print_note(line)
    for name, item in COMMANDS.items():
        first, *more = _wrap(item.about, indent)
        print_note("\n".join([f"{names[name]:{indent}}{first}", *[" " * indent + line for line in more]]))
    for line in _wrap(_MORE):
        print_note(line)


def _wrap(text: str, indent: int = 0) -> list[str]:
    """Return a text in lines that fit the terminal with an indent."""
    return textwrap.wrap(text, min(stderr().width, _WIDEST) - indent, break_on_hyphens=False)


_WIDEST = 110
"""The longest line of the help."""
_KEYS = (
    "Type a message and press Enter. Alt-Enter, Ctrl-J, or Enter after a backslash begins a new line; pasted text "
    "keeps its lines. The arrow keys bring earlier messages back, and Tab completes. These words are commands:"
)
_MORE = (
    "@FILE in a message sends the file too, and so does a message that is only the path of a file. While a turn "
    "runs, a line that you type is answered after it, and the model sees a line that begins with ! at its next "
    "step. Esc or Ctrl-C stops the current turn, and Ctrl-D leaves."
)


def _files(chat: "Chat", _: str) -> None:
    files = chat.session.files
    for path, content in sorted(files.items()):
        print_line(f"{path}  {write_count(len(content), 'byte')}")
    if not files:
        print_note("no files")


def _attach(chat: "Chat", name: str) -> None:
    chat.attach(name)


def _context(chat: "Chat", _: str) -> None:
    print_note(describe_context(chat.session.run.state))


def describe_context(state: State) -> str:
    """Return how much of the model's context the next prompt fills, in words."""
    room, tokens = find_room(state), count_prompt(state)
    share = (
        "the window of the model is not known" if room is None else f"{tokens / room:.0%} of {room:,} tokens"
    )
    done = f" · compacted {write_count(state.shown.compactions, 'time')}" if state.shown.compactions else ""
    return f"the next prompt has about {tokens:,} tokens ({share}){done}"


def _compact(chat: "Chat", _: str) -> None:
    with spinner("compacting"):
        done = chat.work.run(chat.session.compact())
    if done is None:
        kept = chat.session.run.state.policy.keep_turns
        newest = f" before the newest {write_count(kept, 'turn')}, which stay as they are" if kept else ""
        print_note(f"there is nothing to compact{newest}")
        return
    print_note(format_compaction(done))


def _cost(chat: "Chat", _: str) -> None:
    run = chat.session.run
    facts = (
        write_count(run.state.turn.number, "turn"),
        write_count(run.steps, "step"),
        write_usage(run.usage),
        write_run_cost(run),
    )
    print_note(" · ".join(facts))


def _memory(chat: "Chat", text: str) -> None:
    from treadle.cli.commands.memories import print_entry
    from treadle.knowledge.memory import REMEMBERED

    memory = _find_memory(chat)
    if text:
        found = chat.work.run(memory.search(text, limit=_MAX_SHOWN))
        entries = [hit.entry for hit in found.hits]
    else:
        entries = memory.store.entries(REMEMBERED, _MAX_SHOWN, newest_first=True)
    for entry in entries:
        print_entry(entry)
    if not entries:
        print_note("nothing is remembered" + (" that fits" if text else ""))


def _remember(chat: "Chat", text: str) -> None:
    from treadle.knowledge.memory import Author, Draft, Store

    memory = _find_memory(chat)
    if not text:
        raise ConfigError("write what to remember after /remember")
    written = chat.work.run(memory.write(Draft(store=Store.SELF_FACTS, text=text, author=Author.USER)))
    print_note(f"remembered as {written.entry.entry_id}" if written.entry else "deleted before, and not kept")


def _forget(chat: "Chat", text: str) -> None:
    from treadle.cli.commands.memories import forget_entries

    memory = _find_memory(chat)
    if not text:
        raise ConfigError("write the ids of memories after /forget; /memory lists them")
    forget_entries(memory, text.split())


def _find_memory(chat: "Chat") -> "Memory":
    known = chat.agent.known
    if known is None or known.memory is None:
        raise ConfigError("this session has no memory; begin one with --memory or a persona that has one")
    return known.memory


def _retry(chat: "Chat", _: str) -> None:
    chat.retry()


def _tools(chat: "Chat", _: str) -> None:
    from treadle.cli.commands.tools import print_specs

    print_specs([tool.spec for tool in chat.agent.tools.values()])
    if not chat.agent.tools:
        print_note("no tools")


def _model(chat: "Chat", name: str) -> None:
    if name:
        chat.switch(chat.make_agent(name), chat.stored_id)
    print_note(f"the model is {chat.agent.model.name}{' from now on' if name else ''}")


def _clear(chat: "Chat", _: str) -> None:
    before = chat.stored_id
    chat.switch(chat.agent, None)
    print_note(f"a new session begins{_tell_kept(before)}")


def _fork(chat: "Chat", _: str) -> None:
    before = chat.stored_id
    if before is None:
        raise ConfigError("the session has no turn yet")
    copied = chat.copy_session(before)
    chat.switch(chat.agent, copied)
    print_note(f"this is the session {copied} from now on, a copy{_tell_kept(before)}")


def _undo(chat: "Chat", _: str) -> None:
    before, turn = chat.stored_id, chat.session.run.state.turn
    opened = turn.opened
    if before is None or opened is None:
        raise ConfigError("the session has no turn yet")
    copied = None
    if turn.number > 1:
        begun = [
            event.seq
            for event in chat.session.run.events
            if isinstance(event.body, TurnStarted) and event.body.turn == turn.number
        ]
        copied = chat.copy_session(before, begun[-1] - 1)
    chat.switch(chat.agent, copied)
    if opened.message in chat.session.queued:
        chat.take_back(opened.message)
    chat.prompt.draft = opened.message.content
    print_note(f"turn {turn.number} is taken back, with its changes of files{_tell_kept(before)}")


def _tell_kept(run_id: str | None) -> str:
    return "" if run_id is None else f"; the session before is kept as {run_id}"


def _queue(chat: "Chat", text: str) -> None:
    waiting = chat.session.queued
    if text:
        number = int(text) if text.isdecimal() else 0
        if not 1 <= number <= len(waiting):
            raise ConfigError(f"{text!r} is not the number of a message that waits; /queue lists them")
        chat.take_back(waiting[number - 1])
        chat.prompt.draft = waiting[number - 1].content
        print_note(f"taken back: {shorten(waiting[number - 1].content, _TITLE_CHARS)}")
        return
    for number, message in enumerate(waiting, 1):
        print_line(f"{number:>3}  {shorten(message.content, _TITLE_CHARS)}")
    print_note("/queue N takes a message back" if waiting else "no message waits")


def _save(chat: "Chat", name: str) -> None:
    from treadle.export.whole import write_whole
    from treadle.trajectory.markdown import write_markdown

    path, run = Path(name).expanduser(), chat.session.run
    if not name or os.path.lexists(path):
        raise ConfigError(f"{name!r} exists; name another file" if name else "write /save FILE")
    if chat.stored_id is None:
        raise ConfigError("the session has no turn yet")
    text = "".join(write_markdown(run.run_id, (event.body for event in run.events), None)).rstrip()
    write_whole([text.encode()], path)
    print_note(f"written to {name!r}")


def _quit(chat: "Chat", _: str) -> None:
    chat.is_over = True


COMMANDS: dict[str, SlashCommand] = {
    "/help": SlashCommand("show this text", _help, is_quick=True),
    "/model": SlashCommand("show the model, or go on with another one", _model, "[NAME]"),
    "/tools": SlashCommand("list the tools with their effects", _tools, is_quick=True),
    "/files": SlashCommand("list the files of the session", _files, is_quick=True),
    "/attach": SlashCommand(
        "send an image, audio, text or document with the next message", _attach, "FILE", is_quick=True
    ),
    "/queue": SlashCommand(
        "list the messages that wait for their turns, or take number N back", _queue, "[N]", is_quick=True
    ),
    "/retry": SlashCommand("try the last turn again, if it ended with an error", _retry),
    "/undo": SlashCommand("take the last turn back, and edit its message", _undo),
    "/fork": SlashCommand("go on with a copy of the session, and keep this one as it is", _fork),
    "/clear": SlashCommand("begin a new session with the same model and tools", _clear),
    "/save": SlashCommand("write the session to a Markdown file", _save, "FILE", is_quick=True),
    "/cost": SlashCommand("show the tokens and the cost so far", _cost, is_quick=True),
    "/context": SlashCommand("show how full the model's context is", _context, is_quick=True),
    "/compact": SlashCommand("summarise old turns now, so that later ones cost less", _compact),
    "/memory": SlashCommand("list the newest memories, or search them for TEXT", _memory, "[TEXT]"),
    "/remember": SlashCommand("remember TEXT across sessions", _remember, "TEXT"),
    "/forget": SlashCommand("delete memories with all their versions", _forget, "ID..."),
    "/quit": SlashCommand("leave", _quit),
}
"""The commands, in the order in which `/help` lists them."""
