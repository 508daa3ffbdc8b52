"""The forms of answers about responses, conversations, files, vector stores and events, for the OpenAPI document.

They name what every answer has; answers may have more, and clients must ignore what they do not know.
"""

from treadle.core.types import Json

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_ANY: Json = {"type": "object"}


def _or_null(kind: str) -> Json:
    return {"type": [kind, "null"]}


def list_of(item: Json, kind: str = "list") -> Json:
    """Return the schema of a list of the API."""
    return {
        "type": "object",
        "properties": {
            "object": {"const": kind},
            "data": {"type": "array", "items": item},
            "has_more": {"type": "boolean"},
        },
        "required": ["object", "data"],
    }


def _object(kind: str, **properties: Json) -> Json:
    """Return the schema of a resource. It has all `properties`."""
    named = {"object": {"const": kind}, **properties}
    return {"type": "object", "properties": named, "required": list(named)}


def _deleted(kind: str) -> Json:
    return _object(kind, id=_TEXT, deleted={"type": "boolean"})


_ITEM: Json = {"type": "object", "properties": {"id": _TEXT, "type": _TEXT}, "required": ["id", "type"]}
_RESPONSE = _object(
    "response",
    id=_TEXT,
    created_at=_COUNT,
    status={"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
    background={"type": "boolean"},
    error=_or_null("object"),
    incomplete_details=_or_null("object"),
    instructions=_or_null("string"),
    metadata=_ANY,
    model=_TEXT,
    output={"type": "array", "items": _ITEM},
    previous_response_id=_or_null("string"),
    conversation=_ANY,
    tools={"type": "array", "items": _ANY},
    usage=_or_null("object"),
)
_CONVERSATION = _object("conversation", id=_TEXT, created_at=_COUNT, metadata=_ANY)
_FILE = _object(
    "file",
    id=_TEXT,
    bytes=_COUNT,
    created_at=_COUNT,
    expires_at=_or_null("integer"),
    filename=_TEXT,
    purpose=_TEXT,
    status=_TEXT,
)
_STORE = _object("vector_store", id=_TEXT, created_at=_COUNT, name=_or_null("string"), file_counts=_ANY)
_ATTACHED = _object("vector_store.file", id=_TEXT, vector_store_id=_TEXT, status=_TEXT)
_BATCH = _object("vector_store.files_batch", id=_TEXT, vector_store_id=_TEXT, status=_TEXT, file_counts=_ANY)
_EVENT: Json = {
    "type": "object",
    "properties": {"run_id": _TEXT, "seq": _COUNT, "type": _TEXT, "at": {"type": "number"}},
    "required": ["type"],
}
ANSWERS: dict[str, Json] = {
    **dict.fromkeys(("create_response", "get_response", "cancel_response"), _RESPONSE),
    "list_input_items": list_of(_ITEM),
    "delete_response": _deleted("response.deleted"),
    **dict.fromkeys(("create_conversation", "get_conversation"), _CONVERSATION),
    "delete_conversation": _deleted("conversation.deleted"),
    "list_items": list_of(_ITEM),
    "get_item": _ITEM,
    **dict.fromkeys(("upload_file", "get_file"), _FILE),
    "list_files": list_of(_FILE),
    "delete_file": _deleted("file"),
    **dict.fromkeys(("create_store", "get_store", "change_store"), _STORE),
    "list_stores": list_of(_STORE),
    "delete_store": _deleted("vector_store.deleted"),
    "search_store": list_of(_ANY, "vector_store.search_results.page"),
    **dict.fromkeys(("attach_file", "get_attached", "change_attached"), _ATTACHED),
    **dict.fromkeys(("list_attached", "list_batch"), list_of(_ATTACHED)),
    "detach_file": _deleted("vector_store.file.deleted"),
    **dict.fromkeys(("attach_batch", "get_batch", "cancel_batch"), _BATCH),
    "get_events": list_of(_EVENT),
}
"""The schemas of answers in JSON, by the names of the routes' functions."""
