"""The texts of single tokens."""

from collections.abc import Sequence

from treadle.trajectory.tokens.drift import Decode

_HOLE = "\ufffd"
_MOST = 8
"""The number of tokens without a whole character after which their text is used unchanged."""


def split_text(ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text of each token, which together are the text of all of them.

    The text of a character that several tokens make is at the last of them.
    """
    found: list[str] = []
    waiting: list[int] = []
    for item in ids:
        waiting.append(item)
        text = decode(waiting)
        if text.endswith(_HOLE) and len(waiting) < _MOST:
            found.append("")
            continue
        found.append(text)
        waiting = []
    if waiting:
        found[-1] = decode(waiting)
    return found
