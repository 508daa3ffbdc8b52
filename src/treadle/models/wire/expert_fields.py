"""Routed experts and sampling masks in engines' answers. Those of other tokens than the answer's are left out."""

from ast import literal_eval
from base64 import b64decode
from contextlib import suppress

from msgspec.structs import replace

from treadle.core.tokens.packed import count_packed
from treadle.core.tokens.routed_experts import RoutedExperts
from treadle.core.tokens.token_record import SamplingMask, TokenRecord
from treadle.core.types import Json

_WIDTHS = {"|u1": 1, "<u2": 2, "<i4": 4}
"""The bytes of one number by the types of numpy that vLLM writes."""
_MAGIC = b"\x93NUMPY"
_MAGIC_TEXT = "k05VTVBZ"
"""The magic bytes of numpy's file format as base64."""
_INT_BYTES = 4


def read_npy(text: str) -> RoutedExperts:
    """Return the experts in numpy's file format as base64, as vLLM returns them.

    Raises: `ValueError` or `LookupError` for anything else. Source: vLLM 0.32, `numpy2base64`; NumPy 2.3, NEP 1.
    """
    raw = b64decode(text, validate=True)
    if not raw.startswith(_MAGIC):
        raise ValueError("routed experts are not in the file format of numpy")
    begin = 10 if raw[6] == 1 else 12
    end = begin + int.from_bytes(raw[8:begin], "little")
    head = literal_eval(raw[begin:end].decode("latin-1"))
    rows, layers, chosen = head["shape"]
    if head["fortran_order"]:
        raise ValueError("routed experts are in the order of Fortran")
    return RoutedExperts.of(rows, layers, chosen, _WIDTHS[head["descr"]], raw[end:])


def read_ints(text: str, rows: int) -> RoutedExperts | None:
    """Return the experts of `rows` tokens in numbers of 4 bytes as base64, as SGLang returns them.

    The answer has no shape, so that the result has 0 layers. `None` if the numbers are not those of `rows` tokens.

    Raises: `ValueError` for what is not such numbers.
    Source: SGLang 0.5.23, `extract_routed_experts_from_meta_info`.
    """
    raw = b64decode(text, validate=True)
    size = rows * _INT_BYTES
    if size < 1 or not raw or len(raw) % size:
        return None
    try:
        return replace(RoutedExperts.of(rows, 1, len(raw) // size, _INT_BYTES, raw), layers=0)
    except OverflowError:
        raise ValueError("a routed expert has no number from 0 to 65,535") from None


def read_mask(rows: list[list[int]] | None, count: int) -> SamplingMask | None:
    """Return the mask of `count` tokens; `None` if there is none, or one of another number of tokens."""
    return None if rows is None or len(rows) != count else SamplingMask.of(rows)


def take_fields(raw: dict[str, Json], choice: dict[str, Json]) -> tuple[Json, Json]:
    """Remove the experts and the sampling mask from an answer of chat completions, and return both; `None` for
    one that is missing.

    Source: vLLM 0.32, `routed_experts` of a choice; SGLang 0.5.23, `sglext` of an answer and `meta_info` of a
    choice.
    """
    experts = choice.pop("routed_experts", None)
    mask = None
    for place, name in ((raw, "sglext"), (choice, "meta_info")):
        told = place.get(name)
        if isinstance(told, dict):
            experts = told.pop("routed_experts", None) or experts
            mask = told.pop("output_token_sampling_mask", None) or mask
            if not told:
                del place[name]
    return experts, mask


def with_fields(record: TokenRecord, prompt_tokens: int | None, experts: Json, mask: Json) -> TokenRecord:
    """Return the record of an answer with what `take_fields` found, as far as it belongs to its tokens.

    `prompt_tokens` is how many tokens the server counted in the prompt.
    """
    if not isinstance(record.token_ids, bytes):
        return record
    made = count_packed(record.token_ids)
    found = known = None
    with suppress(TypeError, OverflowError):
        known = read_mask(mask, made)
    if isinstance(experts, str) and prompt_tokens:
        rows = prompt_tokens + made - 1
        with suppress(ValueError, LookupError, TypeError, SyntaxError, OverflowError):
            found = read_npy(experts) if experts.startswith(_MAGIC_TEXT) else read_ints(experts, rows)
        if found is not None and found.end - rows not in (0, 1):
            found = None
    return replace(record, routed_experts=found, sampling_mask=known)
