"""All errands, and the search for one in a message."""

from functools import lru_cache

from treadle.testbed.working.errands.changing import CHANGING
from treadle.testbed.working.errands.errand import Errand, Found
from treadle.testbed.working.errands.reading import READING
from treadle.testbed.working.errands.several import SEVERAL

ERRANDS: tuple[Errand, ...] = (*READING, *CHANGING, *SEVERAL)

# A wording with a gap comes first: a wording with a path would take "that file" for one.
_WORDINGS = [
    *[(prompt, errand, True) for errand in ERRANDS for prompt in errand.gapped],
    *[(prompt, errand, False) for errand in ERRANDS for prompt in errand.prompts],
]


@lru_cache(maxsize=4096)
def find_errand(paragraph: str) -> Found | None:
    """Return the errand that a paragraph asks for; `None` if it asks for none."""
    for prompt, errand, is_gapped in _WORDINGS:
        values = prompt.match(paragraph)
        if values is not None:
            return Found(errand, values, is_gapped)
    return None
