"""The OpenAPI document of a server: what FastAPI knows of the requests, and the forms of answers and errors."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from treadle.core.types import Json, Message
from treadle.journal.run_info import RunInfo

_REF = "#/components/schemas/{name}"
_TEXT: Json = {"type": "string"}
_ERROR: Json = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "code": {"type": ["string", "null"]},
                "param": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "code", "param"],
        }
    },
    "required": ["error"],
}


def _list_of(item: Json) -> Json:
    return {
        "type": "object",
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": item},
            "has_more": {"type": "boolean"},
        },
        "required": ["object", "data"],
    }


_LISTED: Json = {
    "allOf": [
        {"$ref": _REF.format(name="RunInfo")},
        {"type": "object", "properties": {"object": {"const": "run"}, "id": _TEXT, "title": _TEXT}},
    ]
}
_RUN: Json = {
    "allOf": [
        *_LISTED["allOf"],
        {
            "type": "object",
            "properties": {
                "output": _TEXT,
                "waits_for": {
                    "type": "object",
                    "properties": {
                        name: {"type": "object"} for name in ("questions", "approvals", "results")
                    },
                    "required": ["questions", "approvals", "results"],
                },
            },
            "required": ["output", "waits_for"],
        },
    ]
}
_POSTED: Json = {
    "type": "object",
    "properties": {
        "object": {"const": "inbox_message"},
        "number": {"type": "integer"},
        "is_driven": {"type": "boolean"},
    },
    "required": ["object", "number", "is_driven"],
}
_ANSWERS: dict[str, Json] = {
    "list_runs": _list_of(_LISTED),
    "get_run": _RUN,
    "create_run": _RUN,
    "begin_turn": _RUN,
    "resume": _RUN,
    "fork": _RUN,
    "get_messages": _list_of({"$ref": _REF.format(name="Message")}),
    "post_message": _POSTED,
}
"""The schemas of answers in JSON, by the names of the routes' functions."""


def describe_api(api: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document. It is made once."""
    if api.openapi_schema is None:
        document = get_openapi(
            title=api.title, version=api.version, description=api.description, routes=api.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        _, found = msgspec.json.schema_components([RunInfo, Message], ref_template=_REF)
        schemas.update({name: schema for name, schema in found.items() if name not in schemas})
        schemas["Error"] = _ERROR
        for operations in document["paths"].values():
            for operation in operations.values():
                _describe(operation)
        api.openapi_schema = document
    return api.openapi_schema


def _describe(operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    for status in ("4XX", "5XX"):
        error = {"$ref": _REF.format(name="Error")}
        answers[status] = {"description": "An error.", "content": {"application/json": {"schema": error}}}
    answers.pop("422", None)  # FastAPI's own form, which no answer has
    schema = _ANSWERS.get(operation["operationId"].partition("_v1_")[0])
    if schema is not None:
        good = next(answer for status, answer in answers.items() if status.startswith("2"))
        good["content"] = {**good.get("content", {}), "application/json": {"schema": schema}}
