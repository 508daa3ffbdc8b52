"""The facts that a request for a topic, a scenario, a user's turn or a judgement gives to its writer.

They are one JSON object between the lines `<facts>` and `</facts>`.
"""

from collections.abc import Mapping, Sequence

from treadle.core.texts.documents import decode_or
from treadle.core.types import Json, Message, Role

Facts = Mapping[str, Json]

_OPEN, _CLOSE = "<facts>\n", "\n</facts>"


def find_facts(messages: Sequence[Message]) -> Facts | None:
    """Return the facts in the newest user or system message that has facts; `None` if no message has facts."""
    for message in reversed(messages):
        if message.role in (Role.USER, Role.SYSTEM) and _OPEN in message.content:
            facts = read_facts(message.content)
            if facts is not None and "write" in facts:
                return facts
    return None


def read_facts(text: str) -> Facts | None:
    """Return the facts in a prompt; `None` if it has none."""
    written, close, _ = text.partition(_OPEN)[2].partition(_CLOSE)
    if not close:
        return None
    facts = decode_or(written)
    return facts if isinstance(facts, dict) else None


def text_of(facts: Facts, name: str) -> str:
    """Return a fact that is a text; an empty text if it is missing."""
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def number_of(facts: Facts, name: str, default: int) -> int:
    """Return a fact that is an integer, or `default`."""
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def texts_of(facts: Facts, name: str) -> list[str]:
    """Return the texts of a fact that is a list."""
    value = facts.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def objects_of(facts: Facts, name: str) -> list[dict[str, Json]]:
    """Return the objects of a fact that is a list."""
    value = facts.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def object_of(facts: Facts, name: str) -> dict[str, Json]:
    """Return a fact that is an object; an empty one if it is missing."""
    value = facts.get(name)
    return value if isinstance(value, dict) else {}
