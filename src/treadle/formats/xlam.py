"""The format of Salesforce's xLAM: the whole output is a JSON list of calls, bare, fenced or in another
format's tags."""

import json

from treadle.core.types import Json, Message
from treadle.formats.engine.base import THINK, Format
from treadle.formats.engine.calls import NoCall, to_call, unfence
from treadle.formats.engine.json_body import decode, name_of, raw_fields, raw_items
from treadle.formats.engine.reader import Reader, Steps, wait_for_all
from treadle.formats.engine.rendering import join_parts, think, write_arguments

_WRAPS = (("<tool_call>", "</tool_call>"), ("[TOOL_CALLS]", ""), ("<tool_calls>", "</tool_calls>"))


class Xlam(Format):
    """The format `xlam`."""

    name = "xlam"

    def read(self, reader: Reader) -> Steps:
        """Read the whole text."""
        yield from wait_for_all(reader)
        text = reader.text
        start = 0
        opener, closer = THINK[0]
        end = text.find(closer)
        lead = len(text) - len(text.lstrip())
        if end != -1:
            first = lead + len(opener) if text.startswith(opener, lead) else 0
            reader.add_reasoning(text[first:end].removeprefix("\n").removesuffix("\n"))
            start = end + len(closer)
            reader.content.skip_newlines(2)
        if not self._take(reader, start):
            reader.content.add(text[start:])

    def _take(self, reader: Reader, start: int) -> bool:
        """Read all text from `start` on as calls. Return True if it was calls or errors, and False if it is
        ordinary text."""
        text = reader.text
        whole = text[start:].strip()
        begin = start + len(text[start:]) - len(text[start:].lstrip())
        end = begin + len(whole)
        body = unfence(whole).strip()
        for opener, closer in _WRAPS:
            if body.startswith(opener):
                body = unfence(body.removeprefix(opener).removesuffix(closer).strip()).strip()
        if body[:1] not in ("[", "{"):
            return False
        try:
            value = decode(body)
        except ValueError as error:
            if '"name"' in body and '"arguments"' in body:
                reader.add_error(f"not valid JSON: {error}", begin, end, name_of(body))
                return True
            return False
        if isinstance(value, dict):
            fields = raw_fields(body)
            inner = value.get("tool_calls")
            if not isinstance(inner, list):
                return self._take_items(reader, [value], [body], begin, end)
            thought = value.get("thought")
            if isinstance(thought, str) and thought:
                reader.content.add(thought)
            return self._take_items(reader, inner, raw_items(fields["tool_calls"]), begin, end) or bool(
                thought
            )
        return self._take_items(reader, value, raw_items(body), begin, end)

    def _take_items(self, reader: Reader, items: list[Json], raws: list[str], begin: int, end: int) -> bool:
        if not any(isinstance(item, dict) and _is_call(item) for item in items):
            return False
        seen = begin
        for item, raw in zip(items, raws, strict=True):
            at = reader.text.find(raw, seen, end)
            first, last = (at, at + len(raw)) if at != -1 else (begin, end)
            # The search continues behind each call, so that equal calls get different positions.
            seen = max(seen, last) if at != -1 else end
            try:
                wanted = to_call(item, raw)
            except NoCall as error:
                reader.add_error(error.reason, first, last, error.name)
            else:
                reader.add_call(wanted, first, last)
        return True

    def render(self, message: Message) -> str:
        """Return `message` as text in this format."""
        calls = [
            f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {write_arguments(call)}}}'
            for call in message.tool_calls
        ]
        if calls and message.content:
            # Only the form with a thought can carry both.
            thought = json.dumps(message.content, ensure_ascii=False)
            return f'{think(message)}{{"thought": {thought}, "tool_calls": [{", ".join(calls)}]}}'
        return join_parts(message, f"[{', '.join(calls)}]" if calls else "")


def _is_call(item: dict[str, Json]) -> bool:
    inner = item.get("function")
    return ("name" in item and ("arguments" in item or "parameters" in item)) or (
        isinstance(inner, dict) and "name" in inner
    )
