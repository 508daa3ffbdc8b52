"""A stand-in for the kernels of SGLang, which have no build for this CPU. It imports them and calls none."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _refuse


def _refuse(*arguments: object, **options: object) -> None:
    raise NotImplementedError("this environment has none of SGLang's kernels")
