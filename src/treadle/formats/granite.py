"""The formats of Granite: lists of calls (3.x), one object in a tag (4.x), or a series of calls
(20b-functioncalling)."""

from treadle.formats.scanner.base import TaggedFormat
from treadle.formats.scanner.markers import FoundMarker, Reader, after_fence, after_marks


class Granite(TaggedFormat):
    """The formats of Granite."""

    name = "granite"

    def take(self, reader: Reader, found: FoundMarker) -> int:
        """Read the call at `found` and return the position after it."""
        position = after_marks(reader.text, found.position + len(found.marker), self.openers)
        return self.take_json(reader, found.position, after_fence(reader.text, position))
