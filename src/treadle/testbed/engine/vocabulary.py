"""The tokenizer of the mock engines, trained on texts of the built-in tasks."""

from functools import cache

from treadle.renderers.tokenizer import CHATML_TOKENS
from treadle.tasks.files.task_set import FAMILIES, INSTRUCTIONS, TASK_SET
from treadle.testbed.engine.bpe import Bpe, train

START, END, _ = CHATML_TOKENS
_MERGES = 765
_TASKS_PER_FAMILY = 3
_SAID = (
    INSTRUCTIONS,
    "<think>\n</think>\n\n",
    '<tool_call>\n{"name": "read_file", "arguments": {"file_path": "a.md"}}\n</tool_call>',
    '<tool_call>\n{"name": "write_file", "arguments": {"file_path": "b", "content": "c"}}\n</tool_call>',
    '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>',
    "<tool_response>\n</tool_response>",
    "Answer: ",
    "assistant\n",
    "user\n",
    "system\n",
)
"""Texts that every transcript has, which count for more than those of the tasks."""


@cache
def tokenizer() -> Bpe:
    """Return the tokenizer. It is trained on the first call, which takes about half a second."""
    texts = list(_SAID) * 100
    for family in FAMILIES:
        for number in range(_TASKS_PER_FAMILY):
            task = TASK_SET.get(f"{family.name}-{number:04d}")
            texts += [task.input, *[content.decode() for content in task.files.values()]]
    return train(texts, _MERGES)


@cache
def byte_tokenizer() -> Bpe:
    """Return the tokenizer whose ids are bytes, which is that of the renderer `chatml`."""
    return Bpe()
