"""Rows in the libraries that train on them: `datasets`, TRL's preparation, and the chat templates of models.

The packages are in the extra `train-tests`. TRL is installed without its dependencies: all of its preparation but
the trainer itself works without torch.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.export.test_files import example, save

from treadle import Agent, load_task, open_journal
from treadle.core.types import Message, Role
from treadle.export import FORMATS, Row, load_row
from treadle.formats import parse
from treadle.testbed import oracle_for

TASKS = ("files:csv_sum-0001", "files:csv_sum-0002", "files:contacts_dedupe-0000")
pytestmark = pytest.mark.xdist_group("training")
FAMILIES = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "llama3_1": "llama3_json",
    "glm4moe": "glm45",
    "gptoss": "harmony",
    "nemotron_3_nano": "qwen3_coder",
    "gemma4": None,
    "lfm2_2_5": None,
}
"""Chat templates that TRL ships, and the text format of their calls; `None` if Treadle has none."""


@pytest.fixture(scope="module")
def datasets() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        yield pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def trl_data(datasets: Any) -> Any:
    pytest.importorskip("transformers")
    return pytest.importorskip("trl.data_utils")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Return rows of runs on tasks, and one with parallel calls, an error and reasoning."""
    row = example()
    # Some templates write a null as the text None.
    messages = [
        replace(
            message,
            tool_calls=tuple(
                [
                    replace(call, arguments=call.arguments.replace(', "n": null', ""))
                    for call in message.tool_calls
                ]
            ),
        )
        for message in row.messages
    ]
    return [*asyncio.run(run_tasks()), replace(row, messages=tuple(messages))]


async def run_tasks() -> list[Row]:
    journal = open_journal("memory:")
    made = []
    for name in TASKS:
        task = load_task(name)
        oracle = oracle_for(task)
        assert oracle is not None
        run = await Agent(oracle, instructions="Use the tools.", journal=journal).run(task)
        made.append(load_row(journal, run.run_id))
    return made


def load(datasets: Any, path: Path, folder: Path, **options: Any) -> Any:
    kind = "parquet" if path.suffix == ".parquet" else "json"
    where = {"data_dir": str(path)} if path.is_dir() else {"data_files": str(path)}
    return datasets.load_dataset(kind, split="train", cache_dir=str(folder / "cache"), **where, **options)


def make_tokenizer(template: str) -> Any:
    """Return a tokenizer of bytes with one of TRL's chat templates."""
    from importlib.resources import files

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    found.chat_template = (files("trl") / "chat_templates" / f"{template}.jinja").read_text()
    return found


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("name", [name for name in FORMATS.names() if name not in ("hf_trace", "xlam")])
def test_rows_load_with_datasets(
    name: str, suffix: str, datasets: Any, rows: list[Row], tmp_path: Path
) -> None:
    """Rules out that an Arrow type error, or values of other rows, get into what is loaded."""
    if name == "custom":
        rows = [example(str(number), f'{{"n": {number}, "tags": ["a"]}}') for number in range(4)]
    found = load(datasets, save(tmp_path / f"rows{suffix}", name, *rows), tmp_path)
    assert len(found) == len(rows)
    for row, item in zip(rows, found, strict=True):
        if name == "custom":
            assert item["n"] == int(row.lineage.run_id)
            continue
        raw = FORMATS.load(name).write(row, with_reasoning=FORMATS.load(name).has_reasoning)
        key = next(key for key in ("conversations", "messages", "steps") if key in raw)
        assert item[key] == msgspec.json.decode(msgspec.json.encode(raw[key]))


def test_sessions_load_with_datasets(datasets: Any, rows: list[Row], tmp_path: Path) -> None:
    found = load(datasets, save(tmp_path / "traces", "hf_trace", *rows), tmp_path, parse_agent_traces=False)
    assert found["type"].count("session") == len(rows)
    assert len(found) == sum(len(row.messages) + 1 for row in rows)


@pytest.mark.parametrize("template", FAMILIES)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_pass_the_preparation_of_trl(
    template: str, suffix: str, datasets: Any, trl_data: Any, rows: list[Row], tmp_path: Path
) -> None:
    """Render each row with TRL's own function, and parse the calls of the text again."""
    if template in ("llama3_1", "gptoss"):
        # These families make one call at a time.
        rows = [row for row in rows if all(len(message.tool_calls) < 2 for message in row.messages)]
    assert len(rows) >= 2
    tokenizer = make_tokenizer(template)
    for row, item in zip(
        rows, load(datasets, save(tmp_path / f"r{suffix}", "trl", *rows), tmp_path), strict=True
    ):
        tools = json.loads(item["tools"]) if isinstance(item["tools"], str) else item["tools"]
        messages = {"messages": item["messages"]}
        assert trl_data.is_conversational(messages)
        text = trl_data.maybe_apply_chat_template(messages, tokenizer, tools=tools)["text"]
        for tool in row.tools:
            assert tool.name in text
        at = 0
        for message in row.messages:
            if message.role is not Role.SYSTEM:
                at = find(text, message, at)
        ids = trl_data._tokenize(tokenizer, item["messages"], tools=tools)["input_ids"]
        assert tokenizer.decode(ids) == text
        check_calls(row, text, FAMILIES[template])


def find(text: str, message: Message, start: int) -> int:
    """Return the position of a message's texts in `text` from `start` on, which must have all of them in order."""
    if message.tool_calls:
        # Some templates write the text after the calls.
        assert message.content.strip() in text
    elif message.content and message.role is not Role.TOOL:
        start = text.index(message.content.strip(), start)
    for call in message.tool_calls:
        start = text.index(call.name, start)
    if message.role is Role.TOOL:
        # Some templates write results as JSON.
        for part in message.content.split('"'):
            for line in part.splitlines():
                start = text.index(line.strip(), start)
    return start


def check_calls(row: Row, text: str, format: str | None) -> None:
    """Check that the assistant's parts of a rendered row have exactly the calls of the row."""
    if format is None:
        return
    marks = {"hermes": "<tool_call>\n{", "qwen3_coder": "<tool_call>\n<function="}
    calls = [call for message in row.messages for call in message.tool_calls]
    tools = list(row.tools)
    if format in marks:
        # The description of the tools shows the form of a call too.
        body = text[text.index("</tools>") :]
        example_end = body.find("<|im_end|>")
        got = parse(body[example_end:], format, tools).tool_calls
    elif format == "llama3_json":
        parts = text.split("<|start_header_id|>assistant<|end_header_id|>")[1:]
        got = [
            call for part in parts for call in parse(part.split("<|eot_id|>")[0], format, tools).tool_calls
        ]
    else:
        return
    assert [(call.name, call.arguments) for call in got] == [(call.name, call.parsed) for call in calls]


def test_a_row_of_a_run_keeps_its_thoughts_in_the_template(trl_data: Any) -> None:
    last = Message(Role.ASSISTANT, "done", reasoning="So be it.")
    row = replace(example(), messages=(*example().messages[:-1], last))
    raw = FORMATS.load("trl").write(row, with_reasoning=True)
    messages = msgspec.json.decode(msgspec.json.encode(raw["messages"]))
    text = trl_data.maybe_apply_chat_template(
        {"messages": messages}, make_tokenizer("qwen3"), tools=raw["tools"]
    )
    assert "<think>\nSo be it.\n</think>" in text["text"]
