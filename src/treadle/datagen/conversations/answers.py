"""The form of an agent's answers: plain text, JSON that fits the user's schema, or an answer with its reasoning."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from treadle.core.types import Json
from treadle.datagen.config.model import Conversation

_TEXT: dict[str, Json] = {"type": "string", "minLength": 1}


class Spoken(Struct, frozen=True):
    """One answer as a row shows it."""

    text: str
    reasoning: str | None = None
    """The reasoning that was asked for; `None` if none was."""


def answer_schema(conversation: Conversation) -> dict[str, Json] | None:
    """Return the JSON Schema of the answers; `None` if they are plain text.

    With a chain of thought, an answer is an object with the reasoning and the answer, so that neither can be left
    out.
    """
    if conversation.type != "cot":
        return conversation.output_schema
    is_list = conversation.reasoning == "agent"
    reasoning: Json = {"type": "array", "items": _TEXT, "minItems": 1} if is_list else _TEXT
    return {
        "type": "object",
        "properties": {
            "reasoning": {
                **reasoning,
                "description": "The thoughts that lead to the answer, one for each step."
                if is_list
                else "The reasoning that leads to the answer, as continuous text.",
            },
            "answer": conversation.output_schema or _TEXT,
        },
        "required": ["reasoning", "answer"],
        "additionalProperties": False,
    }


def read_answer(output: str, conversation: Conversation) -> Spoken:
    """Return an answer that fits the schema of `conversation`."""
    if conversation.type != "cot":
        return Spoken(output)
    value: Mapping[str, Json] = msgspec.json.decode(output)
    reasoning, answer = value["reasoning"], value["answer"]
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    return Spoken(text, reasoning if isinstance(reasoning, str) else "\n".join(reasoning))
