"""The ids of the Responses API, which name runs, so that they need no table."""

import re

from msgspec import Struct

from treadle.core.errors import RunNotFoundError


class ResponseId(Struct, frozen=True):
    """The place of a response in its run."""

    run_id: str
    turn: int
    """The number of its turn."""
    step: int
    """How many steps of the run came before it."""
    waits: int = 0
    """How many responses before it also began with answers of the client in this step."""

    @property
    def is_compaction(self) -> bool:
        """True if the response is a compaction: it comes before the first turn of its run."""
        return self.turn == 0

    def __str__(self) -> str:
        waits = f"w{self.waits}" if self.waits else ""
        return f"resp_{self.run_id}_{self.turn}_{self.step}{waits}"


_RESPONSE = re.compile(r"resp_(.+)_(\d{1,9})_(\d{1,9})(?:w(\d{1,9}))?")
CONVERSATION = "conv_"
"""What the ids of conversations begin with."""


def read_response_id(text: str) -> ResponseId:
    """Return the place that the id of a response names. Raises: `RunNotFoundError` if it is no such id."""
    found = _RESPONSE.fullmatch(text)
    if found is None:
        raise RunNotFoundError(f"there is no response {text!r:.100}; ids are such as resp_019a2b3c_1_0")
    return ResponseId(found[1], int(found[2]), int(found[3]), int(found[4] or 0))


def conversation_id(run_id: str) -> str:
    """Return the id of the conversation that a session is."""
    return f"{CONVERSATION}{run_id}"


def read_conversation_id(text: str) -> str:
    """Return the id of the session that a conversation is. Raises: `RunNotFoundError` if it is no such id."""
    run_id = text.removeprefix(CONVERSATION)
    if not run_id or run_id == text:
        raise RunNotFoundError(f"there is no conversation {text!r:.100}; ids are such as conv_019a2b3c")
    return run_id


def wire_call_id(run_id: str, call_id: str) -> str:
    """Return the id of a call as the client gets it. It names the run, so that the result finds its way back."""
    return f"call_{run_id}_{call_id}"


_NAMED = re.compile(r"(?:call|msg|(?:msg|fc|ctc|mcpl?|fs|ws|rs|cmp)_resp)_([0-9a-f]{19})_.+")


def run_named_by(wire_id: str) -> str | None:
    """Return the run that the id of a call or of an item names; `None` if this server did not make the id."""
    found = _NAMED.fullmatch(wire_id)
    return None if found is None else found[1]


def read_call_id(run_id: str, wire: str) -> str:
    """Return the id that a call has in its run."""
    return wire.removeprefix(f"call_{run_id}_")
