"""The commands of a conversation, such as `/files`: lines that are not sent to the model."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from treadle.cli.terminal.format import format_compaction
from treadle.cli.terminal.output import clean, print_note, stdout, write_cost, write_count, write_usage
from treadle.core.errors import ConfigError
from treadle.core.prompting import count_prompt, find_room
from treadle.core.registry import did_you_mean
from treadle.core.state import State

if TYPE_CHECKING:
    from treadle.agent.agent import Agent
    from treadle.agent.session import Session
    from treadle.cli.jobs.execute import CommandLoop
    from treadle.knowledge.memory import Memory

_MAX_SHOWN = 20
"""How many memories are shown."""


class CommandedChat(Protocol):
    """The parts of a conversation that its commands use."""

    agent: "Agent"
    session: "Session"
    work: "CommandLoop"
    is_over: bool
    """True once the person has asked to leave."""

    def retry(self) -> None:
        """Try the last turn again, if it ended with an error."""
        ...

    def attach(self, name: str) -> None:
        """Remember a file for the next message."""
        ...


class SlashCommand(Struct, frozen=True):
    """A command of a conversation."""

    about: str
    """What the command does, for `/help`."""
    perform: Callable[[CommandedChat, str], None]
    """The function that carries out the command. It is called with the text after the command."""
    takes: str = ""
    """The name of the text after the command; empty if the command takes no text."""

    @property
    def takes_file(self) -> bool:
        """True if the name of a file is written after the command."""
        return self.takes == "FILE"


def is_misspelt(text: str) -> bool:
    """Return whether a message begins with a command that does not exist, and not with the path of a file."""
    command, _, rest = text.partition(" ")
    is_near = bool(did_you_mean(command, COMMANDS)) and not Path(command).exists()
    return command.startswith("/") and command[1:].isalpha() and (not rest or is_near)


def _help(chat: CommandedChat, _: str) -> None:
    names = {name: f"{name} {item.takes}".rstrip() for name, item in COMMANDS.items()}
    width = max(map(len, names.values()))
    lines = "\n".join([f"{names[name]:{width}}  {item.about}" for name, item in COMMANDS.items()])
    print_note(f"{_KEYS}\n{lines}\n{_MORE}")


_KEYS = """Type a message and press Enter. Alt-Enter, Ctrl-J, or Enter after a backslash begins a new line; pasted
text keeps its lines. The arrow keys bring earlier messages back, and Tab completes. These words are commands:"""
_MORE = """@FILE in a message sends the file too, and so does a message that is only the path of a file.
While a turn runs, a line that you type is answered after it, and the model sees a line that begins with ! at its
next step. Ctrl-C stops the current turn, and Ctrl-D leaves."""


def _files(chat: CommandedChat, _: str) -> None:
    files = chat.session.files
    for path, content in sorted(files.items()):
        stdout().print(f"{clean(path)}  {write_count(len(content), 'byte')}", soft_wrap=True)
    if not files:
        print_note("no files")


def _attach(chat: CommandedChat, name: str) -> None:
    chat.attach(name)


def _context(chat: CommandedChat, _: str) -> None:
    print_note(describe_context(chat.session.run.state))


def describe_context(state: State) -> str:
    """Return how much of the model's context the next prompt fills, in words."""
    room, tokens = find_room(state), count_prompt(state)
    share = (
        "the window of the model is not known" if room is None else f"{tokens / room:.0%} of {room:,} tokens"
    )
    done = f" · compacted {write_count(state.shown.compactions, 'time')}" if state.shown.compactions else ""
    return f"the next prompt has about {tokens:,} tokens ({share}){done}"


def _compact(chat: CommandedChat, _: str) -> None:
    done = chat.work.run(chat.session.compact())
    if done is None:
        print_note("there is nothing to compact")
        return
    print_note(format_compaction(done))


def _cost(chat: CommandedChat, _: str) -> None:
    run = chat.session.run
    facts = (
        write_count(run.state.turn.number, "turn"),
        write_count(run.steps, "step"),
        write_usage(run.usage),
        write_cost(run.cost_usd),
    )
    print_note(" · ".join(facts))


def _memory(chat: CommandedChat, text: str) -> None:
    memory = _find_memory(chat)
    if text:
        found = chat.work.run(memory.search(text, limit=_MAX_SHOWN))
        entries = [hit.entry for hit in found.hits]
    else:
        entries = list(memory.store.entries(limit=_MAX_SHOWN, newest_first=True))
    for entry in entries:
        stdout().print(f"{entry.entry_id}  {entry.store}: {clean(entry.text)}", soft_wrap=True)
    if not entries:
        print_note("nothing is remembered" + (" that fits" if text else ""))


def _remember(chat: CommandedChat, text: str) -> None:
    from treadle.knowledge.memory import Author, Draft, Store

    memory = _find_memory(chat)
    if not text:
        raise ConfigError("write what to remember after /remember")
    written = chat.work.run(memory.write(Draft(store=Store.SELF_FACTS, text=text, author=Author.USER)))
    print_note(f"remembered as {written.entry.entry_id}" if written.entry else "deleted before, and not kept")


def _find_memory(chat: CommandedChat) -> "Memory":
    known = chat.agent.known
    if known is None or known.memory is None:
        raise ConfigError("this session has no memory; begin one with --memory or a persona that has one")
    return known.memory


def _retry(chat: CommandedChat, _: str) -> None:
    chat.retry()


def _quit(chat: CommandedChat, _: str) -> None:
    chat.is_over = True


COMMANDS: dict[str, SlashCommand] = {
    "/help": SlashCommand("show this text", _help),
    "/files": SlashCommand("list the files of the session", _files),
    "/attach": SlashCommand("send an image, audio, text or document with the next message", _attach, "FILE"),
    "/retry": SlashCommand("try the last turn again, if it ended with an error", _retry),
    "/cost": SlashCommand("show the tokens and the cost so far", _cost),
    "/context": SlashCommand("show how full the model's context is", _context),
    "/compact": SlashCommand("summarise old turns now, so that later ones cost less", _compact),
    "/memory": SlashCommand("list the newest memories, or search them for TEXT", _memory, "[TEXT]"),
    "/remember": SlashCommand("remember TEXT across sessions", _remember, "TEXT"),
    "/quit": SlashCommand("leave", _quit),
}
"""The commands, in the order in which `/help` lists them."""
