"""The check of a whole journal: whether everything in it can be read and is unchanged."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import JournalError
from treadle.core.events import LEFT, digests_of
from treadle.core.types import StopReason
from treadle.journal.listing import Facts, facts_of
from treadle.journal.protocol import Journal
from treadle.journal.run_info import DAMAGED, RunFilter


class Checked(Struct, frozen=True):
    """The result of checking one run."""

    run_id: str
    events: int
    """The number of events before the first damaged one. A new run can be forked from them."""
    contents: int
    """The number of contents of files and artifacts that were read for this run and for no earlier one."""
    problems: tuple[str, ...] = ()
    """What is damaged; empty if the run is whole."""


class Check:
    """The check of a journal. It reads every event and every content once, and holds few of them at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._contents: dict[str, str | None] = {}
        """The contents that were read, and the error of each one that is damaged."""

    def check_store(self) -> Iterator[str]:
        """Yield what is wrong with the store itself. Blocks."""
        return self._journal.find_faults()

    def check_run(self, run_id: str) -> Checked:
        """Read a run, and return what was found. Blocks."""
        facts, last, known = Facts(), 0, len(self._contents)
        problems: list[str] = []
        try:
            for event in self._journal.scan(run_id):
                facts.add([event.body])
                for digest in digests_of(event.body):
                    if (error := self._check_content(digest)) is not None:
                        raise JournalError(f"event {event.seq} of run {run_id!r} needs a content: {error}")
                last = event.seq
            if (problem := self._compare(run_id, facts)) is not None:
                problems.append(problem)
        except JournalError as error:
            problems.append(str(error))
        return Checked(run_id, last, len(self._contents) - known, tuple(problems))

    def _check_content(self, digest: str) -> str | None:
        if digest not in self._contents:
            self._contents[digest] = None
            try:
                self._journal.read_blob(digest)
            except JournalError as error:
                self._contents[digest] = str(error)
        return self._contents[digest]

    def _compare(self, run_id: str, facts: Facts) -> str | None:
        named = self._journal.runs(RunFilter(id_prefix=run_id), limit=20)
        found = [info for info in named if info.run_id == run_id]
        if not found:
            return f"run {run_id!r} is missing in the listing"
        info = found[0]
        if info.status == DAMAGED:
            return info.error
        if info.is_driven:  # it may have gone on since
            return None
        if not facts.is_exact:
            facts = facts_of([event.body for event in self._journal.read(run_id)])
        # How often its driver was lost follows from no event. An older Treadle kept no `ended_at`, and listed runs
        # of stopped processes as cancelled.
        right = replace(facts.info(run_id, is_driven=False), losses=info.losses)
        right = right if info.ended_at is not None else replace(right, ended_at=None)
        if (right.stop_reason, info.stop_reason) == (LEFT, StopReason.CANCELLED):
            right = replace(right, stop_reason=info.stop_reason)
        wrong = [name for name in info.__struct_fields__ if getattr(info, name) != getattr(right, name)]
        return f"the listing of run {run_id!r} has a wrong value for {', '.join(wrong)}" if wrong else None
