"""The words of texts as they are indexed and compared: folded, without endings, accents and marks.

Every word loses its English and then its Norwegian ending. So the language of a text need not be known, and most
forms of a word become the same in either language. Scripts without blanks are split into pairs of characters.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import snowballstemmer

MAX_QUERY_CHARS = 20_000
"""How much of a query is read."""
_MAX_WORD_CHARS = 40
_WORD = re.compile(r"[^\W_]+")
_DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""The characters of scripts without blanks."""

_ENGLISH_STOP = """a about am an and any are as at be been being but by can could did do does doing done for from
had has have having he her here hers him his how i if in into is it its just let me my of on or our ours please re
s shall she should so some than that the their theirs them then there these they this those to t too up us was we
were what when where which who whom whose why will with would you your yours ve ll d m tell know say said again"""
_NORWEGIAN_STOP = """alle at av bare ble bli blir blitt da de deg dem den denne der dere deres det dette din ditt
dine du eller en ei er et etter for fortell fra gjorde gjøre ha hadde han hans har hun hva hvem hvilke hvilken
hvilket hvor hvordan hvorfor i ikke inn jeg kan kunne man med meg men min mitt mine ned noe noen nå når og også om
opp oss over på sa seg selv si sin sine sitt skal skulle som så til ut var ved vet vi vil ville vår være vært"""
_FILLER = """a an the very really just also so quite actually please too s en ei et den det de veldig ganske bare
også så nå jo"""
_NEGATION = "no not never none nothing without cannot nor neither ikke aldri ingen intet uten nei"
_STOP = frozenset(f"{_ENGLISH_STOP} {_NORWEGIAN_STOP} {_FILLER}".split())
"""Words that say little about what a text is about."""
_FILLERS = frozenset(_FILLER.split())
"""Words whose absence does not change what a text says."""
_NEGATIONS = frozenset(_NEGATION.split())

_english = snowballstemmer.stemmer("english").stemWord
_norwegian = snowballstemmer.stemmer("norwegian").stemWord


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the form of one word, in lower case, that its other forms share."""
    made = word if word.isdecimal() else _norwegian(_english(word))
    plain = "".join(char for char in unicodedata.normalize("NFKD", made) if not unicodedata.combining(char))
    return plain or made


def words_of(text: str) -> Iterator[str]:
    """Yield the words of `text` in order, in lower case."""
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text).casefold()):
        word = match[0][:_MAX_WORD_CHARS]
        if len(word) == 1 or not _DENSE.search(word):
            yield word
        else:
            yield from (word[place : place + 2] for place in range(len(word) - 1))


def index_form(text: str) -> str:
    """Return the stems of `text`, separated by blanks: what the full-text index holds."""
    return " ".join(map(stem, words_of(text)))


def query_terms(text: str) -> list[str]:
    """Return the different stems of a query, in order. Stop words are left out, unless there is nothing else."""
    words = list(words_of(text[:MAX_QUERY_CHARS]))
    telling = [word for word in words if word not in _STOP]
    return list(dict.fromkeys(map(stem, telling or words)))


def tell_words(text: str) -> list[str]:
    """Return the stems of the words that matter for what `text` says, in order, each as often as it occurs."""
    return [stem(word) for word in words_of(text) if word not in _FILLERS]


def says_the_same(new: str, old: str) -> bool:
    """Return whether `new` adds nothing to `old`.

    Its words, in any form and without fillers, occur in `old` in the same order, and make up most of it. Both have
    the same negations and numbers. So nothing is lost if only `old` is kept.
    """
    mine, theirs = tell_words(new), tell_words(old)
    if not mine or len(mine) < 0.8 * len(theirs) or _fixed(new) != _fixed(old):
        return False
    rest = iter(theirs)
    return all(word in rest for word in mine)


def _fixed(text: str) -> list[str]:
    found = words_of(text.replace("n't", " not").replace("n’t", " not"))
    return sorted(word for word in found if word in _NEGATIONS or any(char.isdigit() for char in word))
