"""The statements of an answer: what it says that results or the request can show or contradict.

An answer is split into sentences and these into clauses. Advice, offers, questions and code state nothing about
what was found. A statement has the clause that it stands in, by whose words it is looked up.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import cache, lru_cache, partial
from importlib.resources import files
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.figures.quantities import UNITS, Quantity, QuantityKind, lexicon, shape, shapes
from treadle.datagen.quality.languages import WORDS, is_german, pattern, word_lists
from treadle.datagen.quality.statements.result_records import stem, stems_of


class StatementKind(StrEnum):
    """What a statement is about."""

    QUANTITY = "number"
    PATH = "path"
    IDENTIFIER = "identifier"
    TEXT = "text"
    NAME = "name"
    ACTION = "action"
    CAUSE = "cause"
    ORDER = "order"
    SHARE = "share"
    RELATION = "relation"
    CLAIM = "sentence"


class Capitals(StrEnum):
    """Which words of an answer have capital letters."""

    NAMES = "names"
    TITLES = "titles"
    """Names and most other words."""
    NOUNS = "nouns"
    """All nouns, as in German."""


class AnswerStatement(Struct, frozen=True):
    """A part of an answer that can be true or not."""

    kind: StatementKind
    text: str
    sentence: str
    clause: str
    quantity: Quantity | None = None
    topic: str = ""
    """The kind of an action, of a share in words, or of a comparison; `quote` for a quoted text."""
    before: str = ""
    """The sentence before, and the part of the sentence before the clause."""
    place: int = 0
    """The position in the sentence."""
    is_advice: bool = False
    """True if the sentence looks like advice, an offer or a plan."""

    @property
    def head(self) -> str:
        """The part of the sentence in front of the text."""
        return self.sentence[: self.place]

    @property
    def rest(self) -> str:
        """The part of the sentence behind the text."""
        return self.sentence[self.place + len(self.text) :]

    def says(self, name: str) -> bool:
        """Return whether the sentence has a form of answers, such as `aggregate`."""
        return shape("answers", name).search(self.sentence) is not None


_PATH, _SYMBOL, _QUOTED, _ANSWER = [
    pattern("answers", name) for name in ("path", "symbol", "quoted", "answer")
]
_START = shape("answers", "start")
_PHONE, _CALL, _COUNT_OF, _ORDINAL = shapes("statement_forms", "phone call count_of ordinal")
_LETTERS, _LETTER, _DIGIT, _POINT, _SIGN = shapes("statement_forms", "letters letter digit point sign")
_FENCE, _WORD, _KEY, _CODE_NEXT = shapes("statement_forms", "fence word key code_next")
_BESIDE_FIGURES, _FIELD, _FIELD_AFTER = shapes("statement_forms", "beside_figures field field_after")
_CELL, _NOTE, _LIST_MARK, _OUTLINE = shapes("statement_forms", "cell note list_mark outline")
_NESTED, _NAMED, _LEADER, _ROW, _WIDE_MARK = shapes("statement_forms", "nested named leader row wide_mark")
_BLOCK, _TIGHT, _PAIRED, _SPLIT_PAIR = shapes("statement_forms", "block tight paired split_pair")
_DATA_LINES, _LATEX, _EMPHASIS = shapes("statement_forms", "data_lines latex emphasis")
_LOOSE_MARK, _SPEECH, _LOW_SPEECH = shapes("statement_forms", "loose_mark speech low_speech")
_POSSESSIVE = shape("statement_forms", "possessive")
_STRING = re.compile(r"\"[^\"\n]*+\"|'[^'\n]*+'")
_INDIRECT = shape("claims", "indirect")
_IRREGULAR = dict([item.split("=") for item in lexicon("claims")["irregular"].split()])
_SALUTES = word_lists("answers")["salutes"]
_MAX_CAPITALS = 0.35
_SHORT_ANSWER = 6
"""An answer of fewer words is a value, of which each word counts; a longer one is a sentence."""
_MAX_CHARS = 1000
"""The length of the longest sentence. A longer one is cut, since some rules compare all parts of a sentence."""
_READABLE = WORDS["en"] | WORDS["no"]
_FIGURES = frozenset([name.casefold() for name in UNITS])
"""The names of units, which are no names."""
_COMMON = WORDS["en"] | WORDS["no"] | WORDS["de"] | word_lists("answers")["common"]


@cache
def glue() -> frozenset[str]:
    """Return the stems of the words that answers are made of, whatever they are about."""
    lists = [
        lexicon("causes")["neutral"],
        lexicon("causes")["ignored"],
        lexicon("claims")["objects"],
        lexicon("claims")["glue"],
        " ".join(
            [*lexicon("numbers")["en"], *lexicon("numbers")["no"], *lexicon("scales"), *lexicon("fractions")]
        ),
        " ".join(UNITS),
        " ".join([*WORDS["en"], *WORDS["no"]]),
    ]
    return frozenset([stem(word) for text in lists for word in text.lower().split()])


@cache
def common_words() -> frozenset[str]:
    """Return the stems of common English words, so that a capitalised one is not taken for a name.

    They are the words of Webster's dictionary of 1934 that are frequent today.
    """
    return frozenset(map(stem, files(__package__).joinpath("common_words.txt").read_text("utf-8").split()))


def is_readable(text: str) -> bool:
    """Return whether at least half of the words of a text are English or Norwegian ones that are known."""
    words = words_in(text)
    known = [word for word in words if word in _READABLE or stem(word) in common_words()]
    return len(known) * 2 >= len(words)


def content_of(text: str) -> frozenset[str]:
    """Return the stems of the words of a text that say what it is about."""
    return frozenset([word for word in stems_of(text) if word.isalpha() and len(word) > 2]) - glue()


@lru_cache(maxsize=64)
def find_statements(answer: str) -> tuple[AnswerStatement, ...]:
    """Return the statements of an answer, in the order of their kinds within each sentence."""
    return tuple(_find_statements(answer))


def _find_statements(answer: str) -> Iterator[AnswerStatement]:
    """Yield the statements of an answer, in the order of their kinds within each sentence."""
    text = _FENCE.sub(lambda found: "\n" if _is_program(found[1], found[2]) else found[2], answer)
    text = _SPLIT_PAIR.sub(r"\1 ", _PAIRED.sub(_unquote, text))
    text = _NOTE.sub(" ", _CELL.sub(" | ", text) if "</" in text else text)
    text = _LATEX.sub(r"\1", text) if "\\" in text else text
    text = _LOW_SPEECH.sub("“\\1”", text) if "„" in text else text
    text = _WIDE_MARK.sub(r"\1. ", text)
    text = _LIST_MARK.sub(r"\1", _strip_outline(strip_emphasis(text)))
    text = _BLOCK.sub("", text) if len(_BLOCK.findall(text)) > 1 else text
    text = _ROW.sub(r"\1: ", text) if len(_ROW.findall(text)) > 1 else text
    text = _NAMED.sub(_to_words, _TIGHT.sub(" ", text))
    text = _LEADER.sub(": ", shape("answers", "directives").sub("", text))
    text = _NESTED.sub(r"\1\2: \3", text)
    capitals = _read_capitals(text)
    before = ""
    for sentence in _sentences(text):
        if sentence.strip():
            plain = _SPEECH.sub("“”", sentence)
            is_advice = _is_advice(plain)
            for item in _read_sentence(sentence, before, capitals):
                yield replace(item, is_advice=True) if is_advice else item
            before = f"{before[-200:]}\n{sentence}"
    for line in _ANSWER.findall(text):
        for word in _WORD.findall(line) if line.count(" ") < _SHORT_ANSWER else ():
            if word.casefold() not in _COMMON and stem(word.lower()) not in common_words():
                yield AnswerStatement(StatementKind.NAME, word, line, line)


def words_in(text: str) -> frozenset[str]:
    """Return the words of a text in lower case."""
    return frozenset(_LETTERS.findall(text.lower()))


@cache
def gate(name: str) -> frozenset[str]:
    """Return the words without which the patterns of a kind find nothing."""
    if name in lexicon("gates"):
        return frozenset(lexicon("gates")[name].split())
    patterns = lexicon(name).values()
    said = [item if isinstance(item, str) else item["said"] for item in patterns]
    return frozenset([word.lower() for text in said for word in _LETTERS.findall(text) if len(word) > 2])


@cache
def _topics(section: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple([(name, shape(section, name)) for name in lexicon(section)])


def _is_advice(sentence: str) -> bool:
    return shape("answers", "advice_first").match(sentence) is not None or (
        ("?" in sentence or not gate("advice").isdisjoint(words_in(sentence)))
        and shape("answers", "advice").search(sentence) is not None
    )


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text. A quoted text does not end a sentence before its quotation mark."""
    masked = _SPEECH.sub(lambda found: f"{found[1]}{'x' * (len(found[0]) - 3)}{found[0][-2:]}", text)
    ends = [
        (found.start() + len(found[0].rstrip()), found.end())
        for found in shape("answers", "sentence").finditer(masked)
    ]
    start = 0
    for end, following in [*ends, (len(text), len(text))]:
        follows = text[following : following + 1]
        is_short = text[end - 1 : end] == "." and (
            follows.islower() or follows.isdigit() or _CODE_NEXT.match(text, following) is not None
        )
        if is_short and shape("answers", "abbreviations").search(text, max(start, end - 12), end):
            continue
        if text[end - 1 : end] == "?" and text.startswith(("→", "->"), following):
            continue  # the answer to the question
        while end - start > _MAX_CHARS:
            cut = text.rfind(" ", start + 1, start + _MAX_CHARS)
            cut = cut if cut > start else start + _MAX_CHARS
            yield text[start:cut]
            start = cut
        yield text[start:end]
        start = following


def strip_emphasis(text: str) -> str:
    """Return a text without the marks of bold and italic parts. Code is left as it is."""
    for _ in range(2):  # one may stand within another
        text = _EMPHASIS.sub(lambda found: found["code"] or found["said"] or found["told"], text)
    return _LOOSE_MARK.sub(lambda found: found["code"] or "", text)


def _to_words(found: re.Match[str]) -> str:
    """Return the words of a name such as `line_count`, if at least half of them are common; else the name."""
    words = found[0].split("_")
    stems = [stem(word.lower()) for word in words if len(word) > 2]
    strange = [word for word in stems if word not in common_words() and word not in glue()]
    return " ".join(words) if 2 * len(strange) <= len(words) else found[0]


def _strip_outline(text: str) -> str:
    """Return a text without the numbers of an outline: before capital letters, or in a rising order."""
    marks = [found for found in _OUTLINE.finditer(text) if not text.endswith(": ", 0, found.start())]
    numbers = [[int(one) for one in found["mark"].split(".")] for found in marks]
    is_rising = len(numbers) > 1 and all(one < two for one, two in pairwise(numbers)) and numbers[0][1] < 2

    def strip(found: re.Match[str]) -> str:
        word = found["next"]
        is_mark = is_rising or word[0].isupper() or word in '`"“«'
        if text.endswith(": ", 0, found.start()) or word.casefold() in _FIGURES:
            is_mark = word[0].isupper() and word.casefold() in WORDS["en"]
        return f"{found[1]}{word}" if is_mark else found[0]

    return _OUTLINE.sub(strip, text)


def _unquote(found: re.Match[str]) -> str:
    """Return a line with a name and its value without their quotation marks."""
    if found["both"]:
        return f"{found['start']}{found['both']}"
    return f"{found['start']}{found['key']}{found['sign']}{found['value'] or found['bare'] or ''}"


def _is_program(language: str, code: str) -> bool:
    plain = _STRING.sub("¤", code)
    if 2 * plain.count("¤") >= len(code.split("\n")) - 1 and _DATA_LINES.fullmatch(plain):
        return False
    if shape("answers", "shells").match(language) is not None or "import " in code or "();" in code:
        return True
    is_named = shape("answers", "words_of_code").match(language) is not None
    return is_named and shape("answers", "signs_of_code").search(code) is not None


def _read_sentence(sentence: str, before: str, capitals: Capitals) -> Iterator[AnswerStatement]:
    at = partial(_at, sentence=sentence, before=before)
    rest, words = sentence, words_in(sentence)
    # A quoted text is one statement, also if it is a path or an address.
    for found in [*_QUOTED.finditer(sentence)]:
        said = next(item for item in found.groups() if item).strip("`*'\"")
        figures = find_quantities(said)
        if figures and _BESIDE_FIGURES.fullmatch(_cut(said, figures)):
            continue  # a number in quotation marks
        is_speech = found[0][0] != "`" and len(said.split()) > 2
        is_field = found[0][0] == "`" and _FIELD.fullmatch(said) and _FIELD_AFTER.match(sentence, found.end())
        if not (is_field or _CALL.search(said) or _KEY.match(sentence, found.end())):
            kind = StatementKind.PATH if _PATH.fullmatch(said) else StatementKind.TEXT
            yield at(kind, said, place=found.start(), topic="quote" if is_speech else "")
        rest = _blank(rest, found.start(), found.end())
    for topic, form in () if gate("shares").isdisjoint(words) else _topics("shares"):
        for found in form.finditer(rest):
            yield at(StatementKind.SHARE, found[1], place=found.start(), topic=topic)
            rest = _blank(rest, found.start(1), found.end(1))
    # Dates, times, numbers with a unit and mixed fractions (`1 1/4`) are no paths, although some have slashes.
    quantities = find_quantities(rest)
    sure = [
        item
        for item in quantities
        if (
            item.kind is not QuantityKind.NUMBER
            or item.unit
            or not rest[item.end - 1].isdecimal()
            or {" ", "/"} <= {*rest[item.start : item.end]}
        )
        and rest[item.start - 1 : item.start] not in tuple("-/_@")
    ]
    for item in sure:
        rest = _blank(rest, item.start, item.end)
    for kind, form, sign in (
        (StatementKind.IDENTIFIER, _PHONE, _DIGIT),
        (StatementKind.PATH, _PATH, _POINT),
        (StatementKind.IDENTIFIER, _SYMBOL, _SIGN),
    ):
        for found in [*form.finditer(rest)] if sign.search(rest) else ():
            if kind is StatementKind.IDENTIFIER and (
                _ORDINAL.fullmatch(found[0]) or found[0].casefold() in _COMMON
            ):
                continue
            if kind is StatementKind.PATH and (_is_choice(found[0]) or _COUNT_OF.fullmatch(found[0])):
                continue
            is_key = found[0].replace("_", "").replace(".", "").isalpha() and _KEY.match(rest, found.end())
            if not is_key:
                yield at(kind, found[0], place=found.start())
            rest = _blank(rest, found.start(), found.end())
    for item in quantities:
        if item not in sure and "¤" in rest[item.start : item.end]:
            continue
        made = at(StatementKind.QUANTITY, sentence[item.start : item.end].strip(), place=item.start)
        yield replace(made, quantity=item)
        rest = _blank(rest, item.start, item.end)
    for word, place in _names(rest, capitals):
        yield at(StatementKind.NAME, word, place=place)
    for topic, form in () if "?" in sentence or gate("order").isdisjoint(words) else _topics("order"):
        for found in form.finditer(sentence):
            yield at(StatementKind.ORDER, found[0], place=found.start(), topic=topic)
    yield from _read_implied(sentence, at, words)


def _is_choice(text: str) -> bool:
    """Return whether a text with a slash is two common words, such as `date/time`, and no path."""
    parts = text.split("/")
    return text.lower() == "n/a" or (
        len(parts) == 2
        and all(stem(part.lower()) in common_words() or part.casefold() in _FIGURES for part in parts)
    )


def _read_implied(
    sentence: str, at: Callable[..., AnswerStatement], words: frozenset[str]
) -> Iterator[AnswerStatement]:
    """Yield what a sentence as a whole says: causes, quotes without marks, relations, claims, actions."""
    if "?" not in sentence and not gate("causes").isdisjoint(words):
        for text, place in _causes(sentence):
            yield at(StatementKind.CAUSE, text, place=place)
    is_open = ":" in sentence or "|" in sentence or ">" in sentence
    for found in shape("answers", "quoting").finditer(sentence) if is_open else ():
        yield at(StatementKind.TEXT, found[1].strip(), place=found.start(1), topic="quote")
    if "?" not in sentence:
        for clause, place in clauses(sentence):
            yield at(StatementKind.RELATION, clause.strip(), place=place)
    if re.search(r"\w", sentence):
        yield at(StatementKind.CLAIM, sentence.strip(), place=0)
    for topic, form in () if "?" in sentence else _topics("states"):
        for found in form.finditer(sentence):
            yield at(StatementKind.ACTION, found[1], place=found.start(1), topic=f"{topic}/passive/state")
    is_past = any(word.endswith("ed") for word in words) or _INDIRECT.search(sentence)
    if gate("actions").isdisjoint(words) and not is_past:
        return
    for verb, place, topic in _actions(_SPEECH.sub(lambda found: "¤" * len(found[0]), sentence)):
        yield at(StatementKind.ACTION, verb, place=place, topic=topic)


def _cut(text: str, figures: Sequence[Quantity]) -> str:
    for item in reversed(figures):
        text = f"{text[: item.start]} {text[item.end :]}"
    return text


def _blank(text: str, start: int, end: int) -> str:
    return f"{text[:start]}{'¤' * (end - start)}{text[end:]}"


@lru_cache(maxsize=256)
def clauses(sentence: str) -> tuple[tuple[str, int], ...]:
    """Return the clauses of a sentence, each with its position."""
    found: list[tuple[str, int]] = []
    start = 0
    for end in shape("answers", "clause").finditer(sentence):
        if sentence[start : end.start()].strip():
            found.append((sentence[start : end.start()], start))
        start = end.end()
    if sentence[start:].strip():
        found.append((sentence[start:], start))
    return tuple(found)


def _at(
    kind: StatementKind, text: str, *, sentence: str, before: str, place: int, topic: str = ""
) -> AnswerStatement:
    """Return a statement at a position of a sentence."""
    clause, start = next(
        ((clause, start) for clause, start in clauses(sentence) if start <= place < start + len(clause) + 1),
        (sentence, 0),
    )
    return AnswerStatement(
        kind, text, sentence, clause, topic=topic, before=f"{before}\n{sentence[:start]}", place=place
    )


def _read_capitals(text: str) -> Capitals:
    """Return which words of an answer have capital letters."""
    words = _WORD.findall(text)
    if is_german(words):
        return Capitals.NOUNS
    capitals = [word for word in words if word[0].isupper()]
    return Capitals.TITLES if len(capitals) > _MAX_CAPITALS * len(words) + 4 else Capitals.NAMES


def _names(text: str, capitals: Capitals) -> Iterator[tuple[str, int]]:
    """Yield the capitalised words that are names. Where titles have capitals too, a name is two words, neither of
    them common; where all nouns have, none is known."""
    words = list(_WORD.finditer(text)) if capitals is not Capitals.NOUNS else []
    for index, item in enumerate(words):
        word = item[0]
        base = _POSSESSIVE.sub("", word).casefold()
        if not word[0].isupper() or (word.isupper() and len(word) < 5) or base in _COMMON or base in _FIGURES:
            continue
        is_followed = index + 1 < len(words) and words[index + 1].start() == item.end() + 1
        following = words[index + 1][0] if is_followed else ""
        is_double = is_followed and following[:1].isupper() and following.casefold() not in _COMMON
        if capitals is Capitals.TITLES:
            if is_double and not {stem(word.lower()), stem(following.lower())} & glue():
                yield f"{word} {following}", item.start()
            continue
        before = text[: item.start()]
        is_start = _START.search(before, max(0, len(before) - 12)) is not None or not _LETTER.search(before)
        is_plain = not is_double and (word.endswith("ing") or stem(word.lower()) in glue())
        if (not is_start or is_double) and not is_plain and word.casefold() not in _SALUTES:
            yield word, item.start()


def _causes(sentence: str) -> Iterator[tuple[str, int]]:
    if (found := shape("causes", "after").search(sentence)) and sentence[: found.start()].strip():
        yield sentence[: found.end()].strip(), found.start()
    for found in shape("causes", "marker").finditer(sentence):
        rest = sentence[found.end() :]
        end = shape("causes", "end").search(rest)
        cause = rest[: end.start()] if end else rest
        if cause.strip():
            yield f"{found[0]}{cause}".strip(), found.start()
    for found in shape("causes", "trend").finditer(sentence):
        yield next((found[group], found.start(group)) for group in (1, 2, 3) if found[group])


@cache
def _action_shape() -> re.Pattern[str]:
    """Return the pattern of claims, with a group for each kind of action.

    Kinds with verbs of several words come first, and verbs of no known kind come last.
    """
    claims, order = lexicon("claims"), {"book": -1, "other": 1}
    topics = sorted(lexicon("actions").items(), key=lambda item: order.get(item[0], 0))
    verbs = "|".join([f"(?P<{topic}>{given['said']})(?![\\w-])" for topic, given in topics])
    return re.compile(
        rf"(?:(?P<first>{claims['first_person']})|(?P<then>{claims['and_then']})"
        rf"|(?P<passive>{claims['passive']})|(?P<bare>{claims['bare']}))(?:{verbs})(?![/.]\w)",
        re.IGNORECASE,
    )


def _actions(sentence: str) -> Iterator[tuple[str, int, str]]:
    """Yield the claims that something was done: the verb, its position, and its kind with its form."""
    sentence = _INDIRECT.sub(_to_past, sentence)
    for found in _action_shape().finditer(sentence):
        topic = found.lastgroup or ""
        before = sentence[: found.start(topic)]
        if shape("claims", "not_claims").search(before):
            continue
        mode = next(name for name in ("first", "then", "passive", "bare") if found[name] is not None)
        if mode == "then" and not _first_person().search(before):
            continue
        if mode == "bare" and found[topic].casefold() in _SALUTES:
            continue
        rest = sentence[found.start(topic) :]
        is_shown = mode in ("bare", "passive") or topic == "write"
        if is_shown and shape("claims", "presented").search(rest):
            continue
        if mode in ("first", "then") and shape("claims", "worded").search(rest):
            continue
        if mode != "passive" or topic != "look":
            yield found[topic], found.start(topic), f"{topic}/{mode}"


def _to_past(found: re.Match[str]) -> str:
    """Return a claim such as `I took the liberty of sending` as `I` and a past form, at the same position."""
    verb = found["verb"].lower()
    base = verb.removesuffix("ing")
    past = _IRREGULAR.get(base) or _IRREGULAR.get(f"{base}e") or f"{base.removesuffix('e')}ed"
    return f"{'I'.ljust(len(found[0]) - len(verb))}{past}"


@cache
def _first_person() -> re.Pattern[str]:
    return re.compile(lexicon("claims")["first_person"], re.IGNORECASE)
