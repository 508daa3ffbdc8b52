"""The reading of a message: its own words, without quoted text, code and addresses, and its language.

Every judgement starts from a `Reading`. Of a long message only the beginning and the end are read, because the
middle is usually pasted text; so the time for a message does not grow with its length.
"""

import re
from functools import lru_cache

from msgspec import Struct

HEAD_CHARS = 6000
TAIL_CHARS = 2000
"""How many characters of the beginning and of the end of a long message are read."""

_CODE = re.compile(r"```[^`]*+(?:`{1,2}+(?!`)[^`]*+)*+(?:```|\Z)|`[^`\n]{1,300}+`")
_QUOTE = re.compile(
    r"\"[^\"\n]{1,400}+\"|“[^”\n]{1,400}+”|«[^»\n]{1,400}+»|„[^“”\n]{1,400}+[“”]"
    r"|(?<!\w)'[^'\n]{2,400}+'(?!\w)|(?<!\w)‘[^’\n]{2,400}+’(?!\w)|^[ \t]{0,3}+>[^\n]*+",
    re.MULTILINE,
)
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s<>\"]{1,2000}+", re.IGNORECASE)
_NAMED_FILE = re.compile(
    r"(?<![\w/.~-])(?:[~.]{0,2}/)?+[\w-]{1,64}+(?:[/.][\w-]{1,64}+){0,12}+", re.IGNORECASE
)
_EXTENSION = re.compile(
    r"\.(?:txt|md|py|js|ts|json|ya?ml|toml|csv|tsv|xlsx?|docx?|pdf|html?|css|sql|log|sh|ini|cfg|xml|ipynb"
    r"|rs|go|java"
    r"|c|h|cpp|rb|php|png|jpe?g|gif|svg|zip|tar|gz|db|parquet|pptx?|rtf|tex|env|lock|mp3|mp4|wav)$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]++(?:['’-][^\W_]++)*+")

FILE, ADDRESS, QUOTE, CODE = "\ue000", "\ue001", "\ue002", "\ue003"
"""The characters that stand in `Reading.prose` for what is not the user's own prose."""

_ENGLISH_TEXT = (
    "the and you is of to it that this my me can please what how i a an in for with on are do not your be "
    "have we was would should about from thanks thank when where who why which some make write find give "
    "tell all it's don't could will them there at or if us our then up out his her"
)
_ENGLISH = frozenset(_ENGLISH_TEXT.split())
_NORWEGIAN_TEXT = (
    "og jeg du er det den ikke på en et til av meg kan vil å som med har hva hvordan hvor hvorfor hvem "
    "når skal må vennligst takk om min mitt mine din ditt dine vi oss dem alle alt fra ved så eg ikkje "
    "kva korleis ein eit kvifor være bli ble var hadde skriv lag finn gi fortell slett hjelp dette disse "
    "ut opp noe noen hele bare denne i hvis deg han hun eller men inn over under etter før også litt "
    "gjerne kunne ville skulle"
)
_NORWEGIAN = frozenset(_NORWEGIAN_TEXT.split())


class Reading(Struct, frozen=True):
    """The properties of a message that the judgements need."""

    text: str
    """The message, or its beginning and end if it is long."""
    prose: str
    """`text` in lower case, with one private character repeated for each piece of code, quote, address and file
    name. It is aligned with `text`."""
    words: tuple[str, ...]
    """The words of `prose`."""
    language: str
    """`en` or `no`; `en` if the language is not recognised."""
    left_out_chars: int
    """How many characters in the middle of the message were not read."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the position in the whole message of a position in `text`."""
        if start < HEAD_CHARS:
            return start, end
        return start + self.left_out_chars, end + self.left_out_chars


def read(message: str) -> Reading:
    """Return the reading of a message. The time that it takes is bounded for a message of any length."""
    left_out = max(0, len(message) - HEAD_CHARS - TAIL_CHARS)
    return _read(message[:HEAD_CHARS] + message[-TAIL_CHARS:] if left_out else message, left_out)


@lru_cache(maxsize=64)
def _read(text: str, left_out: int) -> Reading:
    prose = _lower(text)
    for pattern, sign in ((_CODE, CODE), (_ADDRESS, ADDRESS), (_QUOTE, QUOTE)):
        prose = pattern.sub(lambda found, sign=sign: sign * len(found[0]), prose)  # type: ignore[misc]
    prose = _NAMED_FILE.sub(
        lambda found: FILE * len(found[0]) if _EXTENSION.search(found[0]) else found[0], prose
    )
    words = tuple(_WORD.findall(prose))
    return Reading(text, prose, words, find_language(words), left_out)


def find_language(words: tuple[str, ...]) -> str:
    """Return `no` if more of the words are frequent in Norwegian than in English, otherwise `en`."""
    norwegian = sum(2 if set(word) & set("æøå") else word in _NORWEGIAN for word in words[:400])
    return "no" if norwegian > sum(word in _ENGLISH for word in words[:400]) else "en"


def is_own(prose: str) -> bool:
    """Return whether all of the prose of a reading is the user's own: no code, quote, address or file name."""
    return not any(sign in prose for sign in (FILE, ADDRESS, QUOTE, CODE))


def _lower(text: str) -> str:
    """Return `text` in lower case with the same length, and with typographic apostrophes replaced."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    return lowered.replace("’", "'") if "’" in lowered and "‘" not in lowered else lowered
