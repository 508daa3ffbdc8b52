"""Unsloth's code that chooses what is trained on reads the rows of `trl` with the settings of docs/rows.md.

`pip install --no-deps unsloth_zoo` in an environment with torch makes it run. Only its module for data sets is
loaded, because the package asks for a GPU.
"""

import importlib.util
import json
from typing import Any

import pytest
from tests.export.test_consumers import folder_of
from tests.export.test_files import example
from tests.export.test_row_changes import make_row
from tests.export.test_training import make_tokenizer

from treadle.core.types import Role
from treadle.export import FORMATS, Row, encode_row
from treadle.export.exporter import fit_untrained

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.full]


@pytest.fixture(scope="module")
def choose() -> Any:
    """Return the function that gives ids their labels, as `train_on_responses_only` makes it, and its tokenizer."""
    pytest.importorskip("torch")
    pytest.importorskip("datasets")
    spec = importlib.util.spec_from_file_location("own", folder_of("unsloth_zoo") / "dataset_utils.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tokenizer = make_tokenizer("qwen2_5")
    marks = {"instruction_part": "<|im_start|>user\n", "response_part": "<|im_start|>assistant\n"}
    found = module.train_on_responses_only(None, **marks, tokenizer=tokenizer, return_function=True)
    return found, tokenizer


@pytest.mark.parametrize("row", [example(), make_row()])
def test_what_the_model_wrote_is_trained_on_and_nothing_else(row: Row, choose: Any) -> None:
    find_labels, tokenizer = choose
    trl = FORMATS.load("trl")
    raw = json.loads(encode_row(row, trl))
    text = tokenizer.apply_chat_template(raw["messages"], tools=raw["tools"], tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    (labels,) = find_labels({"input_ids": [ids]})["labels"]
    labels = list(map(int, labels))
    assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
    trained = tokenizer.decode([label for label in labels if label != -100])
    shown = fit_untrained(row, trl).messages
    said = [message for message in shown if message.role is Role.ASSISTANT]
    assert trained.count("<tool_call>") == sum(len(message.tool_calls) for message in said)
    assert all(message.content in trained for message in said)
    assert not any(message.content in trained for message in shown if message.role is Role.USER)
    assert "<tool_response>" not in trained
