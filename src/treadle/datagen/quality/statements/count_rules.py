"""The rules for counts: of the lines, rows and matches of a file, of the items of a list, of files."""

from collections import Counter, defaultdict
from itertools import accumulate, combinations, combinations_with_replacement

from treadle.datagen.quality.figures.quantities import Quantity, QuantityKind, shape, shapes
from treadle.datagen.quality.statements.doubts import SEEN, Doubt, DoubtKind, find_figures
from treadle.datagen.quality.statements.evidence import FILE, Evidence, word_list
from treadle.datagen.quality.statements.result_records import stem, stems_of
from treadle.datagen.quality.statements.statements import AnswerStatement

_COUNTED, _ASKED, _ANSWER_ALONE, _PLURAL = shapes("count_forms", "counted asked answer_alone plural")
_NUMBER_OF, _NOUN, _VERB, _HOLDING, _PATH = shapes("count_forms", "number_of noun verb holding path")
_TOGETHER, _HIT, _LISTED = shapes("count_forms", "together hit listed")


class CountRules:
    """The rules for the counts of one answer."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen

    def doubt(self, statement: AnswerStatement, item: Quantity) -> Doubt | None:
        """Check a number of lines, rows or matches of a file, or of the items of a list; `None` if it is none."""
        if item.kind is not QuantityKind.NUMBER or item.unit or item.value != int(item.value):
            return None
        before, after = statement.head, statement.rest
        if _ANSWER_ALONE.fullmatch(statement.sentence):
            question = next(reversed(statement.before.removesuffix(before).split("\n")[-2:-1]), "")
            before = f"{question} {before}" if question.rstrip(" *_").endswith("?") else before
        lengths = self._lengths(statement, before, after)
        is_named = lengths is None and bool(
            self._seen.named_labels(statement.clause, item.kind, is_full=True)
        )
        found = shape("answers", "lines").match(after) or _COUNTED.search(before) or _ASKED.search(before)
        if found is None and lengths is None and (files := self._doubt_files(statement, item)) is not None:
            return files
        if is_named and found is None:
            return None
        if found is not None and not is_named and (path := self._failed_path(statement.sentence.casefold())):
            return Doubt(DoubtKind.UNABLE, f"is about {path!r}, of which every call failed")
        anchors = self._seen.anchors(FILE.sub(" ", statement.sentence)) - self._seen.subjects
        if found is not None:
            allowed = set() if anchors else self._count_lines(found[1].lower(), f"{before}{after}".casefold())
        else:
            allowed = lengths or set()
            anchors |= {""} if shape("answers", "part").search(f"¤{after[:24]}") else set()
        is_sum = len(FILE.findall(statement.sentence)) > 1 or _TOGETHER.search(statement.sentence) is not None
        sums = [*combinations_with_replacement(allowed, 2), *combinations(allowed, 3)] if is_sum else []
        if is_sum and shape("answers", "differs").match(after.lstrip(" *`_").partition(" ")[0]):
            sums += [(one, -two) for one in allowed for two in allowed if one > two]
        if abs(item.value) in {*allowed, *map(sum, sums)}:
            return SEEN
        if found is not None and _HOLDING.search(statement.sentence):
            hits = self._count_hits(statement.sentence.casefold())
            is_other = hits and not is_sum and abs(item.value) not in hits
            # else it may count a part of a file
            return Doubt(DoubtKind.UNLIKE, "is another number than was found", "hits") if is_other else None
        is_other = found is not None and found[1].lower().startswith("file")
        is_near = 2 * abs(item.value) >= min(allowed, default=0.0)
        if is_named or (is_other and not is_near and len({call.call.name for call in self._seen.calls}) > 1):
            return None  # a result names it, or it may count the files that other calls had
        if not allowed or anchors or (found is not None and self._is_printed(found[1], item)):
            return None
        return Doubt(DoubtKind.UNLIKE, "differs from the number in the results")

    def _is_printed(self, noun: str, item: Quantity) -> bool:
        """Return whether a result has this number behind a name with the noun, as in `lines: 13`."""
        return any(
            cell.label & stems_of(noun) and any(one.value == item.value for one in cell.quantities)
            for record in self._seen.records
            for cell in record.cells
        )

    def _lengths(self, statement: AnswerStatement, before: str, after: str) -> set[float] | None:
        """Return how many items the lists have that the words after a number name, as in `3 billed lines`, or those
        before it, as in `number of billed lines: 3`; else the only list that the sentence names. `None` if there is
        none."""
        lengths = self._seen.lengths(f"{before} {after}")
        named = shape("answers", "number_of").search(before)
        noun = named or _NOUN.match(_NUMBER_OF.sub("", after))
        names = [stem(word) for word in next(filter(None, noun.groups())).lower().split()] if noun else []
        for size in range(len(names), 0, -1):
            if (found := lengths.get("_".join(names[:size]))) is not None:
                return found
        words = frozenset(
            [stem(word) for word in _PLURAL.findall(FILE.sub(" ", f"{before} {after}".lower()))]
        )
        said = [sizes for name, sizes in lengths.items() if name.rpartition("_")[2] in words]
        is_alone = len(find_figures(self._seen, statement.sentence)) == 1 and not self._seen.named_labels(
            statement.sentence, QuantityKind.NUMBER
        )
        return said[0] if len(said) == 1 and is_alone else None

    def _doubt_files(self, statement: AnswerStatement, item: Quantity) -> Doubt | None:
        """Check a number of files in a sentence that names none, such as `File count: 12`; `None` if it is none."""
        start = statement.sentence.rfind(";", 0, statement.place) + 1
        part = statement.sentence[start:].partition(";")[0]
        if not stems_of(part) & word_list("answers", "files") or FILE.search(part) or item.value < 2:
            return None
        if self._seen.named_labels(part, item.kind, is_full=True):
            return None  # a result has this name, as in `bytes in file`
        allowed = self._count_lines("files", "")
        if abs(item.value) in allowed:
            return SEEN
        is_part = _HOLDING.search(part) or self._seen.anchors(part)
        return (
            Doubt(DoubtKind.UNLIKE, "differs from the number in the results")
            if allowed and not is_part
            else None
        )

    def _count_hits(self, text: str) -> set[float]:
        """Return how many lines each search found in the file that a text names."""
        found: set[float] = set()
        for call in self._seen.calls:
            paths = [
                line.partition(":")[0].casefold() for line in call.result.splitlines() if _HIT.match(line)
            ]
            named = Counter([path for path in paths if _names(text, path)])
            found |= set(map(float, named.values())) if len(named) == 1 else set()
        return found

    def _failed_path(self, text: str) -> str:
        """Return a path of a text that only calls that failed were given; empty if there is none."""
        given: dict[bool, set[str]] = {True: set(), False: set()}
        for call in self._seen.calls:
            given[call.is_error] |= {
                word.strip("./-") for word in _PATH.findall(call.call.arguments.casefold())
            }
        return next((word for word in given[True] - given[False] if "." in word and _names(text, word)), "")

    def _count_lines(self, noun: str, text: str) -> set[float]:
        """Return how many lines, rows or matches the files that a text names have."""
        allowed: set[float] = set(self._seen.lengths().get(stem(noun), ()))
        used: defaultdict[str, set[str]] = defaultdict(set)
        """The files that each tool was given."""
        given = [
            [word.strip("./-") for word in _PATH.findall(call.call.arguments.casefold())]
            for call in self._seen.calls
        ]
        new = {call.call.call_id for call in self._seen.new_calls if not call.is_error}
        files = {
            word
            for call, words in zip(self._seen.calls, given, strict=True)
            for word in words
            if call.call.call_id in new and FILE.fullmatch(word)
        }
        if (len(files) == 1 or not _VERB.search(text)) and not FILE.search(text):
            text += f" {' '.join(sorted(files))}"  # each of them can be meant
        has_single = False
        for number, (call, words) in enumerate(zip(self._seen.calls, given, strict=True)):
            paths = [word for word in words if "." in word and _names(text, word)]
            lines = call.result.splitlines()
            if noun.startswith("file") and call.result.startswith('["'):
                lines = [name.strip('" ') for name in call.result.strip("[]").split(",")]
            if noun.startswith("file"):
                used[call.call.name] |= set() if call.is_error else {word for word in words if "." in word}
                if len(lines) > 1 and all(_LISTED.fullmatch(line) for line in lines):
                    folders = [
                        part for line in lines for part in accumulate(line.split("/")[:-1], "{}/{}".format)
                    ]
                    allowed |= {float(len(lines)), *map(float, Counter(folders).values())}
            elif named := [line for line in lines if _HIT.match(line) and _is_in(text, line)]:
                allowed.add(float(len(named)))
            elif paths and not call.is_error and len(lines) == 1:
                has_single = True
            elif paths and not call.is_error and lines:
                filled = [line for line in lines if line.strip()]
                records = sum([record.source == number for record in self._seen.records])
                is_table = noun[0] == "r" or paths[0].endswith((".csv", ".tsv"))
                allowed |= {float(len(lines)), float(len(filled))} if noun[0] == "l" else set()
                is_read = (noun[0] != "l" or "data lines" in text) and is_table and not call.is_repeated
                allowed |= {float(records)} if is_read else set()
        if allowed and has_single:
            allowed.add(1.0)  # alone, one line may be a message of the tool, and not a file
        return allowed | {float(len(paths)) for paths in used.values() if paths and allowed}


def _is_in(text: str, hit: str) -> bool:
    """Return whether a text names the file of a hit."""
    return hit.partition(":")[0].rpartition("/")[2].casefold() in text


def _names(text: str, path: str) -> bool:
    """Return whether a text names a path, and not only another one that begins like it."""
    return path in text and any(
        name == path or name.endswith(f"/{path}") for name in map(_strip, _PATH.findall(text))
    )


def _strip(word: str) -> str:
    return word.strip("./-")
