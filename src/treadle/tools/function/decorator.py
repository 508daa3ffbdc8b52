"""Functions as tools: the decorator `tool`.

The signature becomes the JSON Schema, and the docstring the descriptions. The decorator returns a `Tool` that can
still be called like the function.
"""

import asyncio
import functools
import inspect
import re
import sys
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

import msgspec
import pydantic_core

from treadle.core.errors import ConfigError, ToolError
from treadle.core.registry import check_options
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.function.docstring import parse_docstring
from treadle.tools.function.parameters import read_signature
from treadle.tools.protocol import Tool, ToolOutput
from treadle.tools.schema.validation import LEAST, ArgumentChecker, check_spec, read_effect
from treadle.tools.threads import THREADS
from treadle.tools.toolset_parts import full_name_of, reference_of

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

_MAX_PLAIN = 1 << 63
_PIECE_ITEMS = 1000
"""Longer lists are written as JSON in a thread, in pieces of so many items."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """Options of `tool`."""

    name: str
    """The name of the tool. Default: the function's own name."""
    description: str
    """The description of the tool. Default: the first paragraph of the docstring."""
    effect: Effect | Literal["pure", "idempotent", "once"]
    """The effect of a second call. Default: `once`, so that a call in doubt is never run again."""
    timeout_seconds: float | None
    """The time limit of one call. A function in a thread runs on after it, but its result is dropped."""
    concurrent: bool
    """True if a call may run at the same time as other calls of its step. Default: true."""
    max_result_chars: int
    max_calls: int | None
    """The number of calls in one turn."""
    max_concurrent: int | None
    """The number of calls of one run that run at the same time."""
    max_retries: int
    """How often in a row (3) `RetryWithMessage` may be raised before the calls are not run in that turn."""
    may_differ: Sequence[str]
    """The parts of a result that may differ when the call is made again: see `ToolSpec.may_differ`."""


class FunctionTool(Generic[P, R_co]):
    """A function that a model can call, as returned by `tool`.

    A coroutine function runs on the event loop. Any other function runs in a thread, with the caller's context
    variables; see `treadle.tools.threads`.
    """

    spec: ToolSpec

    def __init__(
        self, function: Callable[P, R_co], options: ToolOptions, namespace: Mapping[str, Any] | None = None
    ) -> None:
        label = _check_function(function)
        functools.update_wrapper(cast("Any", self), function, updated=())
        is_method = _is_unbound_method(function)
        text = parse_docstring(inspect.getdoc(function) if hasattr(function, "__name__") else None)
        signature = read_signature(
            function,
            label=label,
            namespace=namespace or {},
            descriptions=text.parameters,
            skip_first=is_method,
        )
        self.spec = _make_spec(label, _name_of(function), text.summary, signature.schema, options)
        self._function = function
        self._options = options
        self._is_method = is_method
        self._attribute: str | None = None
        self._contexts = signature.contexts
        self.takes_context = bool(signature.contexts)
        """True if `call` uses its context. See `Tool`."""
        self.deps_type = signature.deps_type
        """The type of `ToolContext.deps` that the function needs; `None` if it needs none."""
        self._convert = None if signature.takes_json else signature.convert
        self._start: Callable[..., Awaitable[Any]] | None = None
        """The function if it is a coroutine function; `None` if it runs in a thread."""
        if _is_async(function):
            self._start = cast("Any", function)
        self._odd_numbers = signature.odd_numbers
        self._checker = ArgumentChecker(signature.schema)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self._function(*args, **kwargs)

    def find_fault(self, arguments: Json) -> str | None:
        """See `Tool.find_fault`. Raises: `ConfigError` if the schema itself is not valid."""
        is_valid = self._checker.is_valid
        if is_valid is not None and type(arguments) is dict and is_valid(arguments):
            return None
        return self._checker.find_fault(arguments)

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str | ToolOutput:
        """See `Tool.call`. Raises: what the function raises, and `ToolError` for a result without a text form."""
        if self._convert is not None:
            is_odd = self._odd_numbers is None
            for name, wrong in self._odd_numbers or ():
                is_odd = is_odd or type(arguments.get(name)) is wrong
            if is_odd:
                arguments = self._convert(arguments)
        if self._contexts:
            arguments = {**arguments, **dict.fromkeys(self._contexts, context)}
        try:
            if self._start is not None:
                value = await self._start(**arguments)
            else:
                value = await THREADS.run(self._function, arguments)
        except SystemExit as error:
            # Without this, the exception would end the process and all of its runs.
            raise ToolError(f"{self.spec.name} tried to exit the process (code {error.code!r})") from error
        kind = type(value)
        if kind is str or kind is ToolOutput:
            return value  # type: ignore[no-any-return]
        if kind is list and len(value) > _PIECE_ITEMS:
            return await asyncio.to_thread(_to_text, self.spec.name, value)
        return _to_text(self.spec.name, value)

    @property
    def part(self) -> PartSpec:
        """The description for the agent spec: `package.module:name`, or why no such name loads the tool."""
        part = reference_of(self)
        # A reference to a function without options makes a tool like this one.
        return part if part.missing is None or self._options else reference_of(self._function)

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, instance: object, owner: type | None = None) -> "FunctionTool[..., R_co]":
        if instance is None or not self._is_method:
            return self
        bound = FunctionTool(cast("Any", self._function).__get__(instance, owner), self._options)
        if self._attribute is not None and hasattr(instance, "__dict__"):
            instance.__dict__[self._attribute] = bound
        return bound

    def __repr__(self) -> str:
        return f"<tool {self.spec.name!r}>"


@overload
def tool(function: Callable[P, R_co], /, **options: Unpack[ToolOptions]) -> FunctionTool[P, R_co]: ...
@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[P, R_co]], FunctionTool[P, R_co]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool from a function or a bound method. Use it as a decorator, with or without options.

    A parameter with the annotation `ToolContext` is not shown to the model; the loop passes the context. The model
    reads the result as text: a `str` unchanged, `None` as an empty text, anything else as JSON. A `ToolOutput` may
    have attachments.
    Raises: `ConfigError` for a signature or an option that cannot be used.
    """
    if function is None:
        return lambda function: _make_tool(function, options, sys._getframe(1))
    return _make_tool(function, options, sys._getframe(1))


def as_tool(item: object) -> Tool:
    """Return `item` if it is a tool. From a function, make a tool with the effect `once`.

    Raises: `ConfigError` if `item` is neither.
    """
    if is_tool(item):
        return cast("Tool", item)
    if callable(item):
        return FunctionTool(item, {})
    raise ConfigError(f"{item!r} is neither a tool nor a function")


def is_tool(item: object) -> bool:
    """Return whether `item` has the attributes of a `Tool`."""
    return isinstance(getattr(item, "spec", None), ToolSpec) and not isinstance(item, type)


def check_tool_name(name: str, label: str) -> None:
    """Check that providers accept a tool of this name. Raises: `ConfigError`."""
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise ConfigError(
            f"{label}: {name!r} cannot be the name of a tool; use 1 to 64 of the characters a-z, A-Z, 0-9, '_' "
            "and '-', for example with tool(name='...')"
        )


def _make_spec(
    label: str, name: str, summary: str, schema: dict[str, Json], options: ToolOptions
) -> ToolSpec:
    check_options(options, ToolOptions.__optional_keys__, f"{label}: tool")
    name = options.get("name", name)
    check_tool_name(name, label)
    effect = read_effect(options.get("effect", Effect.ONCE), f"{label}: effect")
    rules = options.get("may_differ", ())
    given: dict[str, Any] = {key: value for key, value in options.items() if key in LEAST}
    spec = ToolSpec(
        name=name,
        description=options.get("description", summary),
        parameters=schema,
        effect=effect,
        is_concurrent=options.get("concurrent", True),
        may_differ=(rules,) if isinstance(rules, str) else tuple(rules),
        **given,
    )
    check_spec(spec, label)
    return spec


def _check_function(function: object) -> str:
    """Return the name of `function` for messages. Raises: `ConfigError` if it cannot be a tool."""
    label = _label_of(function)
    if not callable(function):
        raise ConfigError(f"{label} cannot be a tool: it is not a function")
    if isinstance(function, type):
        raise ConfigError(f"{label} cannot be a tool: it is a class; use a function or a bound method")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{label} cannot be a tool: it is a generator; return one value instead")
    return label


def _label_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return full_name_of(function) if hasattr(function, "__qualname__") else repr(function)


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _make_tool(function: Any, options: ToolOptions, frame: types.FrameType) -> FunctionTool[..., Any]:
    if isinstance(function, FunctionTool):
        return _make_tool(function._function, {**function._options, **options}, frame)
    return FunctionTool(function, options, _locals_for(function, frame))


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    )


def _is_unbound_method(function: Any) -> bool:
    """Return whether a function was written in a class body, so that its first parameter is the instance."""
    outer = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not inspect.isfunction(function) or not outer or outer.endswith("<locals>"):
        return False
    return next(iter(inspect.signature(function).parameters), None) == "self"


def _locals_for(function: Any, frame: types.FrameType) -> dict[str, Any]:
    """Return the local variables of the caller if `function` is defined inside it, else an empty dict."""
    is_local = "<locals>" in getattr(function, "__qualname__", "")
    is_here = getattr(function, "__globals__", None) is frame.f_globals
    return dict(frame.f_locals) if is_local and is_here else {}


def _to_text(name: str, value: object) -> str:
    """Return the text of a function's result. Raises: `ToolError` if it has none."""
    # Plain values skip pydantic. The texts are the same as pydantic's.
    kind = type(value)
    if value is None:
        return ""
    if kind is bool:
        return "true" if value else "false"
    if kind is int and -_MAX_PLAIN < cast("int", value) < _MAX_PLAIN:
        return str(value)
    if kind is float:
        text = repr(value)
        if text[-1].isdigit() and "e-" not in text:
            return text
    if isinstance(value, str):
        return str.__str__(value)
    kind_name = kind.__name__
    advice = "return a str, a number, a list, a dict, a dataclass or a pydantic model"
    if isinstance(value, bytes | bytearray | memoryview):
        raise ToolError(f"{name} returned {kind_name}, which has no text form; decode it, or {advice}")
    try:
        text = _to_json(value).decode()
    except (pydantic_core.PydanticSerializationError, RecursionError) as error:
        raise ToolError(
            f"{name} returned {kind_name}, which cannot be written as JSON ({error}); {advice}"
        ) from error
    # A date or an enum member becomes a JSON string; the model reads it without quotes.
    return cast("str", msgspec.json.decode(text)) if text.startswith('"') else text


def _to_json(value: object) -> bytes:
    if type(value) is not list or len(value) <= _PIECE_ITEMS:
        return pydantic_core.to_json(value, inf_nan_mode="strings", fallback=_from_struct)
    # In pieces, so that other threads run in between.
    pieces = [value[start : start + _PIECE_ITEMS] for start in range(0, len(value), _PIECE_ITEMS)]
    return b"[%b]" % b",".join([_to_json(piece)[1:-1] for piece in pieces])


def _from_struct(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise pydantic_core.PydanticSerializationError(f"no JSON form for {type(value).__qualname__}")
