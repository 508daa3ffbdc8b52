"""The reasons why a prompt does not extend the ids of an earlier inference.

A reason is taken from the events between the two inferences, and only then from the ids and their text. If
neither explains the difference, it is `unknown`.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.core.packed import ID_BYTES, unpack_ids
from treadle.core.types import FinishReason, Message, Role
from treadle.trajectory.tokens.trajectories import Decode, Decoders, Drift, DriftReport, find_decode

if TYPE_CHECKING:
    from treadle.trajectory.tokens.nodes import Node

SHOWN = 32
"""How many ids of each side a report has."""
_REJOINED = 4
"""Within how many ids after a gap the rest of an answer must begin again."""
_THOUGHT = re.compile(r"(?:<think>)?(.*?)</think>", re.DOTALL)


def make_report(
    kind: Drift, at: int, old: "tuple[Node, bytes] | None", new: "tuple[Node, bytes]", decoders: Decoders
) -> DriftReport:
    """Return a report of the difference from position `at` on, between two inferences and their packed ids. `old`
    is `None` if there is no earlier inference."""
    expected, expected_text = ((), None) if old is None else _show(*old, at, decoders)
    found, found_text = _show(*new, at, decoders)
    run_id, seq = (None, None) if old is None else (old[0].run_id, old[0].seq)
    return DriftReport(kind, at, expected, found, expected_text, found_text, run_id, seq)


def _show(node: "Node", ids: bytes, at: int, decoders: Decoders) -> tuple[tuple[int, ...], str | None]:
    shown = unpack_ids(ids[at * ID_BYTES : (at + SHOWN) * ID_BYTES])
    decode = find_decode(decoders, node.tokenizer)
    return shown, None if decode is None else decode(shown)


def explain(
    path: "Sequence[Node]", new: "Node", at: int, ids: tuple[bytes, bytes], decode: Decode | None
) -> Drift:
    """Return why the prompt of `new` leaves the ids of an earlier inference at position `at`.

    `path` has the earlier inference, after those that it extends. `ids` are its packed ids and those of the prompt.
    """
    old = path[-1]
    kind = explain_messages(old, new)
    if kind is not None:
        return kind
    if old.vocabulary != new.vocabulary or (old.tools != new.tools and at < path[0].start):
        return Drift.TEMPLATE
    answer = next((node for node in path if node.end > at), None)
    if answer is None:
        return Drift.INJECTED if new.injections > old.injections else Drift.UNKNOWN
    begin = max((node.end for node in path if node.end <= at), default=0)
    return _Answer(answer, begin, at, ids, decode).explain(is_injected=new.injections > old.injections)


def explain_messages(old: "Node", new: "Node") -> Drift | None:
    """Return what happened to the messages between two inferences; `None` if they were only continued."""
    if old.compactions != new.compactions:
        return Drift.COMPACTION
    before, after = [*old.messages, old.message], list(new.messages)
    if before == after[: len(before)]:
        return None
    at = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return Drift.EDITED_HISTORY
    if Role.SYSTEM in (before[at].role, after[at].role):
        return Drift.TEMPLATE
    rest = before[at:]
    is_moved = any(after[next_ : next_ + len(rest)] == rest for next_ in range(at + 1, len(after)))
    return Drift.INJECTED if is_moved else Drift.EDITED_HISTORY


class _Answer:
    """The answer in or before which a prompt differs, and the ids and texts around the difference."""

    def __init__(
        self, node: "Node", begin: int, at: int, ids: tuple[bytes, bytes], decode: Decode | None
    ) -> None:
        """`begin` is the position where the answer before it ends, or 0."""
        self._node = node
        self._at = at
        self._old, self._new = ids
        self._is_within = at >= node.start
        self._texts: tuple[str, str] | None = None
        if decode is not None:
            start = node.start if self._is_within else begin
            size = node.end - start
            old = unpack_ids(self._old[start * ID_BYTES : node.end * ID_BYTES])
            new = unpack_ids(self._new[start * ID_BYTES : (start + 4 * size + 64) * ID_BYTES])
            self._texts = decode(old), decode(new)

    def explain(self, *, is_injected: bool) -> Drift:
        """Return why the prompt differs. `is_injected`: a message was added since the earlier inference."""
        message = self._node.message
        is_cut = self._node.finish_reason is FinishReason.LENGTH and self._is_within
        is_written = bool(message.tool_calls or message.content)
        if self._is_same_text():
            return Drift.TRUNCATED if is_cut else Drift.RETOKENIZED
        if self._is_stripped() and (is_written or not is_cut):
            return Drift.REASONING_STRIPPED
        if is_cut or self._is_prompt_cut():
            return Drift.TRUNCATED
        if not self._is_within and is_injected:
            return Drift.INJECTED
        if self._texts is None:
            return Drift.UNKNOWN
        return Drift.TOOL_CALL_REWRITTEN if self._is_within and self._is_in_calls() else Drift.TEMPLATE

    def _is_same_text(self) -> bool:
        return self._texts is not None and self._texts[1].startswith(self._texts[0])

    def _is_stripped(self) -> bool:
        """Return whether the answer has reasoning that the new prompt lacks."""
        reasoning = reasoning_of(self._node.message)
        if not reasoning:
            return False
        if self._texts is None:
            return self._is_rejoined()
        old, new = self._texts
        return old.count(reasoning) > new[: len(old)].count(reasoning)

    def _is_rejoined(self) -> bool:
        """Return whether the new prompt goes on with the end of the answer, so that a part of it was left out."""
        end = self._node.end * ID_BYTES
        for skipped in range(_REJOINED):
            at = (self._at + skipped) * ID_BYTES
            first = self._new[at : at + ID_BYTES]
            place = self._old.find(first, max(at, self._node.start * ID_BYTES), end) if first else -1
            while place >= 0:
                tail = self._old[place:end]
                if place % ID_BYTES == 0 and place > at and self._new[at : at + len(tail)] == tail:
                    return True
                place = self._old.find(first, place + 1, end)
        return False

    def _is_prompt_cut(self) -> bool:
        """Return whether the new prompt goes on with ids from beyond this answer, so that a server left it out."""
        at = self._at * ID_BYTES
        following = self._new[at : at + SHOWN * ID_BYTES]
        if len(following) < SHOWN * ID_BYTES:
            return False
        place = self._old.find(following, at)
        while place >= 0 and place % ID_BYTES:
            place = self._old.find(following, place + 1)
        return place >= 0 and (place > self._node.end * ID_BYTES or not self._is_within)

    def _is_in_calls(self) -> bool:
        """Return whether the texts differ after the content of the answer, within its calls."""
        message = self._node.message
        if not message.tool_calls or self._texts is None:
            return False
        old, new = self._texts
        same = next(
            (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), len(old)
        )
        content = message.content.strip()
        place = old.find(content) if content else -1
        return place < 0 or same >= place + len(content)


def reasoning_of(message: Message) -> str:
    """Return the reasoning of an answer, also if it stands in the text; empty if the answer has no reasoning."""
    if message.reasoning:
        return message.reasoning.strip()
    found = _THOUGHT.match(message.content.lstrip())
    return found[1].strip() if found is not None else ""
