"""The verification of a dataset: its rows are compared with its journal, and their calls are made again."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ExportError, JournalError, RunNotFoundError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.types import Message, Role
from treadle.datagen.config.generation_config import Conversation, GenerationConfig, OutputSection
from treadle.datagen.config.loading import read_config
from treadle.datagen.conversations.make import project
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import RowEntry, find_format, read_entries
from treadle.datagen.quality.exchanges import name_message
from treadle.datagen.scenarios.scenario import sample_id_of
from treadle.export.exporter import FORMATS, encode_row, read_rows
from treadle.export.rows import Row, SampleInfo
from treadle.jobs.ledger import ItemStatus, Ledger
from treadle.journal.protocol import Journal
from treadle.runs.ensure import Batch
from treadle.tools.mcp.failure import UnreachableError
from treadle.trajectory.run_verification import Implementations, Verification, verify_run

_MAX_LISTED = 3
"""How many differences of one row, or ids, are named."""


class CheckedRow(Struct, frozen=True, kw_only=True):
    row_id: str
    run_id: str
    calls: int = 0
    matched: int = 0
    """How many calls gave the recorded result again."""
    skipped: int = 0
    """How many calls were not made again."""
    is_claimed: bool = False
    """True if the row says that it is verified."""
    problems: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """Why calls were not made again through no fault of the row, such as a server that does not answer."""

    @property
    def is_confirmed(self) -> bool:
        """True if every call was made again and gave the same result, and nothing else differs."""
        return not self.problems and not self.skipped and not self.faults


class Totals(Struct):
    """The sums over the rows that were verified."""

    rows: int = 0
    claimed: int = 0
    """How many rows say that they are verified."""
    confirmed: int = 0
    """How many of these rows are confirmed."""
    faulty: int = 0
    """How many rows have a problem."""
    unreached: int = 0
    """How many rows have calls that failed because of a fault of the infrastructure."""
    calls: int = 0
    matched: int = 0
    skipped: int = 0

    def add(self, checked: CheckedRow) -> None:
        self.rows += 1
        self.claimed += checked.is_claimed
        self.confirmed += checked.is_claimed and checked.is_confirmed
        self.faulty += bool(checked.problems)
        self.unreached += bool(checked.faults)
        self.calls += checked.calls
        self.matched += checked.matched
        self.skipped += checked.skipped

    def __str__(self) -> str:
        """Return the sums in one sentence."""
        skipped = f", {self.skipped:,} not made again" if self.skipped else ""
        faulty = f"; {self.faulty:,} rows have a problem" if self.faulty else ""
        plural = "" if self.unreached == 1 else "s"
        faulty += f"; a server did not answer for {self.unreached:,} row{plural}" if self.unreached else ""
        return (
            f"{self.rows:,} rows: {self.confirmed:,} of {self.claimed:,} that claim to be verified are confirmed; "
            f"{self.matched:,} of {self.calls:,} calls gave the same result{skipped}{faulty}"
        )


async def verify_rows(
    path: Path, journal: Journal, *, window: int = 16, trust: bool = False
) -> AsyncIterator[CheckedRow]:
    """Yield the outcome for each row of a dataset, in the order in which they are ready.

    A row has a problem if its transcript is faulty, if it differs from its run, if a call gives another result than
    the recorded one, or if it claims to be verified and a call cannot be made again. A server that does not answer
    is a fault and no problem of the row. A row of a format that cannot hold all of a run is compared with what the
    format shows of it. `trust` is for journals from elsewhere; see `verify_run`.

    Raises: `UntrustedError`; as `read_entries` does.
    """
    config, format, shared = read_config(path), find_format(path), Implementations()
    batch: Batch[CheckedRow] = Batch(
        lambda number, entry: _check(entry, journal, config, format, trust=trust, shared=shared),
        read_entries(path),
        window,
    )
    try:
        async for checked in batch:
            yield checked
    finally:
        await batch.aclose()


async def _check(
    entry: RowEntry,
    journal: Journal,
    config: GenerationConfig | None,
    format: str | None,
    *,
    trust: bool,
    shared: Implementations,
) -> CheckedRow:
    row, sample = entry.row, entry.row.lineage.sample
    shown = {} if sample is None else {"type": sample.conversation, "reasoning": sample.reasoning}
    conversation = Conversation.model_validate(shown) if config is None else config.generation.conversation
    run_id, is_claimed = row.lineage.run_id, sample is not None and sample.is_verified
    problems = [f"its transcript is faulty: {fault}" for fault in check_transcript(row.messages)]
    found, faults = Verification(run_id, 0, 0, 0, (), ()), list[str]()
    try:
        events = await asyncio.to_thread(journal.read, run_id)
        projected = project(run_id, events, conversation)
        if format is not None:
            projected = _show(projected, format, len(row.messages))
        problems += compare(row, projected, None if config is None else config.output)
        found = await verify_run(journal, run_id, trust=trust, shared=shared)
    except RunNotFoundError:
        problems.append(f"its run {run_id!r} is not in the journal")
    except (ExportError, JournalError, ConfigError) as error:
        if isinstance(error.__cause__, UnreachableError):
            faults.append(str(error))
        else:
            problems.append(f"its run cannot be used: {error}")
    problems += [f"a result differs: {item}" for item in found.differences[:_MAX_LISTED]]
    faults += found.unreached
    if is_claimed and (skips := [skip for skip in found.skips if skip not in found.unreached]):
        problems.append(f"it claims to be verified, but a call is not made again: {skips[0]}")
    return CheckedRow(
        row_id=entry.row_id,
        run_id=run_id,
        calls=found.calls,
        matched=found.matched,
        skipped=found.skipped,
        is_claimed=is_claimed,
        problems=tuple(problems),
        faults=tuple(faults[:_MAX_LISTED]),
    )


def _show(projected: Row, format: str, messages: int) -> Row:
    """Return what a format shows of the row of a run. All of it is shown if the row that it is compared with has as
    many `messages`, because a sample that shows a recovery keeps its failed calls. Raises: `ExportError`."""
    whole = replace(projected, untrained=())
    fitting = whole if messages == len(whole.messages) else projected
    (shown,) = read_rows(encode_row(fitting, FORMATS.load(format)).splitlines(), format)
    return shown


def compare(row: Row, projected: Row, output: OutputSection | None = None) -> list[str]:
    """Return the differences between a row and its run, one clause each."""
    found = []
    system, said = _split_system(row.messages)
    true_system, true_said = _split_system(projected.messages)
    if not _fits(system, true_system, row.lineage.sample, output):
        found.append("its system message is not that of its run")
    differing = [place for place, (one, two) in enumerate(zip_longest(said, true_said)) if one != two]
    for place in differing[:1]:
        shown = said if place < len(said) else true_said
        found.append(f"{name_message(shown, place)} is not that of its run")
    if row.tools != projected.tools:
        found.append("its tools are not those of its run")
    for name in row.lineage.__struct_fields__:
        said, true = getattr(row.lineage, name), getattr(projected.lineage, name)
        # The version of Treadle that wrote the row may differ from the one that reads it.
        if name not in ("sample", "treadle_version", "event_version") and said != true:
            found.append(f"its {name} is {said!r:.80}, but that of its run is {true!r:.80}")
    return found


def _fits(
    system: str | None, of_run: str | None, sample: SampleInfo | None, output: OutputSection | None
) -> bool:
    """Return whether the system message of a row agrees with the system message of its run."""
    if sample is None or sample.instructions is None:
        return system == of_run
    if sample.instructions != of_run:
        return False
    if output is None:
        return True
    if not output.include_system_message:
        return system is None
    # The agent can also be told why an earlier attempt was rejected, which is not part of the row.
    return system == output.system_message if output.system_message else of_run.startswith(system or " ")


def _split_system(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    """Return the system message, or `None`, and the other messages."""
    if messages and messages[0].role is Role.SYSTEM:
        return messages[0].content, messages[1:]
    return None, messages


def check_ledger(path: Path) -> Iterator[str]:
    """Yield the differences between the rows of a dataset's folder and its ledger, and ids that occur twice.

    Raises: as `read_entries` does.
    """
    ids: set[str] = set()
    for entry in read_entries(path):
        if entry.row_id in ids:
            yield f"the id {entry.row_id!r} occurs twice"
        ids.add(entry.row_id)
    if not path.is_dir() or not DatasetFolder(path).ledger.exists():
        return
    with Ledger(DatasetFolder(path).ledger, is_readonly=True) as ledger:
        kept = {sample_id_of(entry.number) for entry in ledger.entries(ItemStatus.KEPT)}
    for name, lacking in (("the rows lack", kept - ids), ("the ledger lacks", ids - kept)):
        if lacking:
            listed = ", ".join(sorted(lacking)[:_MAX_LISTED])
            more = f" and {len(lacking) - _MAX_LISTED:,} more" if len(lacking) > _MAX_LISTED else ""
            yield f"{name} {listed}{more}"
