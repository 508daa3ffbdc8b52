"""`treadle mock`: a model's server that needs no model."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle mock --port 8080",
    "treadle mock --mistake-rate 0.2 --latency 0.5 --failure-rate 0.05",
)


def mock(
    host: Annotated[str, typer.Option(metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 picks a free one.")] = 8080,
    mistake_rate: Annotated[
        float, typer.Option(metavar="RATE", help="How often a step of the model is a mistake, from 0 to 1.")
    ] = 0.0,
    latency: Annotated[float, typer.Option(metavar="SECONDS", help="Before each answer.")] = 0.0,
    failure_rate: Annotated[
        float, typer.Option(metavar="RATE", help="How often the server answers 429 or 503, from 0 to 1.")
    ] = 0.0,
    is_json: o.IsJson = False,
    ends_with_stdin: Annotated[
        bool, typer.Option("--ends-with-stdin", hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Serve the oracle of the task set files as a server that speaks OpenAI's chat completions."""
    from treadle.cli.mock_server import serve_until_stopped
    from treadle.teacher.server import ServerSettings

    settings = ServerSettings(mistake_rate=mistake_rate, latency_seconds=latency, failure_rate=failure_rate)
    serve_until_stopped(host, port, settings, is_json=is_json, ends_with_stdin=ends_with_stdin)
