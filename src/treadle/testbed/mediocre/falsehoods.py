"""The kinds of lie of the mediocre model, and what a request is about."""

from msgspec import Struct

KINDS = (
    "made_up_value",
    "made_up_path",
    "made_up_name",
    "swapped_value",
    "wrong_owner",
    "wrong_state",
    "wrong_sum",
    "wrong_share",
    "wrong_quantifier",
    "wrong_order",
    "wrong_rounding",
    "wrong_unit",
    "wrong_conversion",
    "wrong_time",
    "wrong_date",
    "small_number",
    "number_in_words",
    "invented_quote",
    "false_absence",
    "undone_action",
    "unsaid_cause",
    "invented_trend",
    "no_call",
    "failed_as_done",
)
"""All kinds. `no_call` is an answer with data without a call, `failed_as_done` one after a failed call."""
WHOLE_LIES = ("no_call", "failed_as_done")
"""The kinds that make a whole answer untrue."""
EXTRA_LIES = ("undone_action", "unsaid_cause", "invented_trend")
"""The kinds that are a sentence of their own."""


class Falsehood(Struct, frozen=True):
    """The lie in an answer."""

    kind: str
    sentence: str
    """The sentence, or the row of a table, as it stands in the answer."""
    truth: str
    """The value that would have been true; empty if nothing is known about it."""
    claimed: tuple[str, ...] = ()
    """The false values in the sentence; empty if all of it is false."""


class Focus(Struct, frozen=True):
    """What a request is about."""

    field: str = "any"
    """The name of a field; `any` for all of them."""
    owner: str = ""
    """Whose field it is; empty if that is not known."""
    sort: str = ""
    """`sum` or `max`, if these are asked for."""
