"""The judge: a score from simple checks of a conversation."""

import re

from treadle.core.types import Json
from treadle.testbed.request_facts import Facts, objects_of

_TROUBLE = re.compile(r"I could not (finish|make sense)|I had to stop", re.IGNORECASE)


def judge(facts: Facts) -> Json:
    """Return the score of a conversation, from 0 to 1, and the reason for it."""
    conversation = objects_of(facts, "conversation")
    last = conversation[-1] if conversation else {}
    answer = last.get("content")
    faults = []
    if last.get("role") != "assistant" or not isinstance(answer, str) or not answer.strip():
        faults.append("the conversation does not end with an answer")
    elif _TROUBLE.search(answer):
        faults.append("the answer says that the work was not finished")
    calls = sum([len(item.get("calls") or item.get("tool_calls") or ()) for item in conversation])
    results = sum([item.get("role") == "tool" for item in conversation])
    if calls != results:
        faults.append(f"{calls} tool calls have {results} results")
    score = max(0.0, 1.0 - 0.5 * len(faults))
    return {"score": score, "reason": "; ".join(faults) or "every call has a result, and the answer is given"}
