"""The formats of Granite: lists of calls (3.x), one object in a tag (4.x), or a series of calls
(20b-functioncalling)."""

from treadle.formats.scanner.base import TaggedFormat, resync
from treadle.formats.scanner.json_body import BadJson, name_of
from treadle.formats.scanner.markers import FENCE, FoundMarker, Reader, after_closer, after_fence, after_marks


class Granite(TaggedFormat):
    """The formats of Granite."""

    name = "granite"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        text, start = reader.text, found.position
        position = after_fence(text, after_marks(text, start + len(found.marker), self.openers))
        try:
            if text[position : position + 1] not in ("[", "{"):
                raise BadJson(
                    "the call is cut off" if position == len(text) else "the call contains no JSON", position
                )
            end, value = reader.read_json(position)
        except BadJson as error:
            after = resync(reader, position, error.position, self.noise[:1], self.openers)
            reader.add_error(f"not valid JSON: {error}", start, after, name_of(text[start:after]))
            return after
        body = text[position:end]
        end = after_closer(text, after_closer(text, end, (FENCE,)), self.noise)
        reader.add_calls(body, value, start, end)
        return end
