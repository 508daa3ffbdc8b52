"""Text markers: `[ASK_USER]` and `[FINAL]` in the answers of models that cannot call tools.

A marker counts only at the beginning of a line that is not in a fenced block of code. `[FINAL]` is looked for
first, so that a final answer may contain questions.
"""

import re

from treadle.core import events as e
from treadle.core.questions import (
    DECIDE_ALONE,
    AskNow,
    AskUser,
    Question,
    Recall,
    Refuse,
    decide_question,
)
from treadle.core.state import State
from treadle.core.types import Message, Role

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


def marked_question(state: State, text: str) -> str | None:
    """Return the question in an answer with text markers; `None` if it has none, or is marked as final."""
    if not state.policy.text_markers or split_at_marker(text, FINAL) is not None:
        return None
    found = split_at_marker(text, ASK_USER)
    return None if found is None else found[1]


def final_text(state: State, text: str) -> str:
    """Return the final answer in a text: what follows the marker if there is one, else all of it."""
    found = split_at_marker(text, FINAL) if state.policy.text_markers else None
    return text if found is None else found[1]


def answer_marked_question(state: State, text: str) -> e.DurableBody | AskUser:
    """Return what follows from a question in the model's answer: an event, or the action to ask the user."""
    asker_id = f"step_{state.step}"
    asked = state.asked_questions.get(f"{asker_id}?1")
    if asked is not None:
        answer = state.questions[asked.question_id]
        return (
            AskUser((asked,)) if answer is None else _tell(answer or f"I do not want to say. {DECIDE_ALONE}")
        )
    if not text:
        return _tell(f"There was no question after {ASK_USER}. {DECIDE_ALONE}")
    decided = decide_question(state, Question(text), asker_id, None)
    if isinstance(decided, AskNow):
        return decided.body
    if isinstance(decided, Refuse):
        return _tell(decided.reason)
    assert isinstance(decided, Recall)
    return _tell(tell_repeated(decided.answer.text))


def tell_repeated(answer: str) -> str:
    """Return the text for a question that was asked before in the turn."""
    said = f"The answer was: {answer}" if answer else f"The user declined to answer. {DECIDE_ALONE}"
    return f"Not asked again: you asked this before. {said}"


def _tell(text: str) -> e.MessageInjected:
    return e.MessageInjected(message=Message(Role.USER, text))
