"""Marks around foreign text in a prompt: memories, documents, skills and results. What stands between them is data.

A fence looks like `<memory-3f9a2c1b04 store="episodic">` ... `</memory-3f9a2c1b04>`. The number is derived from
the content, so that the same content has the same fence when a run is resumed, and a text cannot know the
number of the fence that it will stand in. Texts inside that look like a mark are changed so that they are not
marks any more. So are the control tokens of chat templates, such as `<|im_end|>` and `<tool_call>`: a server that
makes one prompt of all messages may read them as the end of a message, so that what follows seems to come from the
system, the user or the model.
"""

import hashlib
import re
import unicodedata

KINDS = ("memory", "document", "skill", "result", "persona")
"""The kinds whose marks are changed in every fenced text. A fence of another kind has its own changed as well."""

_KIND = re.compile(r"[a-z][a-z_]*")
_OPENERS = re.compile("[<\u2039\u2329\u27e8\u276c\u276e\u3008\u300a\u00ab\u02c2\ufe64\uff1c]")
"""The characters that look like the beginning of a mark."""
_SLASHES = str.maketrans(dict.fromkeys("\u2044\u2215\u29f8\u2571\uff0f\\", "/"))
_LETTERS = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0456\u0455\u043a\u043c\u0442\u0501\u03b1\u03bf\u03b9\u03bd\u03c1\u03ba\u0131",
    "aeopcyiskmtdaoivpki",
)
"""Cyrillic and Greek letters, and the Latin letters that they look like."""
_DASH_SIGNS = r"\-\u2010-\u2015\u2212\u2043\ufe63\uff0d"
_DASHES = dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0x2043, 0xFE63, 0xFF0D], "-")
_NUMBERED = tuple([f"{kind}-" for kind in KINDS])
_MAY_BE_NUMBERED = re.compile(
    rf"{_OPENERS.pattern}(?=\W{{0,40}}(?:[mdsrpMDSRP]|[^\x00-\x7f]))(?=[^\n{_DASH_SIGNS}]{{0,60}}+[{_DASH_SIGNS}])"
)
"""What may begin a mark with a number, as those of Treadle have."""
_AHEAD_CHARS = 200
"""How much of the text after a character that looks like `<` is read. Invisible characters count."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})

_BAR = "|\uff5c"
_BLANK = r"[\s\u200b-\u200f\u2060\ufeff]{0,20}+"
_TOKEN = re.compile(
    rf"<(?=[{_BAR}][^\s<>{_BAR}]{{1,60}}[{_BAR}]>|[{_BAR}][a-z_]{{2,30}}+>|[a-z_]{{2,30}}+[{_BAR}]>|/?s>|</?sys>>"
    rf"|(?:start|end)_of_(?:turn|image|audio|sentence)>|(?:start|end)_function_(?:call|response|declaration)>"
    rf"|(?:bos|eos|pad|unk|cls|sep|mask)(?:_token)?>|[se]op>|special_\d{{1,4}}>|/?seed:[a-z_]{{2,40}}>"
    rf"|{_BLANK}/?{_BLANK}(?:tool_?(?:response|result|output|call)s?|tool_sep|function_calls?|think"
    rf"|arg_(?:key|value)|minimax:tool_call|[{_BAR}]DSML[{_BAR}])\b)"
    r"|\[(?=/?(?-i:INST|TOOL_RESULTS|TOOL_CALLS|TOOL_CONTENT|ARGS|CALL_ID|AVAILABLE_TOOLS|SYSTEM_PROMPT|THINK"
    r"|MODEL_SETTINGS|IMG(?:_BREAK|_END)?|(?:BEGIN_)?AUDIO|BOS|EOS|EOT)\]|[gs]MASK\]|e~\[)"
    r"|\](?=~!b\[|~b\])",
    re.IGNORECASE,
)
_INSTEAD = {"<": "&lt;", "[": "&#91;", "]": "&#93;"}
"""What `defuse` writes in place of the first character of a control token."""


def fence(kind: str, text: str, **attributes: object) -> str:
    """Return `text` between marks of a kind, such as `memory` or `document`.

    `attributes` are written into the opening mark, escaped; those that are `None` are left out.
    Raises: `ValueError` for a kind or the name of an attribute that is not in lower-case letters.
    """
    for name in (kind, *attributes):
        if not _KIND.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a kind or an attribute of a fence; use lower-case letters")
    inside = neutralise(text, kind)
    head = "".join(
        f' {name}="{_escape(value, kind)}"' for name, value in attributes.items() if value is not None
    )
    digest = hashlib.sha256("\0".join((kind, head, inside)).encode(errors="replace")).hexdigest()
    name = f"{kind}-{digest[:10]}"
    return f"<{name}{head}>\n{inside}\n</{name}>"


def neutralise(text: str, *kinds: str) -> str:
    """Return `text` with `&lt;` in place of the first character of everything that looks like a mark of a fence,
    and with its control tokens changed as `defuse` does it.

    Marks are found in any case, with blanks and invisible characters within, and with letters of other scripts that
    look like the Latin ones.
    """
    names = tuple({*KINDS, *kinds})

    def replace(match: re.Match[str]) -> str:
        ahead = _fold(text[match.end() : match.end() + _AHEAD_CHARS]).lstrip("/")
        return "&lt;" if ahead.startswith(names) else match[0]

    return defuse(_OPENERS.sub(replace, text))


def neutralise_foreign(text: str) -> str:
    """Return text that stands in no fence, with its control tokens changed as `defuse` does it.

    Marks are changed only if they have a number, as those of Treadle have: `<result>` may be a part of a file.
    """

    def replace(match: re.Match[str]) -> str:
        ahead = _fold(text[match.end() : match.end() + _AHEAD_CHARS]).translate(_DASHES).lstrip("/")
        return "&lt;" if ahead.startswith(_NUMBERED) else match[0]

    return defuse(_MAY_BE_NUMBERED.sub(replace, text))


def defuse(text: str) -> str:
    """Return `text` with `&lt;` or `&#91;` in place of the first character of each control token."""
    return _TOKEN.sub(lambda found: _INSTEAD[found[0]], text)


def _fold(text: str) -> str:
    """Return the Latin letters and signs that `text` looks like, without blanks and invisible characters."""
    plain = unicodedata.normalize("NFKD", text.translate(_SLASHES)).casefold().translate(_LETTERS)
    return "".join(char for char in plain if unicodedata.category(char)[0] in "LNPS")


def _escape(value: object, kind: str) -> str:
    return neutralise(_CONTROL.sub(" ", str(value)).translate(_ESCAPES), kind)
