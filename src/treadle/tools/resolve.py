"""From what a user writes (tools, toolsets, functions, names, files) to the tools of an agent."""

import ast
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import load
from treadle.tools.function.function import as_tool, check_tool_name, is_tool
from treadle.tools.protocol import Tool, ToolLike

TOOLSETS = {
    "files": "treadle.tools.files:files",
    "shell": "treadle.tools.shell:shell",
    "shell-unprotected": "treadle.tools.shell:shell_unprotected",
    "python": "treadle.tools.python.tool:toolset",
}
"""Toolsets by name. Others come from entry points in the group `treadle.tools`; a name here wins."""

MAKERS = {
    "mcp": "treadle.tools.mcp:mcp",
    "mock": "treadle.tools.mock.mock:mock",
    "openapi": "treadle.tools.openapi:openapi",
    "spin": "treadle.tools.spin:spin",
}
"""Functions that make a toolset from the text behind the colon in `name:text`, as `mcp:npx some-server`."""

_FILE = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)
_REFERENCE = re.compile(r"([\w.]+):(\w+)")
_FORMS = "'name', 'name:text', 'package.module:attribute', 'path/to/file.py' or 'path/to/file.py:attribute'"


def resolve_tools(items: "Iterable[ToolLike] | ToolLike") -> tuple[Tool, ...]:
    """The tools of `items`, in order. A function becomes a tool of effect `once`.

    A text is the name of a toolset, `name:text` for one of `MAKERS`, `package.module:attribute`,
    `file.py:attribute`, or `file.py`: the tools and toolsets that the file defines (not those it imports), and
    its public functions if it has no others.
    Raises: `ConfigError` for what is no tool, cannot be loaded, has a name that providers refuse, or has
    the name of another.
    """
    found: dict[str, tuple[Tool, str]] = {}
    for tool, origin in _flatten(items, ""):
        name = tool.spec.name
        check_tool_name(name, origin)
        if name in found:
            raise ConfigError(f"two tools are called {name!r}: that of {found[name][1]} and that of {origin}")
        found[name] = (tool, origin)
    return tuple(tool for tool, _ in found.values())


def _flatten(item: Any, origin: str) -> Iterator[tuple[Tool, str]]:
    if isinstance(item, str):
        yield from _flatten(_load_text(item), repr(item))
    elif is_tool(item):
        yield item, _join_origin(origin, item)
    elif isinstance(item, type):
        raise ConfigError(f"{_join_origin(origin, item)} is a class; give an instance of it")
    elif callable(getattr(item, "tools", None)):
        yield from _flatten(tuple(item.tools()), origin or type(item).__qualname__)
    elif isinstance(item, Iterable):
        for part in item:
            yield from _flatten(part, origin)
    elif callable(item):
        yield as_tool(item), _join_origin(origin, item)
    else:
        where = f"{origin}: " if origin else ""
        raise ConfigError(f"{where}{item!r} is neither a tool, a toolset, a function nor a name")


def _join_origin(origin: str, item: Any) -> str:
    name = getattr(item, "__qualname__", type(item).__qualname__)
    own = f"{getattr(item, '__module__', '?')}.{name}"
    return f"{origin} ({own})" if origin else own


def _load_text(text: str) -> Any:
    maker, colon, rest = text.partition(":")
    if colon and maker in MAKERS:
        return load(MAKERS[maker])(rest)
    file = _FILE.fullmatch(text)
    if file:
        module = _load_file(Path(file[1]))
        return _attribute(module, file[2], text) if file[2] else _tools_of(module, text)
    reference = _REFERENCE.fullmatch(text)
    if reference:
        return _attribute(_import(reference[1], text), reference[2], text)
    return _load_name(text)


def _load_name(name: str) -> Any:
    if name in TOOLSETS:
        return load(TOOLSETS[name])
    points = {point.name: point for point in entry_points(group="treadle.tools")}
    if name not in points:
        known = [*sorted({*TOOLSETS, *points}), *[f"{maker}:" for maker in sorted(MAKERS)]]
        name = f"{name.partition(':')[0]}:" if ":" in name else name
        raise ConfigError(
            f"there is no toolset {name!r}{_did_you_mean(name, known)}; the toolsets are {', '.join(known)}. "
            f"Write {_FORMS}"
        )
    with _told(f"the toolset {name!r}", points[name].value):
        return points[name].load()


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        near = sorted(item.name for item in folder.glob("*.py")) if folder.is_dir() else None
        hint = _did_you_mean(path.name, near) if near is not None else f"; there is no folder {str(folder)!r}"
        raise ConfigError(f"there is no file {str(path)!r}{hint}")
    full = path.resolve()
    # The digest keeps files of one name in two folders apart, and names the same file the same again.
    name = f"treadle_file_{full.stem}_{hashlib.sha256(str(full).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _told(f"the file {str(path)!r}", str(full)), _on_path(full.parent, 0):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(name: str, text: str) -> ModuleType:
    with _told(f"the module of {text!r}", name), _on_path(Path.cwd(), len(sys.path)):
        return importlib.import_module(name)


@contextmanager
def _on_path(folder: Path, position: int) -> Iterator[None]:
    """Let imports look into `folder`, for as long as this lasts."""
    entry = str(folder)
    if entry in sys.path:
        yield
        return
    sys.path.insert(position, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


@contextmanager
def _told(what: str, source: str) -> Iterator[None]:
    """Turn whatever importing raises into a `ConfigError` that says where it happened."""
    try:
        yield
    except (Exception, SystemExit) as error:
        place = _place_of(error, source)
        raise ConfigError(f"cannot load {what}: {type(error).__name__}: {error}{place}") from error


def _place_of(error: BaseException, source: str) -> str:
    """The line of the user's code at which importing failed: the deepest one in the file that began it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    mine = [frame for frame in frames if frame.filename in (source, frames[0].filename)]
    return f" ({mine[-1].filename}, line {mine[-1].lineno})" if mine else ""


def _attribute(module: ModuleType, name: str, text: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        known = [item for item in vars(module) if not item.startswith("__")]
        raise ConfigError(f"{text!r}: there is no {name!r} in it{_did_you_mean(name, known)}") from None


def _tools_of(module: ModuleType, text: str) -> list[Any]:
    assert module.__file__ is not None
    imported = _imported_names(Path(module.__file__))
    own = {id(item): item for name, item in vars(module).items() if name not in imported}
    tools = [item for item in own.values() if _is_tool_or_toolset(item)]
    tools = tools or [item for item in own.values() if _is_public_function(item, module)]
    if not tools:
        raise ConfigError(
            f"{text!r} defines no tools; put @tool before a function in it, or add a public function"
        )
    return tools


def _is_tool_or_toolset(item: Any) -> bool:
    return is_tool(item) or (
        not isinstance(item, type | ModuleType) and callable(getattr(item, "tools", None))
    )


def _is_public_function(item: Any, module: ModuleType) -> bool:
    is_own = inspect.isfunction(item) and item.__module__ == module.__name__
    return is_own and not item.__name__.startswith("_")


def _imported_names(file: Path) -> set[str]:
    """The names that import statements bind at the level of the module."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(file.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
    return names


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(item) for item in near)}?" if near else ""
