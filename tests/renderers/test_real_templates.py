"""The chat templates of open models, which come with the package `trl`, over small tokenizers.

What TRL's templates for training change does not matter here; they are tried too.
"""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
from tests.renderers.folders import make_tokenizer
from tests.renderers.test_renderers import ASKED, CALL, MORE, RESULT, STEERED, TOOLS

from treadle.core.errors import ConfigError
from treadle.core.types import FinishReason, Message, Role
from treadle.formats import detect
from treadle.renderers.answer_reading import to_wire
from treadle.renderers.registry import load_renderer

_FOUND = importlib.util.find_spec("trl")
FOLDER = Path("none" if _FOUND is None or _FOUND.origin is None else _FOUND.origin).parent / "chat_templates"
SHORT = (
    "cohere2",
    "deepseekv3",
    "gemma3",
    "glm4moe",
    "gptoss",
    "idefics3",
    "lfm2",
    "llama3_1",
    "nemotron_3_nano",
    "phi3_5",
    "qwen2_5",
    "qwen3",
    "qwen3_5_think",
)
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja")) if "TREADLE_FULL" in os.environ else SHORT
MARKS = re.compile(
    r"<\|[^|<>\s'\"]{1,40}\|?>|<｜[^｜<>]{1,40}｜>|<(?:start|end)_of_turn>|</?s>|<(?:sop|turn\|)>|\[gMASK\]"
    r"|<end_of_utterance>"
)
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<｜end▁of▁sentence｜>"),
    *("<|END_OF_TURN_TOKEN|>", "<end_of_utterance>", "</s>", "<|user|>"),
)
MORE_ENDS = {"<|call|>", "<|return|>", "<|tool_response>", "<|observation|>"}
"""Tokens that end answers with calls, which the files of these models name."""

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="trl is not installed")


def load(name: str, folder: Path):
    source = (FOLDER / f"{name}.jinja").read_text()
    special = dict.fromkeys(["<BOS>", *sorted(MARKS.findall(source))])
    end = next((text for text in ENDS if text in special), "</s>")
    special |= {end: None}
    tokenizer = make_tokenizer(tuple(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": end, "bos_token": "<BOS>", "chat_template": source}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ends = [tokenizer.token_to_id(text) for text in special if text in MORE_ENDS or text == end]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    try:
        format = detect(chat_template=source)
    except ConfigError:
        format = "hermes"
    return load_renderer(f"hf:{folder}?format={format}&date=2026-01-31")


@pytest.mark.parametrize("name", NAMES)
def test_a_bridge_is_what_the_template_writes(name, tmp_path):
    renderer = load(name, tmp_path)
    said = Message(Role.ASSISTANT, "I look.")
    called = Message(Role.ASSISTANT, "", (CALL,))
    tried = 0
    for answer, added in ((said, [MORE]), (called, [RESULT]), (called, [RESULT, STEERED])):
        tools = TOOLS if answer is called else ()
        try:
            prompt = renderer.render([ASKED], tools)
            whole = renderer.decode(renderer.render([ASKED, answer, *added], tools))
        except ConfigError as error:
            if not re.search(r"alternat|System role not supported", str(error)):
                raise
            continue
        tried += 1
        for end in renderer.stop_token_ids:
            following = renderer.bridge([*prompt, *renderer.encode("x"), end], added, tools, is_cut=False)
            assert following is not None
            assert following[0] != end
            text = renderer.decode(following)
            assert whole.endswith(text)
            assert all(item.content in text for item in added)
        cut = renderer.bridge([*prompt, *renderer.encode("x")], added, tools, is_cut=True)
        assert cut is not None
        text = renderer.decode(cut)
        assert whole.endswith(text) or re.match(r"\n?</think>\n*", text)
    assert tried


@pytest.mark.xdist_group("training")
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_that_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = load(name, tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    if "strftime_now" in theirs.chat_template:
        pytest.skip("transformers writes the date of today")
    for messages in ([ASKED], [ASKED, Message(Role.ASSISTANT, "Rain."), MORE]):
        wires = [to_wire(message) for message in messages]
        if "idefics" in name or "vlm" in name or "llava" in name:
            wires = [wire | {"content": [{"type": "text", "text": wire["content"]}]} for wire in wires]
        made = theirs.apply_chat_template(wires, add_generation_prompt=True, return_dict=False)
        assert ours.render(messages, ()) == made


def test_gpt_oss_is_read_as_harmony(tmp_path):
    renderer = load("gptoss", tmp_path)
    assert renderer.format == "harmony"
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Rain.<|return|>"
    )
    ids, _ = renderer.tokenizer.encode_marked(text)
    message = renderer.read(ids, (), finish=FinishReason.STOP)
    assert (message.reasoning, message.content) == ("Hm.", "Rain.")
