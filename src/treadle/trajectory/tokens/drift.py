"""The reasons why a prompt does not extend the ids of an earlier inference.

A reason is taken from the events between the two inferences, and only then from the ids and their text. If
neither explains the difference, it is `unknown`. A prefix tree of the ids tells which earlier inference a prompt
extends, and which one it comes closest to. Its ids are packed and compared as bytes, so that a step costs time for
the ids that it adds and not for the whole prompt.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.core.tokens.packed import ID_BYTES, count_shared, unpack_ids
from treadle.core.types import FinishReason, Message, Role
from treadle.trajectory.tokens.trajectories import Decode, Decoders, Drift, DriftReport, find_decode

if TYPE_CHECKING:
    from treadle.trajectory.tokens.nodes import Node


class Vertex:
    """A point of the tree: the end of an edge that is labelled with ids."""

    __slots__ = ("above", "children", "label", "node", "size")

    def __init__(self, above: "Vertex | None", label: bytes) -> None:
        self.above = above
        self.label = label
        self.size: int = len(label) + (0 if above is None else above.size)
        """The length of the path from the root in bytes."""
        self.children: dict[bytes, Vertex] = {}
        """The vertices below, by the first id of their labels."""
        self.node: int | None = None
        """The newest inference whose prompt and answer end here; `None` if there is none."""

    def ids(self) -> bytes:
        """Return the packed ids of the path from the root."""
        labels = []
        vertex: Vertex | None = self
        while vertex is not None:
            labels.append(vertex.label)
            vertex = vertex.above
        return b"".join(reversed(labels))

    def below(self) -> Iterator["Vertex"]:
        """Yield this vertex and all vertices below it."""
        waiting = [self]
        while waiting:
            vertex = waiting.pop()
            yield vertex
            waiting += vertex.children.values()


class TrieMatch(Struct, frozen=True):
    """The length to which ids agree with those in a tree, and the inferences that agree."""

    vertex: Vertex
    """The last vertex whose whole path agrees."""
    within: Vertex | None
    """The vertex below it whose label agrees in part; `None` if there is none."""
    size: int
    """The length of what agrees in bytes."""

    @property
    def closest(self) -> int | None:
        """The newest inference that agrees this far; `None` if there is none."""
        top = self.vertex if self.within is None else self.within
        return max((vertex.node for vertex in top.below() if vertex.node is not None), default=None)


class Trie:
    """The ids of all inferences of a run that have the same tokenizer."""

    def __init__(self) -> None:
        self._root = Vertex(None, b"")

    def match(self, ids: bytes, start: Vertex | None = None) -> TrieMatch:
        """Return how far packed ids agree with the tree. The path of `start` is known to agree."""
        vertex = self._root if start is None else start
        size = vertex.size
        while size < len(ids):
            child = vertex.children.get(ids[size : size + ID_BYTES])
            if child is None:
                break
            shared = count_shared(child.label, ids[size : size + len(child.label)]) * ID_BYTES
            size += shared
            if shared < len(child.label):
                return TrieMatch(vertex, child, size)
            vertex = child
        return TrieMatch(vertex, None, size)

    def add(self, ids: bytes, node: int, start: Vertex) -> Vertex:
        """Add the packed ids of an inference, which begin with the path of `start`, and return where they end."""
        found = self.match(ids, start)
        vertex = found.vertex
        if found.within is not None:
            vertex = _split(found.within, found.size - vertex.size)
        if found.size < len(ids):
            below = Vertex(vertex, ids[found.size :])
            vertex.children[below.label[:ID_BYTES]] = below
            vertex = below
        vertex.node = node
        return vertex


def find_parent(match: TrieMatch) -> int | None:
    """Return the inference with the longest prompt and answer that agree completely; `None` if there is none."""
    vertex: Vertex | None = match.vertex
    while vertex is not None and vertex.node is None:
        vertex = vertex.above
    return None if vertex is None else vertex.node


def _split(vertex: Vertex, size: int) -> Vertex:
    """Make a vertex in the middle of the label of `vertex`, after `size` bytes of it, and return it."""
    assert vertex.above is not None
    middle = Vertex(vertex.above, vertex.label[:size])
    vertex.above.children[middle.label[:ID_BYTES]] = middle
    vertex.above, vertex.label = middle, vertex.label[size:]
    middle.children[vertex.label[:ID_BYTES]] = vertex
    return middle


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
