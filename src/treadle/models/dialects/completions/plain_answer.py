"""The plain answers of completions; see `plain`."""

from typing import Literal

from msgspec import Struct

from treadle.core.types import Completion
from treadle.models.dialects.openai_chat.plain_answer import PlainAnswer, to_usage
from treadle.models.wire.plain import PlainReader


class _Choice(Struct, forbid_unknown_fields=True, gc=False):
    text: str
    finish_reason: Literal["stop"]
    index: int = 0
    logprobs: None = None
    token_ids: None = None
    prompt_token_ids: None = None
    prompt_logprobs: None = None
    stop_reason: None = None


class _Answer(PlainAnswer, forbid_unknown_fields=True, gc=False, kw_only=True):
    choices: tuple[_Choice]


class CompletionsReader(PlainReader):
    """See `PlainReader`."""

    ANSWER = _Answer

    def _read(self, answer: _Answer) -> Completion:
        usage = None if answer.usage is None else to_usage(answer.usage)
        return self._complete(answer.choices[0].text, [], usage, answer.model, answer.id)
