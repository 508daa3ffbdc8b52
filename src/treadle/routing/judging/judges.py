"""The judges of messages, the word lists or a model that falls back to them, and what a run does with judgements.

A judgement is recorded with the beginning of its turn, so that a resumed or replayed run has the same.
"""

import asyncio
from functools import cache
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from treadle.core.answering import strip_answer
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.judgement import Ambiguity, AmbiguityClass, Judgement, Missing, TaskFound, TaskKind
from treadle.core.log import Log
from treadle.core.policy import Approval, Autonomy, Policy
from treadle.core.prompts.fence import fence
from treadle.core.registry import Registry
from treadle.core.spec import PartSpec
from treadle.core.state import State
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Completion, Json, Message, OutputMode, Request, Role, ToolSpec, Usage
from treadle.models.protocol import Model, Watch, estimate_cost_usd, output_mode_of
from treadle.routing.judging.clauses import read
from treadle.routing.judging.inabilities import find_refusal, find_suited
from treadle.routing.judging.judgements import MessageFacts, judge_message
from treadle.routing.judging.lists import prompts

_NO_FACTS = MessageFacts()
MAX_SECONDS = 30.0
"""How long a model may take to judge before the word lists judge instead."""


class MessageJudge(Protocol):
    """A judge of a message before a model is asked to answer it."""

    async def judge(self, message: str, facts: MessageFacts = _NO_FACTS) -> Judgement:
        """Return what the message is and needs."""


class PatternJudge:
    """A judge that needs no model."""

    part = PartSpec(name="patterns")
    is_instant = True
    """True if a judgement takes no noticeable time."""

    async def judge(self, message: str, facts: MessageFacts = _NO_FACTS) -> Judgement:
        return judge_message(message, facts)


class _Answer(Struct):
    """The judgement as the model writes it."""

    language: str
    open: AmbiguityClass | None
    missing: Missing | None
    quote: str
    task: TaskKind | None
    is_boilerplate: bool
    is_identity_sensitive: bool
    difficulty: Annotated[float, Meta(ge=0, le=1)]


_TYPES: dict[str, dict[str, Json]] = {
    "open": {"type": ["string", "null"], "enum": [*map(str, AmbiguityClass), None]},
    "missing": {"type": ["string", "null"], "enum": [*map(str, Missing), None]},
    "task": {"type": ["string", "null"], "enum": [*map(str, TaskKind), None]},
    "is_boilerplate": {"type": "boolean"},
    "is_identity_sensitive": {"type": "boolean"},
    "difficulty": {"type": "number", "minimum": 0, "maximum": 1},
}
"""The types of the fields of a judgement that are not texts."""
_TOOL = "judge_message"


@cache
def _schema() -> dict[str, Json]:
    """Return the JSON Schema of a judgement, with the descriptions of `prompts.toml`."""
    fields = prompts()["judge"]["fields"]
    return {
        "type": "object",
        "properties": {
            name: {**_TYPES.get(name, {"type": "string"}), "description": text}
            for name, text in fields.items()
        },
        "required": list(_Answer.__struct_fields__),
        "additionalProperties": False,
    }


class ModelJudge:
    """A judge that asks a model once. If that fails, the word lists judge; `Judgement.error` says why."""

    def __init__(self, model: Model | str) -> None:
        """Make a judge. `model` is a model, or a name for treadle.toml such as `tier:small`."""
        if isinstance(model, str):
            from treadle.models.config.recipe import make_model

            model = make_model(model)
        self.model: Model = model

    async def judge(self, message: str, facts: MessageFacts = _NO_FACTS) -> Judgement:
        """See `MessageJudge.judge`. Only the beginning and the end of a long message are sent."""
        said: Completion | None = None
        request, fault = self._ask(message, facts), None
        usage = Usage()
        cost_usd: float | None = 0.0
        try:
            async with asyncio.timeout(MAX_SECONDS):
                said = await self.model.infer(request, Watch(left_seconds=MAX_SECONDS))
            usage, cost_usd = said.usage, said.cost_usd
            answer = msgspec.json.decode(_read_text(said), type=_Answer)
        except (TimeoutError, TreadleError, *UNREADABLE) as error:
            judged = judge_message(message, facts)
            fault = f"{self.model.name}: {error or f'no answer within {MAX_SECONDS:g} s'}"
            if said is None and (isinstance(error, TimeoutError) or getattr(error, "may_be_billed", False)):
                # What was lost counts as its prompt would.
                usage = Usage(sum([len(item.content) for item in request.messages]) // 4, is_reported=False)
                cost_usd = estimate_cost_usd(self.model, usage)
        else:
            judged = _read_answer(answer, message, facts, self.model.name)
        return replace(judged, error=fault, model=self.model.name, usage=usage, cost_usd=cost_usd)

    def _ask(self, message: str, facts: MessageFacts) -> Request:
        has_tools = ", ".join(f"{tool.name} ({tool.description[:120]})" for tool in facts.tools[:60])
        known = (
            f"Tools of the assistant: {has_tools or 'none'}",
            f"Earlier messages: {'yes' if facts.has_history else 'no'}",
            f"The assistant's last message was a question: {'yes' if facts.follows_question else 'no'}",
            f"Topics of the assistant: {'; '.join(facts.topics) or 'none'}",
        )
        schema = msgspec.json.encode(_schema()).decode()
        instructions = "\n".join((prompts()["judge"]["instructions"] + schema, "", *known))
        messages = Log(
            (Message(Role.SYSTEM, instructions), Message(Role.USER, fence("message", read(message).text)))
        )
        mode = output_mode_of(self.model, _schema())
        if mode is OutputMode.TOOL:
            tool = ToolSpec(_TOOL, "Give your judgement.", _schema())
            return Request(messages, (tool,), required_tool=_TOOL)
        return Request(messages, (), _schema() if mode is OutputMode.NATIVE else None)


def _read_text(said: Completion) -> str:
    calls = [call for call in said.message.tool_calls if call.name == _TOOL]
    return calls[0].arguments if calls else strip_answer(said.message.content)


def _read_answer(answer: _Answer, message: str, facts: MessageFacts, name: str) -> Judgement:
    start = message.find(answer.quote) if answer.quote else -1
    span = (start, start + len(answer.quote)) if start >= 0 else (0, len(message))
    gap: Ambiguity | None = None
    task: TaskFound | None = None
    if answer.open is not None:
        gap = Ambiguity(answer.open, answer.missing or Missing.SCOPE, span)
    if answer.task is not None and (tools := find_suited(answer.task, facts.tools)):
        task = TaskFound(answer.task, tools, span)
    return Judgement(
        language=answer.language.casefold()[:8],
        ambiguity=gap,
        task=task,
        is_boilerplate=answer.is_boilerplate,
        is_identity_sensitive=answer.is_identity_sensitive,
        difficulty=answer.difficulty,
        judge=name,
    )


JUDGES: Registry[type[PatternJudge] | type[ModelJudge]] = Registry(
    "judge of messages",
    "treadle.judges",
    {
        "patterns": "treadle.routing.judging.judges:PatternJudge",
        "model": "treadle.routing.judging.judges:ModelJudge",
    },
)
"""The judges; those of other packages are entry points of the group `treadle.judges`."""


def make_judge(name: str = "patterns") -> MessageJudge:
    """Return the judge called `name`. What follows a colon is its argument, as in `model:tier:small`.

    Raises: `ConfigError` for an unknown judge or model, or if `model` stands without a model's name.
    """
    kind, _, argument = name.partition(":")
    maker = JUDGES.load(kind)
    try:
        made: MessageJudge = maker(argument) if argument else maker()  # type: ignore[call-arg]
    except TypeError as error:
        raise ConfigError(
            f"the judge {name!r} cannot be made: {error}; write 'patterns', or 'model:' and a model's name"
        ) from None
    return made


def part_of_judge(judge: MessageJudge | str) -> PartSpec:
    """Return the description of a judge for the agent spec: its name, or the attribute `part` of an object."""
    if isinstance(judge, str):
        return PartSpec(name=judge)
    part = getattr(judge, "part", None)
    if isinstance(part, PartSpec):
        return part
    return PartSpec(name=type(judge).__name__, missing="it is an object of the program")


def judge_of_part(part: PartSpec) -> MessageJudge:
    """Return the judge that `part` describes; the judge by word lists if that judge cannot be built again.

    Raises: `ConfigError` as `make_judge` does.
    """
    return PatternJudge() if part.missing is not None else make_judge(part.name)


ASK_TOOL = "ask_user"
"""The name of the tool by which the model asks the user."""
_MAX_ERROR_CHARS = 500
_SURE = 0.7
"""The least confidence with which the model is told to ask."""
_GRAVE = AmbiguityClass.SAFETY_CRITICAL_GAP
_ASKED_ABOUT: dict[Autonomy, tuple[AmbiguityClass, ...]] = {
    Autonomy.CAUTIOUS: tuple(AmbiguityClass),
    Autonomy.BALANCED: (_GRAVE, AmbiguityClass.MISSING_PARAMETER),
    Autonomy.DECISIVE: (_GRAVE,),
}
"""The classes of ambiguity about which the user is asked."""


def facts_of_message(
    state: State,
    message: Message,
    *,
    tools: tuple[ToolSpec, ...],
    topics: tuple[str, ...],
    has_documents: bool,
) -> MessageFacts:
    """Return the facts for the judgement of a message that is to begin the next turn of a run in `state`."""
    return MessageFacts(
        tools=tools,
        has_history=state.turn.number > 0 or bool(message.parts) or has_documents,
        follows_question=follows_question(state),
        topics=topics,
    )


def follows_question(state: State) -> bool:
    """Return whether the newest message of the model ends with a question."""
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if message.role is Role.ASSISTANT:
            return message.content.rstrip().endswith("?")
    return False


async def judge_safely(judge: MessageJudge, message: str, facts: MessageFacts) -> Judgement:
    """Return the judgement of a message. If the judge fails, the word lists judge; `Judgement.error` says why."""
    try:
        found = await judge.judge(message, facts)
        # A judge of another package may give values that a journal could not be read with.
        return msgspec.json.decode(msgspec.json.encode(found), type=Judgement)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
        return replace(judge_message(message, facts), error=why)


def write_hint(judgement: Judgement, policy: Policy, tools: tuple[ToolSpec, ...]) -> str | None:
    """Return the text that tells the model to ask about what a message leaves open; `None` if the policy's autonomy
    does not ask about it, if the judgement is not sure, or if the model cannot ask. It quotes nothing of the
    message."""
    gap = judgement.ambiguity
    if gap is None or gap.confidence < _SURE or gap.kind not in _ASKED_ABOUT[policy.autonomy]:
        return None
    if not policy.text_markers and all([tool.name != ASK_TOOL for tool in tools]):
        return None
    hints = prompts()["hints"]
    hint: str = hints["grave" if gap.kind is _GRAVE else "usual"]
    return hint.format(what=hints["open"][gap.missing])


def find_refused_tool(state: State, answer: Message) -> str | None:
    """Return the name of an offered tool that an answer says cannot be used; `None` if the answer says no such
    thing. It is also `None` if the model may call no more tools, may not call this tool, or has called it in
    this turn, because then it may have tried."""
    if answer.tool_calls or state.turn.limit is not None or state.output_spec is not None:
        return None
    since = state.messages.after(state.turn.position)
    tried = {call.name for message in since for call in message.tool_calls}
    offered = [
        tool
        for tool in state.tools
        if tool.name not in tried and state.policy.approval_of(tool.name, tool.effect) is not Approval.NEVER
    ]
    refusal = find_refusal(answer.content, tools=offered)
    return None if refusal is None else refusal.tool
