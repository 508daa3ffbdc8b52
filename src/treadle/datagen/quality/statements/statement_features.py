"""The features of a statement by which trained weights tell how likely it is untrue.

They say what the rules found, in what kind of sentence the statement stands, and what a value, a name or an action
looks like. None of them is a word of the results: weights must hold for texts that nobody has seen.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from math import exp

import msgspec

from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.figures.quantities import QuantityKind, lexicon, shape, shapes, unit_of
from treadle.datagen.quality.statements.doubts import (
    Doubt,
    DoubtKind,
    find_anchors,
    find_labels,
    find_rivals,
)
from treadle.datagen.quality.statements.evidence import Evidence, plain_label
from treadle.datagen.quality.statements.matches import Matches
from treadle.datagen.quality.statements.result_records import stem, stems_of
from treadle.datagen.quality.statements.statements import (
    AnswerStatement,
    StatementKind,
    common_words,
    content_of,
    glue,
    words_in,
)

_CAPITAL, _AFTER_CAPITAL, _FIRST, _NOUN = shapes("feature_forms", "capital after_capital first noun")
_FIGURES = (StatementKind.QUANTITY, StatementKind.IDENTIFIER, StatementKind.PATH, StatementKind.NAME)
_UNREAD = (DoubtKind.UNREAD, DoubtKind.UNNAMED)
_TEXTS = (StatementKind.PATH, StatementKind.IDENTIFIER, StatementKind.TEXT)
_SIGNS = {"/": "slash", "@": "address", " ": "space", ".": "dot", "_": "underscore"}
_CALCULATED = ("aggregate", "mean", "differs", "doubled", "yearly", "whole", "number_of")
"""The patterns of sentences that say that a figure was calculated."""
_SIZES = ((3, "tiny"), (12, "small"), (50, "count"), (1000, "middle"))


class StatementFeatures:
    """The features of the statements of one answer."""

    def __init__(self, seen: Evidence, pairs: Sequence[tuple[AnswerStatement, Doubt]]) -> None:
        """`pairs` are the statements with what the rules found."""
        self._seen = seen
        self._told = stems_of(" ".join(seen.told))
        read = [pair for pair in pairs if pair[0].kind in _FIGURES and pair[1].kind not in _UNREAD]
        said = [doubt.is_open for _, doubt in read]
        self._sound = {item.sentence for item, doubt in read if not doubt.is_open}
        self._places = {
            text: at for at, text in enumerate(dict.fromkeys([item.sentence for item, _ in pairs]))
        }
        state = "all" if not any(said) else "none" if all(said) else "some"
        self._answer = {f"answer:{state}" if said else "answer:no"}
        if seen.new_calls and all(item.is_error for item in seen.new_calls):
            self._answer.add("answer:failed")
        self._values: dict[float, list[tuple[str, frozenset[str]]]] = defaultdict(list)
        """The sentences of each number, with the words that say what they are about."""
        for item, _ in pairs:
            if item.quantity is not None:
                self._values[item.quantity.value].append((item.sentence, content_of(item.sentence)))
        self._known: dict[str, frozenset[str]] = {}
        self._matches = Matches(seen)

    def of(self, statement: AnswerStatement, doubt: Doubt) -> frozenset[str]:
        """Return the features of a statement; none if it was seen."""
        kind = statement.kind
        names = {"statement", f"{kind}={doubt.kind}"}
        match = self._matches.of(statement) if kind is StatementKind.QUANTITY else ""
        if doubt.kind is DoubtKind.SEEN and "clearly" not in match:
            return frozenset()
        if (shared := self._known.get(statement.sentence)) is None:
            shared = frozenset([*self._of_sentence(statement.sentence), *self._answer])
            self._known[statement.sentence] = shared
        own = {*self._of_kind(statement)}
        if match:
            own.add(f"matches {match}")
            if doubt.way:
                own.add(f"by {doubt.way} matches {match}")
        if doubt.way:
            own |= {f"by {doubt.way}", *_of_way(doubt.way, own, statement.sentence)}
        if statement.is_advice:
            own.add("advice")
        names |= shared
        if kind not in (*_FIGURES, StatementKind.TEXT):
            names |= _words_of(statement.sentence)
        names |= {f"{kind}:{name}" for name in shared | own}
        names |= {f"{kind}={doubt.kind}:{name}" for name in own}
        return frozenset(names)

    def _of_sentence(self, sentence: str) -> Iterator[str]:
        """Yield what kind of sentence it is: by small words, by what it speaks of, and by its place."""
        words = words_in(sentence)
        begin = next(iter(_FIRST.findall(sentence)), "").lower()
        for name, listed in _small_words().items():
            if not listed.isdisjoint(words):
                yield name
            if begin in listed:
                yield f"begins {name}"
        if stem(begin) in common_words():
            yield "begins common"
        if any(len(word) > 4 and word.endswith("ed") for word in words):
            yield "past"
        yield from [
            name for sign, name in (("?", "asks"), ("!", "calls"), ("%", "percent")) if sign in sentence
        ]
        if self._seen.anchors(sentence):
            yield "anchored"
        if self._seen.named_labels(sentence, QuantityKind.NUMBER, is_full=True):
            yield "labelled"
        if sentence in self._sound:
            yield "sound"
        content = content_of(sentence)
        new = [word for word in content if word not in self._seen.stems and word not in self._seen.text]
        yield (
            "new:none"
            if not new
            else "new:all"
            if len(new) == len(content)
            else ("new:half" if len(new) * 2 >= len(content) else "new:few")
        )
        if len(new) > 2:
            yield "new:many"
        if content and content <= self._told:
            yield "told"
        place = self._places.get(sentence, 0)
        yield "first" if not place else "last" if place == len(self._places) - 1 else "inside"
        if sentence.lstrip().startswith(("|", "#")):
            yield "row" if "|" in sentence else "heading"
        long = [word for word in _FIRST.findall(sentence) if len(word) > 3]
        if len(long) > 1 and all(word[0].isupper() for word in long):
            yield "title"
        yield "short" if len(words) <= 4 else "long" if len(words) >= 16 else "medium"

    def _of_kind(self, statement: AnswerStatement) -> Iterator[str]:
        """Yield what a statement of its kind looks like."""
        if statement.kind is StatementKind.NAME:
            yield from self._of_name(statement)
        elif statement.kind is StatementKind.QUANTITY:
            yield from self._of_quantity(statement)
        elif statement.kind is StatementKind.ACTION:
            yield from statement.topic.split("/")
        elif statement.kind in _TEXTS:
            yield from self._of_text(statement)
        elif statement.topic:
            yield statement.topic

    def _of_name(self, statement: AnswerStatement) -> Iterator[str]:
        sentence, start = statement.sentence, statement.place
        before, after = sentence[:start].rstrip(), sentence[start + len(statement.text) :]
        is_followed = _CAPITAL.match(after) is not None
        if is_followed or _AFTER_CAPITAL.search(before):
            yield "double"
        elif not before:
            yield "at start"
        else:
            yield "after word" if before[-1].isalpha() else "after sign"
        if not is_followed:
            yield "then word" if after.lstrip()[:1].isalpha() else "then sign"
        parts = [stem(part) for part in re.split(r"['’-]", statement.text.lower()) if len(part) > 2]
        if all(part in common_words() for part in parts):
            yield "common"
        if len(parts) > 1:
            yield "hyphen"
        if statement.text.isupper() or len(statement.text) <= 3:
            yield "letters"

    def _of_text(self, statement: AnswerStatement) -> Iterator[str]:
        text = statement.text
        yield from [name for sign, name in _SIGNS.items() if sign in text]
        if any(char.isdigit() for char in text):
            yield "digit"
        if statement.topic:
            yield statement.topic
        parts = [part for part in stems_of(text) if len(part) > 2]
        new = [part for part in parts if part not in self._seen.stems and part not in self._seen.text]
        yield "all new" if len(new) == len(parts) else "some new"
        if all(part in common_words() for part in parts):
            yield "common"

    def _of_quantity(self, statement: AnswerStatement) -> Iterator[str]:
        item, sentence = statement.quantity, statement.sentence
        assert item is not None
        size = abs(item.value)
        yield item.kind
        yield next((name for limit, name in _SIZES if size <= limit), "large")
        unit = unit_of(item.unit)
        yield f"unit {unit[0]}" if unit else "percent sign" if item.unit == "%" else "no unit"
        for is_so, name in (
            (size != int(size), "decimals"),
            (item.is_word, "in words"),
            (item.is_about, "about"),
            (item.whole is not None, "of whole"),
            (item.spread is not None, "range"),
            (len(find_quantities(sentence)) > 1, "among figures"),
            (sentence.lstrip("|*-•` ").startswith(statement.text), "at start"),
        ):
            if is_so:
                yield name
        others = [words for said, words in self._values[item.value] if said != sentence]
        if any(words.isdisjoint(content_of(sentence)) for words in others):
            yield "twice"
        yield from self._of_rivals(statement)
        noun = _NOUN.match(sentence[statement.place + len(statement.text) :])
        yield (
            "no noun" if noun is None else "noun" if stem(noun[1].lower()) in self._seen.stems else "new noun"
        )
        count = len(self._seen.records)
        yield "few records" if count < 2 else "some records" if count < 16 else "many records"

    def _of_rivals(self, statement: AnswerStatement) -> Iterator[str]:
        """Yield whether the results have another value for what a quantity is said of."""
        item = statement.quantity
        assert item is not None
        labels, is_alone = find_labels(self._seen, statement)
        yield "alone" if is_alone else "crowded"
        anchors, places = find_anchors(self._seen, statement)
        if anchors:
            yield "of a record"
        if not labels:
            yield "no label"
            return
        is_full = any(plain_label(label) <= stems_of(statement.sentence) for label in labels)
        yield "full label" if is_full else "half label"
        cells = find_rivals(self._seen, labels, anchors, places)
        yield "no rival" if not cells else "rival" if len(cells) == 1 else "rivals"
        sizes = [abs(cell.quantities[0].value) for cell in cells]
        size = abs(item.value)
        near = min([abs(one - size) / max(one, size, 1e-9) for one in sizes], default=1.0)
        yield "near" if near < 0.02 else "close" if near < 0.1 else "far"


@lru_cache(maxsize=1024)
def _words_of(sentence: str) -> frozenset[str]:
    """Return the common words of a sentence, which tell small talk and advice from claims."""
    words = frozenset([stem(word) for word in words_in(sentence)])
    return frozenset([f"says {word}" for word in words & (common_words() | glue())])


def _of_way(way: str, own: set[str], sentence: str) -> Iterator[str]:
    """Yield whether a sentence says that a figure was calculated, and whether the results have another one."""
    is_told = any(shape("answers", name).search(sentence) for name in _CALCULATED)
    told = "told" if is_told else "untold"
    yield f"by {way} {told}"
    for name in ("full label", "rival", "in words", "about"):
        if name in own:
            yield f"by {way} {told}, {name}"


def weigh(features: frozenset[str]) -> float:
    """Return how likely a statement with some features is untrue; 0 if it has none."""
    if not features:
        return 0.0
    weights = load_weights()
    return 1 / (1 + exp(-sum([weights.get(name, 0.0) for name in features])))


@cache
def load_weights() -> dict[str, float]:
    """Return the weights, which `python -m benchmarks.train_statements` makes."""
    return msgspec.json.decode(
        files(__package__).joinpath("statement_weights.json").read_bytes(), type=dict[str, float]
    )


@cache
def _small_words() -> dict[str, frozenset[str]]:
    """Return the words that tell what kind of sentence it is, by their class."""
    return {name: frozenset(words.split()) for name, words in lexicon("sentences").items()}
