"""Questions to the user: their values, the events about them, the check of answers, and what is asked.

Questions come from tools (`ToolContext.ask`), from the model (text markers), and from the policy (calls whose
outcome was lost). All of them are `question_asked` events, and are answered by `question_answered`.

Models that cannot call tools write markers: `[ASK_USER]` before a question, `[FINAL]` before the final answer. A
marker counts only at the beginning of a line that is not in a fenced block of code. `[FINAL]` is looked for first,
so that a final answer may contain questions.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from treadle.core import events as e
from treadle.core.actions import Append, AskUser, tell
from treadle.core.errors import ConfigError
from treadle.core.texts.json_text import decode_json
from treadle.core.texts.masking import MASK, Mask
from treadle.core.types import Json, Option

if TYPE_CHECKING:
    from treadle.core.state import State

FindFault: TypeAlias = Callable[[dict[str, Json], Json], str | None]
"""A function of a JSON Schema and a value that says what in the value does not fit; `None` if it fits."""

DECIDE_ALONE = "Decide by yourself, and say in one sentence of your answer what you assumed."
"""The text that the model gets if its question is not answered."""


class Question(Struct, frozen=True):
    """A question to the user."""

    text: str
    options: tuple[Option, ...] = ()
    """The answers that are offered. A text becomes an `Option`."""
    allows_text: bool = True
    """True if the answer may be a text other than the options."""
    schema: dict[str, Json] | None = None
    """The JSON Schema of the answer, which is then an object; `None`: the answer is a text."""
    run_id: str = ""
    """The id of the run. Treadle sets it before the asker is called, like the fields below."""
    question_id: str = ""
    """The id of the question, unique in the run."""
    fault: str | None = None
    """What is wrong with the answer that the asker gave before; `None` if it is asked for the first time."""

    if TYPE_CHECKING:

        def __init__(
            self,
            text: str,
            options: Sequence[Option | str] = (),
            allows_text: bool = True,
            schema: dict[str, Json] | None = None,
            run_id: str = "",
            question_id: str = "",
            fault: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        options = self.options
        if isinstance(options, str) or not isinstance(options, Sequence):
            raise ConfigError(f"the options of a question are {options!r}; give a sequence of Option or str")
        force_setattr(self, "options", tuple([_to_option(item) for item in options]))
        labels = [option.label.casefold() for option in self.options]
        if not isinstance(self.text, str) or not self.text.strip():
            raise ConfigError(f"the text of a question is {self.text!r}; give a text that is not empty")
        if len(set(labels)) < len(labels) or not all(labels):
            raise ConfigError(f"two options of {self.text!r} have the same label, or a label is empty")
        if not (self.options or self.allows_text or self.schema is not None):
            raise ConfigError(f"{self.text!r} cannot be answered; give options, or allow a text")

    def without(self, mask: Mask) -> "Question":
        """Return this question without the secrets of `mask` in its texts. Labels that become equal get numbers."""
        labels = [mask.hide(item.label) for item in self.options]
        options = [
            Option(label if labels.count(label) == 1 else f"{label} ({number})", mask.hide(item.description))
            for number, (label, item) in enumerate(zip(labels, self.options, strict=True), 1)
        ]
        schema = None if self.schema is None else mask.hide_value(self.schema)
        return replace(self, text=mask.hide(self.text), options=options, schema=schema)

    def read_choice(self, shown: "Question", answer: "Answer") -> "Answer":
        """Return an answer to `shown`, which is this question without secrets, with the label that the option has
        here."""
        for own, option in zip(self.options, shown.options, strict=True):
            if answer.text == option.label:
                return replace(answer, text=own.label)
        return answer


class Answer(Struct, frozen=True):
    """The user's answer to a question."""

    text: str = ""
    """The label of an option, a text, or JSON if the question has a schema; empty if the user declined."""
    is_declined: bool = False
    """True if the user does not want to answer."""
    is_repeated: bool = False
    """True if the same question was asked before in this turn, so that the user was not asked again."""

    @property
    def value(self) -> Json:
        """The answer to a question with a schema; `None` if the user declined."""
        return None if self.is_declined else decode_json(self.text)


Answerable: TypeAlias = Answer | str | int | Mapping[str, Json]
"""What callers may answer: a text, the number of an option from 1, the fields of a form, or an `Answer`."""


class AskNow(Struct, frozen=True, gc=False):
    """The decision to ask a question."""

    body: e.QuestionAsked
    is_recorded: bool = False
    """True if the journal has the question already."""


class RecallAnswer(Struct, frozen=True, gc=False):
    """The decision not to ask, because the journal has an answer."""

    answer: Answer


class RefuseToAsk(Struct, frozen=True, gc=False):
    """The decision not to ask. The model is told why."""

    reason: str


QuestionDecision: TypeAlias = AskNow | RecallAnswer | RefuseToAsk


class AskedQuestion(Struct, gc=False):
    """A question of the open turn, with its answer."""

    body: e.QuestionAsked
    answer: str | None = None
    """The answer; `None` while the question is open, and empty if the user declined to answer."""


def fold_question(state: "State", body: e.QuestionAsked) -> None:
    """Note a question. One about a call whose outcome was lost is Treadle's and does not count as the agent's."""
    turn = state.turn
    turn.questions[body.question_id] = AskedQuestion(body)
    item = turn.calls.get(body.call_id) if body.call_id is not None else None
    if item is not None and body.question_id == item.doubt_id:
        item.question_id = body.question_id
    else:
        turn.spent.questions += 1


def leave_out_wait(state: "State", at: float) -> None:
    """Note that the time from the previous event to `at` is no working time, because somebody decides or answers,
    or no process drives the run."""
    state.turn.began_at += max(0.0, at - state.at)


def fold_answer(state: "State", body: e.QuestionAnswered) -> None:
    """Note an answer, or that a question was withdrawn."""
    turn = state.turn
    asked = turn.questions.get(body.question_id)
    leave_out_wait(state, body.at)
    if not body.is_withdrawn:
        if asked is not None:
            asked.answer = body.text
    elif asked is not None:
        del turn.questions[body.question_id]
        item = turn.calls.get(asked.body.call_id or "")
        if item is not None and item.question_id == body.question_id:
            item.question_id = None
        else:
            turn.spent.questions -= 1


def open_questions(state: "State") -> tuple[e.QuestionAsked, ...]:
    """Return the questions that have no answer, in the order in which they were asked."""
    return tuple([item.body for item in state.turn.questions.values() if item.answer is None])


def withdraw(state: "State", call_ids: Sequence[str], but: Sequence[str | None] = ()) -> list[e.DurableBody]:
    """Return the events that withdraw the open questions of calls that get their results without the answers.

    The questions with the ids in `but` stay open.
    """
    if not state.turn.questions:
        return []
    return [
        e.QuestionAnswered(question_id=body.question_id, text="", is_withdrawn=True)
        for body in open_questions(state)
        if body.call_id in call_ids and body.question_id not in but
    ]


def decide_question(
    state: "State", question: Question, asker_id: str, call_id: str | None, number: int = 1
) -> QuestionDecision:
    """Decide whether a question is asked.

    `asker_id` is the id of the call that asks. `call_id` is the id of the model's call that the asking call
    belongs to. `number` counts equal questions of the running attempt at the call: when the call runs again,
    the n-th of them gets the answer to the n-th that is recorded.
    """
    prefix, key, asked = f"{asker_id}?", key_of(question), state.turn.questions
    equal = [item for item in asked.values() if key_of(item.body) == key]
    own = [item for item in equal if item.body.question_id.startswith(prefix)]
    if number <= len(own):
        mine = own[number - 1]
        if mine.answer is None:
            return AskNow(mine.body, is_recorded=True)
        return RecallAnswer(to_answer(mine.answer))
    # A form that is asked for again was checked and refused by the program that asks. Texts that are equal without
    # their secrets may be about two things.
    has_secret = MASK in question.text or any(MASK in option.label for option in question.options)
    for item in () if has_secret or question.schema is not None else equal:
        if item.answer is not None:
            return RecallAnswer(to_answer(item.answer, is_repeated=True))
        if item.body.call_id != call_id:
            return RefuseToAsk(f"The same question is open already: {item.body.text!r}. Wait for its answer.")
        return AskNow(item.body, is_recorded=True)
    most = state.policy.autonomy.max_questions
    if state.turn.spent.questions >= most:
        all_of_them, were = ("The one question", "was") if most == 1 else (f"All {most} questions", "were")
        return RefuseToAsk(
            f"Not asked: {all_of_them} that may be asked in one turn {were} asked. {DECIDE_ALONE}"
        )
    ids = (f"{prefix}{count}" for count in itertools.count(1))
    return AskNow(
        e.QuestionAsked(
            question_id=next(item for item in ids if item not in asked),
            text=question.text,
            call_id=call_id,
            options=question.options,
            allows_text=question.allows_text,
            schema=question.schema,
        )
    )


def to_question(body: e.QuestionAsked, run_id: str) -> Question:
    """Return a recorded question as a value for an asker."""
    return Question(
        body.text, body.options, body.allows_text, body.schema, run_id=run_id, question_id=body.question_id
    )


def to_answer(text: str, *, is_repeated: bool = False) -> Answer:
    """Return a recorded answer. An empty text means that the user declined."""
    return Answer(text, is_declined=not text, is_repeated=is_repeated)


def read_answer(question: Question | e.QuestionAsked, said: Answerable, find_fault: FindFault) -> Answer:
    """Return what a person or program said as an answer to `question`.

    Labels of options are compared without regard to case. Raises: `ConfigError` if it does not fit the question.
    """
    if isinstance(said, Answer):
        if said.is_declined:
            return Answer(is_declined=True)
        said = said.text
    if question.schema is not None:
        return Answer(_read_form(question.schema, said, find_fault))
    if isinstance(said, bool) or not isinstance(said, str | int):
        raise ConfigError(f"the answer {said!r:.200} is not a text{_explain(question)}")
    options = question.options
    text = str(said).strip()
    for option in options:
        if option.label.casefold() == text.casefold():
            return Answer(option.label)
    if options and text.isdecimal() and (isinstance(said, int) or len(text) < 3):
        if 1 <= int(text) <= len(options):
            return Answer(options[int(text) - 1].label)
        if isinstance(said, int):
            raise ConfigError(f"there is no option {text}{_explain(question)}")
    if not text:
        raise ConfigError(f"the answer is empty{_explain(question)}")
    if not question.allows_text:
        raise ConfigError(f"the answer {text!r:.200} is not one of the options{_explain(question)}")
    return Answer(text)


def _read_form(schema: dict[str, Json], said: Answerable, find_fault: FindFault) -> str:
    value: Json
    try:
        value = decode_json(said) if isinstance(said, str) else dict(said)  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError) as error:
        raise ConfigError(f"the answer {said!r:.200} is not a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"the answer {said!r:.200} is not a JSON object")
    fault = find_fault(schema, value)
    if fault is not None:
        raise ConfigError(f"the answer does not fit the form: {fault}")
    return msgspec.json.encode(value).decode()


def _explain(question: Question | e.QuestionAsked) -> str:
    listed = ", ".join([f"{number} {item.label!r}" for number, item in enumerate(question.options, 1)])
    text = "a text" if question.allows_text else ""
    choices = " or ".join([part for part in (f"one of {listed}" if listed else "", text) if part])
    return f"; answer {question.text!r:.200} with {choices}"


def key_of(question: Question | e.QuestionAsked) -> str:
    """Return a text that is the same for equal questions."""
    if question.schema is None:
        # Details of writing make no difference.
        return " ".join(question.text.split()).strip(" ?!.,;:").casefold()
    return f"{question.text}\n{msgspec.json.encode(question.schema).decode()}"


def _to_option(item: object) -> Option:
    if isinstance(item, Option):
        return item
    if isinstance(item, str):
        return Option(item)
    raise ConfigError(f"the option {item!r} of a question is of a wrong type; give an Option or a str")


FINAL = "[FINAL]"
ASK_USER = "[ASK_USER]"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)", re.DOTALL)


def split_at_marker(text: str, marker: str) -> tuple[str, str] | None:
    """Return the text before and after the first `marker` that counts; `None` if there is none."""
    if marker not in text:
        return None
    fence, start = "", 0
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found is not None and not fence:
            if not (found[1][0] == "`" and "`" in found[2]):
                fence = found[1]
        elif found is not None and found[1].startswith(fence) and not found[2].strip():
            fence = ""
        elif not fence and line.startswith(marker):
            return text[:start].rstrip(), text[start + len(marker) :].strip()
        start += len(line)
    return None


def final_text(state: "State", text: str) -> str:
    """Return the final answer in a text: the part after the marker, or the whole text if there is no marker."""
    found = split_at_marker(text, FINAL) if state.policy.text_markers else None
    return text if found is None else found[1]


def ask_by_marker(state: "State", text: str) -> Append | AskUser | None:
    """Return what follows from a question in an answer with text markers; `None` if the answer has no question."""
    if not state.policy.text_markers or split_at_marker(text, FINAL) is not None:
        return None
    found = split_at_marker(text, ASK_USER)
    if found is None:
        return None
    asker_id = f"step_{state.step}"
    asked = state.turn.questions.get(f"{asker_id}?1")
    if asked is not None:
        if asked.answer is None:
            return AskUser((asked.body,))
        return tell(asked.answer or f"I do not want to say. {DECIDE_ALONE}")
    if not found[1]:
        return tell(f"There was no question after {ASK_USER}. {DECIDE_ALONE}")
    decided = decide_question(state, Question(found[1]), asker_id, None)
    if isinstance(decided, AskNow):
        return Append((decided.body,))
    return tell(decided.reason if isinstance(decided, RefuseToAsk) else tell_repeated(decided.answer.text))


def tell_repeated(answer: str) -> str:
    """Return the text for a question that was asked before in the turn."""
    said = f"The answer was: {answer}" if answer else f"The user declined to answer. {DECIDE_ALONE}"
    return f"Not asked again: you asked this before. {said}"
