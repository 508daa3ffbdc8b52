"""Token ids and log probabilities are packed, and journals of older versions with lists of numbers still read."""

import math
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core import events as e
from treadle.core.state import fold
from treadle.core.tokens.packed import (
    as_packed,
    count_packed,
    count_shared,
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Role

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(IDS)
def test_packed_ids_are_little_endian_and_read_back(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert packed == struct.pack(f"<{len(ids)}i", *ids)
    assert unpack_ids(packed) == tuple(ids) == unpack_ids(tuple(ids))
    assert count_packed(packed) == len(ids) == count_packed(tuple(ids))
    assert as_packed(tuple(ids)) == packed


def test_packed_logprobs_keep_each_bit_of_a_32_bit_float() -> None:
    values = [
        struct.unpack("<f", struct.pack("<I", bits))[0] for bits in (0xBF000001, 0x80000000, 0xC2C7FFFF)
    ]
    assert struct.pack("<3f", *unpack_logprobs(pack_logprobs(values))) == struct.pack("<3f", *values)
    assert math.isnan(unpack_logprobs(pack_logprobs([math.nan]))[0])


@pytest.mark.parametrize("bad", [[2**31], ["7"], [1.5], [None]])
def test_what_is_no_32_bit_id_is_refused(bad: list[object]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        pack_ids(bad)  # type: ignore[arg-type]


@given(IDS, IDS, IDS)
def test_the_shared_beginning_is_the_longest_one(start: list[int], one: list[int], other: list[int]) -> None:
    shared = 0
    for mine, theirs in zip(start + one, start + other, strict=False):
        if mine != theirs:
            break
        shared += 1
    assert count_shared(pack_ids(start + one), pack_ids(start + other)) == shared


def completed(step: int, tokens: TokenRecord) -> e.InferenceCompleted:
    answer = Message(Role.ASSISTANT, f"answer {step}")
    return e.InferenceCompleted(
        at=1.0, step=step, completion=Completion(answer, FinishReason.STOP, tokens=tokens)
    )


def test_an_event_has_ids_in_base64_and_one_of_an_older_version_has_lists() -> None:
    body = completed(1, TokenRecord.of(prompt=(1, 2), output=(3,), logprobs=(-0.5,)))
    raw = e.encode_body(body)
    assert b'"token_ids":"AwAAAA=="' in raw
    assert e.decode_body(raw) == body
    told = msgspec.json.decode(raw)
    told["completion"]["tokens"] = {"prompt_token_ids": [1, 2], "token_ids": [3], "logprobs": [-0.5]}
    old = e.decode_body(msgspec.json.encode(told))
    assert isinstance(old, e.InferenceCompleted)
    assert old.completion.tokens == TokenRecord((1, 2), 0, (3,), (-0.5,))
    assert fold([old]).shown.prior == fold([body]).shown.prior


def test_the_state_has_all_ids_of_the_newest_inference() -> None:
    first = completed(1, TokenRecord.of(prompt=(1, 2), output=(3, 4)))
    shared = msgspec.structs.replace(TokenRecord.of(prompt=(5,), output=(6,)), prompt_shared_tokens=4)
    prior = fold([first, completed(2, shared)]).shown.prior
    assert prior is not None
    assert (unpack_ids(prior.token_ids), prior.messages, prior.is_cut) == ((1, 2, 3, 4, 5, 6), 2, False)


def test_ids_stand_for_no_messages_after_a_compaction_and_are_kept_for_sharing() -> None:
    first = completed(1, TokenRecord.of(prompt=(1, 2), output=(3, 4)))
    summary = Message(Role.USER, "in short")
    prior = fold([first, e.ContextCompacted(at=2.0, messages=1, replacement=(summary,))]).shown.prior
    assert prior is not None
    assert (unpack_ids(prior.token_ids), prior.messages) == ((1, 2, 3, 4), 0)
