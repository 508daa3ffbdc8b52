"""Rows as ids and masks: their vocabulary, and rows as DeepFabric makes them of the same tasks."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
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
START, END, _ = CHATML_TOKENS
_FREQUENT = 0.06
"""The share of rows in which a word stands that is not a name."""
_PIECES = (
    r"system\n[\s\S]+",  # A system message is one id, because it says the same in all rows.
    r"(?:user|assistant)\n",
    r'<tool_call>\n\{"name": "\w+", "arguments": \{"\w+":\s?"',
    r'"\}\}\n</tool_call>\n?',
    r"\n?</?tool_response>\n?",
    r" ?\b(?:FREQUENT)\b ?",
    r"\\n",
    r"[A-Za-z]+",
    r"[^A-Za-z0-9\\<]+",
    r"[\s\S]",
)


class Vocabulary(Struct, frozen=True):
    """What a network needs to know of a tokenizer."""

    renderer: str
    """The name of the renderer over the tokenizer."""
    size: int
    """The number of ids."""
    names: list[int]
    """The ids of the words that few rows have, and that are permuted so that they cannot be learned by heart."""


def make_vocabulary(rows: Sequence[Row], folder: Path) -> Vocabulary:
    """Write a tokenizer whose ids are the words and marks of `rows`. What it does not know is one further id."""
    plain = ChatmlRenderer()
    texts: list[list[str]] = []
    counts: Counter[str] = Counter()
    for row in rows:
        rendered = plain.decode(plain.render(row.messages, row.tools))
        texts.append([text.partition(END)[0] for text in rendered.split(START)])
        counts.update(set(re.findall(r"[A-Za-z]+", " ".join(texts[-1][2:]))))
    frequent = [word for word, count in counts.items() if count > _FREQUENT * len(rows)]
    pattern = "|".join(_PIECES).replace("FREQUENT", "|".join(frequent))
    pieces = pre_tokenizers.Split(Regex(pattern), "isolated")
    found = {
        piece: None
        for parts in texts
        for text in dict.fromkeys(parts)
        for piece, _ in pieces.pre_tokenize_str(text)
    }
    marks = [*CHATML_TOKENS, UNKNOWN, "\n"]
    numbers = {text: number for number, text in enumerate(dict.fromkeys([*marks, *found]))}
    made = Tokenizer(models.WordLevel(numbers, UNKNOWN))
    made.add_special_tokens(list(CHATML_TOKENS))
    made.pre_tokenizer, made.decoder = pieces, decoders.Fuse()
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    names = [numbers[word] for word in counts.keys() - set(frequent) if word in numbers]
    return Vocabulary(f"chatml:{folder}", len(numbers), sorted(names))


def tokenize(row: Row, renderer: str) -> tuple[list[int], bytes]:
    """Return the ids of a row, and a 1 for each id of an assistant message that the row says to train on."""
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


def simulate(row: Row, *, is_mock: bool) -> Row:
    """Return a row as DeepFabric 4.x makes it of a conversation with these calls, for tools that are not its own.

    It answers such tools from a mock without a state. If `is_mock`, the mock has no recorded responses: each call
    "succeeds", and its input is repeated. A call that repeats an earlier one is skipped, and results are joined to
    calls by their position, so a step whose calls have no result left is lost.
    """
    raw = msgspec.json.decode(encode_row(row, FORMATS.load("deepfabric")))
    described = {tool.name: tool.description for tool in row.tools}
    executions: dict[str, dict[str, Json]] = {}
    for item in raw["tool_context"]["executions"]:
        name, arguments = item["function_name"], json.loads(item["arguments"])
        if is_mock:
            answer = {
                "tool": name,
                "description": described[name],
                "input_received": arguments,
                "mock_result": f"Successfully executed {name}",
                "status": "success",
            }
            item["result"] = json.dumps(answer)
        executions.setdefault(json.dumps([name, arguments], sort_keys=True), item)
    left = list(executions.values())
    messages: list[Json] = []
    for message in raw["messages"]:
        calls = message.get("tool_calls", ())
        own, left = left[: len(calls)], left[len(calls) :]
        made = [
            call | {"function": {"name": item["function_name"], "arguments": item["arguments"]}}
            for call, item in zip(calls, own, strict=False)
        ]
        if message["role"] != "tool" and (made or not calls):
            messages.append(message | ({"tool_calls": made} if made else {}))
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": item["result"]}
            for call, item in zip(made, own, strict=True)
        ]
    raw |= {"messages": messages, "tool_context": {"executions": list(executions.values())}}
    raw["reasoning"]["content"] = []
    return read_row(raw, FORMATS.load("deepfabric"))
