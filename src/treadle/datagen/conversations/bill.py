"""The costs and the failures of a sample's runs."""

from typing import Any

from msgspec import Struct

from treadle.core.types import Fault, Json, StopReason, Usage
from treadle.runs.run import Run


class Bill(Struct):
    """The sum of what runs have used, changed in place."""

    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    """`None` if the cost of an inference is unknown."""

    def add(self, usage: Usage, cost_usd: float | None) -> None:
        """Add what a run has used."""
        self.usage += usage
        self.cost_usd = None if self.cost_usd is None or cost_usd is None else self.cost_usd + cost_usd


class Failed(Struct, frozen=True):
    """Why a sample could not be made."""

    error: str
    fault: Fault = Fault.MODEL
    """Who is responsible; the sample is not to blame for the infrastructure or the user."""


def failure_of(run: Run[Any], who: str, *, needs_answer: bool = True) -> Failed | None:
    """Return why a run failed; `None` if it did not. `who` names the model's role in the error.

    Without `needs_answer`, a limit is not a failure.
    """
    if run.error is not None:
        return Failed(f"{who} failed: {run.error}", run.fault or Fault.MODEL)
    if needs_answer and run.stop_reason is not StopReason.COMPLETED:
        return Failed(f"{who} gave no answer ({run.stop_reason})")
    return None


def labels(dataset: str, part: str, sample_id: str, attempt: int) -> dict[str, Json]:
    """Return the metadata of a run."""
    return {"dataset": dataset, "part": part, "sample_id": sample_id, "attempt": attempt}
