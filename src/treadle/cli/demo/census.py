"""Counts what a journal holds: how far its runs are, and what came of them."""

from collections.abc import Sequence

from msgspec import Struct

from treadle.core import events as e
from treadle.core.state import Status, fold
from treadle.journal.protocol import Journal


class Census(Struct):
    """A journal's runs at one moment."""

    finished: list[str]
    interrupted: list[str]
    """Begun and not finished."""
    not_begun: int = 0
    calls_in_doubt: int = 0
    """Tool calls that were begun, and whose outcome is not known."""
    doubtful: list[str] = []
    """The runs that have such calls."""
    inferences_lost: int = 0
    """Requests that were sent, and whose answer is not known."""
    steps: int = 0
    tokens: int = 0
    rewards: list[float] = []
    stop_reasons: dict[str, int] = {}


def take_census(journal: Journal, run_ids: Sequence[str]) -> Census:
    """Count the runs of these ids."""
    census = Census([], [], doubtful=[], rewards=[], stop_reasons={})
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
    """How many inferences were completed more than once: what a crash made somebody pay for again."""
    again = 0
    for run_id in run_ids:
        steps = [
            event.body.step for event in journal.read(run_id) if isinstance(event.body, e.InferenceCompleted)
        ]
        again += len(steps) - len(set(steps))
    return again
