"""`treadle mock`: models without a language model, over HTTP."""

import asyncio
from pathlib import Path

from treadle.cli.jobs.execute import execute
from treadle.cli.options.option_groups import FieldGroup, FieldOptions
from treadle.cli.terminal.output import flush, print_json, print_line, print_note, write_command
from treadle.testbed.engines import ENGINES, EngineKind, EngineSettings, export_tokenizer
from treadle.testbed.server import serve as serve_mock
from treadle.testbed.server.oracle_app import OracleApp


class ServerOptions(FieldGroup, frozen=True, kw_only=True):
    """The options for the behaviour of the server."""

    FIELDS = FieldOptions(EngineSettings, is_all=False)


def mock(
    host: str = "127.0.0.1",
    port: int = 8080,
    engine: EngineKind | None = None,
    tokenizer_folder: Path | None = None,
    is_json: bool = False,
    *,
    server: ServerOptions,
) -> None:
    """Serve models that need no key, to try tools, agents and clients with.

    The model 'oracle' solves the tasks of the task set 'files', and 'teacher' plays all roles in the generation of
    a dataset. Every other name is a model that makes a tool call for each line 'call NAME {json}' of a message,
    and repeats a message without such a line. A line 'then' begins the next step; 'say TEXT' gives the final
    answer. The server speaks OpenAI's chat completions. Ctrl-C stops it.

    With --engine the server is a mock of vLLM or SGLang: the same models on the endpoints of the engine, for token
    ids, logprobs and versions of the weights. Variants of a model are part of its name: +strip_thinking,
    +prefill_thinking, +sort_arguments, +canonical and +bytes.

    Without a server, use these models as --model mock:teacher and --model mock:echo.

    Examples:
        treadle mock --latency 0.02 --slow-latency 0.5 --slow-share 0.07 --failure-rate 0.3
        treadle mock --engine vllm --served-model oracle:0.3
    """
    settings = EngineSettings(**server.given)
    if tokenizer_folder is not None:
        export_tokenizer(settings.model, tokenizer_folder)

    async def work() -> None:
        app = OracleApp(settings) if engine is None else ENGINES[engine](settings)
        served = await serve_mock(host, port, app=app)
        try:
            _print_url(served.url, engine, settings.model, is_json=is_json)
            await asyncio.Event().wait()
        finally:
            await served.close()

    execute(work())


def _print_url(url: str, engine: EngineKind | None, model: str, *, is_json: bool) -> None:
    if is_json:
        print_json({"base_url": url})
        return
    print_line(url, "bold")
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
