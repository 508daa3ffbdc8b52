"""The compression of frames with a dictionary that is made from the first frames of a job.

A frame of JSON lines begins with a brace. A packed one begins with another byte and the number of its dictionary,
which is a row of the table `dictionaries`. Checksums are those of the JSON lines. The runs whose frames a
dictionary was made from are stored with it: if one of them is deleted, the dictionary goes too.
"""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.core.errors import JournalError
from treadle.journal.tables.table_rows import Query

if TYPE_CHECKING:
    from backports.zstd import ZstdCompressor, ZstdDict

_MARK = b"\x01"
_ID_BYTES = 4
_HEAD_BYTES = len(_MARK) + _ID_BYTES
_LEVEL = 3
_DICTIONARY_BYTES = 96 * 1024
_TABLE_BYTES = 8 * 1024
"""How much longer a dictionary is than the frames in it, at most."""
_KNOWN_RATIO = 6
"""A frame that shrinks by this factor, given the frames that are in a dictionary already, is left out of it."""
_LEAST_FRAMES = 32
"""A dictionary is made from so many frames at least."""
_ENOUGH_FRAMES, _ENOUGH_BYTES = 224, 512 * 1024
"""When so many frames, or so many bytes of them, have been collected, a dictionary is made from them."""

_IS_PLAIN = f"typeof(body) = 'blob' AND substr(body, 1, 1) != x'{_MARK.hex()}'"
"""The frames that are not packed."""
_PAGE_FRAMES = 1000
"""How many frames are packed in one transaction."""
_MOST_BYTES = 2**30
"""The longest frame that SQLite could hold if it were not packed. A file from elsewhere may claim more."""

_encode = msgspec.json.Encoder().encode


class Packer:
    """The compressor of the frames that are written. One thread uses it at a time."""

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        """The row of the dictionary."""
        zstd = _zstd()
        options = zstd.CompressionParameter
        self._mode = zstd.ZstdCompressor.FLUSH_FRAME
        self._compressor: ZstdCompressor = zstd.ZstdCompressor(
            options={options.compression_level: _LEVEL, options.dict_id_flag: 0, options.checksum_flag: 0},
            zstd_dict=zstd.ZstdDict(content),
        )
        self._head = _head(number)

    def pack(self, frame: bytes) -> bytes:
        """Return a frame in its shortest form."""
        packed = self._head + self._compressor.compress(frame, self._mode)
        return packed if len(packed) < len(frame) else frame


class Unpacker:
    """The dictionaries that were read, by number. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[int, ZstdDict] = {}

    def unpack(self, query: Query, body: object) -> object:
        """Return the JSON lines of a frame. Raises: `JournalError` if it or its dictionary cannot be read."""
        if not isinstance(body, bytes) or body[:1] != _MARK:
            return body
        zstd, number = _zstd(), int.from_bytes(body[1:_HEAD_BYTES], "big")
        try:
            if (found := self._known.get(number)) is None:
                rows = query("SELECT content FROM dictionaries WHERE id=?", (number,))
                if not rows:
                    raise JournalError(f"a frame needs the dictionary {number}, which is missing")
                found = self._known[number] = zstd.ZstdDict(rows[0][0])
            reader = zstd.ZstdDecompressor(found)
            frame: bytes = reader.decompress(memoryview(body)[_HEAD_BYTES:], _MOST_BYTES)
        except (zstd.ZstdError, ValueError, TypeError) as error:
            raise JournalError(f"a packed frame cannot be read ({error})") from error
        if not reader.eof:
            raise JournalError(f"a packed frame is cut off, or has more than {_MOST_BYTES} bytes")
        return frame


class Samples:
    """The first frames of a job, until a dictionary is made from them."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._bytes = 0

    def add(self, number: int, size: int) -> bool:
        """Take a frame of `size` bytes, and return whether there are enough of them now."""
        self._numbers.add(number)
        self._bytes += size
        frames = len(self._numbers)
        return frames >= _ENOUGH_FRAMES or (frames >= _LEAST_FRAMES and self._bytes >= _ENOUGH_BYTES)

    def learn(self, query: Query) -> None:
        """Make a dictionary from the frames that are left and not packed, and pack them, within a transaction."""
        zstd = _zstd()
        numbers = _encode(sorted(self._numbers)).decode()
        wanted = f"id IN (SELECT value FROM json_each(?)) AND {_IS_PLAIN}"
        rows = query(f"SELECT id, run, body FROM frames WHERE {wanted} ORDER BY id", (numbers,))
        if len(rows) < _LEAST_FRAMES:
            return
        try:
            content = _make_dictionary([frame for *_, frame in rows])
        except zstd.ZstdError:  # they have too little in common
            return
        runs = sorted({run for _, run, _ in rows})
        query("INSERT INTO dictionaries(content, runs) VALUES(?,?)", (content, _encode(runs)))
        packer = find_packer(query)
        assert packer is not None
        for number, _, frame in rows:
            query("UPDATE frames SET body=? WHERE id=?", (packer.pack(frame), number))


def _make_dictionary(frames: list[bytes]) -> bytes:
    """Return a dictionary of the frames that differ most. Raises: `ZstdError`. Whole frames are better here than
    the pieces that zstd's own training chooses: a prompt that all runs begin with has thousands of token ids."""
    zstd, content = _zstd(), b""
    compressor: ZstdCompressor | None = None
    for frame in frames:
        if compressor is not None:
            shrunk = compressor.compress(frame, zstd.ZstdCompressor.FLUSH_FRAME)
            if len(frame) > _KNOWN_RATIO * len(shrunk):
                continue
        content = (content + frame)[:_DICTIONARY_BYTES]
        if len(content) == _DICTIONARY_BYTES:
            break
        # To read a dictionary takes longer than to compress a frame with it.
        compressor = zstd.ZstdCompressor(_LEVEL, zstd_dict=zstd.ZstdDict(content, is_raw=True))
    chosen = zstd.ZstdDict(content, is_raw=True)
    made: bytes = zstd.finalize_dict(chosen, frames, len(content) + _TABLE_BYTES, _LEVEL).dict_content
    return made


def take_samples(query: Query) -> Samples:
    """Return frames from all parts of a file, for a dictionary."""
    samples = Samples()
    last = query("SELECT coalesce(max(id), 0) FROM frames", ())[0][0]
    part = max(1, last // _ENOUGH_FRAMES)
    sql = f"SELECT id, length(body) FROM frames WHERE id > ? AND id <= ? AND {_IS_PLAIN} ORDER BY id LIMIT 1"
    for at in range(0, last, part):
        rows = query(sql, (at, at + part))
        if rows and samples.add(*rows[0]):
            break
    return samples


def pack_frames(query: Query, packer: Packer, last: int) -> int:
    """Pack the next frames after frame `last`, within a transaction. Return the newest one, 0 if none is left."""
    sql = f"SELECT id, body FROM frames WHERE id > ? AND {_IS_PLAIN} ORDER BY id LIMIT ?"
    rows = query(sql, (last, _PAGE_FRAMES))
    for number, body in rows:
        if (packed := packer.pack(body)) != body:
            query("UPDATE frames SET body=? WHERE id=?", (packed, number))
    return rows[-1][0] if rows else 0


def find_packer(query: Query, last: Packer | None = None) -> Packer | None:
    """Return the packer with the newest dictionary, which is `last` if it has not changed."""
    rows = query("SELECT max(id) FROM dictionaries", ())
    number = rows[0][0]
    if number is None or (last is not None and last.number == number):
        return last if number is not None else None
    try:
        return Packer(number, query("SELECT content FROM dictionaries WHERE id=?", (number,))[0][0])
    except Exception:  # a damaged one keeps nobody from writing
        return None


def forget_run(query: Query, key: int) -> None:
    """Remove the dictionaries made from a run's frames, and unpack what needs them, within a transaction."""
    for number, runs in query("SELECT id, runs FROM dictionaries", ()):
        if not _may_have(runs, key):
            continue
        unpacker = Unpacker()
        packed = query("SELECT id FROM frames WHERE substr(body, 1, ?) = ?", (_HEAD_BYTES, _head(number)))
        for (frame,) in packed:
            body = query("SELECT body FROM frames WHERE id=?", (frame,))[0][0]
            with contextlib.suppress(
                JournalError
            ):  # its run is damaged, which keeps no other from being deleted
                query("UPDATE frames SET body=? WHERE id=?", (unpacker.unpack(query, body), frame))
        query("DELETE FROM dictionaries WHERE id=?", (number,))


def _may_have(runs: object, key: int) -> bool:
    """Return whether a dictionary was made from frames of a run. A damaged list of runs may have any run."""
    try:
        return key in msgspec.convert(msgspec.json.decode(runs), list[int])  # type: ignore[call-overload]
    except (msgspec.MsgspecError, TypeError, ValueError):
        return True


def _head(number: int) -> bytes:
    return _MARK + number.to_bytes(_ID_BYTES, "big")


if sys.version_info >= (3, 14):

    def _zstd() -> Any:
        from compression import zstd

        return zstd
else:

    def _zstd() -> Any:
        from backports import zstd

        return zstd
