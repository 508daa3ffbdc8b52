"""Objects that a text refers to: `package.module:attribute`, `file.py` and `file.py:attribute`."""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean


def load_file(path: Path) -> ModuleType:
    """Return the module that a file defines. The file is executed once per process. Raises: `ConfigError`."""
    if not path.is_file():
        folder = path.parent
        near = sorted(item.name for item in folder.glob("*.py")) if folder.is_dir() else None
        hint = did_you_mean(path.name, near) if near is not None else f"; there is no folder {str(folder)!r}"
        raise ConfigError(f"there is no file {str(path)!r}{hint}")
    full = path.resolve()
    # The digest tells files of the same name in two folders apart, and is the same for the same file.
    name = f"treadle_file_{full.stem}_{hashlib.sha256(str(full).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with told(f"the file {str(path)!r}", str(full)), _on_path(full.parent, 0):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_module(name: str, text: str) -> ModuleType:
    """Import a module, also from the current folder; errors quote `text`. Raises: `ConfigError`."""
    with told(f"the module of {text!r}", name), _on_path(Path.cwd(), len(sys.path)):
        return importlib.import_module(name)


@contextmanager
def _on_path(folder: Path, position: int) -> Iterator[None]:
    """Add `folder` to the import path within the `with` block."""
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
def told(what: str, source: str) -> Iterator[None]:
    """Turn every exception of an import in the `with` block into a `ConfigError` that says where it happened."""
    try:
        yield
    except (Exception, SystemExit) as error:
        place = _place_of(error, source)
        raise ConfigError(f"cannot load {what}: {type(error).__name__}: {error}{place}") from error


def _place_of(error: BaseException, source: str) -> str:
    """Return the line of the user's code at which an import failed: the deepest one in the file that started it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    mine = [frame for frame in frames if frame.filename in (source, frames[0].filename)]
    return f" ({mine[-1].filename}, line {mine[-1].lineno})" if mine else ""


def load_function(reference: str, takes: str) -> Callable[..., Any]:
    """Return the function at `package.module:function` or `file.py:function`. `takes` says in an error what it must
    take. Raises: `ConfigError`."""
    found = load_reference(reference)
    if not callable(found):
        raise ConfigError(f"{reference!r} is {found!r:.100}; name a function that takes {takes}")
    return found  # type: ignore[no-any-return]


def load_reference(reference: str) -> Any:
    """Return the object at `package.module:attribute` or `file.py:attribute`. Raises: `ConfigError`."""
    place, _, attribute = reference.rpartition(":")
    module = load_file(Path(place)) if place.endswith(".py") else load_module(place, reference)
    return attribute_of(module, attribute, reference)


def attribute_of(module: ModuleType, name: str, text: str) -> Any:
    """Return an attribute; errors quote `text`. Raises: `ConfigError` with the nearest names."""
    try:
        return getattr(module, name)
    except AttributeError:
        known = [item for item in vars(module) if not item.startswith("__")]
        raise ConfigError(f"{text!r}: there is no {name!r} in it{did_you_mean(name, known)}") from None


def tools_of(module: ModuleType, text: str, is_tool: Callable[[object], bool]) -> list[Any]:
    """Return the tools and toolsets that a module defines, or its public functions if it defines none.

    What the module imports does not count. Raises: `ConfigError` if there is nothing.
    """
    assert module.__file__ is not None
    imported = _imported_names(Path(module.__file__))
    own = {id(item): item for name, item in vars(module).items() if name not in imported}
    tools = [item for item in own.values() if is_tool(item) or _is_toolset(item)]
    tools = tools or [item for item in own.values() if _is_public_function(item, module)]
    if not tools:
        raise ConfigError(
            f"{text!r} defines no tools; put @tool before a function in it, or add a public function"
        )
    return tools


def _is_toolset(item: Any) -> bool:
    return not isinstance(item, type | ModuleType) and callable(getattr(item, "tools", None))


def _is_public_function(item: Any, module: ModuleType) -> bool:
    is_own = inspect.isfunction(item) and item.__module__ == module.__name__
    return is_own and not item.__name__.startswith("_")


def _imported_names(file: Path) -> set[str]:
    """Return the names that import statements bind at the top level of the module."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(file.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
    return names
