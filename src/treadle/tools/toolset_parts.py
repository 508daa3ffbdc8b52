"""The parts that describe an agent's tools in the journal: names and settings from which tools are made again.

A part contains no secrets, only references to environment variables. If a tool cannot be made again from its part,
the part says why.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.http.locks import new_reentrant_lock
from treadle.journal.named_files import suggest_path
from treadle.tools.user_code import describe_error


def check_file(path: Path) -> None:
    """Check that there is a file to import. Raises: `ConfigError`."""
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}{suggest_path(path)}")


def load_file(path: Path) -> ModuleType:
    """Return the module that a file defines. The file is executed once per process. Raises: `ConfigError`."""
    check_file(path)
    full = path.resolve()
    # The digest tells files of the same name in two folders apart, and is the same for the same file.
    name = f"{_FILE_MODULE}{full.stem}_{hashlib.sha256(str(full).encode()).hexdigest()[:12]}"
    with _EXECUTING:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, full)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with told(f"the file {str(path)!r}"), _on_path(full.parent, 0):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def forget_files() -> None:
    """Let files be executed anew when they are loaded next, because their mistakes may be mended by then."""
    for name in [name for name in sys.modules if name.startswith(_FILE_MODULE)]:
        del sys.modules[name]


def load_module(name: str, text: str) -> ModuleType:
    """Import a module, also from the current folder; errors quote `text`. Raises: `ConfigError`."""
    with _EXECUTING, told(f"the module of {text!r}"), _on_path(Path.cwd(), len(sys.path)):
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
def told(what: str) -> Iterator[None]:
    """Turn every exception of an import in the `with` block into a `ConfigError` that says where it happened."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ConfigError(f"cannot load {what}: {describe_error(error)}") from error


def refuse_async(function: Any, what: str) -> None:
    """Raises: `ConfigError` if `function`, which makes an object, is an async function."""
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{what} is an async function; give one without async")


def load_function(given: str | Callable[..., Any], takes: str) -> Callable[..., Any]:
    """Return a function, or the one at `package.module:function` or `file.py:function`.

    Raises: `ConfigError` if there is none, or if it cannot be called with one argument, which `takes` describes.
    """
    found = load_reference(given) if isinstance(given, str) else given
    if not callable(found):
        raise ConfigError(f"{given!r} is {found!r:.100}; name a function that takes {takes}")
    try:
        inspect.signature(found).bind(None)
    except ValueError:
        pass  # a function of C that does not tell its parameters
    except TypeError as error:
        named = given if isinstance(given, str) else getattr(found, "__name__", found)
        raise ConfigError(f"{named!r} cannot be called with one argument, {takes}: {error}") from None
    return found


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


OBJECT = "it is an object of the program"
SECRET = "its text may hold a secret"

_SECRET = re.compile(
    r"://[^/\s]*@"
    r"|[?&][^=\s&]+="
    r"|(?:^|[\s:])\w+=(?!\$\{)\S"
    r"|(?<![\w-])--?[\w-]*(?:key|token|secret|password|passwd|credential|auth(?![a-z]))[\w-]*[=\s,\"']++(?!\$\{|-)\S"
    r"|https?://\S*/(?=[^/\s?#.]*\d)[^/\s?#.]{20,}(?![^/\s?#])"
    r"|\"(?:env|headers)\"\s*:",
    re.IGNORECASE,
)
"""A user or a query in a URL, a part of its path that looks like a key, an assignment to an environment variable or
an option such as `--api-key` (unless its value is `${NAME}`), or the `env` or `headers` of an MCP server."""
REFERENCE_TO_VARIABLE = re.compile(r"(?:[A-Za-z]{1,16} )?\$\{(?:env:)?\w+\}")
"""A variable of the environment, as in `${TOKEN}` or `Bearer ${TOKEN}`."""
_PRIVATE = ("env", "headers")
_PLACES = ("command", "args", "url", "base_url", "document", "address")
"""The settings whose texts are commands and addresses, which may hold secrets."""
_SECRET_KEY = re.compile(
    r"(?:^|_)(?:api_?key|token|secret|password|passwd|credentials?|authorization)$", re.IGNORECASE
)
_FILE_MODULE = "treadle_file_"
"""The beginning of the names of modules that were loaded from a file."""
_EXECUTING = new_reentrant_lock()
"""Held while a user's file or module is loaded, so that no other thread gets one without all its names, or takes
its folder out of the import path. A file that loads another one has the lock already."""


def full_name_of(item: object) -> str:
    """Return the name of a function, a class or an object's class, with its module unless that is a file."""
    name = getattr(item, "__qualname__", type(item).__qualname__)
    module = getattr(item, "__module__", "?")
    return str(name) if module.startswith(_FILE_MODULE) else f"{module}.{name}"


def may_hold_secret(text: str) -> bool:
    """Return whether the text that names a toolset, such as `mcp:...`, may hold a password or a key."""
    return ":" in text and _SECRET.search(text) is not None


def without_secrets(part: PartSpec) -> PartSpec:
    """Return `part` as it may be recorded: without settings and text that may hold a secret."""
    if part.missing is not None:
        return part
    if may_hold_secret(part.name):
        return PartSpec(name=f"{part.name.partition(':')[0]}:", missing=SECRET)
    key = _find_secret(part.settings or {})
    if key is None:
        return part
    why = f"its setting {key!r} may hold a secret; write it as ${{NAME}}, with the name of a variable"
    return PartSpec(name=part.name, missing=why)


def _find_secret(value: Json, key: str = "", *, is_private: bool = False) -> str | None:
    """Return the key of a setting that may hold a secret, or `None`. All values of `env` and `headers` may."""
    if isinstance(value, dict):
        inner = [
            _find_secret(item, name, is_private=is_private or name in _PRIVATE)
            for name, item in value.items()
        ]
        return next((found for found in inner if found is not None), None)
    if isinstance(value, list):
        text = " ".join([item for item in value if isinstance(item, str)])
        inner = [_find_secret(item, key, is_private=is_private) for item in (*value, text)]
        return next((found for found in inner if found is not None), None)
    if not isinstance(value, str) or not value or REFERENCE_TO_VARIABLE.fullmatch(value):
        return None
    if is_private or _SECRET_KEY.search(key):
        return key
    return key if key in _PLACES and may_hold_secret(f"part:{value}") else None


def settings_of(factory: Callable[..., object], given: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return the settings in `given` that differ from the defaults of `factory`; `None` if there are none.

    `given` may be what `locals` returns at the beginning of a constructor: other names and parameters without a
    default are left out. Settings are JSON, which has lists and no tuples.
    """
    defaults = {key: item.default for key, item in inspect.signature(factory).parameters.items()}
    optional = [
        key for key in given if defaults.get(key, inspect.Parameter.empty) is not inspect.Parameter.empty
    ]
    plain: dict[str, Json] = _to_json({key: given[key] for key in optional})
    usual = _to_json({key: defaults[key] for key in optional})
    return {key: value for key, value in plain.items() if value != usual[key]} or None


def _to_json(values: dict[str, Any]) -> dict[str, Json]:
    def convert(value: Any) -> object:
        return dict(value) if isinstance(value, Mapping) else list(value)

    found: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(values, enc_hook=convert))
    return found


def reference_of(item: object) -> PartSpec:
    """Return the part of an object that a module defines at its top level: `package.module:name`.

    An object from a file loaded as `path/to/file.py` gets the path in place of the module.
    """
    own = item if hasattr(item, "__qualname__") else type(item)
    module_name = str(getattr(own, "__module__", None) or "?")
    module = sys.modules.get(module_name)
    names = [] if module is None else [name for name, value in vars(module).items() if value is item]
    name = names[0] if names else str(getattr(item, "__qualname__", type(item).__qualname__))
    part = f"{module_name}:{name}"
    if module is not None and module_name.startswith(_FILE_MODULE):
        part = f"{module.__file__}:{name}"
    return PartSpec(name=part, missing=_find_obstacle(item, module, module_name, name))


def _find_obstacle(item: Any, module: ModuleType | None, module_name: str, name: str) -> str | None:
    """Return why loading `module_name:name` in another process would not give `item`."""
    if module_name == "__main__":
        return "it is defined in __main__; move it to a module that can be imported"
    if "<locals>" in name:
        return "it is defined within a function; move it to the top level of a module"
    if module is None or getattr(module, "__spec__", None) is None:
        return "its module cannot be imported"
    return None if getattr(module, name, None) is item else OBJECT
