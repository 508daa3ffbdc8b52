"""What the text of an error does not tell everybody: where servers and files are, and the names of models there."""

import re

_ADDRESS = re.compile(r"\b([a-z][a-z+]*+://[^\s/'\",;()]*+)(/[^\s'\",;()]*+)?", re.IGNORECASE)
_HOST = re.compile(
    r"""\bhost '[^']++'|\bserver at "[^"]++"(?: \([^)]{0,100}+\))?, port \d++"""
    r"""|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d++)?\b"""
    r"""|(?<!\w)\[(?:[\da-f:.]{0,30}::|(?:[\da-f]{1,4}:){7})[\da-f:.]{0,30}(?:%\w++)?\](?::\d++)?""",
    re.IGNORECASE,
)
"""An address that is not a URL, also as PostgreSQL's library writes it."""
_NAME = re.compile(r"https?://(?:[\w-]++\.)++[a-z]{2,}+", re.IGNORECASE)
"""The origin of a public page."""
_OF_API = re.compile(r"/(?:v\d|api\b|openai\b)|[^?]*+\?")
_MODEL = re.compile(r"\bmodel '([^']++)'")
_WORD = re.compile(r"\w++(?:[.:/@+-]++\w++)*+")
"""A name as those of models are."""
_FILE = re.compile(r"(?<![\w./:~-])/(?!v\d)[\w.@+~-]++(?:/[\w.@+~-]++)++")


def hide_servers(text: str, *, hides_models: bool = True) -> str:
    """Return the text of an error without what only the operator may know: the addresses and files of servers, and,
    if it `hides_models`, the names that models have there.

    An origin that stands alone is the address of a server. A link, such as one to documentation, has a path, and
    neither a port, a user or a query, nor the path of an API.
    """
    alone = {found[1].rstrip(".:") for found in _ADDRESS.finditer(text) if found[2] is None}

    def hide(found: re.Match[str]) -> str:
        origin, path = found[1].rstrip(".:"), found[2]
        if path is None:
            return f"the server{found[1][len(origin) :]}"
        is_link = origin not in alone and _NAME.fullmatch(origin) and not _OF_API.match(path)
        return found[0] if is_link else "the server"

    text = _HOST.sub("the server", _ADDRESS.sub(hide, text))
    for name in set(_MODEL.findall(text)) if hides_models else ():
        text = hide_model(text, name, "the model")
    return _FILE.sub("a file of the server", text)


def hide_model(text: str, name: str, alias: str) -> str:
    """Return a text in which `alias` stands for a model's name, and for the names that servers derive from it, such
    as `ft:NAME:org`, `org/NAME` and `NAME-2026-01`.

    A name of letters alone, such as `echo`, could be any word. It is hidden only where it stands for a model, as in
    `model 'NAME'` and `"model": "NAME"`, and, from three letters on, in words with a digit.
    """
    text = text.replace(f"model '{name}'", alias)
    own = re.compile(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", re.IGNORECASE)
    is_word = name.isalpha()
    if is_word:
        told = re.compile(
            rf"""(\bmodel["']?[\s:=]*+["'`]|\bmodel=){re.escape(name)}(?![^\W_])""", re.IGNORECASE
        )
        text = told.sub(lambda found: found[1] + alias, text)
    elif _WORD.fullmatch(name) is None:
        return own.sub(lambda _: alias, text)

    def hide(found: re.Match[str]) -> str:
        is_name = not is_word or (len(name) > 2 and any([letter.isdigit() for letter in found[0]]))
        return alias if is_name and own.search(found[0]) else found[0]

    return _WORD.sub(hide, text)
