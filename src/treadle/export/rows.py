"""Rows: a run's transcript and tools, with their lineage."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, count, groupby
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ExportError
from treadle.core.events import (
    VERSION,
    ContextCompacted,
    DurableBody,
    InferenceCompleted,
    InferenceStarted,
    MessageInjected,
    RunResumed,
    RunStarted,
    ToolCompleted,
)
from treadle.core.prompts.foreign import as_seen
from treadle.core.prompts.transcript import check_transcript
from treadle.core.registry import NamedFields
from treadle.core.state import State, fold
from treadle.core.tokens.packed import ID_BYTES, as_packed, pack_logprobs
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.tool_cache import ToolCache
from treadle.core.types import (
    UNREPORTED,
    Effect,
    Fault,
    Json,
    Message,
    Role,
    StopReason,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
    Usage,
)
from treadle.formats.scanner.parsed import to_openai
from treadle.journal.protocol import Journal


class SampleInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a row that was generated for a dataset."""

    sample_id: str
    """The id of the row in its dataset."""
    dataset: str
    """The name of the dataset."""
    topic: tuple[str, ...] = ()
    """The path of the topic from the root."""
    topic_id: str = ""
    seed: int = 0
    kind: str | None = None
    """The kind of tool use that was planned; `None` for conversations without tools."""
    kinds: tuple[str, ...] = ()
    """The kinds of tool use that the conversation shows."""
    difficulty: str = ""
    persona: str = ""
    """The simulated user, in one sentence."""
    goal: str = ""
    """What the user wanted."""
    conversation: str = "agent"
    """The type of the conversation: `basic`, `cot` or `agent`."""
    reasoning: str | None = None
    """The form of the reasoning: `freetext` or `agent`; `None` if the row shows none."""
    turns: int = 1
    models: dict[str, str] = {}
    """The names of the models by role: `agent`, `scenarios`, `user`, `judge`."""
    input_tokens: int = 0
    """The tokens of all runs of the sample."""
    output_tokens: int = 0
    cost_usd: float | None = None
    """The cost of all runs of the sample; `None` if a price is unknown."""
    prices: dict[str, str] = {}
    """The prices that were applied, by role, in words."""
    tool_hashes: dict[str, str] = {}
    """The SHA-256 of each tool's definition, by name."""
    filters: dict[str, str] = {}
    """The filters that the row passed, by name, with their notes."""
    lowered: dict[str, str] = {}
    """The filters that the row did not pass and that lowered its weight, by name, with their reasons."""
    is_verified: bool = False
    """True if all calls were made again in a fresh sandbox and gave the recorded results."""
    is_from_teacher: bool = False
    """True if a model of Treadle's testbed, such as the teacher, wrote the conversation."""
    statements: int = 0
    """How many statements of the final answers were held against results and request."""
    grounded: int = 0
    """How many of these statements are shown by results or request."""
    controls: int = 0
    """How many statements that the rules are sure of a judge was asked about, to measure it."""
    agreed: int = 0
    """How many of these controls the judge confirmed."""
    repairs: int = 0
    """How often the last answer was asked for again, with the reasons for which it was rejected."""
    environment: str = ""
    """The origin of the initial files."""
    instructions: str | None = None
    """The system message with which the agent ran, if the row shows another one or none."""

    @property
    def is_from_liar(self) -> bool:
        """True if it was the testbed's model that lies on purpose."""
        return self.is_from_teacher and "mediocre" in self.models.get("agent", "").split(":")


class Lineage(Struct, frozen=True, omit_defaults=True, metaclass=NamedFields):
    """The origin of a row."""

    run_id: str
    model: str | None
    """The name of the model that gave the last answer."""
    stop_reason: str
    tools_hash: str
    """The SHA-256 of the row's tools as JSON with sorted keys, in hexadecimal."""
    task: str | None = None
    """The task as `SET:ID`; `None` if the run was not on a task."""
    seed: int | None = None
    reward: float | None = None
    """The reward of the task's check; `None` if the run was not checked."""
    parent: str | None = None
    """`RUN:SEQ` of the event that the run was forked from; `None` if it is not a fork."""
    tool_errors: tuple[str, ...] = ()
    """The ids of the calls whose result is an error. Rows have no such flag in their messages."""
    simulated: tuple[str, ...] = ()
    """The ids of the calls whose result was simulated and not returned by a real tool."""
    in_doubt: tuple[str, ...] = ()
    """The ids of the calls that have no result of their tool: they were interrupted, ran out of time, or their
    server or sandbox was lost."""
    models: tuple[str, ...] = ()
    """The names of the models that wrote the assistant messages, in order. Empty if `model` wrote all of them."""
    call_ids: tuple[str, ...] = ()
    """The ids of all calls, in order, if the messages of the format have no ids or different ones. A row that
    was read has no such list."""
    event_version: str = ""
    treadle_version: str = ""
    sample: SampleInfo | None = None
    """The origin of a generated row; `None` if the run was not made for a dataset."""


class AnswerTokens(Struct, frozen=True, omit_defaults=True):
    """The tokens of the inference that gave an assistant message."""

    prompt_token_ids: bytes | None = None
    """The packed ids of the whole prompt; `None` if they are not known."""
    token_ids: bytes | None = None
    """The packed ids of the answer; `None` if they are not known."""
    logprobs: bytes | None = None
    """The packed log probabilities of the answer's tokens; `None` if they are not known."""
    usage: Usage = UNREPORTED
    cost_usd: float | None = None


_LOST = (ToolErrorKind.IN_DOUBT, ToolErrorKind.TIMEOUT)
"""The errors of calls that were made and have no result of their tool."""
FULL_WEIGHT = 1.0
"""The weight of a row that no filter has lowered. Only this very object is left out when a row is written."""


class Row(Struct, frozen=True, omit_defaults=True, metaclass=NamedFields):
    """One training example, in Treadle's types."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    lineage: Lineage
    tokens: tuple[AnswerTokens | None, ...] = ()
    """The tokens of the assistant messages, in order. Empty if they were not asked for, or are not known."""
    untrained: tuple[int, ...] = ()
    """The assistant messages that are not to be trained on, by their numbers from 0: a call in them failed through
    the model's own fault, or they answer a message of Treadle that the row does not show."""
    weight: float = FULL_WEIGHT
    """The weight of the row in training; below 1 if filters have lowered it."""


def load_row(journal: Journal, run_id: str, *, with_tokens: bool = False) -> Row:
    """Return the row of a run, with the tokens of its answers if they are asked for.

    Raises: `RunNotFoundError`; `ExportError` if the run is not finished, failed because of a fault that was not its
    model's, or has a transcript that breaks an invariant.
    """
    bodies = [event.body for event in journal.read(run_id)]
    row = row_of(run_id, bodies)
    if not with_tokens:
        return row
    said = ShownMessages(fold(bodies).transcript, bodies)
    return replace(row, tokens=tuple(said.keep(list(_find_tokens(bodies)))))


def row_of(run_id: str, bodies: Sequence[DurableBody], state: State | None = None) -> Row:
    """Return the row of a run from its events. Raises: as `load_row` does.

    `state` is the state after some of them, if there is one. It is used only if it was made from the same objects.
    """
    import treadle

    first = next(iter(bodies), None)
    if state is not None and first is not None and state.started is first:
        state = fold(bodies[state.seq :], state)
    else:
        state = fold(bodies)
    started = state.started
    if started is None or state.ending.stop_reason is None or state.turn.is_open:
        raise ExportError(f"run {run_id!r} is not finished; go on with it: treadle resume {run_id}")
    shown = ShownMessages(state.transcript, bodies)
    messages = tuple(shown.messages)
    if faults := check_transcript(messages):
        raise ExportError(f"run {run_id!r} has a faulty transcript: {'; '.join(faults[:3])}")
    if state.ending.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        raise ExportError(
            f"run {run_id!r} failed through no fault of its model ({state.ending.error}); resume it"
        )
    if not any(message.role is Role.ASSISTANT for message in messages):
        raise ExportError(f"run {run_id!r} has no answer ({state.ending.stop_reason}: {state.ending.error})")
    task, parent = started.task, started.parent
    models = shown.keep(_find_models(bodies))
    later = tuple(_find_later_tools(started.tools, bodies))
    tools = (*started.tools, *later) if later else started.tools
    results = [body.result for body in bodies if isinstance(body, ToolCompleted)]
    lineage = Lineage(
        run_id=run_id,
        model=models[-1] if models else started.spec.model.name,
        stop_reason=state.ending.stop_reason.value,
        tools_hash=_TOOL_HASHES.find(tools),
        task=None if task is None else f"{task.task_set}:{task.task_id}",
        seed=None if task is None else task.seed,
        reward=state.turn.rewards.get("check"),
        parent=None if parent is None else f"{parent.run_id}:{parent.seq}",
        tool_errors=tuple([item.call_id for item in messages if item.is_error and item.call_id]),
        simulated=tuple([item.call_id for item in results if item.is_simulated]),
        in_doubt=tuple([item.call_id for item in results if item.error_kind in _LOST]),
        models=tuple(models) if len(set(models)) > 1 else (),
        event_version=VERSION,
        treadle_version=treadle.__version__,
    )
    return Row(messages, tools, lineage, untrained=tuple(shown.find_untrained(results)))


def _find_later_tools(tools: Sequence[ToolSpec], bodies: Sequence[DurableBody]) -> Iterator[ToolSpec]:
    """Yield the tools that compactions have offered besides those of the start."""
    names = {tool.name for tool in tools}
    for body in bodies:
        for tool in body.tools if isinstance(body, ContextCompacted) else ():
            if tool.name not in names:
                names.add(tool.name)
                yield tool


def _find_tokens(bodies: Sequence[DurableBody]) -> Iterator[AnswerTokens]:
    """Yield the tokens of each answer, in order."""
    before = b""
    for body in bodies:
        if not isinstance(body, InferenceCompleted):
            continue
        completion = body.completion
        record = completion.tokens or TokenRecord()
        prompt = None
        if record.prompt_token_ids is not None:
            prompt = before[: record.prompt_shared_tokens * ID_BYTES] + as_packed(record.prompt_token_ids)
        ids = None if record.token_ids is None else as_packed(record.token_ids)
        logprobs = record.logprobs if ids is not None else None
        if prompt is not None and ids is not None:
            before = prompt + ids
        packed = pack_logprobs(logprobs) if isinstance(logprobs, tuple) else logprobs
        yield AnswerTokens(prompt, ids, packed, completion.usage, completion.cost_usd)


def _find_models(bodies: Sequence[DurableBody]) -> list[str]:
    """Return the name of the model that was asked for each answer, in order."""
    found: list[str] = []
    agents = asked = ""
    for body in bodies:
        if isinstance(body, RunStarted):
            agents = body.spec.model.name
        elif isinstance(body, RunResumed) and body.agent is not None:
            agents = body.agent.model.name
        elif isinstance(body, InferenceStarted):
            asked = body.model or agents
        elif isinstance(body, InferenceCompleted):
            found.append(body.answered_by or asked)
    return found


def write_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Json]]:
    """Return tools in OpenAI's form, which is the column `tools` of most row formats."""
    return [to_openai(tool) for tool in tools]


def write_functions(tools: Sequence[ToolSpec]) -> list[dict[str, Json]]:
    """Return tools in OpenAI's form without the outer `function`."""
    return [to_openai(tool)["function"] for tool in tools]


def read_tools(raw: Json) -> tuple[ToolSpec, ...]:
    """Return the tools in a column that `write_tools` or `write_functions` returned, or in their JSON text.

    Rows do not contain effects, so each is `once`.
    """
    items = msgspec.json.decode(raw) if isinstance(raw, str) and raw.strip() else raw or ()
    inner = [item.get("function", item) for item in items]
    return tuple(
        [
            ToolSpec(item["name"], item.get("description") or "", item.get("parameters") or {}, Effect.ONCE)
            for item in inner
        ]
    )


def hash_tools(tools: Sequence[ToolSpec]) -> str:
    """Return the SHA-256 of the column `tools` as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(write_tools(tools), order="sorted")).hexdigest()


_TOOL_HASHES = ToolCache(hash_tools)


def write_object(call: ToolCall) -> bytes:
    """Return the arguments of a call as the JSON object that the model wrote, without white space around it.

    Raises: `ExportError` if they are not an object.
    """
    try:
        value = call.parsed
    except msgspec.DecodeError as error:
        raise ExportError(
            f"the arguments of {call.name} ({call.call_id}) are not JSON ({error}); "
            "the format treadle can hold them as text"
        ) from error
    if not isinstance(value, dict):
        raise ExportError(
            f"the arguments of {call.name} ({call.call_id}) are {value!r:.80}, not an object; "
            "the format treadle can hold them as text"
        )
    return call.arguments.strip().encode() or b"{}"


def call_ids_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the ids of all calls, in order."""
    return tuple([call.call_id for message in messages for call in message.tool_calls])


def rename_calls(messages: Sequence[Message], names: Mapping[str, str]) -> tuple[Message, ...]:
    """Return the messages with other call ids, in calls and results. Ids that are not in `names` are unchanged."""
    return tuple(
        [
            replace(
                message,
                call_id=names.get(message.call_id, message.call_id) if message.call_id else None,
                tool_calls=tuple(
                    [
                        replace(call, call_id=names.get(call.call_id, call.call_id))
                        for call in message.tool_calls
                    ]
                ),
            )
            for message in messages
        ]
    )


def lineage_with_ids(row: Row) -> Lineage:
    """Return the lineage of a row with its call ids, for a format whose messages have no ids or different ones."""
    return replace(row.lineage, call_ids=call_ids_of(row.messages))


def make_lineage(messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> Lineage:
    """Return the lineage of a row of which nothing but its content is known."""
    digest = hashlib.sha256(msgspec.json.encode(messages)).hexdigest()
    return Lineage(f"row-{digest[:16]}", None, StopReason.COMPLETED.value, hash_tools(tools))


def make_row(
    messages: Sequence[Message],
    tools: tuple[ToolSpec, ...],
    raw_lineage: Json,
    untrained: tuple[int, ...] = (),
    weight: Json = FULL_WEIGHT,
) -> Row:
    """Return the row of messages that were read in a format. Its weight is 1 if `weight` is not a number from 0.

    Without a `lineage`, the row gets one that is made from its content. Some programs count call ids from the
    beginning in each step; such ids become different ones.
    """
    messages = _order_results(_separate_ids(messages))
    names = {call.call_id: call.name for message in messages for call in message.tool_calls}
    read = tuple(
        [
            replace(item, name=item.name or names.get(item.call_id)) if item.call_id else item
            for item in messages
        ]
    )
    check_messages(read)
    lineage = make_lineage(read, tools) if raw_lineage is None else msgspec.convert(raw_lineage, Lineage)
    ids = call_ids_of(read)
    if lineage.call_ids and len(lineage.call_ids) == len(ids):
        read = rename_calls(read, dict(zip(ids, lineage.call_ids, strict=True)))
    errors = set(lineage.tool_errors)
    read = tuple([replace(item, is_error=True) if item.call_id in errors else item for item in read])
    is_weight = (
        isinstance(weight, int | float) and not isinstance(weight, bool) and weight >= 0 and weight != 1
    )
    return Row(
        read,
        tools,
        replace(lineage, call_ids=()),
        untrained=untrained,
        weight=float(weight) if is_weight else FULL_WEIGHT,
    )


def check_messages(messages: Sequence[Message]) -> None:
    """Check that messages keep the invariants of a transcript. Raises: `ExportError`."""
    if faults := check_transcript(messages):
        raise ExportError(f"the transcript is faulty: {'; '.join(faults[:3])}")


def _separate_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with new ids for calls whose ids an earlier step has used."""
    ids = call_ids_of(messages)
    if len(set(ids)) == len(ids):
        return messages
    used: set[str] = set()
    names: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        step = {call.call_id for call in message.tool_calls}
        if message.role is Role.ASSISTANT:
            names = {}
            for call_id in step & used:
                number = next(number for number in count(2) if f"{call_id}-{number}" not in used | step)
                names[call_id] = f"{call_id}-{number}"
            used |= step | set(names.values())
        found += rename_calls([message], names)
    return found


def _order_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the results of each step in the order of its calls, which many programs do not
    keep."""
    places = {call_id: place for place, call_id in enumerate(call_ids_of(messages))}
    found: list[Message] = []
    for _, group in groupby(messages, lambda message: message.role is Role.TOOL):
        found += sorted(group, key=lambda item: places.get(item.call_id or "", len(places)))
    return found


T = TypeVar("T")


class ShownMessages:
    """The messages of a transcript that a row shows.

    Treadle's own messages are left out: limits, nudges, schemas and rejections of answers. An answer that such a
    message rejects is left out with it, and the one that a limit asks for is not trained on.
    """

    def __init__(self, transcript: Iterable[Message], bodies: Sequence[DurableBody]) -> None:
        own = {
            id(body.message): body
            for body in bodies
            if isinstance(body, MessageInjected) and body.delivery is None
        }
        self.messages: list[Message] = []
        self._kept: list[bool] = []
        """For each answer of the run, whether the row shows it."""
        self._wrap_ups: list[int] = []
        is_wrap_up = False
        for message in transcript:
            if (body := own.get(id(message))) is not None:
                is_wrap_up = body.limit is not None
                if not body.tells_schema and self.messages[-1].role is Role.ASSISTANT:
                    self._kept[-1] = False
                    self.messages.pop()
                continue
            for seen in as_seen([message]):
                if seen.role is Role.ASSISTANT:
                    if is_wrap_up:
                        self._wrap_ups.append(len(self._kept))
                    self._kept.append(True)
                    is_wrap_up = False
                self.messages.append(seen)

    def keep(self, items: list[T]) -> list[T]:
        """Return those of the items, one for each answer of the run, whose answers the row shows."""
        return list(compress(items, self._kept)) if len(items) == len(self._kept) else items

    def find_untrained(self, results: Sequence[ToolResult]) -> Iterator[int]:
        """Yield the numbers of the answers that are not trained on."""
        failed = {result.call_id for result in results if result.is_models_fault}
        wrap_ups = self.keep([number in self._wrap_ups for number in range(len(self._kept))])
        said = [message for message in self.messages if message.role is Role.ASSISTANT]
        for number, (message, is_wrap_up) in enumerate(zip(said, wrap_ups, strict=True)):
            if is_wrap_up or any(call.call_id in failed for call in message.tool_calls):
                yield number
