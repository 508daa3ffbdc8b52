"""Answers that must fit a schema: which field has the answer, which the reasoning, the request or labels."""

import re
from collections.abc import Mapping
from functools import partial

import msgspec

from treadle.core.types import Json, Message
from treadle.tasks.draws import pick
from treadle.testbed.instance import make_instance

_IS_REASONING = re.compile("reason|thought|thinking|explanation|steps", re.IGNORECASE)
_IS_REQUEST = re.compile("question|request|prompt|instruction|problem|input", re.IGNORECASE)
_IS_LABEL = re.compile("tag|topic|keyword|label|categor", re.IGNORECASE)
_LONG_WORD = re.compile(r"[A-Za-z]{6,}")
_SENTENCE = re.compile(r"(?<=[.?!]) ")


def fit(message: Message, request: str, schema: Mapping[str, Json]) -> str:
    """Return the answer in `message` to `request` as JSON that fits `schema`."""
    made = make_instance(schema, message.content, partial(_fill, message, request))
    return msgspec.json.encode(made).decode()


def _fill(message: Message, request: str, name: str, schema: Mapping[str, Json]) -> Json:
    """Return the value of a field; `None` for the fields that have the answer itself."""
    kind = schema.get("type")
    if isinstance(choices := schema.get("enum"), list) and choices:
        return pick(choices, name, request)
    if _IS_REASONING.search(name) and message.reasoning:
        sentences = [part for part in _SENTENCE.split(message.reasoning) if part]
        return sentences if kind == "array" else message.reasoning if kind == "string" else None
    if _IS_REQUEST.search(name) and kind == "string":
        return request
    is_list_of_texts = (
        kind == "array" and isinstance(items := schema.get("items"), dict) and items.get("type") == "string"
    )
    if _IS_LABEL.search(name) and is_list_of_texts:
        words = list(dict.fromkeys([word.lower() for word in _LONG_WORD.findall(request)]))
        return words[: max(3, schema.get("minItems", 0))] or None
    return None


def text_of(answer: str) -> str:
    """Return the text of an answer; that of its field `answer`, or of its last text, if it is a JSON object."""
    try:
        value = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return answer
    if not isinstance(value, dict):
        return answer
    texts = [item for item in value.values() if isinstance(item, str)]
    found = value.get("answer")
    return found if isinstance(found, str) else texts[-1] if texts else answer
