"""Facts within prompts: a writer's message contains what it has to know as one JSON object between two lines."""

from collections.abc import Mapping

import msgspec

from treadle.core.types import Json

_BEGIN, _END = "<facts>\n", "\n</facts>"


def write_facts(facts: Mapping[str, Json]) -> str:
    """Return `facts` as a JSON object between the lines `<facts>` and `</facts>`."""
    # JSON escapes line breaks, so no value can end the block.
    return f"{_BEGIN}{msgspec.json.format(msgspec.json.encode(facts), indent=1).decode()}{_END}"


def read_facts(text: str) -> dict[str, Json] | None:
    """Return the facts in a prompt; `None` if it has none."""
    _, begin, rest = text.partition(_BEGIN)
    written, end, _ = rest.partition(_END)
    if not begin or not end:
        return None
    try:
        found = msgspec.json.decode(written)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None
