"""The format of Salesforce's xLAM: the whole output is a JSON list of calls, bare, fenced or in others' tags."""

import json
import re

from treadle.core.types import Json, Message
from treadle.formats.scanner.base import THINK, Format
from treadle.formats.scanner.json_body import (
    AROUND,
    BadValue,
    after_space,
    decode,
    name_of,
    raw_fields,
    raw_items,
)
from treadle.formats.scanner.markers import Reader, Steps, wait_for_all
from treadle.formats.scanner.values import write_call

_MARK = re.compile(r"```[ \t]*+(?:json|JSON)?+[ \t]*+\n|<tool_calls?>|\[TOOL_CALLS\]")
_CLOSE = re.compile(r"[ \t\r\n]*+(?:```|</tool_calls?>)")
_FENCE = "```"


class Xlam(Format):
    """The format `xlam`."""

    name = "xlam"

    def read(self, reader: Reader) -> Steps:
        """Read the whole text."""
        yield from wait_for_all(reader)
        text = reader.text
        start = after_space(text, 0)
        if text[start : start + 1] in ("[", "{") and self._take_bare(reader, start):
            return
        position = self._skip_reasoning(reader)
        start = after_space(text, position)
        if text[start : start + 1] not in ("[", "{") or not self._take_bare(reader, start):
            self._read_marked(reader, position)

    def _skip_reasoning(self, reader: Reader) -> int:
        """Add the reasoning, and return the position after it."""
        text = reader.text
        opener, closer = THINK[0]
        end = text.find(closer)
        lead = after_space(text, 0)
        # A closing tag within a call that comes first is a part of its text.
        mark = _MARK.search(text) if end != -1 and not text.startswith(opener, lead) else None
        if mark is not None and mark.start() < end and self._end_of_call(reader, mark.start()) > end:
            return 0
        if end == -1:
            return 0
        first = lead + len(opener) if text.startswith(opener, lead) else 0
        reader.add_reasoning(text[first:end].removeprefix("\n").removesuffix("\n"))
        reader.content.skip_newlines(2)
        return end + len(closer)

    def _end_of_call(self, reader: Reader, position: int) -> int:
        """Return the end of the JSON behind the marks at `position`, or -1."""
        try:
            return reader.read_json(_behind_marks(reader.text, position))[0]
        except BadValue:
            return -1

    def _take_bare(self, reader: Reader, begin: int) -> bool:
        """Read all text from `begin` on as calls. Return True if it was calls or errors, False if it is text."""
        body = reader.text[begin:].strip()
        try:
            value = decode(body, AROUND)
        except ValueError as error:
            if _MARK.search(body) is None and '"name"' in body and '"arguments"' in body:
                reader.add_error(f"not valid JSON: {error}", begin, begin + len(body), name_of(body))
                return True
            return False
        return self._take_value(reader, value, body, begin)

    def _read_marked(self, reader: Reader, position: int) -> None:
        """Read the calls in fences and in the tags of other formats, with the text around them."""
        text = reader.text
        while (mark := _MARK.search(text, position)) is not None:
            reader.content.add(text[position : mark.start()])
            begin = _behind_marks(text, mark.start())
            # Marks that follow each other are read once.
            position = begin
            if text[begin : begin + 1] not in ("[", "{"):
                reader.content.add(text[mark.start() : begin])
                continue
            try:
                end, value = reader.read_json(begin)
                is_taken = self._take_value(reader, value, text[begin:end], begin)
                reason = "there is no call behind the mark"
            except BadValue as error:
                following = _MARK.search(text, error.position)
                end = len(text) if following is None else following.start()
                is_taken, reason = False, f"not valid JSON: {error}"
            closed = end
            while (close := _CLOSE.match(text, closed)) is not None:
                closed = close.end()
            if not is_taken and mark[0].startswith(_FENCE) and '"arguments"' not in text[begin:end]:
                reader.content.add(text[mark.start() : begin])
                continue
            if not is_taken:
                reader.add_error(reason, mark.start(), closed, name_of(text[begin:end]))
            position = closed
        rest = text[position:]
        reader.content.add(rest)
        if '"name"' in rest and '"arguments"' in rest:
            at = rest.find('"name"')
            reader.note("a call with text around it", position + at, len(text), name_of(rest))

    def _take_value(self, reader: Reader, value: Json, body: str, begin: int) -> bool:
        """Add the calls in `value`, which is the decoded `body`. Return whether there are any."""
        end = begin + len(body)
        if isinstance(value, list):
            return self._take_items(reader, value, raw_items(body), begin, end)
        inner = value.get("tool_calls")
        if not isinstance(inner, list):
            return self._take_items(reader, [value], [body], begin, end)
        thought = value.get("thought")
        if isinstance(thought, str) and thought:
            reader.content.add(thought)
        items = raw_items(raw_fields(body)["tool_calls"])
        return self._take_items(reader, inner, items, begin, end) or bool(thought)

    def _take_items(self, reader: Reader, items: list[Json], raws: list[str], begin: int, end: int) -> bool:
        if not any(isinstance(item, dict) and _is_call(item) for item in items):
            return False
        seen = begin
        for item, raw in zip(items, raws, strict=True):
            at = reader.text.find(raw, seen, end)
            first, last = (at, at + len(raw)) if at != -1 else (begin, end)
            # The search continues behind each call, so that equal calls get different positions.
            seen = max(seen, last) if at != -1 else end
            reader.add_calls(raw, item, first, last)
        return True

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = ", ".join(map(write_call, message.tool_calls))
        if calls and message.content:
            # Only the form with a thought can carry both.
            thought = json.dumps(message.content, ensure_ascii=False)
            return f'{self.think(message)}{{"thought": {thought}, "tool_calls": [{calls}]}}'
        return self.think(message) + (f"[{calls}]" if calls else message.content)


def _behind_marks(text: str, position: int) -> int:
    """Return the position behind the marks at `position` and the white space around them."""
    while (mark := _MARK.match(text, position)) is not None:
        position = after_space(text, mark.end())
    return position


def _is_call(item: dict[str, Json]) -> bool:
    inner = item.get("function")
    return ("name" in item and ("arguments" in item or "parameters" in item)) or (
        isinstance(inner, dict) and "name" in inner
    )
