"""The rules by which a statement of an answer is held against what was seen.

Each rule returns how far the statement is in doubt, from 0 to 1, with the reason. Quantities and relations have
modules of their own.
"""

import re
from collections import Counter

from msgspec.structs import replace

from treadle.core.types import Effect, ToolSpec
from treadle.datagen.quality.figures.figure_reader import find_quantities
from treadle.datagen.quality.figures.quantities import lexicon, shape, shapes
from treadle.datagen.quality.languages import WORDS, pattern
from treadle.datagen.quality.statements.doubts import (
    SEEN,
    Doubt,
    DoubtKind,
    rank,
)
from treadle.datagen.quality.statements.evidence import FILE, Evidence, MadeCall, plain, word_list
from treadle.datagen.quality.statements.quantity_rules import QuantityRules
from treadle.datagen.quality.statements.relation_rules import RelationRules
from treadle.datagen.quality.statements.result_records import stem, stems_of
from treadle.datagen.quality.statements.statements import (
    AnswerStatement,
    StatementKind,
    common_words,
    content_of,
    glue,
    is_readable,
)

_EXTENSION = pattern("files", "extension")
_CUT, _UNREAD, _OBJECT_END, _OBJECT, _DAYS = shapes("support_forms", "cut unread object_end object days")
_LABEL, _FRAME, _ENTERED = shapes("support_forms", "label frame entered")

_FEW_WORDS = 8
"""A sentence with fewer words is about one thing."""
_GENERIC = frozenset(("shell", "bash", "python", "command", "run", "execut", "exec", "patch", "sql", "query"))


class Support:
    """The rules for one answer."""

    def __init__(self, seen: Evidence, tools: tuple[ToolSpec, ...], answer: str) -> None:
        """`answer` is the whole text."""
        self._seen = seen
        self._tools = {tool.name: tool for tool in tools}
        self._quantities = QuantityRules(seen, answer)
        relations = RelationRules(seen)
        self._rules = {
            StatementKind.QUANTITY: self._quantities.doubt,
            StatementKind.RELATION: relations.doubt_relation,
            StatementKind.ORDER: relations.doubt_order,
            StatementKind.SHARE: relations.doubt_share,
            StatementKind.CLAIM: self._doubt_claim,
            StatementKind.ACTION: self._doubt_action,
            StatementKind.CAUSE: self._doubt_cause,
            StatementKind.NAME: self._doubt_name,
        }

    def doubt(self, statement: AnswerStatement) -> Doubt:
        """Return how far a statement is in doubt."""
        is_action = statement.kind is StatementKind.ACTION
        if self._is_repeated(statement.clause if is_action else statement.sentence):
            return SEEN
        return self._rules.get(statement.kind, self._doubt_words)(statement)

    def _is_repeated(self, sentence: str) -> bool:
        """Return whether a sentence repeats what the user or a result says word by word."""
        said = plain(sentence).strip(" .…!>*-–—|\"'")
        return said.count(" ") >= 3 and said in self._seen.plain_text

    def _doubt_words(self, statement: AnswerStatement) -> Doubt:
        """Check that a quoted text, a path or an identifier was seen, in these words."""
        seen = self._seen.plain_text
        said = plain(statement.text).strip("./ ,;:!?")
        parts = [part.strip("./ ,;:!?") for part in _CUT.split(said)]
        if all(part in seen for part in parts):
            is_unused = statement.kind is StatementKind.PATH and self._seen.calls and not self._is_used(said)
            if is_unused and not statement.says("denied"):
                return Doubt(DoubtKind.TOLD, "is in no call that succeeded")
            return SEEN
        if statement.topic == "quote" and _is_label(statement):
            return SEEN
        if statement.topic == "quote":
            missing = [word for word in stems_of(said) - glue() if not self._is_seen(word)]
            is_marked = any(mark in statement.sentence for mark in '"“«‘`')
            is_other = len(missing) > (0 if is_marked else 1)
            return Doubt(
                DoubtKind.UNFOUNDED if is_other else DoubtKind.REWORDED,
                "is quoted, but nothing has these words",
            )
        part = (
            statement.sentence
            if (statement.kind is StatementKind.TEXT and " " not in said)
            or statement.sentence.count(" ") < _FEW_WORDS
            else statement.clause
        )
        if shape("answers", "denied").search(part):
            return SEEN  # what is not there cannot be seen
        if _UNREAD.fullmatch(said):
            return Doubt(DoubtKind.UNREAD, "is a form that is not read")
        is_address = "@" in said or "://" in said
        new = Doubt(DoubtKind.FORGED if is_address else DoubtKind.ABSENT, "does not occur before")
        if re.fullmatch(r"\+?[\d ()-]+", said) or (
            statement.kind is StatementKind.IDENTIFIER and len(said) > 3
        ):
            if re.sub(r"[ ()+-]|^v(?=\d)", "", said) in re.sub(r"[ ()-]", "", seen):
                return SEEN
            if not re.search(r"[^\d ()+-]", said):
                return new
        is_proposed = shape("answers", "proposed").search(statement.head)
        if statement.is_advice and is_proposed and not self._has_path(statement.sentence):
            return Doubt(DoubtKind.REWORDED, "is a name that is proposed")
        if statement.kind is StatementKind.PATH:
            name, _, field = said.rpartition(".")
            is_key = (
                re.search(r"\d", name) is not None and field.isalpha()
            )  # a field, by the name of its record
            is_field = not _EXTENSION.fullmatch(f".{field}") and name in seen and (is_key or field in seen)
            return SEEN if is_field or self._is_joined(said) or self._is_list(said) else new
        return self._doubt_parts(statement, said, new)

    def _doubt_parts(self, statement: AnswerStatement, said: str, new: Doubt) -> Doubt:
        """Check the words and figures of a text that was not seen as a whole."""
        seen = self._seen.plain_text
        parts = [part for part in re.split(r"[\s/,;:|()\[\]{}\"'=]+|(?<!\d)\.|\.(?!\d)", said) if part]
        if len(parts) > 1 and all(part in seen for part in parts):
            return SEEN
        if found := find_quantities(said):
            return max(
                [
                    self._quantities.doubt(
                        replace(
                            statement,
                            quantity=item,
                            text=said[item.start : item.end],
                            place=statement.place + 1 + item.start,
                        )
                    )
                    for item in found
                ],
                key=rank,
            )
        words = stems_of(said)
        is_prose = statement.kind is StatementKind.TEXT and " " in said and not re.search(r"[\d/@_]", said)
        is_name = all(part[:1].isupper() for part in statement.text.split())
        is_known = bool(words & self._seen.stems) and not (is_name and words - self._seen.stems)
        return Doubt(DoubtKind.REWORDED, "is not said in these words") if is_prose and is_known else new

    def _doubt_claim(self, statement: AnswerStatement) -> Doubt:
        """Check that a sentence speaks of something that was seen."""
        words = content_of(statement.text) - word_list("sentences", "courtesy")
        if statement.text.startswith("I "):
            words -= word_list("sentences", "orders")  # what was done is a statement of its own
        missing = sorted([word for word in words if not self._is_seen(word)])
        is_said = (
            shape("answers", "denied").search(statement.text)
            or statement.says("announces")
            or _FRAME.fullmatch(statement.text)
        )
        if not missing or is_said:
            return SEEN
        if not is_readable(statement.text):
            return SEEN  # the words that it is made of are known in few languages
        is_new = len(missing) >= max(2, len(words)) and not find_quantities(statement.text)
        kind = DoubtKind.UNFOUNDED if is_new else DoubtKind.UNKNOWN
        return Doubt(kind, f"has words that nothing says ({', '.join(missing[:3])})")

    def _is_seen(self, word: str) -> bool:
        return word in self._seen.stems or word in self._seen.text

    def _is_used(self, path: str) -> bool:
        """Return whether a call that succeeded was given a path, or returned it."""
        texts = [(item.call.arguments, item.result) for item in self._seen.calls if not item.is_error]
        return any(path in plain(text) for pair in texts for text in pair)

    def _has_path(self, sentence: str) -> bool:
        """Return whether a sentence has the path of a file that was seen."""
        return any(
            "." in path and path.casefold() in self._seen.plain_text for path in FILE.findall(sentence)
        )

    def _is_joined(self, path: str) -> bool:
        """Return whether a path is a folder that a call was given, with a name from its result."""
        folder, _, name = path.rpartition("/")
        return bool(folder) and any(
            folder in item.call.arguments.casefold() and name in item.result.casefold()
            for item in self._seen.calls
        )

    def _is_list(self, text: str) -> bool:
        """Return whether a text names several things that were seen, with slashes between them."""
        parts, start = text.split("/"), 0
        for end in range(1, len(parts) + 1):
            name = "/".join(parts[start:end])
            if re.search(r"\d|\.\w", parts[end - 1]) and name in self._seen.plain_text:
                start = end
        return start == len(parts)

    def _doubt_name(self, statement: AnswerStatement) -> Doubt:
        word = statement.text.casefold()
        word = word.removesuffix("'s").removesuffix("’s")
        text = self._seen.text
        if stem(word) in self._seen.stems or word in self._seen.stems or word in text:
            return SEEN
        if self._is_heading(statement, word):
            return Doubt(DoubtKind.REWORDED, "is a word of a heading")
        parts = word.split("-")
        if len(parts) > 1 and all(stem(part) in self._seen.stems or part in text for part in parts):
            return SEEN
        if statement.says("absent"):
            return Doubt(DoubtKind.UNNAMED, "is named as what is not given")
        return Doubt(DoubtKind.ABSENT, "does not occur before")

    def _is_heading(self, statement: AnswerStatement, word: str) -> bool:
        """Return whether a name is a common word of a line that says what follows, or begins a field."""
        if not all(stem(part) in common_words() for part in re.split("[-'’]", word)):
            return False
        line = statement.sentence.strip(" |#*_\n")
        words = re.findall(r"[^\W\d_]+", line)
        is_line = len(words) <= _FEW_WORDS and line[-1:] not in (".", "!") and not re.search(r"\d", line)
        if is_line and all(stem(part.lower()) in common_words() for part in words):
            return True
        following = re.match(r"\s+([^\W\d_]+)", statement.rest)
        is_first = re.search(r"(?:^|[|:>*•-]\s*)[\W\d_]*$", statement.head) is not None
        return is_first and following is not None and stem(following[1].lower()) in self._seen.stems

    def _doubt_cause(self, statement: AnswerStatement) -> Doubt:
        """Check that the words of a cause, or of what something is compared with, were seen."""
        if statement.text.count(" ") > 2 and plain(statement.text) in self._seen.plain_text:
            return SEEN
        said = stems_of(
            shape("causes", "marker").sub("", shape("causes", "after").sub("", statement.text), count=1)
        )
        if shape("causes", "compared").match(statement.text):
            is_said = all(self._is_seen(word) for word in said if word not in WORDS["en"])
            is_named = said & self._seen.labels and all(map(self._is_seen, said))
            if is_named or _DAYS.fullmatch(statement.text):
                return SEEN  # `last` is a word of a column, or a number of days lies between two dates
            return (
                Doubt(DoubtKind.POSSIBLE) if is_said else Doubt(DoubtKind.UNFOUNDED, "is what nothing says")
            )
        words = {
            word
            for word in said
            if word not in word_list("causes", "neutral")
            and word not in glue()
            and not word[:1].isdigit()
            and not re.search("n['’]t$|^.$", word)
        }
        if not words or (words < self._seen.stems and self._is_owner(statement, words)):
            return SEEN
        missing = {word for word in words if word not in self._seen.stems and word not in self._seen.text}
        if not missing:
            return Doubt(DoubtKind.POSSIBLE, "gives a cause")
        share = len(missing) / len(words)
        listed = ", ".join(sorted(missing)[:3])
        if share > 0.4 and self._seen.has_new:
            return Doubt(DoubtKind.UNFOUNDED, f"gives a cause that nothing says ({listed})")
        return Doubt(DoubtKind.PARTLY, f"gives a cause with words that nothing says ({listed})")

    def _is_owner(self, statement: AnswerStatement, words: set[str]) -> bool:
        """Return whether a cause only says whose value a sentence gives, as in `attributed to Ada`."""
        is_value = shape("causes", "owner").match(statement.text) and find_quantities(statement.sentence)
        return bool(is_value) and any(
            words <= cell.stems
            for record in self._seen.by_stem.get(min(words), ())
            for cell in record.cells
            if not cell.quantities
        )

    def _doubt_action(self, statement: AnswerStatement) -> Doubt:
        """Check that a successful call could have done what an answer claims."""
        topic, mode, *state = statement.topic.split("/")
        if state:
            return self._doubt_state(statement, topic)
        verb = stem(statement.text.split()[0].casefold())
        done = [item for item in self._seen.calls if not item.is_error]
        after = statement.rest
        about = (
            statement.clause.partition(statement.text)[0]
            if mode == "passive"
            else _OBJECT_END.split(after)[0]
        )
        if mode != "passive" and shape("answers", "denied").search(about):
            return SEEN  # nothing was done to nobody
        missing = self._missing_words(about)
        strange = (
            Doubt(
                DoubtKind.STRANGE if len(missing) > 1 else DoubtKind.PARTLY,
                f"claims an action on something that nothing says ({missing[0]})",
            )
            if missing
            else SEEN
        )
        if topic == "look":
            times = Counter([item.call.name for item in self._seen.calls])
            if shape("claims", "again").search(statement.clause) and max(times.values(), default=0) < 2:
                return Doubt(DoubtKind.UNABLE, "claims that it was done again, but no tool was called twice")
            return (
                strange
                if done
                else Doubt(DoubtKind.UNABLE, "says that something was looked up, but no call succeeded")
            )
        if topic == "other" and (mode == "passive" or stem(verb) in glue()):
            return SEEN
        able = [item for item in done if self._can(item, topic, verb)]
        if not able:
            is_told = mode in ("passive", "then", "bare") and self._is_told(statement, verb)
            if is_told or (mode == "passive" and self._is_entered(after)):
                return Doubt(DoubtKind.TOLD)
            if topic == "other":
                return strange if len(missing) > 1 else replace(strange, kind=DoubtKind.PARTLY)
            is_own = mode == "first" and topic not in ("look", "run")
            kind = DoubtKind.UNDONE if is_own else DoubtKind.UNABLE
            return Doubt(kind, "claims an action, but no successful call could have done it")
        after = statement.sentence[statement.place :]
        named = _objects(after)
        if mode == "passive":
            named = [*_objects(statement.clause.partition(statement.text)[0]), *named]
        if named and not any(self._mentions(item, name) for item in able for name in named[:2]):
            if mode == "passive" and self._is_told(statement, verb):
                return Doubt(DoubtKind.TOLD)
            return Doubt(
                DoubtKind.ELSEWHERE, f"claims an action on {named[0]!r}, but no successful call did it"
            )
        return SEEN if named else strange

    def _doubt_state(self, statement: AnswerStatement, topic: str) -> Doubt:
        """Check that a call has made or shown a file that is said to exist, or deleted one that is gone."""
        name = next(reversed(_objects(statement.clause.partition(statement.text)[0])), "")
        calls = [item for item in self._seen.calls if self._mentions(item, name)]
        if topic in ("send", "run"):
            nouns = [word for word in statement.head.casefold().split() if len(word) > 3]
            made = [item for item in self._seen.calls if not item.is_error]
            is_shown = any(
                noun in item.result.casefold() for item in self._seen.calls for noun in nouns
            ) or any(
                self._can(item, topic, topic)
                and (topic == "send" or any(noun in item.call.arguments.casefold() for noun in nouns))
                for item in made
            )
        elif topic == "delete":
            is_shown = not calls or any(item.is_error or self._can(item, topic, topic) for item in calls)
        else:
            is_shown = not name or any(not item.is_error for item in calls)
        reason = (
            f"says that something was done{f' to {name!r}' if name else ''}, but no successful call did it"
        )
        return SEEN if is_shown else Doubt(DoubtKind.UNDONE, reason)

    def _missing_words(self, text: str) -> list[str]:
        """Return the words of an object, if at least half of those that say something were not seen."""
        words = [
            word for word in stems_of(text) if word not in word_list("causes", "neutral") and word.isalpha()
        ]
        words = [word for word in words if word not in word_list("claims", "objects") and len(word) > 2]
        words = [word for word in words if word not in word_list("numbers", "en")]
        missing = [word for word in words if word not in self._seen.stems and word not in self._seen.text]
        return missing if words and len(missing) * 2 >= len(words) else []

    def _can(self, item: MadeCall, topic: str, verb: str) -> bool:
        tool = self._tools.get(item.call.name)
        if tool is not None and tool.effect is Effect.PURE:
            return False
        words = stems_of(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", item.call.name))
        able = frozenset([stem(word) for word in lexicon("actions")[topic]["done"].split()])
        if verb in words or words & able:
            return True
        described = stems_of(tool.description.split(".")[0]) if tool is not None else frozenset()
        generic = words & _GENERIC
        return bool(generic and (topic == "run" or stems_of(item.call.arguments) & able)) or verb in described

    def _is_told(self, statement: AnswerStatement, verb: str) -> bool:
        """Return whether results or the request say that it was done."""
        return any(
            verb in record.stems or any(verb in cell.label for cell in record.cells)
            for record in self._seen.records
        )

    def _is_entered(self, after: str) -> bool:
        """Return whether what follows a verb is a value that was seen, as in `marked as open`."""
        found = _ENTERED.match(after)
        words = stems_of(found[1]) - WORDS["en"] if found else frozenset[str]()
        return bool(words) and all(self._is_seen(word) for word in words - glue() or words)

    def _mentions(self, item: MadeCall, name: str) -> bool:
        return name.casefold() in f"{item.call.arguments}\n{item.result}".casefold()


def _is_label(statement: AnswerStatement) -> bool:
    """Return whether a quoted text names the value that its sentence gives, in other words than a result."""
    start, said = statement.place, statement.text
    rest = statement.sentence[start:].removeprefix(statement.sentence[start : start + 1]).removeprefix(said)
    is_short = said.count(" ") < _FEW_WORDS and bool(
        find_quantities(f"{statement.sentence[:start]} ¤ {rest}")
    )
    return is_short and _LABEL.search(f"{statement.sentence[:start]}¤{said.strip()}¤") is not None


def _objects(text: str) -> list[str]:
    """Return what a claim is about: paths, quoted texts, names."""
    end = re.search(r"[.;!?](?=\s|$)|\b(?:and|but|then|because)\b", text)
    part = text[: end.start()] if end else text
    return [next(name for name in found if name) for found in _OBJECT.findall(part)]
