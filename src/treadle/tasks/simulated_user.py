"""A simulated user with a goal and rules, without a language model.

What the user says next depends only on the conversation so far, so that a run can be continued in any process.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from treadle.core.texts.documents import read_data
from treadle.core.types import Message, Role

MAX_REPLIES = 8
"""How often the user speaks after the first message."""

_DATA = read_data(__package__, "simulated_user")
_TEXTS: Mapping[str, str] = _DATA["texts"]
_FACTS: Mapping[str, Sequence[str]] = _DATA["facts"]
_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?=\S))++[.!?]?")
_ASKING, _CONFIRMING, _REFUSING, _CLOSING = (
    re.compile("|".join(_DATA["patterns"][name]), re.IGNORECASE)
    for name in ("asking", "confirming", "refusing", "closing")
)


class SimulatedUser(Struct, frozen=True):
    """A user of an agent: what the user knows, and how the user takes a refusal or a proposal."""

    facts: Mapping[str, str] = {}
    """What the user tells when asked, by the names in `simulated_user.toml`, such as `email`."""
    pushes: tuple[str, ...] = ()
    """What the user says after a refusal, each once."""
    agrees: bool = True
    """True if the user says yes when the agent asks whether it should go on."""

    def reply(self, messages: Sequence[Message]) -> str | None:
        """Return what the user says after `messages`, which end with an answer; `None` if the user is done."""
        said = [item.content for item in messages if item.role is Role.USER]
        answer = next((item.content for item in reversed(messages) if item.role is Role.ASSISTANT), "")
        if len(said) > MAX_REPLIES or not answer.strip():
            return None
        questions = [text for text in _SENTENCE.findall(answer) if _ASKING.search(text)]
        asked = " ".join(questions)
        if told := self._tell(asked):
            return told
        if _REFUSING.search(answer) and (
            push := next((item for item in self.pushes if item not in said), None)
        ):
            return push
        if _CONFIRMING.search(asked):
            return _TEXTS["agrees" if self.agrees else "declines"]
        if not questions or _CLOSING.search(asked) or _TEXTS["nothing_more"] in said:
            return None
        return _TEXTS["nothing_more"]

    def _tell(self, asked: str) -> str:
        """Return the facts that are asked for, and which of them the user does not know."""
        told = []
        for name, words in _FACTS.items():
            if any([re.search(rf"\b{word}\b", asked, re.IGNORECASE) for word in words]):
                value = self.facts.get(name)
                text = _TEXTS["unknown"] if value is None else _TEXTS[name]
                told.append(text.format(value=value, name=words[0]))
        return " ".join(told)
