"""Facts within prompts: the message for a writer contains its facts as one JSON object between two lines."""

from collections.abc import Mapping

import msgspec

from treadle.core.types import Json

_BEGIN, _END = "<facts>\n", "\n</facts>"


def write_facts(facts: Mapping[str, Json]) -> str:
    """Return `facts` as a JSON object between the lines `<facts>` and `</facts>`."""
    # JSON escapes line breaks, so no value can end the block.
    return f"{_BEGIN}{msgspec.json.format(msgspec.json.encode(facts), indent=1).decode()}{_END}"
