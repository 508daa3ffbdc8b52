"""The tokenizer that needs no other package, compared with the package `tokenizers`."""

import json
import os
import random
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.renderers.folders import CHATML, make_tokenizer
from tokenizers import Regex, pre_tokenizers

from treadle.core.errors import ConfigError
from treadle.renderers.chatml import ChatmlRenderer
from treadle.renderers.tokenizer import (
    BpeTokenizer,
    FileTokenizer,
    byte_tokenizer,
    hash_vocabulary,
)
from treadle.testbed.engines import export_tokenizer

WORDS = r" ?[^ \n]+|\n+| +"
TEXTS = st.text(st.sampled_from('rain in Oslo {"name": weather}\n<|im_end|>ü👋'), max_size=60) | st.text(
    max_size=30
)


def make_pair(folder, pattern: str | None = None):
    theirs = make_tokenizer(CHATML, ["rain rain rain in Oslo", '{"name": "weather"}'] * 5, 500)
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        theirs.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    theirs.save(str(folder / "tokenizer.json"))
    return BpeTokenizer.from_json(json.loads(theirs.to_str())), FileTokenizer.from_file(
        folder / "tokenizer.json"
    )


@pytest.fixture(scope="module", params=[None, WORDS], ids=["whole", "words"])
def pair(request, tmp_path_factory):
    return make_pair(tmp_path_factory.mktemp("tokenizer"), request.param)


@given(text=TEXTS)
def test_the_ids_are_those_of_the_package(pair, text):
    ours, theirs = pair
    text = text.encode(errors="ignore").decode()
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids) == text


def test_a_text_has_many_sequences_of_ids(pair):
    ours, _ = pair
    drawn, text = random.Random(1), "rain rain rain in Oslo"
    found = set()
    for _ in range(20):
        rest, ids = text, []
        while rest:
            size = drawn.randint(1, 5)
            ids += ours.encode(rest[:size])
            rest = rest[size:]
        found.add(tuple(ids))
        assert ours.decode(ids) == text
    assert len(found) > 5


@given(text=st.text(max_size=50))
def test_bytes_as_ids(text):
    tokenizer = byte_tokenizer()
    data = text.encode(errors="ignore")
    ids = tokenizer.encode(data.decode())
    assert bytes(ids) == data
    assert tokenizer.decode([256, *ids, 257]) == f"<|im_start|>{data.decode()}<|im_end|>"


def test_a_pattern_with_a_group_is_refused():
    contents = {byte: bytes([byte]) for byte in range(256)}
    with pytest.raises(ConfigError, match="as \\(\\?:"):
        BpeTokenizer(contents, pattern="(a)+")
    assert BpeTokenizer(contents, pattern="(?:a)+").encode("xaay") == list(b"xaay")


def test_unknown_ids_and_equal_vocabularies(pair):
    ours, theirs = pair
    known = ours.encode("rain")
    assert (ours.decode([]), ours.decode(known[:1]), ours.decode([-1])) == (
        "",
        theirs.decode(known[:1]),
        "\ufffd",
    )
    assert ours.decode([*known, 999999]) == "rain\ufffd"
    for odd in (999999, -1, 2**40):
        assert ours.decode([odd, *known, odd]) == theirs.decode([odd, *known, odd]) == "\ufffdrain\ufffd"
    assert hash_vocabulary(ours) == hash_vocabulary(theirs)
    assert hash_vocabulary(ours) != hash_vocabulary(byte_tokenizer())
    assert ChatmlRenderer(ours).fingerprint == ChatmlRenderer(ours, name="chatml:elsewhere").fingerprint


def test_the_length_that_a_file_sets_for_embeddings_is_not_used(pair, tmp_path):
    """Rules out texts that are cut or padded."""
    text = "hello world, this is a long message"
    raw = json.loads(pair[1].data)
    raw["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    raw["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    made = FileTokenizer(json.dumps(raw).encode(), "here")
    assert made.encode(text) == made.encode_marked(text)[0] == pair[1].encode(text)


def test_half_a_character_is_replaced(pair):
    _, theirs = pair
    assert theirs.decode(theirs.encode("a\ud800b")) == "a\ufffdb"
    ids, offsets = theirs.encode_marked("a\ud800b")
    assert (theirs.decode(ids), offsets[-1][1]) == ("a\ufffdb", 3)


def test_a_tokenizer_of_the_hub_without_a_network(tmp_path):
    """The package tries again for half a minute, and its error does not say what to do."""
    hub = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B"
    program = "import sys; from treadle.renderers.tokenizer import FileTokenizer\n"
    program += "FileTokenizer.from_hub('Qwen/Qwen3-0.6B').encode('a')"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        place = f"http://127.0.0.1:{taken.getsockname()[1]}"
        env = {
            **os.environ,
            "HF_ENDPOINT": place,
            "HF_HOME": str(tmp_path),
            "HF_HUB_CACHE": str(tmp_path / "hub"),
        }
        given = {"env": env, "capture_output": True, "text": True, "timeout": 300}
        failed = subprocess.run([sys.executable, "-c", program], **given)
        export_tokenizer("m", hub / "snapshots" / "a1")
        (hub / "refs").mkdir()
        (hub / "refs" / "main").write_text("a1")
        kept = subprocess.run([sys.executable, "-c", program], **given)
    assert "is not on this machine, and cannot be loaded from the Hugging Face Hub (" in failed.stderr
    assert "as family:NAME@FOLDER" in failed.stderr
    assert "Retry" not in failed.stderr
    assert kept.returncode == 0, kept.stderr
