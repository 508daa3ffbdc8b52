"""The filter of made-up facts: what a final answer states must come from what the conversation shows before it."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from treadle.core.types import Message, Role
from treadle.datagen.quality.exchanges import answers, leaves_of, quote
from treadle.datagen.quality.languages import GERMAN, WORDS, pattern, word_lists
from treadle.datagen.quality.numbers import NUMBER, Derived, NumberSource, find_numbers, read_number
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, FilterSettings, FilterVerdict

_CODE, _PATH, _SYMBOL, _QUOTED, _ANSWER, _UNIT, _START = [
    pattern("answers", name) for name in ("code", "path", "symbol", "quoted", "answer", "unit", "start")
]
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_IS_WORD = re.compile(r"\w").match
_MAX_CAPITALS = 0.35
_COMMON = WORDS["en"] | word_lists("answers")["common"]


class GroundingSettings(FilterSettings):
    """The kinds of statements that are checked."""

    numbers: bool = True
    """True to check numbers. Also allowed are counts, sums of columns, differences and shares of observed numbers,
    and the results of equations in the agent's text."""
    paths: bool = True
    """True to check paths, addresses, identifiers, versions, dates, times and quoted texts."""
    names: bool = True
    """True to check capitalised words within sentences, and the words of a line `Answer: …`."""


class GroundingFilter(BuiltinFilter[GroundingSettings]):
    """Paths, numbers and names in the final answers come from what was seen before: the user's words, the
    instructions, tool results, and what the agent itself wrote in calls that succeeded. Answers before the first
    tool call are not checked: they state what the model knows. The filter does not find a wrong value that occurs
    elsewhere in the conversation, or a wrong small count."""

    name = "grounding"
    settings_type = GroundingSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`."""
        messages = candidate.row.messages
        checked = 0
        for index in answers(messages):
            if any(message.role is Role.TOOL for message in messages[:index]):
                checked += 1
                if found := self._find(messages[:index], messages[index].content):
                    what, text = found
                    where = f"the answer in message {index} has the {what} {quote(text)}"
                    reason = f"{where}, which does not occur before"
                    return self.reject(reason, found=text)
        return self.accept("" if checked else "no tool was called")

    def _find(self, before: Sequence[Message], answer: str) -> tuple[str, str] | None:
        """Return the kind and the text of the first statement that nothing before the answer supports."""
        seen = _Seen(before)
        settings = self.settings
        for what, text in _statements(answer):
            is_wanted = (
                settings.numbers if what == "number" else settings.names if what == "name" else settings.paths
            )
            if is_wanted and not seen.has(what, text):
                return what, text
        return None


def _statements(answer: str) -> Iterator[tuple[str, str]]:
    """Yield what an answer states: kind and text."""
    rest = _CODE.sub("\n", answer)
    # A quoted text is one statement, also if it is a path or an address.
    for what, shape in (("text", _QUOTED), ("path", _PATH), ("identifier", _SYMBOL)):
        for found in shape.finditer(rest):
            text = next((item for item in found.groups() if item), found[0])
            if unit := _UNIT.fullmatch(text):
                yield "number", unit[1]
            else:
                yield what, text
        rest = shape.sub(" \x00 ", rest)
    for found in NUMBER.finditer(re.sub(r"(?m)^[^\S\n]*+\d+[.)]\s", "", rest)):
        yield "number", found[0]
    yield from (("name", text) for text in _names(rest))


def _names(text: str) -> Iterator[str]:
    for line in _ANSWER.findall(text):
        yield from (word for word in _WORD.findall(line) if word.casefold() not in _COMMON)
    words = list(_WORD.finditer(text))
    capitals = [item[0] for item in words if item[0][0].isupper()]
    is_german = len(GERMAN.intersection([item[0] for item in words])) >= 2
    if len(capitals) > _MAX_CAPITALS * len(words) + 4 or is_german:
        return  # titles, or a language in which all nouns have capitals
    for item in words:
        word = item[0]
        is_name = word[0].isupper() and not word.isupper() and word.casefold() not in _COMMON
        if is_name and not _START.search(text, max(0, item.start() - 12), item.start()):
            yield word


class _Seen:
    """What the messages before an answer show."""

    def __init__(self, messages: Sequence[Message]) -> None:
        failed = {item.call_id for item in messages if item.is_error}
        self._sources: list[NumberSource] = []
        work = []
        folders: dict[str, str] = {}
        for message in messages:
            if message.role is Role.ASSISTANT:
                work += [message.content, message.reasoning or ""]
                for call in message.tool_calls:
                    texts = _texts(call.arguments)
                    folders[call.call_id] = next(
                        (item.rpartition("/")[0] for item in texts if "/" in item), ""
                    )
                    if call.call_id not in failed:
                        self._sources += [NumberSource(item) for item in texts]
            else:
                self._sources.append(NumberSource(message.content, folders.get(message.call_id or "", "")))
        names = [call.name for message in messages for call in message.tool_calls]
        self._text = "\n".join([*[item.text for item in self._sources], *names]).casefold()
        self._words: set[str] | None = None
        self._numbers: set[object] | None = None
        self._derived = Derived(self._sources, "\n".join(work))

    def has(self, what: str, text: str) -> bool:
        """Return whether a statement of the given kind occurs in earlier messages, or can be derived from them."""
        if what == "number":
            value = read_number(text)
            if value is None:
                return text.casefold() in self._text
            if _has_digits(self._text, text):
                return True
            if self._numbers is None:
                self._numbers = {abs(number) for number in find_numbers(self._text)}
            return abs(value) in self._numbers or self._derived.has(text)
        if what == "name":
            if self._words is None:
                self._words = set(_WORD.findall(self._text))
            word = text.casefold().removesuffix("'s").removesuffix("’s")
            return word in self._words or word.removesuffix("s") in self._words
        folded = text.casefold().strip("./ ")
        if folded in self._text:
            return True
        parts = [part for part in re.split(r"[/\s]+", folded) if part]
        return len(parts) > 1 and all(part in self._text for part in parts)


def _has_digits(seen: str, text: str) -> bool:
    """Return whether digits occur in the text as a part of a date or a time."""
    digits = text.strip("$€£-−")
    start = seen.find(digits) if len(digits) > 1 else -1
    while start >= 0:
        before, after = seen[max(0, start - 1) : start], seen[start + len(digits) : start + len(digits) + 1]
        if before != "." and not _IS_WORD(before) and not _IS_WORD(after):
            return True
        start = seen.find(digits, start + 1)
    return False


def _texts(arguments: str) -> list[str]:
    """Return the strings and numbers in the arguments of a call."""
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except msgspec.DecodeError:
        return []
    return [str(item) for item in leaves_of(value) if item is not None]
