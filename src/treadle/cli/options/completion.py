"""The values that a shell completes for options and arguments.

A completion must be quick and must not print anything; if it fails, there are no completions.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import isfunction
from typing import Any

from treadle.core.registry import load

_MAX_RUNS = 50


def _quietly(find: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        with suppress(Exception):
            return [value for value in find(incomplete) if value.startswith(incomplete)]
        return []

    return complete


def _complete_run(ctx: Any, incomplete: str) -> list[str]:
    """Return the ids of the newest runs whose id begins with `incomplete`, and `last`."""
    from treadle.journal.registry import open_journal
    from treadle.journal.run_info import RunFilter

    address = ctx.params.get("journal") or os.environ.get("TREADLE_JOURNAL")
    with suppress(Exception), open_journal(address, must_exist=True) as journal:
        found = journal.runs(RunFilter(id_prefix=incomplete), limit=_MAX_RUNS, newest_first=True)
        return [name for name in ("last",) if name.startswith(incomplete)] + [info.run_id for info in found]
    return []


@_quietly
def _complete_model(incomplete: str) -> Iterable[str]:
    """Yield the models of treadle.toml, and the providers with a colon."""
    from treadle.models.config.bare import providers
    from treadle.models.config.recipe import load_config

    with suppress(Exception):
        file = load_config().file
        yield from file.models
        yield from ["auto", *[f"tier:{name}" for name in file.tiers]] if file.tiers else ()
    yield "oracle"
    for name in providers():
        yield f"{name}:"


@_quietly
def _complete_toolset(incomplete: str) -> Iterable[str]:
    """Yield the names of toolsets, and the Python files of this folder."""
    from treadle.tools.resolve import TOOLSETS

    yield from TOOLSETS.names()
    for name in os.listdir():
        if name.endswith(".py"):
            yield name


def _complete_names(*references: str) -> Callable[[str], list[str]]:
    """Return a completer of names and of those in registries, enums and functions (`module:attribute`)."""

    @_quietly
    def complete(incomplete: str) -> Iterable[str]:
        for reference in references:
            found = load(reference) if ":" in reference else (reference,)
            yield from found.names() if hasattr(found, "names") else found() if isfunction(found) else found

    return complete


_ROW_FORMATS = ("treadle.export:FORMATS",)
COMPLETERS: Mapping[str, Callable[..., list[str]]] = {
    "run": _complete_run,
    "model": _complete_model,
    "provider": _complete_names("treadle.models.config.presets:provider_names"),
    "toolset": _complete_toolset,
    "format": _complete_names(*_ROW_FORMATS, "treadle.export.token_exporter:TOKEN_FORMATS", "journal"),
    "row_format": _complete_names(*_ROW_FORMATS),
    "failure": _complete_names("treadle.testbed.server:FailureMode"),
}
"""The completers by the word that `options.txt` has for them."""
