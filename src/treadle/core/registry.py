"""Where names lead: what is loaded when it is first asked for, and nothing before."""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from treadle.core.errors import ConfigError


@cache
def load(reference: str) -> Any:
    """The object at `package.module:attribute`, imported now."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def require(module: str, extra: str) -> Any:
    """A module that an extra brings. Raises: `ConfigError` with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this needs {error.name}, which is not installed: pip install 'treadle[{extra}]'"
        ) from error


def load_name(package: str, name: str, where: Mapping[str, str]) -> Any:
    """For a module's `__getattr__`: `name` from the module that `where` gives for it."""
    if name not in where:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(where[name]), name)
