"""`treadle mock`: a server in place of a model's, for trying things without a key."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import flush, print_json, print_note, stdout, write_command
from treadle.cli.work.execute import call_at_end_of_stdin, execute
from treadle.teacher.engine import ENGINES, EngineKind, EngineSettings, export_tokenizer
from treadle.teacher.server import Failure, serve
from treadle.teacher.server.app import OracleApp

EXAMPLES = (
    "treadle mock --latency 0.02 --slow-latency 0.5 --slow-share 0.07 --failure-rate 0.3",
    "treadle mock --engine vllm --served-model oracle:0.3",
)

_ENGINE = "Engine"


def mock(
    host: o.Host = "127.0.0.1",
    port: o.Port = 8080,
    mistake_rate: Annotated[
        float,
        typer.Option(
            "--mistake-rate",
            metavar="RATE",
            min=0,
            max=1,
            help="How often a step of the oracle or the teacher is a mistake, from 0 to 1.",
        ),
    ] = 0.0,
    latency: Annotated[
        float, typer.Option("--latency", metavar="SECONDS", min=0, help="The time before each answer.")
    ] = 0.0,
    slow_latency: Annotated[
        float,
        typer.Option("--slow-latency", metavar="SECONDS", min=0, help="The time before a slow answer."),
    ] = 0.0,
    slow_share: Annotated[
        float,
        typer.Option(
            "--slow-share", metavar="RATE", min=0, max=1, help="How many answers are slow, from 0 to 1."
        ),
    ] = 0.0,
    chunk_delay: Annotated[
        float,
        typer.Option(
            "--chunk-delay",
            metavar="SECONDS",
            min=0,
            help="The time between the pieces of a streamed answer.",
        ),
    ] = 0.0,
    failure_rate: Annotated[
        float,
        typer.Option(
            "--failure-rate",
            metavar="RATE",
            min=0,
            max=1,
            help="How often the server fails instead of answering, from 0 to 1.",
        ),
    ] = 0.0,
    failure_kinds: Annotated[
        list[Failure] | None,
        typer.Option(
            "--failure-kind",
            help="How the server fails; may be repeated. Default: rate_limit (429) and overloaded (503).",
        ),
    ] = None,
    stall: Annotated[
        float,
        typer.Option(
            "--stall", metavar="SECONDS", min=0, help="How long a stalled request waits before it is dropped."
        ),
    ] = 60.0,
    engine: Annotated[
        EngineKind | None,
        typer.Option(
            "--engine",
            help="Serve the endpoints of an engine, with the ids and logprobs of what it samples.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--served-model",
            metavar="NAME",
            help="The model for requests that name none, such as oracle:0.2+strip_thinking.",
            rich_help_panel=_ENGINE,
        ),
    ] = "oracle",
    cut_rate: Annotated[
        float,
        typer.Option(
            "--cut-rate",
            metavar="RATE",
            min=0,
            max=1,
            help="How often an answer ends early, as if it had reached its limit, from 0 to 1.",
            rich_help_panel=_ENGINE,
        ),
    ] = 0.0,
    abort_rate: Annotated[
        float,
        typer.Option(
            "--abort-rate",
            metavar="RATE",
            min=0,
            max=1,
            help="How often the engine aborts an answer in the middle, from 0 to 1.",
            rich_help_panel=_ENGINE,
        ),
    ] = 0.0,
    latency_tail: Annotated[
        float,
        typer.Option(
            "--latency-tail",
            metavar="EXPONENT",
            help="Make the latency heavy-tailed: a Pareto distribution with this exponent, above 1.",
            rich_help_panel=_ENGINE,
        ),
    ] = 0.0,
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
    settings = EngineSettings(
        model=model,
        cut_rate=cut_rate,
        abort_rate=abort_rate,
        latency_tail=latency_tail,
        mistake_rate=mistake_rate,
        latency_seconds=latency,
        chunk_seconds=chunk_delay,
        failure_rate=failure_rate,
        slow_latency_seconds=slow_latency,
        slow_share=slow_share,
        failure_kinds=tuple(failure_kinds or (Failure.RATE_LIMIT, Failure.OVERLOADED)),
        stall_seconds=stall,
    )

    if tokenizer_folder is not None:
        export_tokenizer(model, tokenizer_folder)

    async def work() -> None:
        app = OracleApp(settings) if engine is None else ENGINES[engine](settings)
        server = await serve(host, port, app=app)
        try:
            _print_url(server.url, engine, model, is_json=is_json)
            stopped = asyncio.Event()
            if ends_with_stdin:
                call_at_end_of_stdin(asyncio.get_running_loop(), stopped.set)
            await stopped.wait()
        finally:
            await server.close()

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
