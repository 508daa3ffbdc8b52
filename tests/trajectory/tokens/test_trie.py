"""The prefix tree of ids finds what a search through all earlier ids would find."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from treadle.core.tokens.packed import ID_BYTES, pack_ids
from treadle.trajectory.tokens.drift import Trie, Vertex, find_parent

IDS = st.lists(st.sampled_from((0, 1, 256)), max_size=6)
"""Ids whose bytes agree in part, so that a match that is not at the border of an id would show."""


def shared(one: list[int], other: list[int]) -> int:
    """Return how many leading ids are equal."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@given(st.lists(st.tuples(IDS, IDS, st.booleans()), min_size=2, max_size=12))
def test_the_tree_agrees_with_a_search(added: list[tuple[list[int], list[int], bool]]) -> None:
    trie = Trie()
    known: list[list[int]] = []
    places: list[Vertex] = []
    for number, (prompt, answer, is_continued) in enumerate(added):
        start = None
        if is_continued and known:
            prompt, start = known[-1] + prompt, places[-1]
        match = trie.match(pack_ids(prompt), start)
        sizes = [shared(prompt, ids) for ids in known]
        longest = max(sizes, default=0)
        assert match.size == longest * ID_BYTES
        assert match.closest == max((at for at, size in enumerate(sizes) if size == longest), default=None)
        whole = [at for at, ids in enumerate(known) if prompt[: len(ids)] == ids]
        expected = max(whole, key=lambda at: (len(known[at]), at), default=None)
        assert find_parent(match) == expected
        known.append(prompt + answer)
        places.append(trie.add(pack_ids(known[-1]), number, match.vertex))
        assert [place.ids() for place in places] == [pack_ids(ids) for ids in known]
