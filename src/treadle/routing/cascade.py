"""The router `cascade`, which asks the weakest tier first and checks its answer before it is used."""

from treadle.core.answering import strip_answer
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.judgement import Verdict
from treadle.core.log import Log
from treadle.core.prompts.fence import fence
from treadle.core.texts.documents import decode_or
from treadle.core.types import UNREADABLE_CALL, Completion, FinishReason, Message, Request, Role, Route
from treadle.models.protocol import Model, Watch
from treadle.routing.judging.inabilities import find_refusal, gives_up
from treadle.routing.judging.lists import prompts
from treadle.routing.protocol import CheckedAnswer, RoutingFacts

_SHOWN_CHARS = 600
"""How many characters of a rejected answer the next model is shown."""
_MIN_REPEATED_WORDS = 200
_MIN_DISTINCT = 0.15


class CascadeRouter:
    """A router that asks the weakest tier first, and a better one if its answer does not pass the check.

    The check looks for answers that are empty, cut off, evasive or repetitive, for those that claim to lack a tool
    that is there, for text that should be JSON and is not, and for calls that could not be run. With `judge`, a
    model also reads each answer that is not a call.
    """

    def __init__(self, *, judge: Model | str | None = None, hard_from: float | None = None) -> None:
        """Make a router.

        `judge` is a model, or a name for treadle.toml such as `tier:mid`. A message whose difficulty is at
        least `hard_from`, from 0 to 1, goes to the strongest tier at once; `None`: no message does.
        """
        if hard_from is not None and not 0 <= hard_from <= 1:
            raise ConfigError(f"hard_from is {hard_from!r}; give a number from 0 to 1")
        if isinstance(judge, str):
            from treadle.models.config.recipe import make_model

            judge = make_model(judge)
        self._judge: Model | None = judge
        self._hard_from = hard_from

    def route(self, facts: RoutingFacts) -> Route:
        count = len(facts.candidates)
        is_hard = self._hard_from is not None and facts.difficulty >= self._hard_from
        order = facts.candidates if is_hard else tuple(reversed(facts.candidates))
        scores = {item.tier: round(1 - place / count, 3) for place, item in enumerate(order)}
        why = (
            f"the message is hard ({facts.difficulty:.2f})" if is_hard else "the weakest tier is asked first"
        )
        return Route(order[0].tier, order[0].model, (why,), scores)

    async def check(self, request: Request, completion: Completion) -> CheckedAnswer:
        """See `Checker.check`. If the judge cannot be asked, the answer is used, and the verdict says why."""
        fault = find_fault(request, completion)
        if fault is not None or self._judge is None or completion.message.tool_calls:
            return CheckedAnswer(None if fault is None else f"{fault}{_quote(completion.message.content)}")
        asked = _ask_judge(request, completion.message.content)
        try:
            said = await self._judge.infer(asked, Watch())
        except TreadleError as error:
            return CheckedAnswer(None, Verdict(f"the judge could not be asked: {error}", self._judge.name))
        text = said.message.content.strip()
        verdict = Verdict(text, self._judge.name, said.usage, said.cost_usd)
        if not text.upper().startswith("BAD"):
            return CheckedAnswer(None, verdict)
        why = " ".join(text[3:].split()).strip(" .:,-") or "it is not good"
        return CheckedAnswer(f"a check found: {why[:300]}{_quote(completion.message.content)}", verdict)


def find_fault(request: Request, completion: Completion) -> str | None:
    """Return what is obviously wrong with an answer; `None` if nothing is wrong."""
    message, text = completion.message, completion.message.content.strip()
    if completion.finish_reason is FinishReason.LENGTH:
        return "it was cut off"
    if completion.finish_reason is FinishReason.CONTENT_FILTER:
        return "it was refused"
    if message.tool_calls:
        return _find_call_fault(request, message)
    if not text:
        return "it was empty"
    if gives_up(text):
        return "it gave up"
    if (refusal := find_refusal(text, tools=request.tools)) is not None:
        return f"it said that it cannot use the tool {refusal.tool!r}, which it has"
    words = text.split()
    if len(words) >= _MIN_REPEATED_WORDS and len(set(words)) / len(words) < _MIN_DISTINCT:
        return "it repeated itself"
    is_fit = request.output_schema is None or decode_or(strip_answer(text), ...) is not ...
    return None if is_fit else "it was not JSON"


def _find_call_fault(request: Request, message: Message) -> str | None:
    names = {tool.name for tool in request.tools}
    for call in message.tool_calls:
        if call.name == UNREADABLE_CALL:
            return "it made a call that cannot be read"
        if call.name not in names:
            return f"it called {call.name!r}, which is not a tool"
        if not isinstance(decode_or(call.arguments or "{}"), dict):
            return f"it called {call.name!r} with arguments that are not a JSON object"
    return None


def _ask_judge(request: Request, text: str) -> Request:
    """Return the request to the judge: the newest message of the user with its parts, and the answer."""
    asked = next((item for item in reversed(list(request.messages)) if item.role is Role.USER), None)
    question = "" if asked is None else asked.content
    content = f"{fence('message', question)}\n{fence('answer', text)}"
    parts = () if asked is None else asked.parts
    user = Message(Role.USER, content, parts=parts)
    return Request(
        Log([Message(Role.SYSTEM, prompts()["cascade"]["check"]), user]),
        contents=request.contents,
        place=f"{request.place}/check",
    )


def _quote(text: str) -> str:
    """Return an answer that is not used, for the model that is asked next."""
    text = text.strip()
    if not text:
        return ""
    shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " […]"
    return f"\nThe answer was:\n{fence('unused_answer', shown)}"
