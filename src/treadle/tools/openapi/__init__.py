"""The operations of an OpenAPI document as tools: `OpenAPI`, and `openapi`, which reads a text."""

from treadle.tools.openapi.operations import OpenAPI, openapi

__all__ = ["OpenAPI", "openapi"]
