"""Prompts that continue earlier ones are read as if all their ids were decoded."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.packed import pack_ids
from treadle.models.wire import tokens
from treadle.models.wire.tokens import KnownPrompts

IDS = st.lists(st.sampled_from([1, 12, 123, 1234, 2, 23]), max_size=4)


def text(ids, *, has_blanks):
    return json.dumps(ids, separators=None if has_blanks else (",", ":")).encode()


@given(st.lists(st.tuples(IDS, IDS, st.integers(0, 3)), max_size=8), st.booleans(), st.booleans())
def test_a_prompt_has_the_ids_that_its_json_has(steps, has_blanks, has_small_memory):
    known, priors = KnownPrompts(), [[]]
    for number, (added, answer, back) in enumerate(steps):
        # A prompt continues one of the earlier ones, or only seems to.
        prior = priors[-1 - min(back, len(priors) - 1)]
        prompt = ([*prior[:-1], *added] if number % 3 == 2 else [*prior, *added]) or [1]
        if has_small_memory:
            known._size = tokens._MAX_KNOWN_BYTES
        found = known.read_ids(
            text(prompt, has_blanks=has_blanks), text(answer, has_blanks=has_blanks), pack_ids(prior)
        )
        assert found == (pack_ids(answer), pack_ids(prompt))
        priors.append([*prompt, *answer])


def test_an_id_that_only_begins_like_the_known_one_is_another_id():
    known = KnownPrompts()
    known.read_ids(b"[1,2]", b"[3]", b"")
    assert known.read_ids(b"[1,2,34]", b"[5]", pack_ids([1, 2, 3]))[1] == pack_ids([1, 2, 34])
    assert known.read_ids(b"[1,2,3,4]", b"[5]", pack_ids([1, 2, 3]))[1] == pack_ids([1, 2, 3, 4])
    assert known.read_ids(b"[1,2,3]", b"[5]", pack_ids([1, 2, 3]))[1] == pack_ids([1, 2, 3])


def test_what_is_no_list_of_ids_is_refused():
    known = KnownPrompts()
    assert known.read_ids(b"null", b"[1]", b"") == (pack_ids([1]), None)
    for prompt, answer in ((b"[1]", b"null"), (b"[1]", b'["a"]'), (b"[1.5]", b"[1]")):
        with pytest.raises(msgspec.DecodeError):
            known.read_ids(prompt, answer, b"")


def test_the_memory_is_limited():
    known = KnownPrompts()
    prompt = list(range(100_000, 300_000))
    for number in range(20):
        known.read_ids(text([number, *prompt], has_blanks=False), b"[1]", b"")
        assert known._size <= tokens._MAX_KNOWN_BYTES
    assert known._known
