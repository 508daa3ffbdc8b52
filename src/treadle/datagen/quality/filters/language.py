"""The filter of the language of a conversation."""

from typing import Annotated

from pydantic import AfterValidator

from treadle.core.registry import did_you_mean
from treadle.core.types import Role
from treadle.datagen.quality.languages import LANGUAGES, detect_language
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import answers


def _check_code(code: str | None) -> str | None:
    if code is not None and code not in LANGUAGES:
        hint = did_you_mean(code, LANGUAGES, "give an ISO 639-1 code")
        raise ValueError(
            f"the language {code!r} cannot be recognised{hint} Known: {', '.join(sorted(LANGUAGES))}"
        )
    return code


class LanguageSettings(Settings):
    """The language of the rows."""

    language: Annotated[str | None, AfterValidator(_check_code)] = None
    """The ISO 639-1 code of the language that every user message and every final answer must have. By default, the
    answers must have the language of the user's first message."""


class LanguageFilter(BuiltinFilter[LanguageSettings]):
    """The user and the answers use the wanted language.

    The detector is small and offline: it recognises about 30 languages by script and frequent words. Texts whose
    language it cannot recognise pass, such as short texts, code and tables.
    """

    name = "language"
    settings_type = LanguageSettings

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        messages = candidate.row.messages
        spoken = [index for index, item in enumerate(messages) if item.role is Role.USER]
        checked = [*spoken, *answers(messages)]
        wanted = self.settings.language
        if wanted is None:
            wanted = detect_language(messages[spoken[0]].content) if spoken else None
            checked = checked[1:]
        if wanted is None:
            return self.accept("the language was not recognised")
        for index in sorted(checked):
            found = detect_language(messages[index].content)
            if found not in (None, wanted):
                return self.reject(f"message {index} is in {found!r} and not in {wanted!r}", language=found)
        return self.accept(language=wanted)
