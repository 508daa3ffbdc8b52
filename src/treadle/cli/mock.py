"""`treadle mock`: a server in place of a model's, for trying things without a key."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import call_at_end_of_stdin, execute
from treadle.cli.options import shared as o
from treadle.cli.options.signature import FieldOptions, Row
from treadle.cli.terminal.output import flush, print_json, print_note, stdout, write_command
from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.testbed.engines import ENGINES, EngineKind, EngineSettings, export_tokenizer
from treadle.testbed.server import FailureMode, serve
from treadle.testbed.server.oracle_app import OracleApp

EXAMPLES = (
    "treadle mock --latency 0.02 --slow-latency 0.5 --slow-share 0.07 --failure-rate 0.3",
    "treadle mock --engine vllm --served-model oracle:0.3",
)

_ENGINE = "Engine"


def _read_failures(names: Sequence[str]) -> tuple[FailureMode, ...]:
    """Return the kinds of failures with these names. Raises: `ConfigError`."""
    for name in names:
        if name not in list(FailureMode):
            hint = did_you_mean(name, list(FailureMode)) or ";"
            raise ConfigError(
                f"there is no --failure-kind {name!r}{hint} the kinds are {', '.join(FailureMode)}"
            )
    return tuple(map(FailureMode, names))


def _rate(help: str) -> Row:
    return Row(f"{help}, from 0 to 1.", metavar="RATE", least=0, most=1)


_SERVER = FieldOptions(
    EngineSettings,
    {
        "mistake_rate": _rate("How often a step of the oracle or the teacher is a mistake"),
        "latency_seconds": Row("The time before each answer.", least=0),
        "slow_latency_seconds": Row("The time before a slow answer.", least=0),
        "slow_share": _rate("How many answers are slow"),
        "chunk_seconds": Row(
            "The time between the pieces of a streamed answer.", ("--chunk-delay",), least=0
        ),
        "failure_rate": _rate("How often the server fails instead of answering"),
        "failure_kinds": Row(
            f"How the server fails: {', '.join(FailureMode)}. May be repeated. Default: rate_limit (429) and "
            "overloaded (503).",
            ("--failure-kind",),
            "KIND",
            read=_read_failures,
        ),
        "stall_seconds": Row("How long a stalled request waits before it is dropped.", least=0),
    },
    None,
    is_all=False,
)
_SAMPLING = FieldOptions(
    EngineSettings,
    {
        "model": Row(
            "The model for requests that name none, such as oracle:0.2+strip_thinking. Default: oracle.",
            ("--served-model",),
            "NAME",
        ),
        "cut_rate": _rate("How often an answer ends early, as if it had reached its limit"),
        "abort_rate": _rate("How often the engine aborts an answer in the middle"),
        "latency_tail": Row(
            "Make the latency heavy-tailed: a Pareto distribution with this exponent, above 1.",
            metavar="EXPONENT",
        ),
    },
    _ENGINE,
    is_all=False,
)


class ServerOptions(Struct, frozen=True):
    """The options for the behaviour of the server."""

    settings: EngineSettings

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """See `OptionGroup.parameters`."""
        return [*_SERVER.parameters(), *_SAMPLING.parameters()]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """See `OptionGroup.from_values`."""
        return cls(EngineSettings(**_SERVER.read(values), **_SAMPLING.read(values)))


def mock(
    host: o.Host = "127.0.0.1",
    port: o.Port = 8080,
    engine: Annotated[
        EngineKind | None,
        typer.Option(
            "--engine",
            help="Serve the endpoints of an engine, with the ids and logprobs of what it samples.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    tokenizer_folder: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer-folder",
            metavar="FOLDER",
            help="Write the tokenizer and the chat template of the served model there, for --renderer hf:FOLDER.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    is_json: o.IsJson = False,
    ends_with_stdin: Annotated[
        bool, typer.Option("--ends-with-stdin", hidden=True, help="Stop when standard input ends.")
    ] = False,
    *,
    server: ServerOptions,
) -> int:
    """Serve models that need no key, to try tools, agents and clients with.

    The model 'oracle' solves the tasks of the task set 'files', and 'teacher' plays all roles in the generation of
    a dataset. Every other name is a model that makes a tool call for each line 'call NAME {json}' of a message,
    and repeats a message without such a line. A line 'then' begins the next step; 'say TEXT' gives the final
    answer. The server speaks OpenAI's chat completions. Ctrl-C stops it.

    With --engine the server is a mock of vLLM or SGLang: the same models on the endpoints of the engine, for token
    ids, logprobs and versions of the weights. Variants of a model are part of its name: +strip_thinking,
    +prefill_thinking, +sort_arguments, +canonical and +bytes.

    Without a server, use these models as --model mock:teacher and --model mock:echo.
    """
    settings = server.settings
    if tokenizer_folder is not None:
        export_tokenizer(settings.model, tokenizer_folder)

    async def work() -> None:
        app = OracleApp(settings) if engine is None else ENGINES[engine](settings)
        served = await serve(host, port, app=app)
        try:
            _print_url(served.url, engine, settings.model, is_json=is_json)
            stopped = asyncio.Event()
            if ends_with_stdin:
                call_at_end_of_stdin(asyncio.get_running_loop(), stopped.set)
            await stopped.wait()
        finally:
            await served.close()

    execute(work())
    return ExitCode.DONE


def _print_url(url: str, engine: EngineKind | None, model: str, *, is_json: bool) -> None:
    if is_json:
        print_json({"base_url": url})
        return
    stdout().print(url, style="bold")
    flush()
    commands = [
        write_command("run", task="files:csv_sum-0001", model=f"{engine or 'openai'}:{model}", base_url=url)
    ]
    if engine is None:
        commands.insert(
            0, write_command("run", "call list_files", tools="files", model="openai:echo", base_url=url)
        )
    for command in commands:
        print_note(f"try: {command}")
    print_note("Ctrl-C stops the server")
