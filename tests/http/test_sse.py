"""Server-sent events that arrive in any pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.http.sse import LineReader, SseReader


def read(*chunks: bytes) -> list[bytes]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.close()


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b": comment\n\n: another\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 2\ndata: a\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"data: a\r\n", [b"a"]),
        (b"data: \xc3\xbc\n\n", [b"\xc3\xbc"]),
        (b"", []),
        (b"not an event\n\n", []),
        (b"database: a\n\n", []),
        (b"data: a\rdata: b\r\rdata: c\r\r", [b"a\nb", b"c"]),
        (b"data: a\r\n\rdata: b\n\r\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        (b"\xef\xbb\xbf\n\ndata: a\n\n", [b"a"]),
    ],
)
def test_events(raw, events):
    assert read(raw) == events
    assert read(*(raw[i : i + 1] for i in range(len(raw)))) == events


LINES = st.sampled_from([b"data: a", b"data:b", b": c", b"", b"event: d", b"data: \xc3\xbc{}", b"junk"])


@given(st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))), st.lists(st.integers(0, 200)))
def test_where_the_pieces_end_makes_no_difference(lines, cuts):
    raw = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    assert read(*(raw[a:b] for a, b in pairwise(edges))) == read(raw)


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b"a\r\n\r\n\nb", [b"a", b"b"]),
        (b"a\rb\n\rc\r\n", [b"a", b"b", b"c"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"]),
        (b"a", [b"a"]),
        (b"", []),
    ],
)
def test_lines(raw, lines):
    for step in (1, 2, len(raw) or 1):
        reader = LineReader()
        found = [line for at in range(0, len(raw), step) for line in reader.feed(raw[at : at + step])]
        assert found + reader.close() == lines
