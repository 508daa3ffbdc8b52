"""The model `mock:mediocre`, and the truth about what it said.

Every message depends only on the conversation, the tools and the options, so that `truth_of` can say afterwards
what was untrue.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.types import Completion, FinishReason, Message, Role, ToolCall, ToolSpec
from treadle.tasks.draws import Draw, fraction, split
from treadle.tasks.solver import WantedCall, is_failure
from treadle.testbed.built_in import (
    BuiltInModel,
    BuiltInRequest,
    digest,
    find_requests,
    make_completion,
    without_repairs,
)
from treadle.testbed.mediocre.composition import Composed, Falsehood, compose
from treadle.testbed.mediocre.figures import FIGURES
from treadle.testbed.mediocre.ledger_judge import MAX_REPAIRS, overlaps, write_verdicts
from treadle.testbed.mediocre.mock_world import load_phrases, load_world, make_documents, record_tools
from treadle.testbed.mediocre.observations import observe
from treadle.testbed.mediocre.wants import DONE, Want, draw_request, find_want
from treadle.testbed.play import Manner, play
from treadle.testbed.request_facts import find_facts, text_of
from treadle.testbed.roles.agent_role import answer_as_agent, read_paragraphs
from treadle.testbed.roles.errands import one_line
from treadle.testbed.roles.file_kit import FileTools
from treadle.testbed.roles.scenario_role import RequestDraft, ScenarioScene, write_scenario
from treadle.testbed.teacher import TeacherModel

MEDIOCRE = "mediocre"
_LABELS = re.compile(r"'([\w ]+):'|/([\w ]+): /")


class MediocreOptions(Struct, frozen=True, kw_only=True):
    """How the model behaves. All rates are from 0 to 1."""

    lies: float = 0.3
    """The share of answers with a lie."""
    faults: float = 0.1
    """The share of steps with a wrong call: a wrong name, broken JSON, wrong arguments."""
    repeats: float = 0.05
    """The share of turns that repeat their last call without need."""
    refusals: float = 0.03
    """The share of requests that are refused without a reason."""
    cuts: float = 0.03
    """The share of answers that reach the output limit."""
    judge: float = 0.95
    """The share of statements about which the model is right as a judge that knows what is true."""
    texts: str = "held"
    """The split of the texts: that of the package, or the path of a folder with another."""
    seed: int = 0


class AnswerTruth(Struct, frozen=True):
    """What is true about one answer of the model."""

    position: int
    """The position of the answer in the messages."""
    sort: str
    """`honest`, `lie`, `refusal` for one without a reason, `failure` if the calls failed, or `cut`."""
    falsehood: Falsehood | None = None
    """The lie; `None` if there is none."""


class _Reply(Struct, frozen=True):
    """A message, and what is true about it if it is an answer."""

    message: Message
    sort: str = "honest"
    falsehood: Falsehood | None = None
    is_cut: bool = False


class MediocreModel(BuiltInModel):
    """A model for the whole generation of a dataset that does and says wrong things on purpose."""

    def __init__(self, options: MediocreOptions | None = None, name: str = MEDIOCRE) -> None:
        super().__init__(f"mock:{name}")
        self._options = options or MediocreOptions()
        self._teacher = TeacherModel()
        self.model = name
        """The name in the completions."""

    def answer(self, asked: BuiltInRequest) -> Completion:
        messages = asked.messages
        facts = find_facts(messages)
        write = "" if facts is None else text_of(facts, "write")
        if facts is not None and write == "scenario":
            tries = sum([message.role is Role.ASSISTANT for message in messages])
            value = write_scenario(facts, tries, lambda scene: _draft(scene, self._options.texts))
            return self._complete(Message(Role.ASSISTANT, msgspec.json.encode(value).decode()), messages)
        if facts is not None and write == "statement_verdicts":
            value = write_verdicts(
                facts, self._reply, self._options.texts, self._options.judge, self._options.seed
            )
            return self._complete(Message(Role.ASSISTANT, msgspec.json.encode(value).decode()), messages)
        if write or asked.schema is not None or asked.required is not None or not asked.tools:
            return self._teacher.answer(asked)
        reply = answer(messages, asked.tools, self._options, asked.max_calls)
        completion = self._complete(reply.message, messages)
        return replace(completion, finish_reason=FinishReason.LENGTH) if reply.is_cut else completion

    def _reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], repairs: int
    ) -> tuple[Message, Falsehood | None]:
        reply = answer(messages, tools, self._options, repairs=repairs)
        return reply.message, reply.falsehood

    def _complete(self, message: Message, messages: Sequence[Message]) -> Completion:
        key = f"{len(messages)}/{messages[-1].content if messages else ''}"
        return make_completion(message, messages, self.model, f"mediocre-{digest(key)}")


def make_mediocre(name: str) -> MediocreModel:
    """Return the model `mediocre`, with options as in `mediocre:lies=0.2,cuts=0`. Raises: `ConfigError`."""
    return MediocreModel(read_options(name), name)


def read_options(name: str) -> MediocreOptions:
    """Return the options in a model's name. Raises: `ConfigError` for wrong options, or missing texts."""
    given = name.partition(":")[2]
    parts = dict([part.partition("=")[::2] for part in given.split(",")]) if given else {}
    try:
        options = msgspec.convert(parts, MediocreOptions, strict=False)
        rates = [options.lies, options.faults, options.repeats, options.refusals, options.cuts, options.judge]
        if set(parts) - set(MediocreOptions.__struct_fields__):
            raise ValueError(given)
        if not all([0 <= rate <= 1 for rate in rates]):
            raise ValueError(given)
    except (msgspec.ValidationError, ValueError):
        known = ", ".join(MediocreOptions.__struct_fields__)
        raise ConfigError(
            f"there is no model 'mock:{name}': {given!r} are not its options; write 'mock:mediocre:lies=0.2,"
            f"cuts=0'. There are {known}; rates are from 0 to 1"
        ) from None
    load_world(options.texts)
    load_phrases(options.texts)
    return options


def truth_of(
    messages: Iterable[Message], tools: Sequence[ToolSpec], options: MediocreOptions
) -> list[AnswerTruth]:
    """Return what is true about each answer of the model in a conversation.

    Answers that the model would not have given are left out.
    """
    found, messages = [], list(messages)
    for position, message in enumerate(messages):
        if message.role is not Role.ASSISTANT or message.tool_calls:
            continue
        if (reply := _recognise(message, messages[:position], tools, options)) is not None:
            found.append(AnswerTruth(position, reply.sort, reply.falsehood))
    return found


def _recognise(
    message: Message, before: Sequence[Message], tools: Sequence[ToolSpec], options: MediocreOptions
) -> _Reply | None:
    """Return the reply of the model that an answer is; `None` if the model would not have given it."""
    replies = (answer(before, tools, options, repairs=repairs) for repairs in range(MAX_REPAIRS + 1))
    return next((reply for reply in replies if reply.message.content == message.content), None)


def answer(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    options: MediocreOptions,
    max_calls: int | None = None,
    repairs: int = 0,
) -> _Reply:
    """Return the agent's next message in a conversation.

    `repairs` is how often the last answer was asked for again, if the messages do not show it.
    """
    messages, asked_again = without_repairs(messages)
    repairs += asked_again
    asked = find_requests(messages)
    text = messages[asked[-1]].content if asked else ""
    want = _find_want([messages[index].content for index in asked], options.texts)
    if want is None:
        request = BuiltInRequest(messages, tools, max_calls)
        made = answer_as_agent(request, Manner(mistake_rate=options.faults))
        lie = _find_repeated(made, messages[: asked[-1]], tools, options) if asked else None
        return _Reply(made, "honest" if lie is None else "lie", lie)
    since = messages[asked[-1] :]
    key = f"{options.seed}/{digest(text.strip())}/{len(asked)}{f'/{repairs}' if repairs else ''}"
    draw = Draw(f"{key}/answer")
    if want.gap:
        return _Reply(Message(Role.ASSISTANT, _ask(want.gap, options, draw)))
    kinds = _order_kinds(draw) if fraction(key, "lie") < options.lies else []
    if len(since) == 1 and fraction(key, "refuse") < options.refusals:
        refusals = load_phrases(options.texts)["refusals"]["all"]
        return _Reply(Message(Role.ASSISTANT, draw.pick(refusals)), "refusal")
    if kinds[:1] == ["no_call"] and len(since) == 1:
        return _make_up(want, since, tools, options, draw, "no_call")
    if "failed_as_done" in kinds[:6] and since[-1].role is Role.TOOL and is_failure(since[-1]):
        return _make_up(want, since[:1], tools, options, draw, "failed_as_done")
    position = sum([message.role is Role.ASSISTANT for message in since])
    manner = Manner(mistake_rate=options.faults, reasoning_rate=0.0)
    made = play(want.work(tools), since[1:], f"{key}/{position}", manner, max_calls=max_calls)
    if made.tool_calls:
        return _Reply(_talk_beside(made, options, f"{key}/{position}"))
    if (again := _repeat(since, options, key)) is not None:
        return _Reply(again)
    return _tell(made.content, want, since, options, kinds, draw, key)


def _find_repeated(
    message: Message, before: Sequence[Message], tools: Sequence[ToolSpec], options: MediocreOptions
) -> Falsehood | None:
    """Return the lie of the answer before that a message says again: it repeats the last line of this answer."""
    lines = [line.strip() for line in before[-1].content.splitlines() if line.strip()] if before else []
    said = one_line(lines[-1]) if lines else ""
    if not said or said not in message.content:
        return None
    if (last := _recognise(before[-1], before[:-1], tools, options)) is None:
        return None
    lie, phrases = last.falsehood, load_phrases(options.texts)
    ends = [
        *phrases["advice"]["all"],
        *[end for texts in phrases["closers"].values() for end in split(texts)],
    ]
    if lie is None or said in ends or not overlaps(lie.sentence, said):
        return None
    wrong = tuple([value for value in lie.claimed if value.casefold() in said.casefold()])
    sentence = lie.sentence if lie.sentence in said else said
    return Falsehood(lie.kind, sentence, lie.truth, wrong) if wrong or not lie.claimed else None


def _find_want(said: Sequence[str], texts: str) -> Want | None:
    """Return the request in the newest of a user's messages, or the one before if this adds what it lacked."""
    for text in said[-1:]:
        for part in read_paragraphs(text):
            if (found := find_want(part, texts)) is not None:
                return found
    before = _find_want(said[:-1], texts) if len(said) > 1 else None
    return before.complete(said[-1]) if before is not None and before.gap else None


def _order_kinds(draw: Draw) -> list[str]:
    """Return all kinds in random order. Those that are always possible seldom come first."""
    kinds = draw.shuffled(FIGURES["kinds"])
    return [*kinds[1:], kinds[0]] if kinds[0] in FIGURES["extra_lies"] and draw.chance(0.5) else kinds


def _ask(tool: str, options: MediocreOptions, draw: Draw) -> str:
    """Return a question for the id that a request lacks."""
    name = record_tools(options.texts)[tool].argument.replace("_", " ")
    return str(draw.pick(load_phrases(options.texts)["questions"]["all"]).format(thing=name))


def _tell(
    outcome: str,
    want: Want,
    since: Sequence[Message],
    options: MediocreOptions,
    kinds: Sequence[str],
    draw: Draw,
    key: str,
) -> _Reply:
    """Return the answer after the last call."""
    seen = observe(since, options.texts)
    if seen.is_empty:
        if outcome == DONE:
            texts = load_phrases(options.texts).get("failures", {"all": ["That did not work: {reason}"]})[
                "all"
            ]
            outcome = draw.pick(texts).format(reason=[since[-1].content, *seen.failures][-1])
        return _Reply(Message(Role.ASSISTANT, outcome), "failure")
    made = compose(seen, options.texts, want.focus, [kind for kind in kinds if kind != "no_call"], draw)
    sort = "honest" if made.falsehood is None else "lie"
    if fraction(key, "cut") < options.cuts:
        end = int(len(made.text) * (0.3 + 0.5 * fraction(key, "where")))
        return _Reply(Message(Role.ASSISTANT, made.text[:end]), "cut", is_cut=True)
    return _Reply(Message(Role.ASSISTANT, made.text), sort, made.falsehood)


def _talk_beside(message: Message, options: MediocreOptions, key: str) -> Message:
    """Return a message with a sentence beside its calls, or without one."""
    if fraction(key, "beside") > 0.4:
        return message
    draw = Draw(f"{key}/beside")
    texts = load_phrases(options.texts)["beside"]["all"]
    return replace(message, content=draw.pick(texts).format(tool=message.tool_calls[0].name))


def _repeat(since: Sequence[Message], options: MediocreOptions, key: str) -> Message | None:
    """Return the last call once more, if this turn repeats its last call and has not done so."""
    made = [call for message in since for call in message.tool_calls]
    if not made or fraction(key, "repeat") >= options.repeats:
        return None
    last = made[-1]
    if len([call for call in made if (call.name, call.arguments) == (last.name, last.arguments)]) > 1:
        return None
    call = ToolCall(f"call_{digest(f'{key}/again')}", last.name, last.arguments)
    return Message(Role.ASSISTANT, tool_calls=(call,))


def _make_up(
    want: Want,
    since: Sequence[Message],
    tools: Sequence[ToolSpec],
    options: MediocreOptions,
    draw: Draw,
    kind: str,
) -> _Reply:
    """Return an answer to a request about results that were made up."""
    kit = FileTools(tools)
    messages = [*since]
    names = [
        text if not text.startswith("find ") else f"read {text[5:]}" for step in want.calls for text in step
    ]
    for number, text in enumerate(names):
        call = want.to_call(text, {**want.values, "text": "…"}, kit)
        made = ToolCall(str(number), call.name, msgspec.json.encode(call.arguments).decode())
        messages.append(Message(Role.ASSISTANT, tool_calls=(made,)))
        messages.append(
            Message(Role.TOOL, _imagine(call, options, draw), call_id=str(number), name=call.name)
        )
    made_up: Composed = compose(observe(messages, options.texts), options.texts, want.focus, (), draw)
    return _Reply(Message(Role.ASSISTANT, made_up.text), "lie", Falsehood(kind, made_up.text, ""))


def _imagine(call: WantedCall, options: MediocreOptions, draw: Draw) -> str:
    """Return a made-up result of a call."""
    first = str(next(iter(call.arguments.values()), ""))
    if call.name in (known := record_tools(options.texts)):
        record = known[call.name].record(first, str(draw.below(1_000_000)))
        return msgspec.json.encode(record).decode()
    files = make_documents(options.texts, draw.below(1_000_000))
    if call.name.startswith("list") or "find . -type f |" in first:
        return "\n".join(files)
    if call.name.startswith("read"):
        ending = first.rpartition(".")[2]
        return next((text for path, text in files.items() if path.endswith(ending)), "Nothing.\n")
    if call.name == "search_files":
        return "\n".join([f"{path}:1: {text.splitlines()[0]}" for path, text in list(files.items())[:2]])
    labels = [one or other for one, other in _LABELS.findall(first)]
    return "\n".join([f"{label}: {draw.between(2, 900)}" for label in labels]) or "ok"


def _draft(scene: ScenarioScene, texts: str) -> RequestDraft | None:
    """Return one of the model's own requests, if the tools and files offer one of the kind."""
    if scene.kind in ("no_tool", "refusal") or not scene.tools:
        return None
    return draw_request(texts, scene.kind or "single", scene.tools, scene.shelf, scene.draw)
