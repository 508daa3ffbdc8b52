"""The operations of an OpenAPI document as tools: `OpenAPI`, and `openapi`, which reads a text."""

from treadle.tools.openapi.toolset import OpenAPI, openapi

__all__ = ["OpenAPI", "openapi"]
