"""The schemas of OpenAPI documents as the schemas of tools."""

from typing import Any

import pytest
from tests.tools.api import document

from treadle.core.errors import ConfigError
from treadle.tools.openapi import OpenAPI

Json = Any


def tool_of(schema: Json, version: str = "3.1.0", **schemas: Json) -> Any:
    """Return a tool whose body has the schema `schema`."""
    operation = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"content": {"application/json": {"schema": schema}}}},
    }
    raw = document(version, paths={"/n": {"post": operation}}, components={"schemas": schemas})
    (tool,) = OpenAPI(raw, base_url="https://api.example").tools()
    return tool


def ref(name: str, **more: Json) -> Json:
    return {"$ref": f"#/components/schemas/{name}", **more}


def test_schemas_are_whole_and_old_ones_are_made_new() -> None:
    node = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {
            "id": {"type": "integer", "readOnly": True},
            "name": {"type": "string", "nullable": True, "enum": ["a"]},
            "size": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "other": {"nullable": True, "allOf": [ref("Node")]},
            "children": {"type": "array", "items": ref("Node", description="ignored")},
        },
    }
    tool = tool_of(ref("Node"), "3.0.3", Node=node)
    parameters = tool.spec.parameters
    assert parameters["required"] == ["name"]
    assert parameters["properties"]["name"] == {"type": ["string", "null"], "enum": ["a", None]}
    assert parameters["properties"]["size"] == {"type": "number", "exclusiveMinimum": 0}
    assert parameters["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert tool.find_fault({"name": "a", "children": [{"name": None, "children": []}]}) is None
    assert tool.find_fault({"name": "a", "other": None}) is None
    assert "/children/0/name" in (tool.find_fault({"name": "a", "children": [{"name": "b"}]}) or "")
    assert "unknown parameter 'id'" in (tool.find_fault({"name": "a", "id": 1}) or "")
    output = tool.spec.output_schema
    assert (output["required"], output["type"]) == (["id", "name"], "object")
    assert "id" in output["$defs"]["Node"]["properties"]


def test_what_is_joined_by_all_of_is_one() -> None:
    base = {"type": "object", "required": ["id", "kind"], "properties": {"kind": {"type": "string"}}}
    more = {"properties": {"id": {"readOnly": True}, "size": {"type": "integer"}}, "required": ["size"]}
    tool = tool_of({"allOf": [ref("Base"), more]}, Base=base)
    assert sorted(tool.spec.parameters["properties"]) == ["kind", "size"]
    assert sorted(tool.spec.parameters["required"]) == ["kind", "size"]
    assert tool.find_fault({"kind": "a", "size": 1}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [ref("A"), ref("B")]},
        {"allOf": [ref("A"), {"oneOf": [ref("B")]}]},
        {"allOf": [ref("A"), {"properties": {"a": {"type": "integer"}}}]},
        {"type": ["object", "null"], "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"type": "object"},
        ref("Loop"),
        {"type": "string"},
        True,
    ],
)
def test_what_is_more_than_its_properties_is_one_argument(schema: Json) -> None:
    a = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = tool_of(schema, A=a, B={"type": "object"}, Loop={"allOf": [ref("Loop")]})
    assert list(tool.spec.parameters["properties"]) == ["body"]
    assert tool.spec.parameters["required"] == ["body"]


def test_references_of_every_form() -> None:
    raw = document(
        paths={
            "/a/{id}": {
                "parameters": [{"$ref": "#/components/parameters/Id"}],
                "post": {
                    "requestBody": {"$ref": "#/components/requestBodies/It"},
                    "responses": {"200": {"$ref": "#/components/responses/It"}},
                },
            },
        },
        components={
            "parameters": {"Id": {"name": "id", "in": "path", "required": True, "schema": ref("List[Id]")}},
            "requestBodies": {"It": {"content": {"application/json": {"schema": ref("Deep~1One")}}}},
            "responses": {"It": {"content": {"application/json": {"schema": ref("Deep~1One")}}}},
            "schemas": {
                "List[Id]": {"type": "integer"},
                "List_Id": {"type": "boolean"},
                "Made": {"type": "string", "readOnly": True},
                "Deep/One": {
                    "type": "object",
                    "properties": {
                        "by": {"$ref": "#/components/parameters/Id/schema"},
                        "flag": ref("List_Id"),
                        "coded": ref("List%5BId%5D"),
                        "made": ref("Made"),
                        "if": {"if": ref("List_Id"), "propertyNames": ref("List_Id"), "$id": "urn:x"},
                        "const": {"const": {"$id": "kept", "x-kept": 1}, "x-gone": 1},
                        "said": ref("List[Id]", description="kept"),
                    },
                },
            },
        },
    )
    (tool,) = OpenAPI(raw, base_url="https://api.example").tools()
    properties = tool.spec.parameters["properties"]
    assert properties["said"]["description"] == "kept"
    assert properties["const"] == {"const": {"$id": "kept", "x-kept": 1}}
    assert tool.find_fault({"id": 1, "by": 2, "flag": True, "said": 3}) is None
    assert "made" not in properties
    assert "/coded" in (tool.find_fault({"id": 1, "coded": True}) or "")
    assert "/flag" in (tool.find_fault({"id": 1, "flag": 3}) or "")
    assert "/by" in (tool.find_fault({"id": 1, "by": True}) or "")
    assert tool.spec.output_schema["type"] == "object"


def test_a_reference_that_leads_nowhere_costs_one_operation() -> None:
    bad = {"parameters": [{"name": "a", "in": "query", "schema": {"items": ref("Absent")}}]}
    raw = document(paths={"/bad": {"get": bad}, "/good": {"get": {}}})
    api = OpenAPI(raw, base_url="https://api.example")
    assert [tool.spec.name for tool in api.tools()] == ["get_good"]
    assert api.notes == ["GET /bad: the reference '#/components/schemas/Absent' has no target"]
    nested: Json = {}
    for _ in range(5000):
        nested = {"items": nested}
    with pytest.raises(ConfigError, match="RecursionError"):
        tool_of(nested)
