"""The rules for memories: who may write which of them, and how episodes fade. Recalling an episode keeps it;
other kinds do not fade."""

import math

from treadle.core.texts.documents import read_data
from treadle.knowledge.memory.protocol import Author, Draft, Store

MIN_CONFIDENCE = 0.8
"""How sure the model must be of a fact about itself or the user."""

_REFUSED, _FORCED, _JUSTIFIED = "refused", "forced", "justified"
_RULES = {
    Store(store): {Author(author): rule for author, rule in rules.items()}
    for store, rules in read_data(__package__, "rules").items()
}


def find_refusal(draft: Draft) -> str | None:
    """Return why the policy refuses a write, and what it would accept; `None` if it accepts the write."""
    rule, store, author = _RULES[draft.store][draft.author], draft.store.value, draft.author.value
    if rule == _REFUSED:
        allowed = [item.value for item, other in _RULES[draft.store].items() if other != _REFUSED]
        return f"{author} may not write into the store {store!r}; only {' and '.join(allowed)} may"
    if rule in (_FORCED, _JUSTIFIED) and not draft.is_forced:
        return f"{author} may write into the store {store!r} only with is_forced"
    if rule == _JUSTIFIED and not (draft.reason or "").strip():
        return f"{author} may write into the store {store!r} only with a reason"
    is_sure = draft.confidence is not None and draft.confidence >= MIN_CONFIDENCE
    if rule == _JUSTIFIED and draft.store is Store.SELF_FACTS and not is_sure:
        return (
            f"{author} may write into the store {store!r} only with a confidence of at least {MIN_CONFIDENCE}; "
            f"given was {draft.confidence!r}"
        )
    if draft.store is Store.WORLDVIEW and draft.epistemic is None:
        return (
            "an entry of the store 'worldview' needs an epistemic tag: fact, belief, hypothesis or contested"
        )
    if draft.store is not Store.WORLDVIEW and draft.epistemic is not None:
        return f"an entry of the store {store!r} has no epistemic tag; only the store 'worldview' has them"
    if draft.confidence is not None and not 0 <= draft.confidence <= 1:
        return f"the confidence is {draft.confidence!r}; give a number from 0 to 1"
    return None


FADING_SECONDS = 168 * 3600.0
"""In this time, one week, an episode of strength 1 fades to 1/e."""
FLOOR = 0.1
"""The lowest share to which an episode fades."""
MAX_STRENGTH = 10.0
_GAIN = 0.5
_WEIGHT = 0.2
"""How much of a score depends on decay. More would rank what is new before what fits."""


def decay(strength: float, age_seconds: float) -> float:
    """Return the share of an episode that remains `age_seconds` after its last use, from 1 down to `FLOOR`."""
    age = max(0.0, age_seconds)
    return max(FLOOR, math.exp(-age / (FADING_SECONDS * max(strength, 0.01))))


def strengthened(strength: float) -> float:
    """Return the strength of an episode after it was recalled or written once more."""
    return min(MAX_STRENGTH, strength + _GAIN)


def weigh(score: float, left: float) -> float:
    """Return the score of an episode after fading. `left` is the share of the episode that remains."""
    return score * (1 - _WEIGHT + _WEIGHT * left)
