"""A prefix tree of token ids: which earlier inference a prompt extends, and which one it comes closest to.

Ids are packed and compared as bytes, so a step costs time for the ids that it adds and not for the whole prompt.
"""

from collections.abc import Iterator

from treadle.core.packed import ID_BYTES, count_shared


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


class TrieMatch:
    """The length to which ids agree with those in a tree, and the inferences that agree."""

    __slots__ = ("size", "vertex", "within")

    def __init__(self, vertex: Vertex, within: Vertex | None, size: int) -> None:
        self.vertex = vertex
        """The last vertex whose whole path agrees."""
        self.within = within
        """The vertex below it whose label agrees in part; `None` if there is none."""
        self.size = size
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
