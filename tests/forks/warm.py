"""What a process does once when it first needs it, done in the fork server for all forked processes: plug-ins are
found, and the patterns of judgements compiled."""

from treadle.core.types import ToolSpec
from treadle.routing.judging.inabilities import find_refusal
from treadle.routing.judging.judgements import judge_message
from treadle.tools.resolve import TOOLSETS

MESSAGES = (
    "Delete the old database on the server, then compare it with that of last week. What do you think?",
    "Kan du slette den gamle databasen på serveren? Takk, det er bra.",
    "I'm sorry, but I can't search the web.",
    "Thanks!",
)

TOOLSETS.names()
for message in MESSAGES:
    judge_message(message)
    find_refusal(message, tools=[ToolSpec("web_search", "Search the web.", {})])
