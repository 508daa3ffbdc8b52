"""A stand-in for torchvision, whose builds are for CUDA. SGLang imports it for images, which no test sends."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__path__: list[str] = []
__version__ = "0.0"


class _Names(type):
    """A class whose attributes are their own names, such as the members of an enum."""

    def __getattr__(cls, name: str) -> str:
        return _public(name)


class _Part(ModuleType):
    """A module in which everything is there: classes, and further modules."""

    def __getattr__(self, name: str) -> Any:
        made = _Names(_public(name), (), {}) if name[0].isupper() else _find(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder:
    """The importer of what is below `torchvision`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _find(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""


def _public(name: str) -> str:
    if name.startswith("__"):
        raise AttributeError(name)
    return name


def _find(name: str) -> ModuleType:
    found = sys.modules.get(name)
    if found is None:
        found = sys.modules[name] = _Part(name)
        found.__path__ = []  # type: ignore[attr-defined]
        found.__spec__ = ModuleSpec(name, _Finder(), is_package=True)  # type: ignore[arg-type]
    return found


def __getattr__(name: str) -> Any:
    return _find(f"torchvision.{_public(name)}")


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
