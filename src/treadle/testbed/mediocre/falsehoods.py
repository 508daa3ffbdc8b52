"""The kinds of lie of the mediocre model."""

from msgspec import Struct

KINDS = (
    "made_up_value",
    "made_up_path",
    "made_up_name",
    "swapped_value",
    "wrong_sum",
    "wrong_share",
    "wrong_order",
    "wrong_rounding",
    "wrong_conversion",
    "wrong_time",
    "wrong_date",
    "small_number",
    "number_in_words",
    "invented_quote",
    "undone_action",
    "unsaid_cause",
    "invented_trend",
    "false_absence",
    "no_call",
)
"""All kinds. `no_call` is an answer with data although no call was made."""
EXTRA_LIES = ("undone_action", "unsaid_cause", "invented_trend", "false_absence")
"""The kinds that are a sentence of their own."""


class Falsehood(Struct, frozen=True):
    """The lie in an answer."""

    kind: str
    sentence: str
    """The sentence, or the row of a table, as it stands in the answer."""
    truth: str
    """The value that would have been true; empty if nothing is known about it."""
