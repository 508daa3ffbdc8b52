"""The teacher as an agent: finds the request in the transcript, and makes the next step of its work.

The request is one paragraph of the user's message, so that everything around it can be in anybody's words. It is a
task, an errand, a talk, or tools by name.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.texts.documents import decode_or
from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.tasks.draws import pick, split
from treadle.tasks.files import find_solver, identify
from treadle.tasks.solver import Solver, Step
from treadle.testbed.built_in import BuiltInRequest, digest, find_requests, without_repairs
from treadle.testbed.instance import make_instance
from treadle.testbed.play import Manner, play
from treadle.testbed.roles.errands import FoundErrand, Work, find_errand, one_line
from treadle.testbed.roles.file_kit import FileTools, paths_in
from treadle.testbed.roles.named_calls import FAILED, Wishes, find_gap, find_wishes, read_arguments, work_on
from treadle.testbed.roles.speakers import ANSWER, unwrap, upper_first
from treadle.testbed.roles.talks import Talk, TalkReply, find_talk
from treadle.testbed.roles.words import load, wordings

_GAP = re.compile(r"\n[ \t]*\n")
"""What separates paragraphs."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PATH = re.compile(r"[\w.-]*\w(?:/[\w. -]*\w)*\.\w+|[\w.-]+(?:/[\w.-]*\w)+")


class AgentRequest(Struct, frozen=True):
    """The request in a message. Exactly one of the fields is set."""

    task: str | None = None
    """The input of a task of the set `files`."""
    errand: FoundErrand | None = None
    talk: tuple[Talk, Mapping[str, str]] | None = None
    wishes: Wishes | None = None
    form: str = ""
    """How the last answer is to be said again, if the user asks for that."""
    more: int | None = None
    """How many the user adds to what was counted."""


def answer_as_agent(request: BuiltInRequest, manner: Manner) -> Message:
    """Return the agent's next message."""
    messages, repairs = without_repairs(request.messages)
    tools, schema = request.tools, request.schema
    asked = find_requests(messages)
    text = messages[asked[-1]].content if asked else ""
    if request.required is not None:
        arguments = msgspec.json.encode(make_instance(request.required_parameters or {}, text)).decode()
        call = ToolCall(f"call_{digest(f'{len(messages)}/{arguments}')}", request.required, arguments)
        return Message(Role.ASSISTANT, tool_calls=(call,))
    work = _find_work(messages, asked, tools, is_plain=repairs > 0)
    if isinstance(work, TalkReply):
        message = Message(Role.ASSISTANT, work.text, reasoning=work.reasoning or None)
    else:
        position = sum([message.role is Role.ASSISTANT for message in messages])
        key = f"{digest(text.strip())}/{position}"
        message = play(
            work,
            messages[asked[-1] + 1 :],
            key,
            manner,
            has_tools=bool(tools),
            max_calls=request.max_calls,
        )
    if schema is None or message.tool_calls:
        return message
    return replace(message, content=_fit(message, text, schema))


def _find_work(
    messages: Sequence[Message], asked: Sequence[int], tools: Sequence[ToolSpec], *, is_plain: bool
) -> Solver | TalkReply:
    """Return what the agent has to do: steps, or an answer. An answer is plain if nothing stands around it."""
    if not asked:
        return TalkReply("What can I do for you?")
    text, before = messages[asked[-1]].content, messages[: asked[-1]]
    request = find_request(text)
    if request is None and len(asked) > 1:
        request = _complete(find_request(messages[asked[-2]].content), text, tools)
    if request is None:
        return _look_around(text, FileTools(tools))
    if request.form:
        return _restate(before, request.form)
    if request.more is not None:
        return _reckon(before, request.more)
    work = _do(request, tools, text)
    return work if is_plain else _voice(work, request, text)


def _voice(work: Solver | TalkReply, request: AgentRequest, text: str) -> Solver | TalkReply:
    """Return the work with its answer in one of several wordings, if the request is a part of a longer message."""
    if request.talk is not None:
        is_voiced = request.talk[0].sort == "problems"
    elif request.errand is not None:
        is_voiced = not request.errand.is_gapped
    else:
        is_voiced = request.wishes is not None and not isinstance(work, TalkReply)
    if not is_voiced or not _GAP.search(text.strip()):
        return work
    if isinstance(work, TalkReply):
        return TalkReply(_wrap(work.text, text), work.reasoning)
    return _retell(work, text)


def _retell(work: Solver, text: str) -> Solver:
    answer = yield from work
    return _wrap(answer, text)


def _wrap(answer: str, text: str) -> str:
    """Return the answer to a message in one of several wordings. Nothing follows words that it quotes."""
    if answer.rstrip().endswith("?") or FAILED in answer:
        return answer
    fitting: list[str] = load("words")["agent"]["answers"]
    if ": " in answer or not answer.rstrip().endswith((".", "!")):
        fitting = [wording for wording in fitting if wording.endswith("{answer}")]
    return pick(fitting, text).format(answer=answer)


def _do(request: AgentRequest, tools: Sequence[ToolSpec], text: str) -> Solver | TalkReply:
    """Return the steps for the request in a text, or an answer without steps."""
    kit = FileTools(tools)
    if request.talk is not None:
        talk, values = request.talk
        return talk.reply(values, [tool.name for tool in tools])
    if request.wishes is not None:
        gap = find_gap(request.wishes, tools)
        if gap is not None:
            wish = request.wishes.wishes[0]
            asked = _ask("asks_for_argument", wish.tool, *wish.arguments.values(), text)
            return TalkReply(
                asked.format(name=gap, tool=wish.tool), f"{gap} is needed, and I was not told it."
            )
        return work_on(request.wishes, tools)
    if request.errand is not None:
        if request.errand.is_gapped:
            things = request.errand.values["things"]
            asked = _ask("asks_for_path", *request.errand.values.values(), text)
            return TalkReply(
                asked.format(things=things),
                "The request does not say which file, and guessing could be wrong.",
            )
        if not kit.can(*request.errand.errand.needs):
            return TalkReply(_say("has_no_tool"), "None of my tools fits the request.")
        return request.errand.errand.work(request.errand.values, kit)
    solver = find_solver(request.task or "")
    assert solver is not None, "find_request found the task"
    return solver


def _ask(section: str, *key: str) -> str:
    """Return a question for what a request lacks, after one of several openings."""
    said = load("words")["agent"]
    return f"{pick(split(said['openings']), *key, 'opening')} {pick(said[section], *key)}".strip()


def _complete(request: AgentRequest | None, reply: str, tools: Sequence[ToolSpec]) -> AgentRequest | None:
    """Return a request that lacked a fact, with the fact from the user's reply."""
    if request is None:
        return None
    if request.errand is not None and request.errand.is_gapped:
        path = _PATH.search(reply)
        return None if path is None else AgentRequest(errand=request.errand.fill(path[0]))
    gap = None if request.wishes is None else find_gap(request.wishes, tools)
    if request.wishes is None or gap is None:
        return None
    return AgentRequest(wishes=request.wishes.complete(read_arguments(reply) or {gap: reply.strip()}))


def _restate(messages: Sequence[Message], form: str) -> TalkReply:
    """Return the last answer in one sentence."""
    line = _last_line(messages)
    if not line:
        return TalkReply("There is nothing to repeat yet.")
    return TalkReply(form.format(line=one_line(line)), "The result is known, so I only have to say it again.")


def _last_line(messages: Sequence[Message]) -> str:
    """Return the last line of the last answer; empty if there is no answer."""
    answers = [item.content for item in messages if item.role is Role.ASSISTANT and item.content.strip()]
    said = unwrap(_text_of(answers[-1])) if answers else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or [""]
    return lines[-1].removeprefix(ANSWER).strip()


def _reckon(messages: Sequence[Message], more: int) -> TalkReply:
    """Return the first number of the last answer with `more` added."""
    found = _NUMBER.search(_last_line(messages))
    if found is None:
        return TalkReply("There is no number that I could add to.")
    before = Decimal(found[0])
    text = pick(load("words")["reckoning"]["answers"], found[0], more)
    return TalkReply(
        text.format(number=more, before=found[0], after=before + more),
        f"The count was {found[0]}, so I add {more}.",
    )


def _look_around(text: str, kit: FileTools) -> Solver | TalkReply:
    """Return the work on a message that is not a known request: read the file that it names, or list the files."""
    if kit.can("read") and (path := _PATH.search(text)) is not None:
        return _show(path[0], kit)
    if kit.can("list"):
        return _list(kit)
    first = one_line(text.strip().partition("\n")[0])
    return TalkReply(f"I can say little about this: {first or 'there is no question.'}")


def _show(path: str, kit: FileTools) -> Work:
    found, text = yield from kit.find_text(path)
    if found is None:
        return text
    lines = text.splitlines() or [""]
    return f"{found} has {len(lines)} lines and begins with: {one_line(lines[0])}"


def _list(kit: FileTools) -> Work:
    (listing,) = yield Step([kit.list()], "I do not know what this is about, so I look at the files.")
    paths = paths_in(listing)
    return f"I found {len(paths)} files: {', '.join(paths[:20])}." if paths else "I found no files."


def _say(name: str) -> str:
    text: str = load("words")["agent"][name]
    return text


@lru_cache(maxsize=4096)
def find_request(text: str) -> AgentRequest | None:
    """Return the request in a message; `None` if the teacher knows no such request."""
    return next((found for part in read_paragraphs(text) if (found := _identify(part)) is not None), None)


def _identify(paragraph: str) -> AgentRequest | None:
    if identify(paragraph) is not None:
        return AgentRequest(task=paragraph)
    if (errand := find_errand(paragraph)) is not None:
        return AgentRequest(errand=errand)
    if (talk := find_talk(paragraph)) is not None:
        return AgentRequest(talk=talk)
    if (wishes := find_wishes(paragraph)) is not None:
        return AgentRequest(wishes=wishes)
    if (form := load("words")["calls"]["restate"].get(paragraph)) is not None:
        return AgentRequest(form=form)
    for wording in wordings(tuple(load("words")["reckoning"]["more"])):
        if (values := wording.match(paragraph)) is not None and values["number"].isdecimal():
            return AgentRequest(more=int(values["number"]))
    return None


def read_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a message, without the marks of a list, and those that begin with a small letter
    with a capital one besides: a persona may write everything in lower case."""
    parts = [part.strip().removeprefix("- ") for part in _GAP.split(text) if part.strip()]
    return parts + [upper_first(part) for part in parts if part[:1].islower()]


_IS_REASONING = re.compile("reason|thought|thinking|explanation|steps", re.IGNORECASE)
_IS_REQUEST = re.compile("question|request|prompt|instruction|problem|input", re.IGNORECASE)
_IS_LABEL = re.compile("tag|topic|keyword|label|categor", re.IGNORECASE)
_LONG_WORD = re.compile(r"[A-Za-z]{6,}")
_SENTENCE = re.compile(r"(?<=[.?!]) ")


def _fit(message: Message, request: str, schema: Mapping[str, Json]) -> str:
    """Return the answer in `message` to `request` as JSON that fits `schema`."""
    made = make_instance(schema, message.content, partial(_fill, message, request))
    return msgspec.json.encode(made).decode()


def _fill(message: Message, request: str, name: str, schema: Mapping[str, Json]) -> Json:
    """Return the value of a field; `None` for the fields that have the answer itself."""
    kind = schema.get("type")
    if isinstance(choices := schema.get("enum"), list) and choices:
        return pick(choices, name, request)
    if _IS_REASONING.search(name) and message.reasoning:
        sentences = [part for part in _SENTENCE.split(message.reasoning) if part]
        return sentences if kind == "array" else message.reasoning if kind == "string" else None
    if _IS_REQUEST.search(name) and kind == "string":
        return request
    is_list_of_texts = (
        kind == "array" and isinstance(items := schema.get("items"), dict) and items.get("type") == "string"
    )
    if _IS_LABEL.search(name) and is_list_of_texts:
        words = list(dict.fromkeys([word.lower() for word in _LONG_WORD.findall(request)]))
        return words[: max(3, schema.get("minItems", 0))] or None
    return None


def _text_of(answer: str) -> str:
    """Return the text of an answer; that of its field `answer`, or of its last text, if it is a JSON object."""
    value = decode_or(answer)
    if not isinstance(value, dict):
        return answer
    texts = [item for item in value.values() if isinstance(item, str)]
    found = value.get("answer")
    return found if isinstance(found, str) else texts[-1] if texts else answer
