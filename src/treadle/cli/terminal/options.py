"""The options that several commands share. Nothing here loads more than typer."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_MODEL = "Model and limits"
_OUTPUT = "Output"


class Level(StrEnum):
    """What a kept event survives."""

    PROCESS = "process"
    POWER = "power"


Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        envvar="TREADLE_MODEL",
        metavar="NAME",
        help="Such as openai:gpt-5-mini. 'oracle' solves the tasks of a task set, offline.",
    ),
]
BaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="A server that speaks OpenAI's chat completions, as http://localhost:8000/v1.",
    ),
]
ApiKey: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="Better kept in the environment, as OPENAI_API_KEY: other users can see a command line.",
    ),
]
Tools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        "-t",
        metavar="WHAT",
        help="files, python, shell, mcp:SERVER, openapi:FILE, spin:URL, mock:FILE, file.py, file.py:name or "
        "package.module:name. May be given several times; treadle tools list has all.",
    ),
]
Temperature: TypeAlias = Annotated[
    float | None, typer.Option("--temperature", metavar="T", rich_help_panel=_MODEL)
]
MaxOutputTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-output-tokens", metavar="N", rich_help_panel=_MODEL, help="Tokens of one answer of the model."
    ),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", rich_help_panel=_MODEL, help="Sampling seed, sent to the model."),
]
MaxSteps: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-steps", metavar="N", rich_help_panel=_MODEL, help="Inferences with tools. 50 unless given."
    ),
]
MaxTokens: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-tokens", metavar="N", rich_help_panel=_MODEL, help="Input and output tokens."),
]
MaxToolCalls: TypeAlias = Annotated[
    int | None, typer.Option("--max-tool-calls", metavar="N", rich_help_panel=_MODEL)
]
MaxCost: TypeAlias = Annotated[
    float | None, typer.Option("--max-cost", metavar="USD", rich_help_panel=_MODEL)
]
Deadline: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--deadline", metavar="SECONDS", rich_help_panel=_MODEL, help="Time at work, without pauses."
    ),
]
Parallel: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--parallel",
        metavar="N",
        rich_help_panel=_MODEL,
        help="Tool calls of one step that run at a time. 8 unless given.",
    ),
]
ParallelRuns: TypeAlias = Annotated[
    int, typer.Option("--parallel-runs", metavar="N", min=1, help="Runs in flight at a time.")
]
Approve: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--approve",
        metavar="RULE",
        rich_help_panel=_MODEL,
        help="'ask', 'never' or 'always' for calls that cannot be undone, or 'WHAT=ask' with a tool, a pattern "
        "or an effect (pure, idempotent, once). Asks on the terminal; without one the run waits for "
        "`treadle approve`.",
    ),
]
ToolLimit: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tool-limit",
        metavar="TOOL:calls=N",
        rich_help_panel=_MODEL,
        help="Also concurrent=N and chars=N, with commas between. TOOL may be a pattern as 'web_*'.",
    ),
]
Journal: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        "-j",
        envvar="TREADLE_JOURNAL",
        metavar="PATH",
        help="Where runs are kept. .treadle/runs.db unless given.",
    ),
]
LevelOption: TypeAlias = Annotated[
    Level,
    typer.Option("--level", help="What a kept event survives: kill -9, or a loss of power."),
]
IsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="JSON, one value a line.")
]
IsStreamJson: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json", rich_help_panel=_OUTPUT, help="Each event as a JSON line, and a summary as the last."
    ),
]
IsQuiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=_OUTPUT, help="Only the answer.")
]
RunId: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, its beginning, or 'last'.", show_default=False)
]
