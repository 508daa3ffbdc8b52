"""The base of what people write in files and requests: the docstring below a field is its description.

A schema reads the docstrings when it is made. pydantic's option `use_attribute_docstrings` reads them when a class
is made, which is at every start of a command.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

from pydantic import GetJsonSchemaHandler
from pydantic.fields import FieldInfo


class Described:
    """What a model derives from beside `BaseModel`, so that its JSON Schema has the docstrings of its fields."""

    model_fields: ClassVar[dict[str, FieldInfo]]

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(core_schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for kind in cls.__mro__:
            for name, text in _read_docstrings(kind.__module__).get(kind.__name__, {}).items():
                field = cls.model_fields.get(name)
                key = name if field is None else field.alias or name
                said = properties.get(key)
                # Where a table is described by the same words, pydantic does not repeat them either.
                if said and text != handler.resolve_ref_schema(said).get("description"):
                    properties[key] = dict(sorted(({"description": text} | said).items()))
        return made


@cache
def _read_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields by class and field; nothing for a module without its source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {
        kind.name: dict(_find_docstrings(kind)) for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef)
    }


def _find_docstrings(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(kind.body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, inspect.cleandoc(text)
