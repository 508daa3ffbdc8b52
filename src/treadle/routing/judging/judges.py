"""The judges of messages: the word lists, or a model that falls back to them."""

import asyncio
from functools import cache
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from treadle.core.answering import strip_answer
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.fence import fence
from treadle.core.judgement import (
    Ambiguity,
    AmbiguityClass,
    Judgement,
    Missing,
    TaskFound,
    TaskKind,
)
from treadle.core.log import Log
from treadle.core.registry import Registry
from treadle.core.spec import PartSpec
from treadle.core.types import Completion, Json, Message, OutputMode, Request, Role, ToolSpec, Usage
from treadle.models.protocol import Model, Watch, estimate_cost_usd, output_mode_of
from treadle.routing.judging.clauses import read
from treadle.routing.judging.inabilities import find_suited
from treadle.routing.judging.judgements import MessageFacts, judge_message
from treadle.routing.judging.lists import prompts

_NO_FACTS = MessageFacts()
MAX_SECONDS = 30.0
"""How long a model may take to judge before the word lists judge instead."""


class MessageJudge(Protocol):
    """A judge of a message before a model is asked to answer it."""

    async def judge(self, message: str, facts: MessageFacts = _NO_FACTS) -> Judgement:
        """Return what the message is and needs."""
        ...


class PatternJudge:
    """A judge that needs no model."""

    part = PartSpec(name="patterns")
    is_instant = True
    """True if a judgement takes no noticeable time."""

    async def judge(self, message: str, facts: MessageFacts = _NO_FACTS) -> Judgement:
        """See `MessageJudge.judge`."""
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
    """A judge that asks a model once. If the model fails or its answer does not fit, the word lists judge, and
    `Judgement.error` says why."""

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
        except (TimeoutError, TreadleError, msgspec.DecodeError, RecursionError, UnicodeError) as error:
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
