"""Marks around foreign text in a prompt: memories, documents, skills and results. What stands between them is data.

A fence looks like `<memory-3f9a2c1b04 store="episodic">` ... `</memory-3f9a2c1b04>`. The number is derived from
the content, so that the same content has the same fence when a run is resumed, and a text cannot know the number of
the fence that it will stand in. Whatever looks like a mark in the text is changed, and so are the control tokens of
chat templates, which some servers read in any text.
"""

import hashlib
import re
import unicodedata

KINDS = ("memory", "document", "skill", "result", "persona")
"""The kinds whose marks are changed in every fenced text. A fence of another kind has its own changed as well."""

_CONTROLS = (
    "|",
    "s>",
    "sys>",
    "bos>",
    "eos>",
    "start_of_turn",
    "end_of_turn",
    "start_of_role",
    "end_of_role",
)
"""How the control tokens of chat templates go on after `<`."""
_BRACKETS = (
    "inst]",
    "system_prompt]",
    "available_tools]",
    "tool_results]",
    "tool_calls]",
    "tool_content]",
    "img]",
)
"""How those that begin with `[` go on."""
_KIND = re.compile(r"[a-z][a-z_]*")
_LESS = "<\u2039\u2329\u27e8\u276c\u276e\u3008\u300a\u00ab\u02c2\ufe64\uff1c"
_MORE = ">\u203a\u232a\u27e9\u276d\u276f\u3009\u300b\u00bb\u02c3\ufe65\uff1e"
_OPENERS = re.compile(rf"[{_LESS}\[\uff3b]")
"""The characters that look like the beginning of a mark or of a control token."""
_SLASHES = str.maketrans(dict.fromkeys("\u2044\u2215\u29f8\u2571\uff0f\\", "/"))
_LETTERS = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0456\u0455\u043a\u043c\u0442\u0501\u03b1\u03bf\u03b9\u03bd\u03c1\u03ba\u0131",
    "aeopcyiskmtdaoivpki",
)
"""Cyrillic and Greek letters, and the Latin letters that they look like."""
_AHEAD_CHARS = 200
"""How much of the text after a character that looks like `<` is read. Invisible characters count."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_ESCAPES = str.maketrans(
    {"&": "&amp;", '"': "&quot;", "[": "&#91;", "\uff3b": "&#91;"}
    | dict.fromkeys(_LESS, "&lt;")
    | dict.fromkeys(_MORE, "&gt;")
)


def fence(kind: str, text: str, **attributes: object) -> str:
    """Return `text` between marks of a kind, such as `memory` or `document`.

    `attributes` are written into the opening mark, escaped; those that are `None` are left out.
    Raises: `ValueError` for a kind or the name of an attribute that is not in lower-case letters.
    """
    for name in (kind, *attributes):
        if not _KIND.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a kind or an attribute of a fence; use lower-case letters")
    inside = neutralise(text, kind)
    head = "".join(f' {name}="{_escape(value)}"' for name, value in attributes.items() if value is not None)
    digest = hashlib.sha256("\0".join((kind, head, inside)).encode(errors="replace")).hexdigest()
    name = f"{kind}-{digest[:10]}"
    return f"<{name}{head}>\n{inside}\n</{name}>"


def neutralise(text: str, *kinds: str) -> str:
    """Return `text` with another first character for everything that looks like a mark of a fence, or like a token
    with which a chat template begins or ends messages.

    These are found in any case, with blanks and invisible characters within, and with letters of other scripts that
    look like the Latin ones. The first character becomes `&lt;` or `&#91;`.
    """
    starts = tuple({*KINDS, *kinds, *_CONTROLS})

    def replace(match: re.Match[str]) -> str:
        ahead = _fold(text[match.end() : match.end() + _AHEAD_CHARS]).lstrip("/<")
        if match[0] in "[\uff3b":
            return "&#91;" if ahead.startswith(_BRACKETS) else match[0]
        return "&lt;" if ahead.startswith(starts) else match[0]

    return _OPENERS.sub(replace, text)


def _fold(text: str) -> str:
    """Return the Latin letters and signs that `text` looks like, without blanks and invisible characters."""
    plain = unicodedata.normalize("NFKD", text.translate(_SLASHES)).casefold().translate(_LETTERS)
    return "".join(char for char in plain if unicodedata.category(char)[0] in "LNPS")


def _escape(value: object) -> str:
    return _CONTROL.sub(" ", str(value)).translate(_ESCAPES)
