"""The detection of the language of a text, offline, by its script and its most frequent words.

It recognises scripts that only one language uses, and the languages with Latin and Cyrillic letters that are in
`WORDS`. For short texts, code, tables and closely related languages, such as Norwegian and Danish, it often returns
`None` instead of a guess.
"""

import re
import unicodedata
from collections import Counter
from functools import lru_cache

_SPOKEN = re.compile(r"(?<![\w./\\-])[^\W\d_]+(?:['’][^\W\d_]+)*(?![\w/\\]|[.-]\w)")
"""A word that is not a part of a path or an identifier."""
_MIN_WORDS = 3
"""How many different frequent words of a language a text must have."""
_MIN_LEAD = 1.4
"""How many times more of the frequent words of the best language than of the second a text must have."""

_WORDS = {
    "en": "i a the and of to is in that it for with are was this on be as by from you not have or at which an will "
    "has please what how my all can need there when into do we they your",
    "de": "in der die das und ist nicht mit den von zu ein eine für auf dem im sich auch es wird sind als wie bei "
    "oder aus nach alle bitte ich sie haben kann einen dass wurde",
    "fr": "le la les des et est une un dans pour que qui sur pas avec du au ce sont par plus vous nous je mais ou "
    "cette aux être fichier tous s'il il elle ont été",
    "es": "el la los las de y es en que un una para con por no del se al lo su más como está este pero son todos "
    "archivo hay fue muy también favor",
    "it": "il la di e che è un una per non con del della i le gli sono da nel alla si più come anche questo dei ma "
    "tutti nella ha favore",
    "pt": "o a os as de e que é um uma para com não em do da no na por se mais como dos das ao foi são está todos "
    "você também arquivo favor",
    "nl": "de het een en van is dat niet in op te voor met zijn die er aan ook als bij naar om alle dit wordt maar "
    "deze uit graag heeft kan",
    "sv": "och att det som en är på i av för med inte den ett till har om var alla från kan jag de vi eller när "
    "filen",
    "da": "og at det som en er på i af for med ikke den et til har om var alle fra kan jeg de vi eller når "
    "filen",
    "no": "og at det som en er på i av for med ikke den et til har om var alle fra kan jeg de vi eller når filen "
    "hvor bare etter",
    "fi": "ja on ei se että oli hän mutta ovat tai kun niin myös kaikki tämä joka sen voi ole mitä kuin tiedosto",
    "pl": "i w na nie się z do jest to że o jak ale po za co dla od przez są oraz tego wszystkie plik czy może",
    "cs": "a v na je se že z do to i o jak ale po za pro od jsou které nebo jako všechny soubor není ve s",
    "tr": "ve bir bu için ile da de ne çok var olarak daha gibi en olan tüm kadar dosya lütfen değil mi",
    "ro": "și de la în cu un o este pe nu să din mai care sunt pentru ca toate fișierul sau după fost",
    "hu": "a az és hogy nem egy is van ez de meg csak mint minden vagy ha el fájl lesz volt",
    "id": "yang dan di ini itu dengan untuk tidak dari dalam adalah ada akan pada ke juga saya semua atau berkas",
    "vi": "và của là có không được cho các một những trong với này đã để người tôi tất cả tệp",
    "ru": "и в не на что с по это как из для все к от за у но или был файл его мы вы так",
    "uk": "і в не на що з по це як із для всі до від за у але або був файл його ми ви та є",
    "bg": "и в не на че с по това как от за всички към но или беше файл му ние вие да е се",
}
WORDS = {name: frozenset(text.split()) for name, text in _WORDS.items()}
"""The most frequent words of the languages that are recognised by words."""

_LANGUAGES_OF: dict[str, list[str]] = {}
"""The languages that have a word among their most frequent ones."""
for _name, _words in WORDS.items():
    for _word in _words:
        _LANGUAGES_OF.setdefault(_word, []).append(_name)

_SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "CJK": "zh",
    "GREEK": "el",
    "HEBREW": "he",
    "ARABIC": "ar",
    "THAI": "th",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
}
_MIN_SHARE = 0.3
"""The share of a script among the letters from which on the script decides. It is below one half because names in
Latin letters are common."""

GERMAN = WORDS["de"] - WORDS["en"]
"""Frequent words of German, in which all nouns are capitalised. A text with two of them is German."""

LANGUAGES = frozenset([*WORDS, *_SCRIPTS.values()])
"""The codes of the languages that can be recognised."""


def detect_language(text: str) -> str | None:
    """Return the ISO 639-1 code of the language of a text, or `None` if the language is not recognised."""
    if text.isascii():
        return _detect_by_words(text)
    letters: Counter[str] = Counter([_script(char) for char in text[:5000] if char.isalpha()])
    total = sum(letters.values())
    found: Counter[str] = Counter()
    for script, count in letters.items():
        if script in _SCRIPTS:
            found[_SCRIPTS[script]] += count
    if found["ja"] and (found["ja"] + found["zh"]) >= total * _MIN_SHARE:
        return "ja"  # Japanese mixes its own letters with Chinese ones
    if found and found.most_common(1)[0][1] >= total * _MIN_SHARE:
        return found.most_common(1)[0][0]
    return _detect_by_words(text)


def _detect_by_words(text: str) -> str | None:
    words = {word.casefold() for word in _SPOKEN.findall(text)}
    counts = dict.fromkeys(WORDS, 0)
    for word in words & _LANGUAGES_OF.keys():
        for name in _LANGUAGES_OF[word]:
            counts[name] += 1
    (best, name), (second, _) = sorted([(count, name) for name, count in counts.items()], reverse=True)[:2]
    return name if best >= _MIN_WORDS and best >= second * _MIN_LEAD else None


@lru_cache(maxsize=4096)
def _script(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0]
