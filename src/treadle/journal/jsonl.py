"""A journal as JSON lines: one event a line, its fields as they are stored, unknown ones too.

Contents of files and artifacts travel inside the events that name them, each content once a run.
Exporting, importing and exporting again gives the same bytes.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import JournalError, RunExistsError
from treadle.journal.protocol import Journal


class _Run(Struct):
    """What was read of one run."""

    events: list[e.Event]
    blobs: dict[str, bytes]


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def export_run(journal: Journal, run_id: str) -> Iterator[bytes]:
    """The run's events as lines, without the newline. Raises: `RunNotFoundError`."""
    told: set[str] = set()
    for event in journal.read(run_id):
        line = event.to_json()
        if named := e.digests_of(event.body):
            digests = [item for item in dict.fromkeys(named) if item not in told]
            told.update(digests)
            contents = {item: base64.b64encode(journal.read_blob(item)).decode() for item in digests}
            if contents:
                line = line[:-1] + b',"contents":%b}' % _encode(contents)
        yield line


async def import_lines(journal: Journal, lines: Iterable[bytes]) -> list[str]:
    """Keep the runs that `lines` hold, in any order of runs; their ids. Empty lines are passed over.

    All lines are read before anything is kept, so that nothing is if one of them is wrong.
    Raises: `JournalError` that names the line for what is no event, an event out of order, or a content that
    is missing or damaged; `RunExistsError` if the journal has one of the runs.
    """
    runs: dict[str, _Run] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                _read_line(line, runs)
            except JournalError as error:
                raise JournalError(f"line {number}: {error}") from error
    known = {info.run_id for info in journal.runs()}
    for run_id in runs:
        if run_id in known:
            raise RunExistsError(f"run {run_id!r} is in this journal already; nothing was imported")
    for run_id, run in runs.items():
        writer = journal.create(run_id)
        writer.append_events(run.events, run.blobs)
        await writer.release()
        await writer.sync()
    return list(runs)


def _read_line(line: bytes, runs: dict[str, _Run]) -> None:
    event = e.decode_line(line)
    run = runs.setdefault(event.run_id, _Run([], {}))
    expected = len(run.events) + 1
    if event.seq != expected:
        raise JournalError(
            f"event {event.seq} of run {event.run_id!r} where event {expected} belongs; "
            "the file is incomplete or out of order"
        )
    if (expected == 1) is not isinstance(event.body, e.RunStarted):
        raise JournalError(
            f"event {expected} of run {event.run_id!r} is {event.type}; a run begins with run_started"
        )
    fields = _fields.decode(event.raw or b"")
    if isinstance(event.body, e.BodyWithContents):
        fields.pop("contents", None)
        _take_contents(event.body, run.blobs)
    raw = _encode(fields)
    if b"\r" in raw or b"\n" in raw:
        # White space between the values, which a store may take for the end of a line.
        raw = _encode(msgspec.json.decode(raw))
    run.events.append(msgspec.structs.replace(event, body=e.decode_body(raw), raw=raw))


def _take_contents(body: e.BodyWithContents, blobs: dict[str, bytes]) -> None:
    """Add the contents that come with an event to `blobs`, once they are found to be what they should."""
    for digest, text in (body.contents or {}).items():
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise JournalError(f"the content {digest!r} is not base64 ({error})") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise JournalError(f"the content {digest!r} is damaged: its hash is another")
        blobs[digest] = content
    for digest in e.digests_of(body):
        if digest not in blobs:
            raise JournalError(f"the content {digest!r}{_describe_owner(body, digest)} is missing")


def _describe_owner(body: e.BodyWithContents, digest: str) -> str:
    if isinstance(body, e.ToolCompleted):
        return f" of the result of {body.result.name} ({body.result.call_id})"
    if not isinstance(body, e.SnapshotTaken):
        return " of a part of a message"
    names = {**body.delta.states, **body.delta.changed}
    return "".join(f" of {name!r}" for name, known in names.items() if known == digest)[:200]
