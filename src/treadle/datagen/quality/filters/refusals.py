"""The filter of refusals and of answers that give up."""

import re

from treadle.core.types import Role
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import answers, quote
from treadle.datagen.scenarios.kinds import is_question, is_refusal
from treadle.datagen.scenarios.scenario import Kind

_CANNOT = (
    r"(?:can(?:no|['’])?t|could(?: not|n['’]t)|am (?:not able|unable)"
    r"|['’]m (?:not able|unable)|won['’]t|will not)"
)
_HELP = (
    r"(?:help (?:you )?with|assist|comply|provide (?:that|this|assistance|help)|do that|fulfil|continue with|engage"
    r"|support (?:that|this)|complete (?:that|this|your)|discuss|answer (?:that|this|your))"
)
_REFUSAL = re.compile(
    rf"\bI(?: {_CANNOT}|['’]m (?:not able|unable))(?: to)? (?:\w+ ){{0,2}}?{_HELP}"
    r"|\bI(?: must|['’]ll have to| have to)? (?:respectfully )?decline\b"
    r"|\b(?:I['’]m|I am) sorry,? but (?:I|that|this)\b[^.\n]{0,40}"
    r"\b(?:can(?:no|['’])?t|unable|not able|not allowed)"
    r"|\b(?:against|violates?) (?:my|our|the) (?:guidelines|policy|policies|programming)"
    r"|\bas an? (?:AI|artificial|large language|language)\b[^.\n]{0,60}"
    r"\b(?:can(?:no|['’])?t|unable|not able|don['’]t)",
    re.IGNORECASE,
)
_GIVING_UP = re.compile(
    r"\bI (?:could not|couldn['’]t|was (?:not able|unable) to) (?:finish|make sense of|complete)"
    r"|\bI (?:had to stop|have no answer|give up|ran out of)\b",
    re.IGNORECASE,
)


class RefusalFilter(BuiltinFilter[Settings]):
    """No final answer refuses or gives up, unless the planned kind is `refusal`.

    Only English wordings are recognised.
    """

    name = "refusals"

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        if candidate.spec.kind is Kind.REFUSAL:
            return self.accept("the planned kind is 'refusal'")
        for index in answers(candidate.row.messages):
            text = candidate.row.messages[index].content
            for what, pattern in (("refuses", _REFUSAL), ("gives up", _GIVING_UP)):
                if found := pattern.search(text):
                    return self.reject(f"the answer in message {index} {what}: {quote(found[0])}")
            has_tried = candidate.row.messages[index - 1].role is Role.TOOL
            if not has_tried and is_refusal(text) and not is_question(text, at_end=True):
                return self.reject(
                    f"the answer in message {index} refuses without a tool call: {quote(text)}"
                )
        return self.accept()
