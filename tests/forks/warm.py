"""What a process does once when it first needs it, done in the fork server for all forked processes: plug-ins are
found, patterns of judgements compiled, options of commands made, and the words of memories read."""

from typing import Any

from treadle.cli.app import LazyCommand, make_app
from treadle.core.types import ToolSpec
from treadle.journal.memory import MemoryJournal
from treadle.knowledge.memory import Draft, Store, open_memory
from treadle.models.config.presets import provider_names
from treadle.routing.judging.inabilities import find_refusal
from treadle.routing.judging.judgements import judge_message
from treadle.tools.resolve import TOOLSETS

MESSAGES = (
    "Delete the old database on the server, then compare it with that of last week. What do you think?",
    "Kan du slette den gamle databasen på serveren? Takk, det er bra.",
    "I'm sorry, but I can't search the web.",
    "Thanks!",
)


def load(command: Any) -> None:
    """Load a command with those below it, and make what converts the values of its options."""
    if isinstance(command, LazyCommand):
        for own in command.own.values():
            load(own)
        load(command.whole)
        return
    for parameter in command.params:
        parameter.get_runtime_param()
    for below in getattr(command, "commands", {}).values():
        load(below)


load(make_app())
TOOLSETS.names()
provider_names()
for message in MESSAGES:
    judge_message(message)
    find_refusal(message, tools=[ToolSpec("web_search", "Search the web.", {})])
with MemoryJournal() as journal:
    memory = open_memory(journal).store
    memory.write(Draft(store=Store.SELF_FACTS, text="Kim's dog is called Rex."), 0.0)
    memory.search("How is the dog of Kim called?", 1.0)
