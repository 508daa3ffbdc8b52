"""A sample is interrupted after every event of its journals, and continued."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.datagen.conversations.cast import NOTES, SCENARIO, Cast, make_studio, read_notes, spec

from treadle.core import events as e
from treadle.core.state import fold
from treadle.core.types import Request, Role
from treadle.datagen.conversations.dialogue import AnswerFindings, Dialogue, Held, count_repairs
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.scenarios.scenario import Kind
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import Answer

SCENARIOS = [{**SCENARIO, "message": "Read {{file}}."}, SCENARIO]
USERS = [
    {"message": "Again.", "is_done": False},
    {"message": "And again.", "is_done": False},
    {"message": ""},
]
SPEC = spec(turns=6, kind=Kind.SINGLE)
ROLES = ("scenario", "agent", "user_turn")
Batch = tuple[str, Sequence[e.DurableBody], Mapping[str, bytes] | None]


class RecordingWriter:
    """A writer that keeps what was appended in a list."""

    def __init__(self, inner: Any, batches: list[Batch]) -> None:
        self._inner, self._batches = inner, batches

    def append(self, bodies: Sequence[e.DurableBody], blobs: Mapping[str, bytes] | None = None) -> None:
        self._inner.append(bodies, blobs)
        self._batches.append((self._inner.run_id, list(bodies), blobs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class RecordingJournal(MemoryJournal):
    """A journal that keeps everything that was appended to any run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []

    def create(self, run_id: str, **options: Any) -> Any:
        return RecordingWriter(super().create(run_id, **options), self.batches)

    async def acquire(self, run_id: str) -> Any:
        return RecordingWriter(await super().acquire(run_id), self.batches)


async def keep(batches: Sequence[Batch]) -> MemoryJournal:
    """Return a journal with the first appends of another, in which nobody drives a run."""
    journal = MemoryJournal()
    writers: dict[str, Any] = {}
    for run_id, bodies, blobs in batches:
        if run_id not in writers:
            writers[run_id] = journal.create(run_id)
        writers[run_id].append(bodies, blobs)
    for writer in writers.values():
        await writer.release()
    return journal


def paid(journal: MemoryJournal) -> dict[str, int]:
    """Return how many answers of each run are in a journal."""
    return {
        info.run_id: fold([event.body for event in journal.read(info.run_id)]).step for info in journal.runs()
    }


async def test_a_sample_continues_after_every_event():
    """No answer that is in the journal is asked for again, and the row is the same."""
    whole = RecordingJournal()
    first = Cast(read_notes, SCENARIOS, USERS)
    made = await make_sample(make_studio(NOTES, first, whole), SPEC)
    assert made.row is not None
    assert [message.content for message in made.row.messages if message.role is Role.USER] == [
        SCENARIO["message"],
        "Again.",
        "And again.",
    ]
    total = sum(paid(whole).values())
    assert len(whole.batches) > 30
    for count in range(len(whole.batches)):
        journal = await keep(whole.batches[:count])
        before = sum(paid(journal).values())
        cast = Cast(read_notes, SCENARIOS, USERS)
        again = await make_sample(make_studio(NOTES, cast, journal), SPEC)
        assert again.row is not None, again.error
        asked = sum(len(cast.asked[role]) for role in ROLES)
        assert before + asked == total, f"after {count} appends"
        assert again.row.messages == made.row.messages
        # An inference whose answer was lost may have been paid for, and counts as reserved.
        assert again.usage.total_tokens >= made.usage.total_tokens


def read_badly(request: Request) -> Answer:
    """Answer wrongly until the answer is asked for again."""
    last = request.messages[-1]
    if last.is_own:
        return "It says: milk"
    answer = read_notes(request)
    return "It says: cream" if isinstance(answer, str) else answer


async def check_milk(_: Dialogue, held: Held) -> AnswerFindings:
    """Ask for an answer again that does not speak of milk."""
    said = held.state.transcript[-1].content
    return (
        AnswerFindings()
        if "milk" in said
        else AnswerFindings([f"the notes do not say {said!r}"], is_good=False)
    )


async def test_a_sample_whose_answers_are_repaired_continues_after_every_event():
    """An answer is asked for again before the user goes on, once, wherever the sample was interrupted."""
    whole = RecordingJournal()
    first = Cast(read_badly, SCENARIOS, USERS)
    short = spec(turns=3, kind=Kind.SINGLE)
    made = await make_sample(make_studio(NOTES, first, whole), short, check=check_milk)
    assert made.row is not None
    said = [item.content for item in made.row.messages if item.role is Role.ASSISTANT and not item.tool_calls]
    assert said == ["It says: milk", "It says: milk", "It says: cream"], "the last one is left to the caller"
    assert count_repairs(made.events) == [0, 1, 0, 1, 0]
    assert made.row.lineage.sample is not None
    assert (made.row.lineage.sample.repairs, made.row.lineage.sample.turns) == (2, 3)
    total = sum(paid(whole).values())
    for count in range(len(whole.batches)):
        journal = await keep(whole.batches[:count])
        before = sum(paid(journal).values())
        cast = Cast(read_badly, SCENARIOS, USERS)
        again = await make_sample(make_studio(NOTES, cast, journal), short, check=check_milk)
        assert again.row is not None, again.error
        asked = sum(len(cast.asked[role]) for role in ROLES)
        assert before + asked == total, f"after {count} appends"
        assert again.row.messages == made.row.messages


async def test_a_dialogue_ends_at_an_answer_that_cannot_be_kept():
    """What a user would say to an answer that is rejected in any case is not paid for."""

    async def refuse(_dialogue: Dialogue, _held: Held) -> AnswerFindings:
        return AnswerFindings(is_good=False)

    cast = Cast(read_badly, SCENARIOS, USERS)
    made = await make_sample(make_studio(NOTES, cast, MemoryJournal()), SPEC, check=refuse)
    assert made.row is not None
    assert not cast.asked["user_turn"]
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.turns == 1


async def test_what_the_user_has_used_counts_after_an_interruption_in_the_last_turn():
    """All that the simulated user says may be there already when a sample continues. Its tokens still count."""
    whole = RecordingJournal()
    short = spec(turns=2, kind=Kind.SINGLE)
    made = await make_sample(make_studio(NOTES, Cast(read_notes, SCENARIOS, USERS), whole), short)
    assert made.usage.total_tokens > 0
    for count in range(len(whole.batches)):
        journal = await keep(whole.batches[:count])
        again = await make_sample(make_studio(NOTES, Cast(read_notes, SCENARIOS, USERS), journal), short)
        used = sum(info.input_tokens + info.output_tokens for info in journal.runs())
        assert again.usage.total_tokens == used, f"after {count} appends"
