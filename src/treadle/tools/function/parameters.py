"""A function's signature as the JSON Schema of its arguments, and the conversion of arguments to its types.

Arguments are converted only if an annotation needs more than JSON has. A function whose parameters are texts,
numbers and lists receives them unchanged.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Json
from treadle.tools.context import ToolContext

_SCALARS = (str, int, float, bool, type(None))
_IN_SCHEMA = (at.Ge, at.Gt, at.Le, at.Lt, at.MultipleOf, at.MinLen, at.MaxLen)
"""Constraints that the schema expresses completely, so that validated arguments need no second check."""

_UNUSABLE: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values; use one list instead",
    inspect.Parameter.VAR_KEYWORD: "takes any names; use one dict instead",
    inspect.Parameter.POSITIONAL_ONLY: "cannot be given by name; remove the '/' after it",
}


class Signature:
    """The parameters of one function, divided into those that the model gives and those that the loop gives."""

    __slots__ = ("_fields", "_filled", "_model", "_numbers", "contexts", "deps_type", "schema")

    def __init__(
        self,
        parameters: list[inspect.Parameter],
        hints: Mapping[str, Any],
        descriptions: Mapping[str, str],
        label: str,
    ) -> None:
        self.contexts = tuple(p.name for p in parameters if _is_context(hints.get(p.name)))
        """The parameters that receive the `ToolContext`. They are not in the schema."""
        kinds = [_deps_of(hints[name]) for name in self.contexts]
        self.deps_type: Any = next((kind for kind in kinds if kind is not None), None)
        """The parameter of `ToolContext[...]`; `None` if there is none, or if it accepts everything."""
        given = [p for p in parameters if p.name not in self.contexts]
        # The model's field names are made up, because a parameter may be called `_x`, `copy` or `model_config`.
        self._fields = {f"p{index}": p.name for index, p in enumerate(given)}
        self._filled = {
            f for f, p in zip(self._fields, given, strict=True) if isinstance(p.default, FieldInfo)
        }
        """Fields with a default inside `Field(...)`, which the function itself would not use."""
        annotations = {p.name: hints.get(p.name, Any) for p in given}
        model = _make_model(self._fields, given, annotations, descriptions, label)
        self.schema: dict[str, Json] = _make_schema(model, annotations, label)
        leaves = {name: _leaves(annotation) for name, annotation in annotations.items()}
        is_straight = not self._filled and None not in leaves.values()
        self._model = None if is_straight else model
        self._numbers = tuple(
            (name, wrong, right)
            for name, kinds in leaves.items()
            for wrong, right in ((float, int), (int, float))
            if kinds and right in kinds and wrong not in kinds
        )
        """The parameters whose numbers may need conversion: JSON Schema takes `1.0` for an integer."""

    @property
    def odd_numbers(self) -> tuple[tuple[str, type], ...] | None:
        """The parameters and the types of number that `convert` changes. `None`: it may change anything."""
        return None if self._model is not None else tuple([(name, wrong) for name, wrong, _ in self._numbers])

    @property
    def takes_json(self) -> bool:
        """True if `convert` never changes anything."""
        return self._model is None and not self._numbers

    def convert(self, arguments: dict[str, Json]) -> dict[str, Any]:
        """Return `arguments`, which fit the schema, converted to the types of the function's annotations.

        Raises: `ToolError` for a value that fits the schema but not the type, such as 30 February.
        """
        if self._model is not None:
            return self._validate(self._model, arguments)
        converted = arguments
        for name, wrong, right in self._numbers:
            value = arguments.get(name)
            if type(value) is wrong:
                if converted is arguments:
                    converted = arguments.copy()
                try:
                    converted[name] = right(value)
                except OverflowError:
                    raise ToolError(f"/{name}: the number is too large") from None
        return converted

    def _validate(self, model: type[BaseModel], arguments: dict[str, Json]) -> dict[str, Any]:
        try:
            # Dates, bytes and strict models accept forms in JSON that they refuse in Python.
            values = model.__pydantic_validator__.validate_json(pydantic_core.to_json(arguments))
        except ValidationError as error:
            problems = [f"- /{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            raise ToolError("\n".join(["the arguments are not valid:", *problems])) from error
        present = values.model_fields_set | self._filled
        return {name: values.__dict__[field] for field, name in self._fields.items() if field in present}


def read_signature(
    function: Callable[..., object],
    *,
    label: str,
    namespace: Mapping[str, Any],
    descriptions: Mapping[str, str],
    skip_first: bool,
) -> Signature:
    """Return the signature of `function`. `namespace` holds local names that its annotations may use.

    Raises: `ConfigError` that names `label` and the parameter that cannot be used.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip_first:]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label} cannot be a tool: {error}") from error
    for parameter in parameters:
        problem = _UNUSABLE.get(parameter.kind)
        if problem:
            raise ConfigError(f"{label} cannot be a tool: its parameter {str(parameter)!r} {problem}")
    hints = _resolve_hints(function, parameters, label, namespace)
    return Signature(parameters, hints, descriptions, label)


def _resolve_hints(
    function: Callable[..., object],
    parameters: list[inspect.Parameter],
    label: str,
    namespace: Mapping[str, Any],
) -> dict[str, Any]:
    holder = types.SimpleNamespace(
        __annotations__={p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    )
    # It is often imported under TYPE_CHECKING only, so that the function's own module does not have it.
    known = {"ToolContext": ToolContext, **_globals_of(function)}
    try:
        return typing.get_type_hints(holder, known, dict(namespace), include_extras=True)
    except Exception as error:
        raise ConfigError(
            f"{label} cannot be a tool: its annotations cannot be read: {type(error).__name__}: {error}"
        ) from error


def _globals_of(function: Any) -> dict[str, Any]:
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__") and not isinstance(function, types.MethodType):
        function = type(function).__call__
    found: dict[str, Any] = getattr(getattr(function, "__func__", function), "__globals__", {})
    return found


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated or origin is Union or origin is types.UnionType:
        return any(_is_context(part) for part in get_args(annotation))
    kind = annotation if origin is None else origin
    return isinstance(kind, type) and issubclass(kind, ToolContext)


def _deps_of(annotation: Any) -> Any:
    """Return the type of `deps` that an annotation with a `ToolContext` asks for; `None` if it asks for none."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated or origin is Union or origin is types.UnionType:
        return next((_deps_of(part) for part in parts if _is_context(part)), None)
    kind = parts[0] if parts else None
    return None if kind in (Any, object, type(None)) or isinstance(kind, typing.TypeVar) else kind


def _make_model(
    fields: Mapping[str, str],
    parameters: list[inspect.Parameter],
    annotations: Mapping[str, Any],
    descriptions: Mapping[str, str],
    label: str,
) -> type[BaseModel]:
    definitions: dict[str, Any] = {}
    try:
        for field, parameter in zip(fields, parameters, strict=True):
            name, annotation = parameter.name, annotations[parameter.name]
            said: dict[str, Any] = {"alias": name}
            if name in descriptions and not _is_described(annotation, parameter.default):
                said["description"] = descriptions[name]
            default = ... if parameter.default is parameter.empty else parameter.default
            definitions[field] = (Annotated[annotation, Field(**said)], default)
        return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **definitions)
    except Exception as error:
        # A type may raise anything when it is asked for its schema.
        raise _no_schema(annotations, label, error) from error


def _is_described(annotation: Any, default: Any) -> bool:
    metadata = [*getattr(annotation, "__metadata__", ()), default]
    return any(isinstance(item, FieldInfo) and item.description for item in metadata)


def _no_schema(annotations: Mapping[str, Any], label: str, error: Exception) -> ConfigError:
    for name, annotation in annotations.items():
        try:
            TypeAdapter(annotation).json_schema()
        except Exception as cause:
            detail = str(cause).split("\n", 1)[0]
            return ConfigError(
                f"{label} cannot be a tool: the type of its parameter {name!r} has no JSON form: {detail}"
            )
    return ConfigError(f"{label} cannot be a tool: {error}")


class _PlainSchema(GenerateJsonSchema):
    # Defaults without a JSON form are not in the schema; the function has them anyway.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def _make_schema(model: type[BaseModel], annotations: Mapping[str, Any], label: str) -> dict[str, Json]:
    try:
        schema = model.model_json_schema(schema_generator=_PlainSchema)
    except PydanticUserError as error:
        raise _no_schema(annotations, label, error) from error
    _drop_titles(schema)
    return schema


def _drop_titles(schema: Json) -> None:
    """Remove the keyword `title`, but not a property called `title` or a title within a value."""
    if not isinstance(schema, dict):
        return
    schema.pop("title", None)
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties", "dependentSchemas"):
            for part in value.values():
                _drop_titles(part)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for part in value:
                _drop_titles(part)
        elif key in ("items", "additionalProperties", "not", "contains", "propertyNames"):
            _drop_titles(value)


def _leaves(annotation: Any) -> set[Any] | None:
    """Return the types of JSON values that `annotation` accepts unchanged. `None`: some value must be converted."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any or annotation is object:
        return set()
    if annotation in _SCALARS or annotation is None:
        return {annotation}
    if annotation in (list, dict):
        return set()
    if origin is Annotated:
        return _leaves(parts[0]) if all(_is_in_schema(item) for item in parts[1:]) else None
    if origin is Literal:
        kinds = {type(part) for part in parts}
        return kinds if kinds <= {str, bool, type(None)} else None
    if origin is Union or origin is types.UnionType:
        found = [_leaves(part) for part in parts]
        return None if None in found else set().union(*(kinds for kinds in found if kinds))
    if origin in (list, dict) and (origin is list or parts[0] is str):
        inner = _leaves(parts[-1])
        # Numbers in a container would have to be checked one by one; pydantic does that faster.
        return None if inner is None or inner & {int, float} else set()
    return None


def _is_in_schema(metadata: Any) -> bool:
    if isinstance(metadata, FieldInfo):
        return all(isinstance(item, _IN_SCHEMA) for item in metadata.metadata)
    return isinstance(metadata, (str, *_IN_SCHEMA))
