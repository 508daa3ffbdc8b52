"""The projection of a conversation's run to a row."""

from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ExportError
from treadle.core.state import State
from treadle.core.tally import Charge, Tally
from treadle.core.types import Message, Role, Usage
from treadle.datagen.config.generation_config import Conversation
from treadle.datagen.conversations.dialogue import (
    Dialogue,
    Held,
    SampleError,
    count_repairs,
    drop_repaired,
)
from treadle.datagen.conversations.studio import Spoken, Studio, answer_schema, read_answer
from treadle.datagen.quality.exchanges import count_turns, find_missing_thought
from treadle.datagen.scenarios.cast import describe_persona
from treadle.datagen.scenarios.kinds import kinds_of
from treadle.datagen.scenarios.scenario import Kind, SampleSpec, Scenario
from treadle.export.row_changes import keep_messages
from treadle.export.rows import Lineage, Row, SampleInfo, row_of
from treadle.journal.run_info import RunFilter

TEACHERS = ("teacher", "oracle", "mediocre")
"""The names of Treadle's built-in models, without their provider and their rate of mistakes."""


def make_row(studio: Studio, dialogue: Dialogue, held: Held, tally: Tally) -> Row:
    """Return the row of a dialogue that was `held`. Raises: `SampleError` if it cannot be shown as one."""
    events = held.events
    conversation = studio.config.generation.conversation
    try:
        row = project(dialogue.run_id, events, conversation, held.state)
    except ExportError as error:
        raise SampleError(str(error)) from error
    ran_with = row.messages[0].content if row.messages[0].role is Role.SYSTEM else None
    messages = row.messages
    output = studio.config.output
    system = (output.system_message or dialogue.shown) if output.include_system_message else None
    if system != ran_with:
        said = [message for message in messages if message.role is not Role.SYSTEM]
        messages = (*([Message(Role.SYSTEM, system)] if system else []), *said)
    info = _describe(studio, dialogue, row.lineage, messages, tally)
    info = replace(
        info,
        instructions=None if system == ran_with else ran_with,
        repairs=sum([repairs > 0 for repairs in count_repairs(events)]),
    )
    # A row about recovery is for what follows an error, so that all of it is trained on.
    untrained = () if dialogue.spec.kind == Kind.RECOVERY else row.untrained
    return Row(messages, row.tools, replace(row.lineage, sample=info), untrained=untrained)


def project(
    run_id: str, events: Sequence[e.Event], conversation: Conversation, state: State | None = None
) -> Row:
    """Return the events of a conversation's run as a row, with the system message that the agent had.

    `state` is as for `row_of`. Raises: as `load_row` does.
    """
    bodies = [event.body for event in events]
    row = row_of(run_id, bodies, state)
    row = keep_messages(row, drop_repaired(row.messages))
    return row if answer_schema(conversation) is None else _show_answers(events, row, conversation)


def _describe(
    studio: Studio, dialogue: Dialogue, lineage: Lineage, messages: Sequence[Message], tally: Tally
) -> SampleInfo:
    """Return the origin of a row."""
    conversation = studio.config.generation.conversation
    planned = describe_plan(studio, dialogue.spec, dialogue.scenario, lineage.model or "")
    models = planned.models
    if dialogue.spec.turns > 1:
        models = models | {"user": studio.models["user"].name}
    tally = _add_earlier(studio, dialogue, tally)
    return replace(
        planned,
        kinds=tuple([kind.value for kind in kinds_of(messages)]) if studio.has_tools else (),
        reasoning=None if find_missing_thought(messages) else conversation.reasoning,
        turns=count_turns(messages),
        models=models,
        input_tokens=tally.usage.input_tokens,
        output_tokens=tally.usage.output_tokens,
        cost_usd=tally.cost_usd,
        prices={role: text for role, text in studio.prices.items() if role in models},
        tool_hashes=studio.tool_hashes,
        environment=dialogue.environment.task or dialogue.environment.source,
    )


def describe_plan(studio: Studio, spec: SampleSpec, scenario: Scenario | None, agent: str) -> SampleInfo:
    """Return what is known about a sample before its conversation. `agent` is the name of the agent's model."""
    return SampleInfo(
        sample_id=spec.sample_id,
        dataset=studio.config.name,
        topic=spec.topic,
        topic_id=spec.topic_id,
        seed=spec.seed,
        kind=spec.kind,
        difficulty=spec.difficulty,
        persona=describe_persona(spec.persona),
        goal="" if scenario is None else scenario.goal,
        conversation=studio.config.generation.conversation.type,
        models={"agent": agent, "scenarios": studio.models["scenarios"].name},
        is_from_teacher=not set(agent.split(":")).isdisjoint(TEACHERS),
    )


def _add_earlier(studio: Studio, dialogue: Dialogue, tally: Tally) -> Tally:
    """Return `tally` with what earlier attempts at the sample have used."""
    sample_id, run_id = dialogue.spec.sample_id, dialogue.run_id
    if run_id == f"{sample_id}-1":
        return tally
    total = Tally()
    total.add(Charge(tally.usage, tally.cost_usd))
    for info in studio.journal.runs(RunFilter(id_prefix=f"{sample_id}-")):
        if info.run_id != run_id and not info.run_id.startswith(f"{run_id}-"):
            total.add(Charge(Usage(info.input_tokens, info.output_tokens), info.cost_usd))
    return total


def _show_answers(events: Sequence[e.Event], row: Row, conversation: Conversation) -> Row:
    """Return a row with its answers in the form that the configuration asks for.

    An answer that was given through a tool becomes a message, and the tool is left out.
    """
    bodies = [event.body for event in events]
    tool = next((body.output.tool for body in bodies if isinstance(body, e.RunStarted) and body.output), None)
    given = [body.output for body in bodies if isinstance(body, e.TurnCompleted)]
    later = [*count_repairs(events)[1:], 0]
    outputs = iter([output for output, repairs in zip(given, later, strict=False) if not repairs])
    shown: list[Message] = []
    numbers, untrained, answers = count(), list[int](), 0
    for index, message in enumerate(row.messages):
        if message.role is Role.TOOL and message.name == tool:
            continue
        if message.role is Role.ASSISTANT:
            number = next(numbers)
            calls = tuple([call for call in message.tool_calls if call.name != tool])
            if not calls:
                following = row.messages[index + 1 :]
                if not _ends_turn(following, tool):
                    continue
                spoken = read_answer(next(outputs), conversation)
                message = _say(message, spoken)
            elif calls != message.tool_calls:
                message = replace(message, tool_calls=calls)
            untrained += [answers] if number in row.untrained else []
            answers += 1
        shown.append(message)
    tools = tuple([item for item in row.tools if item.name != tool])
    return Row(tuple(shown), tools, row.lineage, untrained=tuple(untrained))


def _ends_turn(following: Sequence[Message], tool: str | None) -> bool:
    """Return whether an answer is the final answer of its turn, which the messages after it show."""
    rest = [message for message in following if not (message.role is Role.TOOL and message.name == tool)]
    return not rest or rest[0].role is Role.USER


def _say(message: Message, spoken: Spoken) -> Message:
    reasoning = spoken.reasoning if spoken.reasoning is not None else message.reasoning
    return Message(Role.ASSISTANT, spoken.text, reasoning=reasoning)
