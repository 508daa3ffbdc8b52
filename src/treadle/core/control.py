"""Control tokens of chat templates in text that somebody else wrote, such as `<|im_end|>` and `<tool_call>`.

A server that makes one prompt of all messages may read such a text as the end of a message or of a thought, so that
what follows it seems to come from the system, the user or the model.
"""

import re

_BAR = "|\uff5c"
_BLANK = r"[\s\u200b-\u200f\u2060\ufeff]{0,20}+"
_TOKEN = re.compile(
    rf"<(?=[{_BAR}][^\s<>{_BAR}]{{1,60}}[{_BAR}]>|/s>|</?sys>>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk|sop)>"
    rf"|end_of_sentence>|{_BLANK}/?{_BLANK}(?:tool_(?:response|result|output|call)s?|function_calls?|think"
    rf"|arg_(?:key|value)|minimax:tool_call|[{_BAR}]DSML[{_BAR}])\b)"
    r"|\[(?=/?(?-i:INST|TOOL_RESULTS|TOOL_CALLS|ARGS|CALL_ID|AVAILABLE_TOOLS|SYSTEM_PROMPT|THINK)\]|gMASK\]|e~\[)"
    r"|\](?=~!b\[|~b\])",
    re.IGNORECASE,
)
_INSTEAD = {"<": "&lt;", "[": "&#91;", "]": "&#93;"}


def defuse(text: str) -> str:
    """Return `text` with `&lt;` or `&#91;` in place of the first character of each control token."""
    return _TOKEN.sub(lambda found: _INSTEAD[found[0]], text)
