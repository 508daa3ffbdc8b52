"""Prompts that continue earlier ones are read and written as if all their ids were decoded and encoded."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.tokens.recorded import LOGPROBS, VLLM_COMPLETION

from treadle.core.tokens.packed import pack_ids
from treadle.models.tokens.protocol import PromptIds
from treadle.models.wire import token_records as tokens
from treadle.models.wire.token_records import KnownTexts, PromptCutter, encode_ids

IDS = st.lists(st.sampled_from([1, 12, 123, 1234, 2, 23]), max_size=4)


def text(ids, *, has_blanks=False):
    return json.dumps(ids, separators=None if has_blanks else (",", ":")).encode()


def read(cutter, prompt, answer, prior):
    """Read an answer as a typed reader does."""
    body = b'{"said":"\\"prompt_token_ids\\":[1","prompt_token_ids":%b,"token_ids":%b}' % (prompt, answer)
    raw = msgspec.json.decode(cutter.cut(body, prior))
    return cutter.join(raw["prompt_token_ids"], raw["token_ids"])


STEPS = st.lists(st.tuples(IDS, IDS, st.integers(0, 3)), max_size=8)


@given(STEPS, st.booleans(), st.booleans())
def test_a_prompt_has_the_ids_that_its_json_has(steps, has_blanks, has_small_memory):
    cutter, priors = PromptCutter(), [[]]
    for number, (added, answer, back) in enumerate(steps):
        # A prompt continues one of the earlier ones, or only seems to.
        prior = priors[-1 - min(back, len(priors) - 1)]
        prompt = ([*prior[:-1], *added] if number % 3 == 2 else [*prior, *added]) or [1]
        if has_small_memory:
            cutter._texts._size = tokens._MAX_KNOWN_BYTES
        asked, said = text(prompt, has_blanks=has_blanks), text(answer, has_blanks=has_blanks)
        assert read(cutter, asked, said, pack_ids(prior)) == (pack_ids(prompt), pack_ids(answer))
        priors.append([*prompt, *answer])


@given(STEPS)
def test_a_prompt_that_is_sent_has_the_json_of_its_ids(steps):
    texts, priors = KnownTexts(), [[]]
    for added, answer, back in steps:
        prior = priors[-1 - min(back, len(priors) - 1)]
        prompt = PromptIds.after(pack_ids(prior), added, texts)
        assert b"[%b]" % prompt.text == text([*prior, *added])
        assert prompt == [*prior, *added] == list(prompt)
        assert len(prompt) == len(prior) + len(added)
        priors.append([*prior, *added, *answer])
        texts.remember(pack_ids(priors[-1]), encode_ids(priors[-1]), pack_ids(prior))


def test_an_id_that_only_begins_like_the_known_one_is_another_id():
    for prompt in ([1, 2, 34], [1, 2, 3, 4], [1, 2, 3]):
        cutter = PromptCutter()
        read(cutter, b"[1,2]", b"[3]", b"")
        known = pack_ids([1, 2, 3])
        assert cutter.cut(b'"prompt_token_ids":%b' % text(prompt), known).count(b"-1") == (
            prompt != [1, 2, 34]
        )
        assert read(cutter, text(prompt), b"[5]", known)[0] == pack_ids(prompt)


def test_a_number_that_is_no_id_is_refused():
    cutter = PromptCutter()
    assert read(cutter, b"null", b"[1]", b"") == (None, pack_ids([1]))
    for prompt, answer in ((b"[1]", b"[2147483648]"), (b"[2147483648]", b"[1]")):
        with pytest.raises(OverflowError):
            read(cutter, prompt, answer, b"")


def test_the_memory_is_limited():
    texts = KnownTexts()
    prompt = list(range(100_000, 2_000_000))
    packed, said = pack_ids(prompt), encode_ids(prompt)
    for number in range(8):
        texts.remember(packed + pack_ids([number]), said + b",%d" % number, b"")
        assert texts._size <= tokens._MAX_KNOWN_BYTES
    assert texts._known


def test_the_text_of_a_prompt_is_forgotten_when_all_runs_continued_it():
    texts = KnownTexts()
    one, two, three = pack_ids([1]), pack_ids([1, 2]), pack_ids([1, 3])
    for _ in range(2):
        texts.remember(one, b"1", b"")
    texts.remember(two, b"1,2", one)
    assert (texts.find(one), texts.find(two)) == (b"1", b"1,2")
    texts.remember(three, b"1,3", one)
    assert (texts.find(one), texts.find(three)) == (b"", b"1,3")
    assert texts._size == len(two) + len(three) + 6


TOKEN = st.sampled_from(
    ["a", '"', "}", '},"', ',"finish_reason":', '"token_logprobs":[', "]", "\\", "\n", "é"]
)


@given(
    st.lists(st.tuples(TOKEN, st.floats(-9, 0) | st.none()), max_size=5), TOKEN, st.booleans(), st.booleans()
)
def test_log_probabilities_are_cut_out_of_an_answer_as_they_are_read(
    sampled, said, has_field, is_other_order
):
    """Rules out that a text in an answer passes for its fields."""
    values = [value for _, value in sampled]
    logprobs = {
        "text_offset": [0] * len(sampled),
        "token_logprobs": values,
        "tokens": [token for token, _ in sampled],
        "top_logprobs": [{token: value} for token, value in sampled],
    }
    choice = {"index": 0, "text": said, "logprobs": logprobs}
    if has_field:
        choice["weight_versions"] = [{"version": "7"}]
    if is_other_order:
        choice = {"finish_reason": "stop", **choice}
    choice |= {"finish_reason": "stop", "token_ids": [1] * len(sampled), "said": said}
    body = json.dumps({"choices": [choice]}, separators=(",", ":")).encode()
    short, found = tokens.cut_logprobs(body)
    if found is None:
        assert short == body
        return
    assert found == values
    try:
        rest = json.loads(short)
    except json.JSONDecodeError:
        # The whole answer is read then.
        return
    assert rest == {"choices": [{**choice, "logprobs": None}]}


def test_an_ordinary_answer_is_cut():
    short, found = tokens.cut_logprobs(VLLM_COMPLETION)
    assert found == list(LOGPROBS)
    assert b"text_offset" not in short
