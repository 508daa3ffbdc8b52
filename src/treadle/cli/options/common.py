"""Single options and arguments that several commands have, and the values that a shell completes for them.

A completion must be quick and must not print anything; if it fails, there are no completions.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from treadle.cli.options.option_groups import OptionGroup
from treadle.core.errors import ConfigError

_MAX_RUNS = 50


def _quietly(find: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        with suppress(Exception):
            return [value for value in find(incomplete) if value.startswith(incomplete)]
        return []

    return complete


def complete_run(ctx: Any, incomplete: str) -> list[str]:
    """Return the ids of the newest runs whose id begins with `incomplete`, and `last`."""
    from treadle.journal.registry import open_journal
    from treadle.journal.run_info import RunFilter

    address = ctx.params.get("journal") or os.environ.get("TREADLE_JOURNAL")
    with suppress(Exception), closing(open_journal(address, must_exist=True)) as journal:
        found = journal.runs(RunFilter(id_prefix=incomplete), limit=_MAX_RUNS, newest_first=True)
        return [name for name in ("last",) if name.startswith(incomplete)] + [info.run_id for info in found]
    return []


@_quietly
def complete_model(incomplete: str) -> Iterable[str]:
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
def complete_provider(incomplete: str) -> Iterable[str]:
    """Return the providers."""
    from treadle.models.config.presets import provider_names

    return provider_names()


@_quietly
def complete_toolset(incomplete: str) -> Iterable[str]:
    """Yield the names of toolsets, and the Python files of this folder."""
    from treadle.tools.resolve import TOOLSETS

    yield from TOOLSETS.names()
    for name in os.listdir():
        if name.endswith(".py"):
            yield name


@_quietly
def complete_format(incomplete: str) -> Iterable[str]:
    """Return the formats of `treadle export`."""
    return [*complete_row_format(""), "journal"]


@_quietly
def complete_row_format(incomplete: str) -> Iterable[str]:
    """Return the formats of rows."""
    from treadle.export import FORMATS

    return FORMATS.names()


_OUTPUT = "Output"


class Level(StrEnum):
    """The failures that a stored event survives."""

    PROCESS = "process"
    POWER = "power"


RunId: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id, the beginning of one, or 'last'.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
RunIds: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        help="Run ids, the beginnings of ids, or 'last'.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
Journal: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--journal",
        "-j",
        envvar="TREADLE_JOURNAL",
        metavar="PATH",
        help="The journal: a file, or the address of a store. Default: .treadle/runs.db.",
    ),
]
LevelOption: TypeAlias = Annotated[
    Level,
    typer.Option(
        "--level",
        help="What stored events survive: kill -9 (process) or also a power loss (power). A journal keeps power.",
    ),
]
NewRunId: TypeAlias = Annotated[
    str | None, typer.Option("--run-id", metavar="ID", help="The new run's id. Default: a generated one.")
]
Tools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        "-t",
        metavar="WHAT",
        autocompletion=complete_toolset,
        help="A toolset or function: files, python, shell, mcp:SERVER, openapi:FILE, spin:URL, mock:FILE, file.py, "
        "file.py:name or package.module:name. May be given several times; `treadle tools list` describes them.",
    ),
]
IsTrusted: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Use a run that comes from elsewhere, which may start programs and send keys. Without --trust, an "
        "error lists them.",
    ),
]
BaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="The address of the model's server, such as http://localhost:8000/v1.",
    ),
]
Renderer: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--renderer",
        metavar="NAME",
        help="Send token ids to vLLM or SGLang and get token ids back. A renderer makes them: chatml, hf:FOLDER (a "
        "tokenizer.json with its chat template), or family:NAME, such as family:qwen3.",
    ),
]
ApiKey: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="The API key. A variable such as OPENAI_API_KEY is safer, because other users can see a command line.",
    ),
]
_Mount: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--mount",
        metavar="DIR",
        help="A folder, or a file, to copy into the sandbox; it is never changed. Files that git ignores, keys, "
        "virtual environments and caches are left out. Without --tools, the tools are files.",
    ),
]
_MountAll: TypeAlias = Annotated[
    bool, typer.Option("--mount-all", help="With --mount: copy everything except journals.")
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="The file to write. Default: standard output."),
]
Instructions: TypeAlias = Annotated[
    str | None, typer.Option("--instructions", metavar="TEXT", help="The system message.")
]
ParallelRuns: TypeAlias = Annotated[
    int, typer.Option("--parallel-runs", metavar="N", min=1, help="How many runs are driven at a time.")
]
Host: TypeAlias = Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")]
Port: TypeAlias = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The port; 0 chooses a free one.")
]
IsForced: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]
IsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="Print JSON, one value per line.")
]
IsStreamJson: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=_OUTPUT,
        help="Print each event as a line of JSON, and a summary at the end.",
    ),
]
IsQuiet: TypeAlias = Annotated[
    bool,
    typer.Option("--quiet", "-q", rich_help_panel=_OUTPUT, help="Print only the result, and no progress."),
]


class MountOptions(OptionGroup, frozen=True, kw_only=True):
    """The options for files from the disk."""

    path: _Mount = None
    """The folder or file; `None` if none was given."""
    is_whole: _MountAll = False
    """True if nothing is left out."""

    def __post_init__(self) -> None:
        if self.is_whole and self.path is None:
            raise ConfigError("--mount-all goes with --mount DIR")


class ViewOptions(OptionGroup, frozen=True, kw_only=True):
    """The options about the output while a run is driven."""

    is_json: IsStreamJson = False
    """True if each event is printed as a line of JSON."""
    is_quiet: IsQuiet = False
    """True if only the answer is printed."""

    def __post_init__(self) -> None:
        if self.is_json and self.is_quiet:
            raise ConfigError("give --json or --quiet, not both")


DatasetPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FOLDER|FILE", help="The folder of a dataset, or a file of rows.")
]
DatasetFolder: TypeAlias = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a dataset.")]
Formats: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        "-f",
        metavar="NAME",
        autocompletion=complete_format,
        help="A format of rows, such as trl. May be given several times.",
    ),
]


def read_shares(text: str) -> dict[str, float]:
    """Return the splits in a text such as `train=0.9,test=0.1`. Raises: `ConfigError`."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            raise ConfigError(
                f"--splits {text!r}: {part!r} is not NAME=SHARE; write for example train=0.9,test=0.1"
            ) from None
    return shares
