"""Loss masks: which of the sampled tokens a trainer learns from.

A mask returns a weight for each token of a trajectory. Tokens that were not sampled, or that another branch
delivers, always have the weight 0.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from treadle.core.errors import ExportError
from treadle.core.registry import Registry
from treadle.core.types import Message
from treadle.tools.toolset_parts import load_function
from treadle.tools.user_code import blaming
from treadle.trajectory.tokens.drift import reasoning_of
from treadle.trajectory.tokens.trajectories import (
    Decode,
    Decoders,
    Floats,
    Span,
    Trajectory,
    find_decode,
    split_text,
)

Part: TypeAlias = Callable[[Trajectory, Span, Decode | None], Sequence[float] | float]
"""A part of a mask: the weights of the tokens of one answer, or one weight for all of them."""
Weigh: TypeAlias = Callable[[Message], float]
"""A function that returns the weight of an answer."""

MASKS: Registry[Part] = Registry(
    "loss mask",
    "treadle.masks",
    {
        "all": "treadle.trajectory.tokens.masks:weigh_all",
        "last_turn": "treadle.trajectory.tokens.masks:weigh_last_turn",
        "no_failed_calls": "treadle.trajectory.tokens.masks:weigh_no_failed_calls",
        "no_reasoning": "treadle.trajectory.tokens.masks:weigh_no_reasoning",
    },
)


class ProductMask(Struct, frozen=True):
    """A loss mask that multiplies the weights of its parts, each of which is a function of a trajectory."""

    parts: tuple[Part, ...]
    decoders: Decoders = None

    def __call__(self, trajectory: Trajectory) -> Floats:
        """Return the weights, aligned with `token_ids_T`.

        Raises: `ExportError` if a part cannot tell which tokens it is about.
        """
        loss_T = array("f", map(float, trajectory.sampled_T))
        decode = find_decode(self.decoders, trajectory.tokenizer)
        for span in trajectory.spans:
            if not span.is_trained or span.start == span.end:
                continue
            for part in self.parts:
                given = part(trajectory, span, decode)
                if given == 1.0:
                    continue
                size = span.end - span.start
                weights = [given] * size if isinstance(given, int | float) else given
                pairs = zip(loss_T[span.start : span.end], weights, strict=True)
                loss_T[span.start : span.end] = array("f", [one * other for one, other in pairs])
        return loss_T


def make_mask(*parts: str | Weigh, decode: Decoders = None) -> ProductMask:
    """Return a loss mask.

    A part is `all`, `last_turn` (the answers to the newest message of the user), `no_failed_calls` (the answers
    without a call that failed through the model's own fault), `no_reasoning`, several of these with commas between
    them, or a function that returns the weight of an answer: the function itself,
    `package.module:function` or `file.py:function`. `no_reasoning` needs `decode`. Raises: `ConfigError`.
    """
    found: list[Part] = []
    for part in parts:
        for item in part.split(",") if isinstance(part, str) else [part]:
            found.append(_make_part(item))
    return ProductMask(tuple(found), decode)


def check_mask_names(text: str) -> str:
    """Return masks that came from elsewhere. Raises: `ConfigError` if one is unknown, or names code to be run."""
    for name in text.split(","):
        MASKS.load(name.strip())
    return text


def _make_part(part: str | Weigh) -> Part:
    if isinstance(part, str):
        if ":" not in part:
            return MASKS.load(part.strip())
        part = load_function(part.strip(), "a Message")
    weigh = part

    def weigh_message(trajectory: Trajectory, span: Span, decode: Decode | None) -> float:
        message = _message_of(trajectory, span)
        with blaming("the loss mask failed"):
            return float(weigh(message))

    return weigh_message


def weigh_all(trajectory: Trajectory, span: Span, decode: Decode | None) -> float:
    """Give all answers the weight 1."""
    return 1.0


def weigh_last_turn(trajectory: Trajectory, span: Span, decode: Decode | None) -> float:
    """Give the weight 1 to the answers to the newest message of the user, and 0 to all others."""
    return float(span.turn == trajectory.spans[-1].turn)


def weigh_no_failed_calls(trajectory: Trajectory, span: Span, decode: Decode | None) -> float:
    """Give the weight 0 to the answers with a call that failed through the model's own fault, else 1."""
    return float(not span.has_failed_call)


def weigh_no_reasoning(trajectory: Trajectory, span: Span, decode: Decode | None) -> Sequence[float] | float:
    """Give the weight 0 to the tokens of the reasoning and of the tags around it, and 1 to all others."""
    message = _message_of(trajectory, span)
    reasoning = reasoning_of(message)
    if not reasoning:
        return 1.0
    where = f"the answer of event {span.seq} of run {span.run_id!r}"
    if decode is None:
        raise ExportError(
            f"the mask 'no_reasoning' cannot find the reasoning in the ids of {where}; give the renderer that "
            "made them"
        )
    ids = trajectory.token_ids_T[span.start : span.end]
    pieces = split_text(ids, decode)
    text = "".join(pieces)
    begin = text.find(reasoning)
    if begin < 0:
        raise ExportError(f"the mask 'no_reasoning' does not find the reasoning in the text of {where}")
    end = _find_end(text, begin + len(reasoning), message)
    weights, at = [], 0
    for piece in pieces:
        # A token that is partly reasoning counts as reasoning.
        weights.append(0.0 if at < end else 1.0)
        at += len(piece)
    return weights


def _find_end(text: str, end: int, message: Message) -> int:
    """Return where what follows the reasoning begins: the content, or a call after the mark that ends it."""
    mark = text.find("</", end)
    content = message.content.rpartition("</think>")[2].strip()
    if not content and not message.tool_calls and mark < 0:
        return len(text)
    place = text.find(content[:32], end) if content else -1
    if place >= 0:
        return place
    if mark >= 0 and not text[end:mark].strip():
        return text.index(">", mark) + 1 if ">" in text[mark:] else len(text)
    return end


def _message_of(trajectory: Trajectory, span: Span) -> Message:
    if span.message < 0:
        raise ExportError(
            f"the answer of event {span.seq} of run {span.run_id!r} is not among the messages of its branch, so "
            "the mask cannot give it the weight of a message"
        )
    return trajectory.messages[span.message]
