"""The filter that grades a conversation with the check of the environment's task."""

import asyncio
from typing import Annotated

from pydantic import Field

from treadle.core.events import SnapshotTaken
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import answers
from treadle.datagen.scenarios.scenario import Kind
from treadle.runs.task import load_task
from treadle.sandbox.memory import SharedFiles

_OFF_TASK = (Kind.NO_TOOL, Kind.REFUSAL)


class CheckSettings(Settings):
    """The lowest acceptable grade."""

    min_grade: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The lowest grade of a kept row."""


class CheckFilter(BuiltinFilter[CheckSettings]):
    """The check of the environment's task gives the last answer and the final files at least the grade `min_grade`.

    Environments without a task pass, and so do conversations of the kinds `no_tool` and `refusal`, in which the
    task is not done.
    """

    name = "check"
    cost = 1
    settings_type = CheckSettings

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        reference = candidate.environment.task
        if reference is None:
            return self.accept("the environment has no task")
        if candidate.spec.kind in _OFF_TASK:
            return self.accept(f"the planned kind is {candidate.spec.kind.value!r}")
        task, messages = load_task(reference), candidate.row.messages
        ends = answers(messages)
        files = await _read_files(candidate)
        grade = task.check(messages[ends[-1]].content if ends else "", files)
        if grade.reward < self.settings.min_grade:
            return self.reject(
                f"the grade of {reference} is {grade.reward:g}: {grade.detail}", grade=grade.reward
            )
        return self.accept(grade=grade.reward)


async def _read_files(candidate: Candidate) -> dict[str, bytes]:
    """Return the final files. Those that the environment has are not read again."""
    snapshots = [event.body.delta for event in candidate.events if isinstance(event.body, SnapshotTaken)]
    digests: dict[str, str] = {}
    for delta in snapshots:
        for path in delta.deleted:
            digests.pop(path, None)
        digests.update(delta.changed)
    initial = candidate.environment.files
    known: dict[str, bytes] = {}
    if snapshots and isinstance(initial, SharedFiles) and initial.is_delta(snapshots[0]):
        known = {digest: initial[path] for path, digest in snapshots[0].changed.items()}
    read = candidate.journal.read_blob
    if missing := set(digests.values()) - known.keys():
        known |= await asyncio.to_thread(lambda: {digest: read(digest) for digest in missing})
    return {path: known[digest] for path, digest in digests.items()}
