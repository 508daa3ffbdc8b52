"""Estimates of how many tokens texts take. They are meant to be too high rather than too low.

The model's tokenizer is usually unknown. The estimates fit tokenizers that were made for English, which need more
tokens for other languages, digits and random characters than newer ones. For English they are about 40 % too high.
"""

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
        tokens += _weigh_part(part)
    return tokens


def weigh_tools(tools: tuple[ToolSpec, ...]) -> float:
    """Estimate the tokens of the definitions of tools."""
    told = [(tool.name, tool.description, tool.parameters) for tool in tools]
    return _CALL_TOKENS * len(tools) + _weigh_bytes(_encode(told)) if tools else 0.0


def _weigh_part(part: Artifact) -> float:
    if part.kind == "image":
        return _IMAGE_TOKENS
    return max(_LEAST_PART_TOKENS, (part.size_bytes or 0) / _BYTES_PER_PART_TOKEN)
