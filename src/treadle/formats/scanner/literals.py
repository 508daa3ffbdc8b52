"""Read and write Python literals and calls without evaluating anything."""

import re

from treadle.core.texts.json_text import MAX_DEPTH
from treadle.core.types import Json
from treadle.formats.scanner.json_body import BadValue, after_space, scan, scan_string, to_float

_STRING = re.compile(
    r"[fF]?(?:\"\"\"(?:[^\\\"]++|\\.|\"(?!\"\"))*+\"\"\"|'''(?:[^\\']++|\\.|'(?!''))*+'''"
    r"|\"[^\\\"]*+(?:\\.[^\\\"]*+)*+\"|'[^\\']*+(?:\\.[^\\']*+)*+')",
    re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w*+")
NAME = re.compile(r"[A-Za-z_][\w\-]*+(?:\.[A-Za-z_][\w\-]*+)*+")
_HEAD = re.compile(rf"({NAME.pattern})[ \t\r\n]*+\([ \t\r\n]*+")
_KEY = re.compile(r"([A-Za-z_]\w*+)[ \t\r\n]*+=[ \t\r\n]*+")
_PLAIN = (
    r"(?:\"([^\"\\]*+)\"|'([^'\\]*+)'|([+-]?\d{1,18})(?![\w.])|(True|False|None|true|false|null)(?!\w))"
    r"[ \t\r\n]*+(?:,[ \t\r\n]*+|(?=[)}]))"
)
"""A simple value and the separator after it. Its groups are strings, except those numbered below."""
_INTEGER, _WORDS_AT = 4, 5
_ARGUMENT = re.compile(rf"([A-Za-z_]\w*+)[ \t\r\n]*+=[ \t\r\n]*+{_PLAIN}")
_ENTRY = re.compile(rf"('[^'\\]*+'|\"[^\"\\]*+\")[ \t\r\n]*+:[ \t\r\n]*+{_PLAIN}")
_JSON_LIKE = re.compile(
    r"(?:[\[\]{}:,0-9.+\- \t\r\n]++|'[^'\"\\]*+'|\"[^\"'\\]*+\"|True(?!\w)|False(?!\w)|None(?!\w)|[eE][+-]?+\d)*+"
)
"""Lists and dicts that differ from JSON only in their quotes and in the words `True`, `False` and `None`."""
_BEHIND = re.compile(r"[ \t\r\n]*+(?:(,)[ \t\r\n]*+)?")
_SIMPLE_ESCAPES = re.compile(r"[^\\]*+(?:\\[ntr\\'\"][^\\]*+)*+")
_NESTED = frozenset("[{")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(\r?\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SIMPLE = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
}


def read_call(text: str, position: int) -> tuple[str, dict[str, Json], int]:
    """Return the name and arguments of the call at `position`, and the position after it. Raises: `BadValue`."""
    head = _HEAD.match(text, position)
    if head is None:
        alone = NAME.match(text, position)
        if alone is None:
            raise BadValue("the call has no function name", position)
        raise BadValue("a name without a call", after_space(text, alone.end()))
    arguments: dict[str, Json] = {}
    at = head.end()
    while not text.startswith(")", at):
        plain = _ARGUMENT.match(text, at)
        if plain is not None and (name := plain[1]) not in arguments:
            arguments[name] = _read_plain(plain)
            at = plain.end()
            continue
        key = _KEY.match(text, at)
        if key is None:
            reason = "the call is cut off" if at >= len(text) else "an argument without a name"
            raise BadValue(reason, at)
        name = key[1]
        if name in arguments:
            raise BadValue(f"the argument {name!r} occurs twice", at)
        arguments[name], at = read_value(text, key.end(), 0)
        behind = _BEHIND.match(text, at)
        at = behind.end()  # type: ignore[union-attr]
        if not behind[1] and not text.startswith(")", at):  # type: ignore[index]
            raise BadValue(
                f"{text[at : at + 1]!r} is not allowed there" if at < len(text) else "the call is cut off", at
            )
    return head[1], arguments, at + 1


def read_value(text: str, position: int, depth: int) -> tuple[Json, int]:
    """Return the literal at `position`, and the position after it. Raises: `BadValue`."""
    if not depth and text[position : position + 1] in _NESTED and (found := _read_as_json(text, position)):
        return found
    if depth > MAX_DEPTH:
        raise BadValue("the value is nested too deeply", position)
    char = text[position : position + 1]
    if char == '"' or char == "'":
        end = _end_of_string(text, position, char)
        if end is not None:
            return _read_string(text[position:end], position), end
    elif char == "[" or char == "(":
        return _read_list(text, position, depth, "]" if char == "[" else ")")
    if char == "{":
        return _read_dict(text, position, depth)
    if match := _STRING.match(text, position):
        return _read_string(match[0], position), match.end()
    if match := _NUMBER.match(text, position):
        word = match[0]
        if len(word) > 4000:
            raise BadValue("a number with too many digits", position)
        try:
            return (int(word) if word.lstrip("+-").isdecimal() else to_float(word)), match.end()
        except ValueError as error:
            raise BadValue(str(error), position) from None
    if (match := _WORD.match(text, position)) and match[0] in _WORDS:
        return _WORDS[match[0]], match.end()
    reason = (
        "the call is cut off"
        if position >= len(text)
        else f"{text[position : position + 20]!r} is not a literal"
    )
    raise BadValue(reason, position)


def _read_plain(match: re.Match[str]) -> Json:
    kind = match.lastindex
    value = match[kind]  # type: ignore[index]
    if kind == _INTEGER:
        return int(value)
    return _WORDS[value] if kind == _WORDS_AT else value


def _read_as_json(text: str, position: int) -> tuple[Json, int] | None:
    """Read a list or dict with the JSON decoder, or return `None` if it differs too much from JSON."""
    run = _JSON_LIKE.match(text, position)[0]  # type: ignore[index]
    if run.count("[") + run.count("{") > MAX_DEPTH:
        return None
    if "True" in run or "False" in run or "None" in run:
        parts = run.replace('"', "'").split("'")
        # Every second part is a string. The replaced words have the same length in JSON.
        parts[::2] = [
            part.replace("True", "true").replace("False", "false").replace("None", "null")
            for part in parts[::2]
        ]
        run = '"'.join(parts)
    else:
        run = run.replace("'", '"')
    found = scan(run, 0)
    return None if found is None else (found[1], position + found[0])


def _end_of_string(text: str, position: int, quote: str) -> int | None:
    """Return the position after the string that begins with `quote` at `position`, or `None`."""
    if text.startswith(quote * 3, position):
        match = _STRING.match(text, position)
        return match.end() if match is not None else None
    at = position
    while (at := text.find(quote, at + 1)) != -1:
        before = at - 1
        while text[before] == "\\":
            before -= 1
        if (at - before) % 2:
            return at + 1
    return None


def _read_list(text: str, position: int, depth: int, closer: str) -> tuple[Json, int]:
    values: list[Json] = []
    at = after_space(text, position + 1)
    has_comma = False
    while text[at : at + 1] != closer:
        value, at = read_value(text, at, depth + 1)
        values.append(value)
        behind = _BEHIND.match(text, at)
        at, has_comma = behind.end(), behind[1] is not None  # type: ignore[union-attr, index]
        if not has_comma and text[at : at + 1] != closer:
            raise BadValue("a list that is not closed", at)
    if closer == ")" and len(values) == 1 and not has_comma:
        return values[0], at + 1
    return values, at + 1


def _read_dict(text: str, position: int, depth: int) -> tuple[Json, int]:
    values: dict[str, Json] = {}
    at = after_space(text, position + 1)
    while text[at : at + 1] != "}":
        if (plain := _ENTRY.match(text, at)) is not None:
            name = plain[1][1:-1]
            if name not in values:
                values[name], at = _read_plain(plain), plain.end()
                continue
        key, at = read_value(text, at, depth + 1)
        at = after_space(text, at)
        if not isinstance(key, str):
            raise BadValue("a key that is not a string", at)
        if key in values:
            raise BadValue(f"the key {key!r} occurs twice", at)
        if text[at : at + 1] != ":":
            raise BadValue("a key without a value", at)
        values[key], at = read_value(text, after_space(text, at + 1), depth + 1)
        behind = _BEHIND.match(text, at)
        at = behind.end()  # type: ignore[union-attr]
        if not behind[1] and text[at : at + 1] != "}":  # type: ignore[index]
            raise BadValue("a dict that is not closed", at)
    return values, at + 1


def _read_string(token: str, position: int) -> str:
    if token[0] in "fF":
        token = token[1:]
        if "{" in token or "}" in token:
            raise BadValue("an f-string with placeholders", position)
    size = 3 if token[:3] in ('"""', "'''") and len(token) >= 6 else 1

    def unescape(match: re.Match[str]) -> str:
        word = match[1]
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in ("\n", "\r\n"):
            return ""
        if word[0] in "xuU" and len(word) > 1:
            code = int(word[1:], 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise BadValue("half of a surrogate pair is not a character", position)
            return chr(code)
        if word[0] in "01234567":
            return chr(int(word, 8))
        return match[0]

    body = token[size:-size]
    if "\\" not in body:
        return body
    if size == 1 and (token[0] == '"' or '"' not in body) and (text := scan_string(f'"{body}"')) is not None:
        return text
    if _SIMPLE_ESCAPES.fullmatch(body):
        return body.encode("latin-1", "backslashreplace").decode("unicode_escape")
    return _ESCAPE.sub(unescape, body)
