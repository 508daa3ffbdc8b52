"""The context window of a run's model: as the user, a table of models, or the model's server says."""

import asyncio

from treadle.core.errors import TreadleError
from treadle.core.policy import Policy
from treadle.core.types import Window
from treadle.models.protocol import Model, context_tokens_of, output_tokens_of

_MOST_OUTPUT_TOKENS = 8_192
"""How many tokens are kept free for the answer if the model leaves its length to the server."""
_OUTPUT_SHARE = 8
_PROBE_SECONDS = 3.0


async def look_up_window(model: Model) -> tuple[int, str] | None:
    """Return the context window of `model` in tokens, and where the number comes from; `None` if it is not known.

    A server is asked only if it is of a kind that tells the window, and waits for at most a few seconds.
    """
    # A table of models may have to be loaded first.
    tokens = (
        await asyncio.to_thread(context_tokens_of, model)
        if hasattr(model, "inner")
        else context_tokens_of(model)
    )
    inner = find_innermost(model)
    if tokens is not None:
        is_said = inner is model or isinstance(getattr(inner, "context_tokens", None), int)
        return tokens, "said" if is_said else "preset"
    find = getattr(inner, "find_context_tokens", None)
    if find is None or not getattr(inner, "tells_window", False):
        return None
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            probed = await find()
    except (TreadleError, OSError):
        return None
    return (probed, "probe") if isinstance(probed, int) and probed > 0 else None


def make_window(known: tuple[int, str] | None, model: Model, policy: Policy) -> Window | None:
    """Return the window of a run. The window in the policy takes precedence over the `known` window of the model.

    The room for the answer is what the model asks for, but at most half of the window.
    """
    if policy.context_tokens is not None:
        known = policy.context_tokens, "said"
    if known is None:
        return None
    tokens, source = known
    said = output_tokens_of(model)
    room = min(_MOST_OUTPUT_TOKENS, tokens // _OUTPUT_SHARE) if said is None else min(said, tokens // 2)
    return Window(tokens, room, source)


def find_innermost(model: Model) -> object:
    """Return the model within all wrappers."""
    found: object = model
    while (inner := getattr(found, "inner", None)) is not None:
        found = inner
    return found
