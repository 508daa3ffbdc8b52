"""The rules for relations: which record a word belongs to, what comes first, and what is denied."""

import re
from collections.abc import Iterator
from functools import cached_property

from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.figures.quantities import QuantityKind, lexicon, shape, shapes, unit_of
from treadle.datagen.quality.languages import WORDS
from treadle.datagen.quality.statements.doubts import SEEN, Doubt, DoubtKind, entities_of, show_record
from treadle.datagen.quality.statements.evidence import FILE, Evidence, plain, plain_label, word_list
from treadle.datagen.quality.statements.result_records import Cell, Labels, Record, stem, stems_of
from treadle.datagen.quality.statements.statements import AnswerStatement, glue

_NO_VALUE, _PAIR, _QUOTED, _ITEM, _NUMBER = shapes("relation_forms", "no_value pair quoted item number")
_CODE, _OF_CODE, _IS_SHORT_NO, _CONDITION = shapes("relation_forms", "code of_code is_short_no condition")
_PATH, _QUALITY = shapes("relation_forms", "path quality")
_FLAGS = {
    stem(said): stem(meant)
    for said, meant in (
        ("true", "yes"), ("false", "no"), ("yes", "true"), ("no", "false"), ("ja", "true"), ("nei", "false")
    )
}  # fmt: skip
"""How the values of flags are said."""
_MOST_SAID = 4
"""How many words besides the name of a column a sentence has that gives its value."""
_EMPTY = ("", "null", "none", "no", "false", "n/a", "0")
"""The texts of cells that give nothing."""
_BY = frozenset(("by",))
"""The word without which a text does not name a column such as `brewed_by`: `brewing B-77` does not."""
_MOST_NEW = 2
"""How many words of a sentence that says that a field is missing may be new."""
_LONG = 4
"""The length of words from which on they may be parts of others."""


class RelationRules:
    """The rules for the relations in an answer."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._doubts: dict[str, Doubt | None] = {}
        """What was found out about whole sentences, whichever clause asks."""

    def doubt_relation(self, statement: AnswerStatement) -> Doubt:
        """Hold the words of a clause against each other: what belongs to one record is not said of another."""
        seen, clause = self._seen, statement.clause
        if statement.sentence not in self._doubts:
            self._doubts[statement.sentence] = self._doubt_sentence(statement.sentence)
        if (doubt := self._doubts[statement.sentence]) is not None:
            return doubt
        if (found := shape("answers", "negation").search(clause)) is not None:
            if _CONDITION.search(clause[: found.start()]) or _IS_SHORT_NO.match(clause):
                return SEEN
            gone = shape("answers", "absent").search(clause)
            if gone is not None and gone.start() <= found.start() and found.end() < gone.end():
                return SEEN  # a field is denied, which was looked for among those that were seen
            return self._negation(clause[found.end() :], found[0], clause)
        anchors = seen.anchors(FILE.sub(" ", clause))
        if len(anchors) < 2 or shape("answers", "compares").search(clause):
            return SEEN
        entities = [names for names in entities_of(clause) if names & anchors and not names & seen.places]
        known = frozenset([name for names in entities for name in names])
        doubts: list[str] = []
        total = 0
        for names in entities:
            self._is_code = any(re.search(r"[\d_]", word) for word in names)
            own = self._records_of(names & anchors)
            others = [name for name in anchors if name not in known]
            others += [
                name
                for other in entities
                if other is not names
                for name in other & anchors
                if self._differs(own, names, name)
            ]
            for name in others:
                total += 1
                theirs = seen.by_stem[name]
                if not any(name in record.stems or name in record.context for record in own) and not any(
                    names & record.context for record in theirs
                ):
                    doubts.append(name)
        supported = total - len(doubts)
        # A word counts only against all entities of the clause.
        missing = [
            name for name in set(doubts) if doubts.count(name) == len([n for n in entities if name not in n])
        ]
        if not missing or (supported and not self._is_structured(missing)):
            return SEEN
        if len(missing) == 1 and not self._is_structured(missing) and missing[0] not in known:
            return Doubt(DoubtKind.UNPLACED, f"{missing[0]!r} is said of something else")
        return Doubt(DoubtKind.ELSEWHERE, f"{missing[0]!r} belongs to something else")

    def _doubt_sentence(self, sentence: str) -> Doubt | None:
        """Check the values that a sentence gives for columns; `None` if it gives none."""
        paired = self._paired(sentence)
        is_other = paired is not None and paired.kind is DoubtKind.UNLIKE
        denied = None if is_other else self._denied(sentence)
        said = denied or paired or self._unlisted(sentence)
        return said or self._unsaid(sentence)

    def doubt_share(self, statement: AnswerStatement) -> Doubt:
        """Check a share in words, such as `most of`, by counting the records that have the value."""
        end = statement.place + len(statement.text)
        rest = f"{statement.head}{' ' * len(statement.text)}{statement.sentence[end:]}"
        found = self._seen.portions(rest, statement.place, has_sums=False)
        is_denied = statement.head.lower().endswith(("not ", "ikke "))
        if any(_fits(statement.topic, item.part, item.whole) is not is_denied for item in found):
            return SEEN
        for item in found:
            if item.is_sole:
                return Doubt(DoubtKind.UNLIKE, f"is not right: it is {item.part:g} of {item.whole:g}")
        return Doubt(DoubtKind.UNCOUNTED, "cannot be counted")

    def _paired(self, sentence: str) -> Doubt | None:
        """Check the text that a short sentence gives for a column, such as `Status: open`."""
        signs = [] if find_quantities(sentence) else [*_PAIR.finditer(sentence)][:3]
        found: Doubt | None = None
        for sign in signs:
            name, text = _name_words(sentence[: sign.start()]), sentence[sign.end() :]
            found = self._doubt_pair(name, text, self._seen.anchors(sentence)) or found
            is_word = sign[0].strip(" *`)").isalpha()
            is_said = not is_word or any(plain_label(one) <= name for one in self._texts)
            if found is None and is_said and self._is_strange(text, name | glue() if is_word else name):
                found = Doubt(DoubtKind.STRANGE, "gives a value that nothing says")
        return found

    def _is_strange(self, text: str, name: frozenset[str]) -> bool:
        """Return whether a short value has only words that were not seen, and is no share in words or signature."""
        is_signature = bool(name) and name <= word_list("sentences", "courtesy")
        if is_signature or any(shape("shares", share).search(text) for share in lexicon("shares")):
            return False
        value = stems_of(text) - WORDS["en"] - name
        is_new = not any(
            word in self._seen.stems or (len(word) > _LONG and word in self._seen.text) for word in value
        )
        return 0 < len(value) <= 4 and is_new and shape("answers", "absent").search(f": {text}") is None

    def _doubt_pair(self, name: frozenset[str], text: str, anchors: frozenset[str]) -> Doubt | None:
        """Check the text that is given for the column that a name contains."""
        value, seen = stems_of(text), self._seen
        known = seen.subjects | seen.call_words
        anchors = anchors - value | {
            word for word in name if word[0].isdigit() and 0 < seen.frequency[word] < len(seen.records)
        }
        said = value - anchors - seen.subjects - glue() | value & _FLAGS.keys()
        is_plain = bool(said)  # else it is made of words that every answer has
        said = said or (value - anchors if len(value) <= 3 else frozenset())
        for label, cells in self._texts.items() if 0 < len(said) <= 4 else ():
            if not label & _BY <= name:
                continue
            label = plain_label(label)
            rest = name - label - anchors - known - glue() - word_list("answers", "states")
            if not label <= name or len(rest) > 1:
                continue
            if any(cell.stems and cell.stems <= name for _, cell in cells):
                continue  # the value tells which record is meant
            own = [(record, cell) for record, cell in cells if record.stems & anchors - cell.stems]
            own = own or (cells if len(cells) == 1 and anchors.isdisjoint(self._codes) else [])
            is_shown = any(
                said & (record.stems | {_FLAGS.get(one, "") for one in cell.stems}) or cell.stems <= value
                for record, cell in own
            )
            if own and not is_shown:
                kind = DoubtKind.UNLIKE if is_plain else DoubtKind.PARTLY
                return Doubt(kind, f"gives another value than {own[0][1].text!r}")
        return None

    def _unsaid(self, sentence: str) -> Doubt | None:
        """Check that a sentence that names a column of texts has a word of its value, if it has other words."""
        seen, words = self._seen, _name_words(sentence)
        ignored = seen.call_words | word_list("answers", "files")
        anchors = seen.anchors(sentence)
        named = [label for label in self._texts if plain_label(label) | label & _BY <= words]
        named = [
            label
            for label in named
            if not (plain_label(label) <= ignored or any(label < other for other in named))
        ]
        plain_sentence = _NUMBER.sub(
            lambda found: " " if found[0] in seen.subject_numbers else found[0], _CODE.sub(" ", sentence)
        )
        is_other = shape("answers", "absent").search(sentence) or find_quantities(plain_sentence)
        for label in () if is_other or len(named) != 1 else named:
            name, cells = plain_label(label), self._texts[label]
            own = _cells_of(cells, anchors)
            own = own or [cell for _, cell in cells if anchors.isdisjoint(self._codes)]
            if len(own) != 1 or not own[0].stems or own[0].stems & (words | _FLAGS.keys()):
                continue
            rest = stems_of(plain_sentence) - name - anchors - ignored - glue()
            rest -= word_list("answers", "states")
            others = [record.stems for record, cell in cells if cell is own[0]]
            if 0 < len(rest) <= _MOST_SAID and rest.isdisjoint(frozenset().union(*others)):
                way = "unsaid" if len(name) > 1 else "unsaid, short"
                return Doubt(DoubtKind.UNLIKE, f"gives another value than {own[0].text!r}", way)
        return None

    def _unlisted(self, sentence: str) -> Doubt | None:
        """Check that all items of a list are values of a column, if most of them are."""
        first, *inner = _ITEM.split(plain(sentence).strip(" .!*|`"))
        items = [item.strip(" *`\"'") for item in inner]
        for cells in self._texts.values() if len(items) > 1 else ():
            texts = {plain(cell.text) for _, cell in cells}
            new = [item for item in items if not any(_has(item, text) or _has(text, item) for text in texts)]
            is_list = sum([any(_has(part, text) for text in texts) for part in items]) > 1
            if is_list and len(texts) > 1 and (strange := self._strange_end(first)):
                return Doubt(
                    DoubtKind.UNLIKE, f"lists {strange!r}, which is not among the values", "first listed"
                )
            is_short = all(item.replace(" ", "").isalpha() and item.count(" ") < 3 for item in new)
            is_list = sum([any(_has(part, text) for text in texts) for part in (first, *items)]) > 1
            if (
                WORDS["en"].isdisjoint(" ".join(new).split())
                and new
                and is_list
                and not any(map(find_quantities, new))
                and is_short
                and 2 * len(new) <= len(items)
                and len(texts) > 1
            ):
                return Doubt(DoubtKind.UNLIKE, f"lists {new[0]!r}, which is not among the values", "listed")
        return None

    def _strange_end(self, text: str) -> str:
        """Return the words at the end of a text that begin a list, if none of them was seen; else nothing."""
        words: list[str] = []
        for word in reversed(text.split()[-3:]):
            if not word.isalpha() or stem(word) in glue() or word in WORDS["en"]:
                break
            words.insert(0, word)
        is_known = any(stem(word) in self._seen.stems or word in self._seen.text for word in words)
        return "" if is_known or len(words) > 2 else " ".join(words)

    def _has_letter(self, sentence: str) -> bool:
        """Return whether a sentence has a single letter that is a value, and can be the name of what is first."""
        letters = set(re.findall(r"(?<![\w'’])[A-Z](?![\w'’])", sentence))
        return any(cell.text in letters for cells in self._texts.values() for _, cell in cells)

    @cached_property
    def _codes(self) -> frozenset[str]:
        """Return the words with digits that choose some of the records."""
        total, found = len(self._seen.records), self._seen.frequency
        words = {name for name in found if found[name] < total} | self._seen.places
        return frozenset([word for word in words if re.search(r"\d", word) and not word.isdigit()])

    def _denied(self, sentence: str) -> Doubt | None:
        """Check that a field that is said to be missing is not among those of the results."""
        text = _QUOTED.sub(" ", sentence)
        absent = shape("answers", "absent").search(text)
        if absent is None:
            return None
        near = [*text[: absent.start()].split()[-4:], *text[absent.end() :].split()[:6]]
        beside = _name_words(" ".join(near))
        said, named = plain(absent[0].strip(' :=|*_`"')), _name_words(text)
        texts = [cells for label, cells in self._texts.items() if plain_label(label) <= named]
        is_row = text.count("|") > 3 and absent[0].strip()[0] == "|"
        if is_row or any(plain(cell.text) == said for cells in texts for _, cell in cells):
            return None  # it is the value of a column, or an empty cell behind a value
        value = _NO_VALUE.search(sentence.casefold())
        if value is not None and value[1] in self._seen.plain_text:
            return None  # a result has these words
        words = _name_words(shape("answers", "absent").sub(" ", FILE.sub(" ", sentence)))
        anchors = self._seen.anchors(sentence)
        rest = words - glue() - self._seen.subjects - anchors - word_list("answers", "states")
        ignored = self._seen.call_words | word_list("answers", "files")
        found = self._denied_list(text, words)
        for record in self._seen.records if found is None else ():
            if anchors and not anchors & (record.stems | record.context):
                continue
            for cell in record.cells:
                if cell.stems and cell.stems <= words | anchors:
                    continue  # it tells which record is meant
                label = plain_label(cell.label)
                if (label <= ignored and rest - label) or not cell.label & _BY <= words:
                    continue  # a file is often called like a column: only a sentence about nothing else denies this
                is_given = cell.text.strip(' -"[]{}').casefold() not in _EMPTY
                new = rest - label - self._seen.stems
                is_column = not new or (label <= beside and len(new) <= _MOST_NEW)
                if label and is_given and label <= words and is_column:
                    kind = DoubtKind.DENIED if rest - label else DoubtKind.UNLIKE
                    return Doubt(kind, f"denies what was seen: {show_record(record)}")
                named = label & rest
                if is_given and named and len(named) * 2 >= max(len(label), len(rest)):
                    found = Doubt(DoubtKind.POSSIBLE, f"may deny what was seen: {show_record(record)}")
        return found

    def _denied_list(self, sentence: str, words: frozenset[str]) -> Doubt | None:
        """Check that a list with items is not denied, by a sentence that speaks of nothing new."""
        listed = [name for name, sizes in self._seen.lengths(sentence).items() if min(sizes) > 0]
        named = words & frozenset(listed)
        is_new = any(word not in self._seen.text for word in words - glue() if word not in self._seen.stems)
        is_part = shape("answers", "compares").search(sentence) or find_quantities(_CODE.sub(" ", sentence))
        if not named or is_new or is_part:
            return None
        return Doubt(DoubtKind.DENIED, f"denies a list that was seen: {min(named)!r}")

    @cached_property
    def _texts(self) -> dict[frozenset[str], list[tuple[Record, Cell]]]:
        """Return the short texts of columns, with their records."""
        found: dict[frozenset[str], list[tuple[Record, Cell]]] = {}
        for record in self._seen.records:
            for cell in record.cells:
                if cell.label and not cell.quantities and len(cell.text) <= 40:
                    found.setdefault(cell.label, []).append((record, cell))
        return found

    def _is_structured(self, names: list[str]) -> bool:
        """Return whether a word is a value of a column."""
        return any(
            cell.label and name in cell.stems and len(cell.text) <= 40
            for name in names
            for record in self._seen.by_stem[name][:3]
            for cell in record.cells
        )

    def _records_of(self, names: frozenset[str]) -> list[Record]:
        """Return the records of a name of several words: those with all of them, else those with any."""
        every = [record for record in self._seen.by_stem[min(names)] if names <= record.stems]
        if every and (self._is_code or any(cell.label for cell in every[0].cells)):
            return every
        return [record for name in names for record in self._seen.by_stem[name]]

    def _differs(self, own: list[Record], names: frozenset[str], name: str) -> bool:
        """Return whether a word is a value of another kind than the name of some records."""
        theirs = self._seen.by_stem[name]
        if not any(cell.label for record in [*own[:2], *theirs[:2]] for cell in record.cells):
            is_code = re.search(r"[\d_]", name) is not None
            return bool(own) and own[0].source == theirs[0].source and is_code is not self._is_code
        labels = {_label_of(record, name) for record in theirs[:4]} - {frozenset()}
        own_labels = {_label_of(record, word) for record in own[:4] for word in names}
        mine = {cell.label for record in own[:4] for cell in record.cells}
        return (
            bool(labels & mine)
            and not labels & own_labels
            and not any(name in record.stems for record in own)
        )

    def _negation(self, rest: str, word: str, clause: str) -> Doubt:
        """Check that what is denied was not seen."""
        seen = self._seen
        if (path := _PATH.match(rest)) is not None and (
            not seen.shows(path[1])
            or any(item.is_error and path[1] in item.call.arguments for item in seen.calls)
        ):
            return SEEN  # a path is denied as a whole, whatever is called like a part of it
        words = [stem(name) for name in re.findall(r"[^\W\d](?:[\w.-]*\w)?", rest.lower())]
        if word.lower() == "not" and words[:1] in (["all"], ["every"], ["each"], ["both"]):
            return SEEN
        phrase = f"{word} {rest.strip(' *_`|')[:40]}".casefold().split()[:2]
        if " ".join(phrase).strip(".,;:)*`") in seen.plain_text and len(phrase) > 1:
            return SEEN  # a result or the request says so
        said = [name for name in words if name not in word_list("causes", "ignored")][:1]
        anchors = seen.anchors(FILE.sub(" ", clause))
        if said and said[0] not in seen.stems:
            return SEEN
        if word.lower() in ("no", "none of", "nobody"):
            names = frozenset([name for entity in entities_of(clause) for name in entity])
            kind = DoubtKind.DENIED if anchors - names else DoubtKind.PARTLY
        else:
            kind, anchors = DoubtKind.DENIED, anchors | frozenset(said)
        if not anchors or (len(seen.records) == 1 and not anchors & frozenset(said)):
            anchors = frozenset([name for name in said if name in seen.by_stem])
        for record in seen.records if anchors else ():
            if anchors <= record.stems and not record.stems & word_list("causes", "denials"):
                return Doubt(kind, f"denies what was seen: {show_record(record)}")
        return SEEN

    def doubt_order(self, statement: AnswerStatement) -> Doubt:
        """Check that what is called the first of its kind is first by some column."""
        seen = self._seen
        is_named = not stems_of(statement.text).isdisjoint(seen.stems)
        if is_named or shape("answers", "aggregate").search(statement.clause):
            return SEEN  # a result has the word itself
        quality = _QUALITY.search(statement.sentence)
        if quality and stem(quality[1].lower()) not in seen.labels:
            return Doubt(DoubtKind.UNCOUNTED)
        sentence = FILE.sub(" ", statement.sentence)
        anchors = seen.anchors(FILE.sub(" ", statement.clause))
        if not anchors and statement.before:
            anchors = seen.anchors(sentence)
        names = frozenset([name for entity in entities_of(sentence) for name in entity]) - seen.subjects
        if anchors and not self._is_structured(list(anchors)):
            anchors = seen.anchors(sentence)  # such as `time` of `highest response time: delta`
        anchors = (seen.anchors(sentence) & names) or anchors or seen.anchors(statement.sentence)
        codes = stems_of(" ".join(re.findall(r"\S*\d\S*", sentence)))
        if anchors <= codes:  # a code may only say where the first one is
            anchors = seen.anchors(sentence) - codes - seen.subjects or anchors
        after = _OF_CODE.findall(statement.rest.lower())
        if all(re.search(r"\d", name) for name in anchors) and anchors <= stems_of(" ".join(after)):
            return SEEN  # it names a field of one thing, and no winner
        keys = [name for name in anchors if 0 < seen.frequency[name] <= max(1, len(seen.records) // 2)]
        if not keys or len(seen.records) < 2 or self._has_letter(statement.sentence):
            return SEEN
        sources: dict[tuple[int, Labels], list[Record]] = {}
        for record in seen.records:
            sources.setdefault((record.source, frozenset(cell.label for cell in record.cells)), []).append(
                record
            )
        is_checked = False
        labels = seen.named_labels(sentence, QuantityKind.NUMBER, is_full=True)
        for records in [*sources.values(), seen.records]:
            if len(records) < 2:
                continue
            for first in _firsts(records, statement.topic, labels):
                is_checked = True
                if any(name in record.stems for record in first for name in keys):
                    return SEEN
            for values in _group_firsts(records, statement.topic, labels):
                is_checked = True
                if values & set(keys):
                    return SEEN
        return (
            Doubt(DoubtKind.UNLIKE, "is not first in any column")
            if is_checked
            else Doubt(DoubtKind.UNCOUNTED)
        )


def _has(text: str, words: str) -> bool:
    """Return whether a text has these words, and not only these letters."""
    return words in text and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _cells_of(cells: list[tuple[Record, Cell]], names: frozenset[str]) -> list[Cell]:
    """Return the cells of the records that have one of some names, else of those that it is above."""
    own = [cell for record, cell in cells if record.stems & names - cell.stems]
    return own or [cell for record, cell in cells if record.context & names - cell.stems]


def _name_words(text: str) -> frozenset[str]:
    """Return the stems of the words by which a text names columns: `status` also means `state`."""
    words, states = stems_of(text), word_list("answers", "states")
    return words | states if words & states else words


def _fits(topic: str, count: float, total: float) -> bool:
    """Return whether a share in words is right."""
    match topic:
        case "minority":
            return 2 * count < total
        case "most":
            return 2 * count > total
        case "all":
            return count == total
        case "none":
            return count == 0
        case "half":
            return 2 * count == total or (total > 8 and abs(2 * count - total) <= 0.1 * total)
    return topic == "some" and count > 0


def _label_of(record: Record, name: str) -> frozenset[str]:
    return next((cell.label for cell in record.cells if name in cell.stems), frozenset())


def _firsts(records: list[Record], topic: str, labels: Labels) -> Iterator[list[Record]]:
    """Yield the records that are first by some column: by one with one of the labels, if they have any."""
    if topic in ("first", "last"):
        yield [records[0] if topic == "first" else records[-1]]
    if topic in ("newest", "oldest", "first", "last"):
        ends = [_moment(record) for record in records]
        if any(ends):
            best = (max if topic in ("newest", "last") else min)(ends)
            yield [record for record, end in zip(records, ends, strict=True) if end == best]
        if topic in ("newest", "oldest"):
            return
    labels &= {cell.label for record in records for cell in record.cells}
    columns: dict[tuple[frozenset[str], int], list[tuple[float, Record]]] = {}
    for record in records if topic in ("most", "least") else ():
        for cell in [cell for cell in record.cells if not labels or cell.label in labels]:
            numbers = [item for item in cell.quantities if item.kind is QuantityKind.NUMBER]
            for index, item in enumerate(numbers if not cell.label else numbers[:1]):
                unit = unit_of(item.unit)
                value = item.value * (unit[1] if unit else 1)
                columns.setdefault((cell.label, index), []).append((value, record))
    for values in columns.values():
        listed = [value for value, _ in values]
        is_year = all(1900 <= value <= 2100 for value in listed)
        if len(values) < 2 or is_year or listed == [float(number) for number in range(1, len(listed) + 1)]:
            continue
        best_value = (max if topic == "most" else min)(listed)
        yield [record for value, record in values if value == best_value]


def _moment(record: Record) -> tuple[float, ...]:
    for cell in record.cells:
        dates = [item for item in cell.quantities if item.kind is QuantityKind.DATE]
        times = [item for item in cell.quantities if item.kind is QuantityKind.TIME]
        if dates:
            return (dates[0].year or 0, dates[0].value, times[0].value if times else 0.0)
    years = [item.value for cell in record.cells for item in cell.quantities if 1900 <= item.value <= 2100]
    return (years[0], 0.0, 0.0) if years else (0.0, 0.0, 0.0)


def _group_firsts(records: list[Record], topic: str, named: Labels) -> Iterator[frozenset[str]]:
    """Yield the words whose records have the largest or smallest sum of a column, or are most or fewest."""
    if topic not in ("most", "least"):
        return
    labels = {cell.label for record in records for cell in record.cells if cell.label}
    for by in labels:
        sums: dict[str, dict[frozenset[str], float]] = {}
        counts: dict[str, int] = {}
        for record in records:
            name = next((cell.text.casefold() for cell in record.cells if cell.label == by), None)
            if name is None:
                continue
            counts[name] = counts.get(name, 0) + 1
            for cell in record.cells:
                if cell.label != by and cell.quantities:
                    own = sums.setdefault(name, {})
                    own[cell.label] = own.get(cell.label, 0.0) + cell.quantities[0].value
        if not 1 < len(counts) < sum(counts.values()):
            continue
        pick = max if topic == "most" else min
        best = pick(counts.values())
        yield frozenset().union(*[stems_of(name) for name, count in counts.items() if count == best])
        for label in {label for own in sums.values() for label in own if not named or label in named}:
            totals = {name: own[label] for name, own in sums.items() if label in own}
            top = pick(totals.values())
            yield frozenset().union(*[stems_of(name) for name, total in totals.items() if total == top])
