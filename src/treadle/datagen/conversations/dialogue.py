"""A dialogue: one session of the agent and, if there are several turns, one of the simulated user.

The two journals say how far a dialogue has come. The n-th message of the simulated user answers the n-th answer of
the agent, and the agent's turn n + 1 begins with it. An interrupted dialogue therefore continues without asking a
model for an answer that is already there.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from msgspec import Struct

from treadle.core.errors import TreadleError
from treadle.core.events import Event, TurnStarted
from treadle.core.state import State
from treadle.core.tally import Charge, Tally
from treadle.core.types import Fault, Json, Message, Role, StopReason, Usage
from treadle.datagen.conversations.studio import Studio, UserTurn, is_farewell, read_answer, user_instructions
from treadle.datagen.scenarios.scenario import Environment, SampleSpec, Scenario
from treadle.datagen.scenarios.scenario_writer import PROMPTS
from treadle.journal.run_info import RunInfo
from treadle.runs.retries import is_cut_off
from treadle.runs.run import Run
from treadle.runs.task import Task
from treadle.workers.protocol import WorkedSession

REPAIR: str = PROMPTS["agent"]["repair"]
"""The message that asks for an answer again."""


def tally_of(runs: Iterable[RunInfo]) -> Tally:
    tally = Tally()
    for info in runs:
        tally.add(Charge(Usage(info.input_tokens, info.output_tokens), info.cost_usd))
    return tally


class SampleError(TreadleError):
    """Raised if a sample could not be made. `fault` says who is responsible."""

    def __init__(self, error: str, fault: Fault = Fault.MODEL, is_cut_off: bool = False) -> None:
        super().__init__(error, fault, is_cut_off)
        self.fault = fault
        self.is_cut_off = is_cut_off
        """True if a limit of the job left no room for a request."""

    def __str__(self) -> str:
        return str(self.args[0])


class Held(Struct, frozen=True):
    """A dialogue that has ended."""

    events: Sequence[Event]
    """The events of the agent's run."""
    state: State
    """The state of the run after its last turn."""


def check_run(run: Run[Any], who: str, *, needs_answer: bool = True) -> None:
    """Check that a run did not fail. `who` names the model's role in the error. Without `needs_answer`, a limit is
    not a failure. Raises: `SampleError`."""
    if run.error is not None:
        raise SampleError(f"{who} failed: {run.error}", run.fault or Fault.MODEL, is_cut_off(run))
    if needs_answer and run.stop_reason is not StopReason.COMPLETED:
        raise SampleError(f"{who} gave no answer ({run.stop_reason})")


def labels(dataset: str, part: str, sample_id: str, attempt: int) -> dict[str, Json]:
    """Return the metadata of a run."""
    return {"dataset": dataset, "part": part, "sample_id": sample_id, "attempt": attempt}


class Dialogue(Struct, frozen=True):
    """The sample that a dialogue is about, with the settings of its runs."""

    spec: SampleSpec
    scenario: Scenario
    environment: Environment
    task: Task | None
    run_id: str
    instructions: str
    """The agent's system message."""
    shown: str
    """The system message of the row, unless the configuration has another one."""
    labels: dict[str, dict[str, Json]]
    """The metadata of the runs, by `sample` and `user`."""
    is_new: bool
    """True if no earlier process has begun the runs."""


class AnswerFindings(Struct, frozen=True):
    """What is found out about the newest answer of a dialogue before the user goes on."""

    reasons: Sequence[str] = ()
    """Why the answer is asked for again."""
    is_good: bool = True
    """Whether the sample could be kept with this answer."""


AnswerCheck = Callable[[Dialogue, Held], Awaitable[AnswerFindings]]
"""A check of the newest answer. Raises: `SampleError` if it could not be made."""


async def hold_dialogue(studio: Studio, dialogue: Dialogue, tally: Tally, check: AnswerCheck | None) -> Held:
    """Hold a dialogue until it ends, or continue one that was interrupted, and return its events.

    If there is a `check`, each answer is checked before the user goes on, and asked for again if that can help. If
    the sample could not be kept with it, the dialogue ends. The last answer is left to the caller.
    Raises: `SampleError`; `RunExistsError` if the dialogue was said to be new and is not.
    """
    spec = dialogue.spec
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(_open_agent(studio, dialogue, is_new=dialogue.is_new))
        run = None if dialogue.is_new else await session.finish_turn()
        if run is None or run.state.turn.number == 0:
            run = await session.send(dialogue.scenario.message, is_last=spec.turns == 1)
        user: WorkedSession | None = None
        said: Run[UserTurn] | None = None
        failed: SampleError | None = None
        turns, events = 1, list[Event]()
        if not dialogue.is_new:
            turns = sum([not repairs for repairs in count_repairs(await session.read_events())])
        try:
            check_run(run, "the agent", needs_answer=False)
            while run.stop_reason is StopReason.COMPLETED and turns < spec.turns:
                checked = AnswerFindings()
                if check is not None:
                    checked = await check(dialogue, Held(await session.read_events(), run.state))
                if checked.reasons:
                    run = await session.send(_ask_again(checked.reasons), is_own=True)
                elif checked.is_good:
                    if user is None:
                        user = await stack.enter_async_context(_open_user(studio, dialogue))
                    said = await _reply(studio, user, run, turns)
                    check_run(said, "the simulated user")
                    if _is_over(studio, said.value, turns):
                        break
                    turns += 1
                    run = await session.send(said.value.message, is_last=turns == spec.turns)
                else:
                    break
                check_run(run, "the agent", needs_answer=False)
            await session.grade()
            events = list(await session.read_events())
        except SampleError as error:
            failed = error
        if said is None and turns > 1:
            # All that the user said is from an earlier process, whose use belongs to the sample too.
            user = await stack.enter_async_context(_open_user(studio, dialogue))
            said = await user.finish_turn()
        tally.add(Charge(run.usage, run.cost_usd))
        if said is not None:
            tally.add(Charge(said.usage, said.cost_usd))
    if failed is not None:
        raise failed
    return Held(events, run.state)


async def repair_answer(studio: Studio, dialogue: Dialogue, reasons: Sequence[str], tally: Tally) -> Held:
    """Ask the agent for its last answer again, and return the dialogue then. Raises: `SampleError`."""
    async with _open_agent(studio, dialogue) as session:
        before = await session.finish_turn()
        run = await session.send(_ask_again(reasons), is_last=True, is_own=True)
        tally.add(Charge(run.usage - before.usage, _subtract(run.cost_usd, before.cost_usd)))
        check_run(run, "the agent")
        await session.grade()
        return Held(await session.read_events(), run.state)


def _subtract(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else one - two


def _ask_again(reasons: Sequence[str]) -> str:
    return REPAIR.format(reasons="\n".join([f"- {reason}" for reason in reasons]))


def count_repairs(events: Iterable[Event]) -> list[int]:
    """Return for each turn of a run how often the answer before it was asked for again, this turn included."""
    found: list[int] = []
    for event in events:
        if isinstance(event.body, TurnStarted):
            found.append((found[-1] if found else 0) + 1 if event.body.message.is_own else 0)
    return found


def drop_repaired(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages without the answers that were asked for again and the messages that did so."""
    shown: list[Message] = []
    for message in messages:
        if message.is_own:
            last = next(
                index for index in range(len(shown) - 1, -1, -1) if shown[index].role is Role.ASSISTANT
            )
            del shown[last:]
        else:
            shown.append(message)
    return tuple(shown)


def _open_agent(studio: Studio, dialogue: Dialogue, *, is_new: bool = False) -> WorkedSession:
    return studio.workers.session(
        studio.agent(dialogue.instructions),
        dialogue.run_id,
        files=dialogue.environment.files,
        task=dialogue.task,
        metadata=dialogue.labels["sample"],
        begins_with_message=is_new,
        pauses_when_cancelled=True,
        keeps_events=True,
    )


def _open_user(studio: Studio, dialogue: Dialogue) -> WorkedSession:
    user = studio.user(user_instructions(dialogue.spec, dialogue.scenario))
    run_id = f"{dialogue.run_id}-user"
    return studio.workers.session(
        user,
        run_id,
        metadata=dialogue.labels["user"],
        begins_with_message=dialogue.is_new,
        pauses_when_cancelled=True,
    )


async def _reply(studio: Studio, user: WorkedSession, run: Run[Any], turns: int) -> Run[UserTurn]:
    """Return the user's reply to the agent's answer number `turns`; it may be in the journal already."""
    said = await user.finish_turn()
    if said.state.turn.number == turns:
        return said
    return await user.send(read_answer(run.output, studio.config.generation.conversation).text)


def _is_over(studio: Studio, said: UserTurn, turns: int) -> bool:
    """Return whether the conversation ends before the user's message number `turns + 1` is sent to the agent."""
    message = said.message.strip()
    if not message or is_farewell(message):
        return True
    # A user who is satisfied early goes on if the configuration asks for more turns.
    return said.is_done and turns >= studio.config.generation.conversation.min_turns
