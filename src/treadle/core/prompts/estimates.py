"""Estimates of how many tokens texts take. The model's tokenizer is usually unknown.

There are two kinds of estimates. `weigh` and the functions with it decide whether something fits, so they are
meant to be too high rather than too low: they fit tokenizers that were made for English, which need more tokens
for other languages, digits and random characters than newer ones. For English they are about 40 % too high.
`guess_of_chars` stands in for counts that a server does not report. It needs only the length of a text, and is
right for English on average.
"""

from math import ceil

import msgspec

from treadle.core.types import Artifact, Message, ToolSpec

_PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n\t"
_DIGITS = b"0123456789"
_encode = msgspec.json.Encoder().encode
_DENSE_BYTES = 64
"""Longer texts with hardly any spaces count as data, such as base64 or JSON without spaces."""
_MESSAGE_TOKENS = 4
"""What a chat template adds to each message."""
_CALL_TOKENS = 8
_IMAGE_TOKENS = 1_600
_LEAST_PART_TOKENS = 500
_BYTES_PER_PART_TOKEN = 16
_BYTES_PER_TEXT_TOKEN = 3

CHARS_PER_TOKEN = 4
"""How many characters of English a token has on average."""


def guess_of_chars(chars: int) -> int:
    """Return how many tokens a text of `chars` characters takes on average."""
    return -(-chars // CHARS_PER_TOKEN)


def count_chars(message: Message) -> int:
    """Return the number of characters that a model wrote in a message: its text, reasoning and calls."""
    written = len(message.content) + len(message.reasoning or "")
    return written + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)


def guess_tokens(text: str) -> int:
    """Estimate the tokens of a text as a whole number."""
    return ceil(weigh(text))


def weigh(text: str) -> float:
    """Estimate the tokens of a text."""
    return _weigh_bytes(text.encode("utf-8", "surrogatepass"))


def _weigh_bytes(data: bytes) -> float:
    size = len(data)
    odd = len(data.translate(None, _PLAIN))
    digits = size - len(data.translate(None, _DIGITS))
    is_dense = size > _DENSE_BYTES and 12 * data.count(b" ") < size
    return (size - odd) / (1.6 if is_dense else 3.0) + digits + 0.6 * (odd - digits)


def weigh_message(message: Message) -> float:
    """Estimate the tokens of a message, its calls and parts included."""
    tokens = _MESSAGE_TOKENS + weigh(message.content)
    if message.reasoning:
        tokens += weigh(message.reasoning)
    for call in message.tool_calls:
        tokens += _CALL_TOKENS + weigh(call.name) + weigh(call.arguments)
    for served in message.server_calls:
        tokens += _CALL_TOKENS + weigh(served.arguments) + weigh(served.result)
    for part in message.parts:
        tokens += weigh_part(part)
    return tokens


def weigh_tools(tools: tuple[ToolSpec, ...]) -> float:
    """Estimate the tokens of the definitions of tools."""
    told = [(tool.name, tool.description, tool.parameters) for tool in tools]
    return _CALL_TOKENS * len(tools) + _weigh_bytes(_encode(told)) if tools else 0.0


def weigh_part(part: Artifact) -> float:
    """Estimate the tokens of an image or another part of a message."""
    if part.kind == "image":
        return _IMAGE_TOKENS
    if part.kind == "text":
        return (part.size_bytes or 0) / _BYTES_PER_TEXT_TOKEN
    return max(_LEAST_PART_TOKENS, (part.size_bytes or 0) / _BYTES_PER_PART_TOKEN)
