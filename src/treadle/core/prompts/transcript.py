"""The check that a transcript keeps the invariants which every transcript of a run has."""

from collections.abc import Sequence

from treadle.core.types import Message, Role


def check_transcript(messages: Sequence[Message]) -> list[str]:
    """Return the faults of a transcript, one clause each; the list is empty if the transcript is correct.

    The invariants: each tool call has exactly one result, in call order, before the next assistant message; ids
    are unique; no two assistant messages follow each other; only the first message may be a system message.
    """
    faults: list[str] = []
    awaited: list[str] = []
    seen: set[str] = set()
    previous: Role | None = None
    for index, message in enumerate(messages):
        where = f"message {index}"
        if awaited and message.role is not Role.TOOL:
            faults.append(f"{where}: {message.role} before the results of {', '.join(awaited)}")
            awaited = []
        if message.role is Role.TOOL:
            faults += _check_result(where, message, awaited)
        elif message.role is Role.ASSISTANT:
            if previous is Role.ASSISTANT:
                faults.append(f"{where}: two assistant messages in a row")
            ids = [call.call_id for call in message.tool_calls]
            twice = [item for index, item in enumerate(ids) if item in seen or item in ids[:index]]
            faults += [f"{where}: the call id {item!r} is used twice" for item in twice]
            faults += [f"{where}: a call without an id" for item in ids if not item]
            seen.update(ids)
            awaited = ids
        elif message.role is Role.SYSTEM and index:
            faults.append(f"{where}: a system message after the first")
        previous = message.role
    if awaited:
        faults.append(f"the end: no result for {', '.join(awaited)}")
    return faults


def _check_result(where: str, message: Message, awaited: list[str]) -> list[str]:
    """Return the faults of one result, and remove its call from `awaited`."""
    if message.call_id is None:
        return [f"{where}: a result without a call id"]
    if message.call_id not in awaited:
        return [f"{where}: a result for {message.call_id!r}, which no call is waiting for"]
    is_next = awaited[0] == message.call_id
    awaited.remove(message.call_id)
    return [] if is_next else [f"{where}: the result for {message.call_id!r} is out of call order"]
