"""The counts of a journal's runs by their progress and outcome."""

from collections.abc import Sequence

from msgspec import Struct

from treadle.core import events as e
from treadle.core.state import Status, fold
from treadle.core.types import StopReason
from treadle.journal.protocol import Journal


class Census(Struct):
    """The counts at one moment."""

    finished: list[str]
    interrupted: list[str]
    """The number of runs that were started and not finished."""
    not_begun: int = 0
    calls_in_doubt: int = 0
    """The number of tool calls that were started and whose outcome is unknown."""
    doubtful: list[str] = []
    """The ids of the runs with calls in doubt."""
    inferences_lost: int = 0
    """The number of requests that were sent and have no answer."""
    steps: int = 0
    tokens: int = 0
    rewards: list[float] = []
    stop_reasons: dict[str, int] = {}
    errors: dict[str, int] = {}
    """The number of runs that failed, by error."""


def take_census(journal: Journal, run_ids: Sequence[str]) -> Census:
    """Return the counts of the runs with these ids."""
    census = Census([], [], doubtful=[], rewards=[], stop_reasons={}, errors={})
    known = {info.run_id for info in journal.runs()}
    for run_id in run_ids:
        if run_id not in known:
            census.not_begun += 1
            continue
        state = fold([event.body for event in journal.read(run_id)])
        census.steps += state.step
        census.tokens += state.usage.total_tokens
        if state.status is Status.FINISHED:
            census.finished.append(run_id)
            reason = str(state.stop_reason)
            census.stop_reasons[reason] = census.stop_reasons.get(reason, 0) + 1
            if state.stop_reason is StopReason.ERROR:
                error = state.error or "no error was recorded"
                census.errors[error] = census.errors.get(error, 0) + 1
            if "check" in state.rewards:
                census.rewards.append(state.rewards["check"])
            continue
        census.interrupted.append(run_id)
        census.inferences_lost += state.is_inferring
        doubtful = sum(item.attempt > 0 and item.result is None for item in state.calls.values())
        census.calls_in_doubt += doubtful
        if doubtful:
            census.doubtful.append(run_id)
    return census


def count_second_answers(journal: Journal, run_ids: Sequence[str]) -> int:
    """Return how many inferences were completed, and therefore paid for, more than once."""
    again = 0
    for run_id in run_ids:
        steps = [
            event.body.step for event in journal.read(run_id) if isinstance(event.body, e.InferenceCompleted)
        ]
        again += len(steps) - len(set(steps))
    return again
