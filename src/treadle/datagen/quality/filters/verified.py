"""The filter that makes the calls of a conversation again."""

from typing import Literal

from treadle.core.types import Json
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Resources, Settings, Verdict
from treadle.sandbox.memory import SharedFiles
from treadle.trajectory.verification import Implementations, verify_events


class VerifiedSettings(Settings):
    """The treatment of conversations that cannot be verified."""

    unverifiable: Literal["keep", "reject"] = "keep"
    """What to do if a call cannot be made again, because its effect is `once`, it was simulated, or its tool is not
    available. `keep` keeps the row without marking it as verified; `reject` rejects the sample."""


class VerifiedFilter(BuiltinFilter[VerifiedSettings]):
    """The calls, made again in a fresh sandbox, give the recorded results.

    The row is marked as verified if it has calls and all of them were made again. After a difference, no further
    rows with calls of that tool are marked.
    """

    name = "verified"
    cost = 1
    settings_type = VerifiedSettings

    def __init__(self, settings: VerifiedSettings, resources: Resources) -> None:
        super().__init__(settings, resources)
        self._implementations = Implementations(resources.tools)
        self._unsteady: set[str] = set()
        """The tools that gave another result when a call was made again. Rows with them are no longer marked."""

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        files = candidate.environment.files
        found = await verify_events(
            candidate.journal,
            candidate.run_id,
            candidate.events,
            self._implementations,
            files=files if isinstance(files, SharedFiles) else None,
        )
        counts: dict[str, Json] = {"calls": found.calls, "matched": found.matched}
        if found.differences:
            self._unsteady.update(item.tool for item in found.differences)
            return self.reject(str(found.differences[0]), **counts)
        if found.skipped:
            reason = f"{found.skipped} of {found.calls} calls were not made again: {found.skips[0]}"
            is_kept = self.settings.unverifiable == "keep"
            return self.accept(reason, **counts) if is_kept else self.reject(reason, **counts)
        if not found.calls:
            return self.accept("there are no calls", **counts)
        names = {call.name for message in candidate.row.messages for call in message.tool_calls}
        if unsteady := sorted(names & self._unsteady):
            reason = (
                f"the tool {unsteady[0]!r} gave another result when a call of another sample was made again"
            )
            return self.accept(reason, **counts)
        return self.accept(is_verified=True, **counts)
