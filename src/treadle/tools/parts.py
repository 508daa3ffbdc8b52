"""The parts that describe an agent's tools in the journal: names and settings for making the tools again.

A part contains no secrets. If a tool cannot be made again from its part, the part says why.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from treadle.core.spec import PartSpec
from treadle.core.types import Json

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


def may_hold_secret(text: str) -> bool:
    """Return whether the text that names a toolset, such as `mcp:...`, may hold a password or a key."""
    return ":" in text and _SECRET.search(text) is not None


def without_secrets(part: PartSpec) -> PartSpec:
    """Return `part` as it may be recorded: without its settings and its text if they may hold a secret."""
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
    """Return the settings in `given` that differ from the defaults of `factory`; `None` if there are none."""
    parameters = inspect.signature(factory).parameters
    defaults = {key: parameters[key].default for key in given}
    # Settings are JSON, which has lists and no tuples.
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}
    return {key: value for key, value in given.items() if value != plain[key]} or None


def reference_of(item: object) -> PartSpec:
    """Return the part of an object that a module defines at its top level: `package.module:name`.

    An object from a file loaded as `path/to/file.py` gets the path in place of the module.
    """
    own = item if hasattr(item, "__qualname__") else type(item)
    module_name = str(getattr(own, "__module__", None) or "?")
    module = sys.modules.get(module_name)
    name = _name_in(module, item) or str(getattr(item, "__qualname__", type(item).__qualname__))
    part = f"{module_name}:{name}"
    if module is not None and module_name.startswith(_FILE_MODULE):
        part = f"{module.__file__}:{name}"
    return PartSpec(name=part, missing=_find_obstacle(item, module, module_name, name))


def _name_in(module: ModuleType | None, item: object) -> str | None:
    """Return the name of a global variable of `module` that holds `item`."""
    found = (name for name, value in vars(module).items() if value is item) if module is not None else ()
    return next(iter(found), None)


def _find_obstacle(item: Any, module: ModuleType | None, module_name: str, name: str) -> str | None:
    """Return why loading `module_name:name` in another process would not give `item`."""
    if module_name == "__main__":
        return "it is defined in __main__; move it to a module that can be imported"
    if "<locals>" in name:
        return "it is defined within a function; move it to the top level of a module"
    if module is None or getattr(module, "__spec__", None) is None:
        return "its module cannot be imported"
    return None if getattr(module, name, None) is item else OBJECT
