"""Questions to the user: their values, the check of answers, and the decision whether one is asked.

Questions come from tools (`ToolContext.ask`), from the model (text markers), and from the policy (calls whose
outcome was lost). All of them are `question_asked` events, and are answered by `question_answered`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.state import State
from treadle.core.types import Json, Option

FindFault: TypeAlias = Callable[[dict[str, Json], Json], str | None]
"""A function of a JSON Schema and a value that says what in the value does not fit; `None` if it fits."""

DECIDE_ALONE = "Decide by yourself, and say in one sentence of your answer what you assumed."
"""The text that the model gets if its question is not answered."""


class Question(Struct, frozen=True):
    """A question to the user."""

    text: str
    options: tuple[Option, ...] = ()
    """The answers that are offered. Texts are made options."""
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
        return None if self.is_declined else msgspec.json.decode(self.text)


Answerable: TypeAlias = Answer | str | int | Mapping[str, Json]
"""What callers may give as an answer: a text, the number of an option from 1, the fields of a form, or an
`Answer`."""


class AskUser(Struct, frozen=True, gc=False):
    """The action to put open questions to the user. The run pauses if none of them is answered."""

    questions: tuple[e.QuestionAsked, ...]


class AskNow(Struct, frozen=True, gc=False):
    """The decision to ask a question."""

    body: e.QuestionAsked
    is_recorded: bool = False
    """True if the journal has the question already."""


class Recall(Struct, frozen=True, gc=False):
    """The decision not to ask, because the journal has an answer."""

    answer: Answer


class Refuse(Struct, frozen=True, gc=False):
    """The decision not to ask. The model is told why."""

    reason: str


QuestionDecision: TypeAlias = AskNow | Recall | Refuse


def decide_question(
    state: State, question: Question, asker_id: str, call_id: str | None, number: int = 1
) -> QuestionDecision:
    """Decide whether a question is asked.

    `asker_id` is the id of the call that asks, and `call_id` that of the call of the model which it is part of.
    `number` counts equal questions of the running attempt at the call: when the call runs again, the n-th of them
    gets the answer to the n-th that is recorded.
    """
    prefix, key = f"{asker_id}?", key_of(question)
    equal = [body for body in state.asked_questions.values() if key_of(body) == key]
    own = [body for body in equal if body.question_id.startswith(prefix)]
    if number <= len(own):
        answer = state.questions[own[number - 1].question_id]
        return AskNow(own[number - 1], is_recorded=True) if answer is None else Recall(to_answer(answer))
    # A form that is asked for again was checked and refused by the program that asks.
    for body in equal if question.schema is None else ():
        answer = state.questions[body.question_id]
        if answer is not None:
            return Recall(to_answer(answer, is_repeated=True))
        if body.call_id != call_id:
            return Refuse(f"The same question is open already: {body.text!r}. Wait for its answer.")
        return AskNow(body, is_recorded=True)
    most = state.policy.autonomy.max_questions
    if state.spent.questions >= most:
        all_of_them, were = ("The one question", "was") if most == 1 else (f"All {most} questions", "were")
        return Refuse(f"Not asked: {all_of_them} that may be asked in one turn {were} asked. {DECIDE_ALONE}")
    ids = (f"{prefix}{count}" for count in itertools.count(1))
    return AskNow(
        e.QuestionAsked(
            question_id=next(item for item in ids if item not in state.asked_questions),
            text=question.text,
            call_id=call_id,
            options=question.options,
            allows_text=question.allows_text,
            schema=question.schema,
        )
    )


def open_questions(state: State) -> tuple[e.QuestionAsked, ...]:
    """Return the questions that have no answer, in the order in which they were asked."""
    asked = state.asked_questions
    return tuple([body for body in asked.values() if state.questions.get(body.question_id, "") is None])


def withdraw(state: State, call_ids: Sequence[str], but: Sequence[str | None] = ()) -> list[e.DurableBody]:
    """Return the events that withdraw the open questions of calls that get their results without the answers.

    The questions with the ids in `but` stay open.
    """
    if not state.asked_questions:
        return []
    return [
        e.QuestionAnswered(question_id=body.question_id, text="", is_withdrawn=True)
        for body in open_questions(state)
        if body.call_id in call_ids and body.question_id not in but
    ]


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
        raise ConfigError(f"the answer {text!r:.200} is none of the options{_explain(question)}")
    return Answer(text)


def _read_form(schema: dict[str, Json], said: Answerable, find_fault: FindFault) -> str:
    value: Json
    try:
        value = msgspec.json.decode(said) if isinstance(said, str) else dict(said)  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"the answer {said!r:.200} is not a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"the answer {said!r:.200} is not a JSON object")
    fault = find_fault(schema, value)
    if fault is not None:
        raise ConfigError(f"the answer does not fit the form: {fault}")
    return msgspec.json.encode(value).decode()


def _explain(question: Question | e.QuestionAsked) -> str:
    """Return the end of a message about an answer that does not fit."""
    listed = ", ".join([f"{number} {item.label!r}" for number, item in enumerate(question.options, 1)])
    text = "a text" if question.allows_text else ""
    choices = " or ".join([part for part in (f"one of {listed}" if listed else "", text) if part])
    return f"; answer {question.text!r:.200} with {choices}"


def key_of(question: Question | e.QuestionAsked) -> str:
    """Return a text that is the same for equal questions."""
    if question.schema is None:
        return normalize_question(question.text)
    return f"{question.text}\n{msgspec.json.encode(question.schema).decode()}"


def normalize_question(text: str) -> str:
    """Return the text of a question without the differences that do not make it another question."""
    return " ".join(text.split()).strip(" ?!.,;:").casefold()


def _to_option(item: object) -> Option:
    if isinstance(item, Option):
        return item
    if isinstance(item, str):
        return Option(item)
    raise ConfigError(f"the option {item!r} of a question is of a wrong type; give an Option or a str")
