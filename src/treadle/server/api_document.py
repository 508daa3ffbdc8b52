"""The OpenAPI document of a server: what FastAPI knows of the requests, and the forms of answers and errors.

The forms stand in `api_answers.json`: `schemas` by name; `answers` by the names of the routes' functions, as are
`errors` and `types`, for those that differ from other routes. They name what every answer has; answers may have
more, and clients must ignore what they do not know.
"""

from importlib.resources import files
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from treadle.core.types import Json, Message
from treadle.journal.run_info import RunInfo

_REF = "#/components/schemas/{name}"


def describe_api(api: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document. It is made once."""
    if api.openapi_schema is None:
        document = get_openapi(
            title=api.title, version=api.version, description=api.description, routes=api.routes
        )
        forms = msgspec.json.decode(files("treadle.server").joinpath("api_answers.json").read_bytes())
        _, found = msgspec.json.schema_components([RunInfo, Message], ref_template=_REF)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update({name: schema for name, schema in found.items() if name not in schemas})
        schemas.update(forms["schemas"])
        for operations in document["paths"].values():
            for operation in operations.values():
                _describe(operation, forms)
        api.openapi_schema = document
    return api.openapi_schema


def _describe(operation: dict[str, Any], forms: dict[str, dict[str, Json]]) -> None:
    answers, name = operation["responses"], operation["operationId"].partition("_v1_")[0]
    error = forms["errors"].get(name, {"$ref": _REF.format(name="Error")})
    for status in ("4XX", "5XX"):
        answers[status] = {"description": "An error.", "content": {"application/json": {"schema": error}}}
    answers.pop("422", None)  # FastAPI's own form, which no answer has
    good = next(answer for status, answer in answers.items() if status.startswith("2"))
    if (schema := forms["answers"].get(name)) is not None:
        good["content"] = {**good.get("content", {}), "application/json": {"schema": schema}}
    if (kind := forms["types"].get(name)) is not None:
        good["content"] = {kind: {}}
