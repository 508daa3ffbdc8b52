"""Rows of the oracle's runs as ids and masks, and the same rows as DeepFabric would have made them."""

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
from errands import WORDS
from msgspec import Struct
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from treadle.core.types import Json, Role
from treadle.export import FORMATS, read_row
from treadle.export.exporter import encode_row
from treadle.export.rows import Row
from treadle.renderers.chatml import ChatmlRenderer
from treadle.renderers.registry import load_renderer
from treadle.renderers.tokenizer import CHATML_TOKENS

UNKNOWN = "<unknown>"
_PIECES = (
    r"system\n[\s\S]+",  # the system message, which is the same in all rows
    r"(?:user|assistant)\n",
    r" ?\b(?:say|what|says|of|the|card|in|write|on|copy|to|swap|and|set)\b ?",
    r'<tool_call>\n\{"name": "[a-z]+", "arguments": \{"name":\s?"',
    r'"\}\}\n</tool_call>\n?',
    r"\n?</?tool_response>\n?",
    r"\\n",
    r"[a-z]+",
    r"[^a-z\\<]+",
    r"[\s\S]",
)


class Vocabulary(Struct, frozen=True):
    """What a network needs to know of a tokenizer."""

    renderer: str
    """The name of the renderer over the tokenizer."""
    size: int
    """The number of ids."""
    names: list[int]
    """The ids of the invented words."""


def make_vocabulary(rows: Iterable[Row], folder: Path) -> Vocabulary:
    """Write a tokenizer whose ids are the words and marks of `rows`."""
    pieces = pre_tokenizers.Split(Regex("|".join(_PIECES)), "isolated")
    plain = ChatmlRenderer()
    words = dict.fromkeys(WORDS)
    for row in rows:
        for text in plain.decode(plain.render(row.messages, row.tools)).split(CHATML_TOKENS[0]):
            words.update(
                dict.fromkeys(
                    [piece for piece, _ in pieces.pre_tokenize_str(text.partition(CHATML_TOKENS[1])[0])]
                )
            )
    numbers = {
        text: number for number, text in enumerate(dict.fromkeys([*CHATML_TOKENS, UNKNOWN, "\n", *words]))
    }
    made = Tokenizer(models.WordLevel(numbers, UNKNOWN))
    made.add_special_tokens(list(CHATML_TOKENS))
    made.pre_tokenizer, made.decoder = pieces, decoders.Fuse()
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return Vocabulary(f"chatml:{folder}", len(numbers), [numbers[word] for word in WORDS])


def tokenize(row: Row, renderer: str) -> tuple[list[int], bytes]:
    """Return the ids of a row, and a 1 for each that an assistant message of it has."""
    found = load_renderer(renderer)
    ids: list[int] = []
    mask = b""
    for number, message in enumerate(row.messages):
        if message.role is not Role.ASSISTANT:
            continue
        prompt = found.render(row.messages[:number], row.tools)
        after = found.render(row.messages[: number + 1], row.tools)
        end = after.index(found.stop_token_ids[0], len(prompt)) + 1
        mask += bytes(len(prompt) - len(mask)) + bytes([number not in row.untrained]) * (end - len(prompt))
        ids = after[:end]
    return ids, mask


def simulate(row: Row) -> Row:
    """Return a row as DeepFabric 4.x makes it of a conversation with the same calls, where the tools are not its own.

    It answers such tools from a mock that has no state: without a recorded response, each call "succeeds" and its
    input is repeated. A call that repeats an earlier one is skipped, and results are joined to calls by their
    position. The answers are those of the real run, so the calls are as good as an all-knowing teacher makes them.
    """
    raw = msgspec.json.decode(encode_row(row, FORMATS.load("deepfabric")))
    described = {tool.name: tool.description for tool in row.tools}
    executions: list[Json] = []
    known: set[str] = set()
    for item in raw["tool_context"]["executions"]:
        name = item["function_name"]
        arguments = json.loads(item["arguments"])
        key = json.dumps([name, arguments], sort_keys=True)
        if key in known:
            continue
        known.add(key)
        result = {
            "tool": name,
            "description": described[name],
            "input_received": arguments,
            "mock_result": f"Successfully executed {name}",
            "status": "success",
        }
        executions.append(item | {"result": json.dumps(result)})
    messages: list[Json] = []
    place = 0
    for message in raw["messages"]:
        if message["role"] == "tool":
            continue
        calls = message.get("tool_calls")
        if not calls:
            messages.append(message)
            continue
        own = executions[place : place + len(calls)]
        place += len(own)
        if not own:
            continue
        made = [
            call | {"function": {"name": item["function_name"], "arguments": item["arguments"]}}
            for call, item in zip(calls, own, strict=False)
        ]
        messages.append(message | {"tool_calls": made})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": item["result"]}
            for call, item in zip(made, own, strict=True)
        ]
    raw |= {"messages": messages, "tool_context": {"executions": executions}}
    raw["reasoning"]["content"] = []
    return read_row(raw, FORMATS.load("deepfabric"))
