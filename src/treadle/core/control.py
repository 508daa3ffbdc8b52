"""Control tokens of chat templates in text that somebody else wrote, such as `<|im_end|>`.

A server that makes one prompt of all messages may read such a text as the end of a message, so that what follows it
seems to come from the system or the user.
"""

import re

_BAR = "|\uff5c"
_BLANK = r"[\s\u200b-\u200f\u2060\ufeff]{0,20}"
_TOKEN = re.compile(
    rf"<(?=[{_BAR}][^\s<>{_BAR}]{{1,60}}[{_BAR}]>)"
    r"|<(?=/s>|</?sys>>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk)>)"
    rf"|<(?={_BLANK}/?{_BLANK}tool_(?:response|result|output)s?\b)"
    r"|\[(?=/?(?-i:INST|TOOL_RESULTS|TOOL_CALLS|AVAILABLE_TOOLS|SYSTEM_PROMPT)\])",
    re.IGNORECASE,
)
_INSTEAD = {"<": "&lt;", "[": "&#91;"}


def defuse(text: str) -> str:
    """Return `text` with `&lt;` or `&#91;` in place of the first character of each control token."""
    return _TOKEN.sub(lambda found: _INSTEAD[found[0]], text)
