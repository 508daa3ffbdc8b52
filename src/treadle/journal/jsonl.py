"""Journals as JSON lines: one event per line, with all fields of the stored event, unknown ones included.

The contents of files and artifacts are inside the events that refer to them, each content once per run, whole or as
a patch of an earlier one. Exporting, importing and exporting again gives the same bytes.

The field `export` of a line has its checksum: the CRC-32 of the line's JSON without the field and with sorted keys,
continued from the run's line before it and at the first line from the run's id. The first line also has the number
of the run's events. Files that an older Treadle wrote have no such field.
"""

import asyncio
import base64
import binascii
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import zip_longest
from zlib import crc32

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import JournalError, RunExistsError, RunNotFoundError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.texts.patches import load, read_patch
from treadle.journal.protocol import Journal
from treadle.journal.tables.table_rows import seed_of


class _Run(Struct):
    events: list[e.Event]
    blobs: dict[str, bytes]
    checksum: int
    total: int | None = None
    """How many events the run has; `None` if the file does not say it."""


class _Export(Struct, omit_defaults=True):
    """The field `export` of a line."""

    checksum: int
    events: int | None = None


class _Line(Struct):
    export: _Export | None = None


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_line = msgspec.json.Decoder(_Line)


def export_run(journal: Journal, run_id: str) -> Iterator[bytes]:
    """Yield the run's events as lines, without the newline. Blocks. Raises: `RunNotFoundError`."""
    exported: set[str] = set()
    events = journal.read(run_id)
    checksum = seed_of(run_id)
    for event in events:
        line = event.to_json()
        if named := e.digests_of(event.body):
            digests = [item for item in dict.fromkeys(named) if item not in exported]
            if digests:
                contents = {
                    item: base64.b64encode(_read_for_export(journal, item, exported)).decode()
                    for item in digests
                }
                line = line[:-1] + b',"contents":%b}' % _encode(contents)
        checksum = _checksum(line, checksum)
        export = _Export(checksum, len(events) if event.seq == 1 else None)
        yield line[:-1] + b',"export":%b}' % _encode(export)


def _checksum(line: bytes, before: int) -> int:
    """Return the checksum of a line, given the one of the line before it."""
    fields = msgspec.json.decode(line)
    fields.pop("export", None)
    return crc32(_encode_sorted(fields), before)


def _read_for_export(journal: Journal, digest: str, exported: set[str]) -> bytes:
    """Return what is stored for a content, or the content if it is a patch of one that is not exported yet."""
    content = journal.read_blob(digest)
    stored = journal.read_stored(digest)
    patch = read_patch(digest, stored)
    is_complete = patch is None or patch.base.hex() in exported
    exported.add(digest)
    return stored if is_complete else content


class Imported(Struct, frozen=True):
    """The ids of the runs of an exported journal."""

    added: tuple[str, ...]
    """The runs that were imported."""
    known: tuple[str, ...]
    """The runs that the journal had already, with the same events."""


async def import_lines(journal: Journal, lines: Iterable[bytes]) -> Imported:
    """Import the runs in `lines`. They are not trusted until the user says so.

    The lines of several runs may be mixed; empty lines are skipped. `lines` is read in a thread, so it may be an
    open file. Nothing is imported unless all lines are valid. Each run is imported whole or not at all. If an
    import was interrupted, another call continues it.

    Raises: `JournalError` that names the line if it is not an event, if an event is out of order, or if a content
    is missing or damaged; `RunExistsError` if the journal has a run with the same id and other events.
    """
    runs, known = await asyncio.to_thread(_read_runs, journal, lines)
    for run_id, run in runs.items():
        writer = journal.create(run_id, is_imported=True)
        try:
            writer.append_events(run.events, run.blobs)
        finally:
            await writer.release()
        await writer.sync()
    return Imported(tuple(runs), known)


def _read_runs(journal: Journal, lines: Iterable[bytes]) -> tuple[dict[str, _Run], tuple[str, ...]]:
    """Return the runs in `lines` that are new, by id, and the ids of those that the journal has already."""
    runs: dict[str, _Run] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                _read_line(line, runs)
            except JournalError as error:
                raise JournalError(f"line {number}: {error}") from error
    for run_id, run in runs.items():
        if run.total not in (None, len(run.events)):
            raise JournalError(
                f"the file has {len(run.events)} of the {run.total} events of run {run_id!r}; it was cut off"
            )
    known = tuple([run_id for run_id, run in runs.items() if _has_run(journal, run_id, run.events)])
    return {run_id: run for run_id, run in runs.items() if run_id not in known}, known


def _has_run(journal: Journal, run_id: str, events: list[e.Event]) -> bool:
    """Return whether the journal has the run, perhaps with more events. Raises: `RunExistsError` if it differs."""
    try:
        kept = journal.read(run_id)
    except RunNotFoundError:
        return False
    for ours, theirs in zip_longest(kept, events):
        if theirs is None:
            break
        if ours is None or not _have_same_values(ours, theirs):
            raise RunExistsError(
                f"run {run_id!r} is in this journal already, and its event {theirs.seq} differs; nothing was "
                "imported: import into another journal"
            )
    return True


def _have_same_values(event: e.Event, other: e.Event) -> bool:
    """Compare the values of two events: a terminal gets some characters of them escaped."""
    line, second = event.to_json(), other.to_json()
    return line == second or msgspec.json.decode(line) == msgspec.json.decode(second)


def _read_line(line: bytes, runs: dict[str, _Run]) -> None:
    event = e.decode_line(line)
    run = runs.setdefault(event.run_id, _Run([], {}, seed_of(event.run_id)))
    expected = len(run.events) + 1
    if event.seq != expected:
        raise JournalError(
            f"event {event.seq} of run {event.run_id!r} stands where event {expected} is expected; "
            "the file is incomplete or out of order"
        )
    if (expected == 1) is not isinstance(event.body, e.RunStarted):
        raise JournalError(
            f"event {expected} of run {event.run_id!r} is {event.type}; a run begins with run_started"
        )
    _check_line(line, event, run)
    fields = _fields.decode(event.raw or b"")
    fields.pop("export", None)
    if isinstance(event.body, e.BodyWithContents):
        fields.pop("contents", None)
        _take_contents(event.body, run.blobs)
    raw = _encode(fields)
    if b"\r" in raw or b"\n" in raw:
        # Remove white space between the values, which a store could take for the end of a line.
        raw = _encode(msgspec.json.decode(raw))
    run.events.append(msgspec.structs.replace(event, body=e.decode_body(raw), raw=raw))


def _check_line(line: bytes, event: e.Event, run: _Run) -> None:
    """Compare a line with its checksum. Raises: `JournalError` if they differ."""
    try:
        export = _line.decode(line).export
    except UNREADABLE as error:
        raise JournalError(f"the field 'export' of the line is damaged ({error})") from error
    if event.seq == 1 and export is not None:
        run.total = export.events
    run.checksum = _checksum(line, run.checksum)
    if (run.total is None) is not (export is None) or (
        export is not None and export.checksum != run.checksum
    ):
        raise JournalError(
            f"event {event.seq} of run {event.run_id!r} was changed after the export, or the line before it was; "
            "export the run again"
        )


def _take_contents(body: e.BodyWithContents, blobs: dict[str, bytes]) -> None:
    """Add the contents that come with an event to `blobs`, after checking their hashes."""
    for digest, text in (body.contents or {}).items():
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise JournalError(f"the content {digest!r} is not base64 ({error})") from error
        blobs.setdefault(digest, content)
        load(partial(_look_up, blobs), digest)
    # Exports of earlier versions lack the contents of a history.
    for digest in () if isinstance(body, e.RunStarted) else e.digests_of(body):
        if digest not in blobs:
            raise JournalError(f"the content {digest!r}{_describe_owner(body, digest)} is missing")


def _look_up(blobs: dict[str, bytes], digest: str) -> bytes:
    if digest not in blobs:
        raise JournalError(f"the content {digest!r}, which another content is made from, is missing")
    return blobs[digest]


def _describe_owner(body: e.BodyWithContents, digest: str) -> str:
    """Return " of ...", a text that says which part of `body` refers to a content."""
    if isinstance(body, e.ToolCompleted):
        return f" of the result of {body.result.name} ({body.result.call_id})"
    if not isinstance(body, e.SnapshotTaken):
        return " of a part of a message"
    names = {**body.delta.states, **body.delta.changed}
    return "".join(f" of {name!r}" for name, known in names.items() if known == digest)[:200]
