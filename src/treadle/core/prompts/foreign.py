"""The one door through which text that Treadle did not write enters a prompt.

What users say and what tools answer, with files, pages and the answers of other agents, passes `let_in` before it
is sent, and so do the definitions of servers' tools: control tokens and false marks of fences are changed, so that
no text can pass for the words of somebody else. The journal keeps the exact text. The instructions of an agent and
the model's own answers stay as they are.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from treadle.core.prompts.fence import neutralise_foreign
from treadle.core.texts.json_text import is_deep
from treadle.core.types import Artifact, Json, Message, Role, ToolSpec

_FOREIGN = (Role.USER, Role.TOOL)


def let_in(message: Message) -> Message:
    """Return the message as a model may read it; the same object if nothing has to be changed.

    The first `own_chars` characters are Treadle's own and stay. What is returned can be let in again.
    """
    text = message.content
    if message.role not in _FOREIGN or message.own_chars >= len(text):
        return message
    # All that is changed begins with a bracket, which most texts lack.
    if "<" not in text and "[" not in text and "]~" not in text and text.isascii():
        return message
    own = message.own_chars
    safe = text[:own] + neutralise_foreign(text[own:]) if own else neutralise_foreign(text)
    return message if safe == text else replace(message, content=safe)


def let_in_tool(spec: ToolSpec) -> ToolSpec:
    """Return the definition of a tool that somebody else wrote, with all texts of its schema let in: the names and
    the values that it allows stand in the prompt too. Check arguments against the schema as it was. Instead of a
    schema that is nested too deeply, the model reads that any object is accepted."""
    is_readable = not is_deep(msgspec.json.encode(spec.parameters))
    return replace(
        spec,
        description=neutralise_foreign(spec.description),
        parameters=_let_in_schema(spec.parameters) if is_readable else {"type": "object"},
    )


def _let_in_schema(schema: Json) -> Json:
    if isinstance(schema, str):
        return neutralise_foreign(schema)
    if isinstance(schema, list):
        return [_let_in_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {neutralise_foreign(key): _let_in_schema(value) for key, value in schema.items()}


def make_own(role: Role, content: str, parts: tuple[Artifact, ...] = ()) -> Message:
    """Return a message whose text Treadle wrote, or let in, or fenced, so that it stays as it is."""
    return Message(role, content, parts=parts, own_chars=len(content))


def as_seen(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return a transcript's messages as the model saw them, for rows to train on, without stopped answers."""
    seen = [let_in(message) for message in messages if not message.is_partial]
    return tuple([replace(message, own_chars=0) if message.own_chars else message for message in seen])
